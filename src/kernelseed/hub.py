"""Share a network on the Hugging Face hub.

ks.hub.Pretrained(net).push_to_hub("me/my-network")
net = ks.hub.Pretrained.from_pretrained("me/my-network").net
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from huggingface_hub import ModelHubMixin, snapshot_download
from torch import nn

from kernelseed.core import WeightDistribution, load, save


class Pretrained(ModelHubMixin, library_name="kernelseed", tags=["kernelseed", "bayesian-deep-learning"]):
    """A network with `save_pretrained`, `from_pretrained` and `push_to_hub`; the files are those of `ks.save`."""

    def __init__(self, net: nn.Module) -> None:
        self.net = net

    def _save_pretrained(self, save_directory: Path) -> None:
        save(self.net, save_directory)

    @classmethod
    def _from_pretrained(
        cls,
        *,
        model_id: str,
        revision: str | None,
        cache_dir: Any,
        force_download: bool,
        local_files_only: bool,
        token: Any,
        model: nn.Module | None = None,
        distributions: Iterable[type[WeightDistribution]] = (),
        **_: Any,
    ) -> Pretrained:
        folder = model_id
        if not Path(model_id).is_dir():
            folder = snapshot_download(
                model_id,
                revision=revision,
                cache_dir=cache_dir,
                force_download=force_download,
                local_files_only=local_files_only,
                token=token,
            )
        return cls(load(folder, model, distributions=distributions))
