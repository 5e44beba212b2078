"""What happens when another process of a training dies: this one says so in a line, and ends."""

from __future__ import annotations

import re
import threading
import time
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback
from torch.distributed import DistError

from kernelseed.errors import StoppedError

LOST = re.compile(r"gloo|Connection (reset|closed)|Broken pipe|remote (worker|process)", re.IGNORECASE)
"""What gloo, which has no exception of its own, says when a process is gone."""
OBSERVER = "child-process-observer"
"""The name of the thread by which Lightning kills a training of which a process has died."""
GRACE = 20.0
"""Seconds in which the other processes can say so; one that hangs in a collective operation is killed after them."""


def stopped(error: Exception, processes: int, run: Path) -> StoppedError | None:
    """What to say if it was another process that was lost."""
    if processes == 1 or not (isinstance(error, DistError) or LOST.search(str(error))):
        return None
    return StoppedError(
        f"another of the {processes} processes of this training has stopped; what is stored is whole. Look for what "
        f"stopped it, and go on with kernelseed train --resume --out {run}."
    )


class TimeToSpeak(Callback):
    """Lightning looks every five seconds for a process that has died, and kills the others at once: too soon."""

    def on_fit_start(self, *given: Any) -> None:
        """Have it wait before it does."""
        for thread in threading.enumerate():
            kill = getattr(thread, "_terminate_all", None)
            if thread.name == OBSERVER and kill is not None:

                def later(kill: Any = kill) -> None:
                    time.sleep(GRACE)
                    kill()

                thread._terminate_all = later  # type: ignore[attr-defined]
