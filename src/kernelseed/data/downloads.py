"""Published files: where they lie, how to know that they are whole, and how they get there."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import tarfile
import textwrap
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from kernelseed.data.optional import require
from kernelseed.errors import DataError, StorageError
from kernelseed.system import disk_file, make_folder, whole_or_nothing

BROKEN = (tarfile.TarError, EOFError, zlib.error, OSError)  # what reading a damaged archive may raise
MAX_DOWNLOAD = 1 << 30  # bytes of a file whose size is not published; the largest known has a sixth of it


@dataclass(frozen=True)
class Source:
    """One file as published: its place below the data folder, its size and checksum, and where it comes from.

    A file has a `url` of its own or comes out of an `archive`. A size or md5 of None is not checked.
    """

    path: str
    size: int | None = None
    md5: str | None = None
    url: str | None = None
    archive: Source | None = None


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """`data_dir`, else the environment's KERNELSEED_DATA, else the user's cache."""
    chosen = data_dir or os.environ.get("KERNELSEED_DATA")
    if chosen:
        return Path(chosen).expanduser()
    if importlib.util.find_spec("pooch") is None:
        return Path.home() / ".cache" / "kernelseed"
    return Path(require("pooch", "finding the cache").os_cache("kernelseed"))


def provide(sources: Sequence[Source], root: Path, download: bool = True) -> list[Path]:
    """The checked paths of `sources` below `root`; what is missing is unpacked or downloaded first."""
    missing = [source for source in sources if not (root / source.path).exists()]
    for archive in dict.fromkeys(source.archive for source in missing if source.archive):
        (packed,) = provide([archive], root, download)
        unpack(packed, [source for source in missing if source.archive == archive], root)
    for source in missing:
        if source.archive is None:
            _download(source, root, download)
    for source in sources:
        if source not in missing:  # new files were checked before they were given their names
            _check(root / source.path, source)
    return [root / source.path for source in sources]


def _check(path: Path, source: Source) -> None:
    try:
        flaw = _flaw(path, source)
    except OSError as error:
        raise DataError(f"{path} can't be read ({error.strerror}); make it a readable file.") from error
    if flaw:
        raise DataError(f"{path} {flaw}: delete it and load again.")


def _flaw(path: Path, source: Source) -> str | None:
    """What tells the file at `path` from the published one, as the middle of a sentence."""
    if not path.is_file():  # reading a pipe would wait for ever
        return "is not a regular file; the published one is"
    size = path.stat().st_size
    if source.size is not None and size != source.size:
        return f"has {size} bytes; the published file has {source.size}"
    if source.md5 is not None and (found := _md5(path)) != source.md5:
        return f"has the md5 {found}; the published file has {source.md5}"
    return None


def unpack(archive: Path, members: Sequence[Source], root: Path) -> None:
    """Take `members`, and nothing else, out of a tar.gz.

    The names inside the archive are only compared, never used as paths, so a hostile one has nowhere to go.
    """
    wanted = {member.path: member for member in members}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for entry in tar:
                if entry.name not in wanted:
                    continue
                packed = tar.extractfile(entry) if entry.isreg() else None
                if packed is None:
                    raise DataError(
                        f"{entry.name} in {archive} is a link or a folder; it must be a file: delete the archive and "
                        "load again."
                    )
                source = wanted.pop(entry.name)
                make_folder((root / source.path).parent)
                with packed, whole_or_nothing(root / source.path, overwrite=False) as part:
                    with part.open("wb") as out:
                        out.writelines(_chunks(packed, archive))
                    if flaw := _flaw(part, source):
                        raise DataError(f"{entry.name} in {archive} {flaw}: delete the archive and load again.")
    except StorageError:
        raise
    except BROKEN as error:
        raise _not_unpacked(archive, error) from error
    if wanted:
        raise DataError(f"{archive} lacks {', '.join(wanted)}; delete it and load again.")


def _chunks(packed: IO[bytes], archive: Path) -> Iterator[bytes]:
    """The content of an archive's member; what is wrong with it is not taken for an error of the disk."""
    try:
        while chunk := packed.read(1 << 20):
            yield chunk
    except BROKEN as error:
        raise _not_unpacked(archive, error) from error


def _not_unpacked(archive: Path, error: Exception) -> DataError:
    return DataError(f"{archive} can't be unpacked ({_one_line(error)}); delete it and load again.")


def _download(source: Source, root: Path, allowed: bool) -> None:
    target = root / source.path
    by_hand = f"put it there by hand from {source.url}"
    if not allowed:
        raise DataError(f"{target} is missing; {by_hand}, or allow the download.")
    pooch = require("pooch", f"downloading {target.name}")
    limit = MAX_DOWNLOAD if source.size is None else source.size
    # Some servers would send a .gz file as a compressed encoding of its content, which requests then undoes.
    headers = {"Accept-Encoding": "identity"}
    make_folder(target.parent)
    with whole_or_nothing(target, overwrite=False) as part, _progress(target.name) as bar, ExitStack() as connections:

        def close_later(response: Any, **_: Any) -> None:  # pooch leaves failed ones open
            connections.callback(response.close)

        fetch = pooch.HTTPDownloader(
            progressbar=bar, chunk_size=1 << 16, headers=headers, hooks={"response": close_later}
        )
        with disk_file(part) as file:
            try:
                fetch(source.url, _LimitedFile(file, limit), None)
            except (OSError, ValueError) as error:  # requests' are OSErrors; what a server says may be no number
                raise DataError(f"{target} can't be downloaded ({_one_line(error)}); {by_hand}.") from error
        if flaw := _flaw(part, source):
            raise DataError(f"{target} as downloaded {flaw}: try again, or {by_hand}.")


class _LimitedFile:
    """A file that takes so many bytes and no more: whatever a server sends, the disk does not fill up."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        self._file = file
        self._limit = self._left = limit

    def write(self, content: bytes) -> None:
        self._left -= len(content)
        if self._left < 0:
            raise OSError(f"the server sends more than {self._limit:,} bytes")
        self._file.write(content)

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def _progress(title: str) -> Iterator[Any]:
    """A progress bar for pooch: rich's if it is installed, else tqdm's, else none."""
    if importlib.util.find_spec("rich") is None:
        yield importlib.util.find_spec("tqdm") is not None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield _RichBar(progress, title)


class _RichBar:
    """The four things that pooch asks of a progress bar, drawn by rich."""

    def __init__(self, progress: Any, title: str) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=None)

    @property
    def total(self) -> float | None:
        return self._progress.tasks[0].total

    @total.setter
    def total(self, size: int) -> None:
        self._progress.update(self._task, total=size or None)

    def update(self, amount: int) -> None:
        self._progress.advance(self._task, amount)

    def reset(self) -> None:
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        self._progress.stop_task(self._task)


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _one_line(error: BaseException) -> str:
    return textwrap.shorten(str(error) or type(error).__name__, 160)
