"""The one place where files are written: whole or not at all, on the disk before they have their name.

A file is written in a private folder beside its place, which is made exclusively and under a name that nobody can
guess. It is locked, so that a later write can tell what a killed process left from what is being written, and remove
it. The file is synced, renamed into its place, and the folder that it is in is synced too.
"""

from __future__ import annotations

import errno
import io
import json
import os
import re
import secrets
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from kernelseed.errors import KernelseedError, PathExistsError, StorageError

try:
    import fcntl
except ImportError:  # Windows, where nothing is locked
    fcntl = None  # type: ignore[assignment]

ADVICE = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "make room on the disk, and try again"),
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), and try again",
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "choose a folder that you may write to"),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), "choose a folder that exists"),
    errno.ENAMETOOLONG: "choose a shorter name",
}
OF_THE_SYSTEM = re.compile(r"\(os error (\d+)\)")


@contextmanager
def whole_or_nothing(path: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """A file to write to; it becomes `path` when the block ends well, and is removed when it does not.

    Unless it may overwrite, it is removed as well if there is something in the place of `path` by then.
    """
    complaint = explained(f"can't write {path}", "; what was there before is as it was")
    with complaint, _private_folder(path, 0o700) as folder:
        scratch = folder / path.name
        mode = _create(scratch)
        yield scratch
        scratch.chmod(mode)  # what the user's umask gives; safetensors would leave 0600
        _sync(scratch)
        if overwrite or not path.exists():
            os.replace(scratch, path)
        sync_folder(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """An empty folder to fill; it becomes `path`, all at once, when the block ends well."""
    with explained(f"can't make the folder {path}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with _private_folder(path, 0o777) as scratch:
            yield scratch
            for inside in scratch.rglob("*"):
                sync_folder(inside) if inside.is_dir() else _sync(inside)
            sync_folder(scratch)
            os.rename(scratch, path)
            sync_folder(path.parent)


def require_new(path: Path) -> None:
    """An error if there is something in the place of a file that is to be written, or no folder to write it to.

    For what takes long to make: before it is made.
    """
    if path.exists():
        raise PathExistsError(f"{path} exists; choose another name, or remove it first.")
    if not path.parent.is_dir():
        raise StorageError(f"{path.parent} is no folder, so {path.name} can't be written to it; make it first.")


def make_folder(path: Path) -> None:
    """A folder and those above it, where they are not there yet."""
    with explained(f"can't make the folder {path}"):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def _private_folder(path: Path, mode: int) -> Iterator[Path]:
    """A new folder beside `path` that is locked while the block runs and gone after it."""
    remove_abandoned(path.parent, path.name)
    folder, held = _locked_folder(path, mode)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _release(held)


def _locked_folder(path: Path, mode: int) -> tuple[Path, int | None]:
    for _ in range(100):
        folder = path.with_name(f".{path.name[:50]}.{secrets.token_hex(8)}.part")
        folder.mkdir(mode)
        with suppress(BlockingIOError, FileNotFoundError):  # another process took it for abandoned: once more
            held = lock_folder(folder)
            if folder.exists():
                return folder, held
            _release(held)
    raise BlockingIOError(errno.EAGAIN, "other processes keep removing its temporary folder")


def remove_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove what killed processes left of files that they were writing in a folder: of one file, or of all."""
    ours = re.compile(rf"\.{'.*' if name is None else re.escape(name[:50])}\.[0-9a-f]{{16}}\.part")
    with suppress(OSError):  # what can't be listed can't be tidied, and writing will say why
        for left in [entry for entry in folder.iterdir() if ours.fullmatch(entry.name)]:
            with suppress(OSError):  # being written, or not ours to remove
                if (held := lock_folder(left)) is not None:
                    shutil.rmtree(left, ignore_errors=True)
                    _release(held)


def lock_folder(folder: Path) -> int | None:
    """Lock a folder until what is returned is closed or the process dies; None where there are no locks.

    BlockingIOError says that another has it.
    """
    if fcntl is None:
        return None
    held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(held)
        if isinstance(error, BlockingIOError):
            raise
        return None  # a file system without locks
    return held


def _release(held: int | None) -> None:
    if held is not None:
        os.close(held)


def _create(path: Path) -> int:
    """A new, empty file; returns its permissions."""
    made = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
        return os.fstat(made).st_mode & 0o7777
    finally:
        os.close(made)


def _sync(path: Path) -> None:
    """Wait until a file is on the disk."""
    with path.open("rb" if os.name == "posix" else "rb+") as file:  # a copy may be read-only; Windows insists
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system can do that."""
    with suppress(OSError):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


@contextmanager
def explained(what: str, after: str = "") -> Iterator[None]:
    """Errors of the disk as one line that says what to do."""
    try:
        yield
    except KernelseedError:
        raise
    except Exception as error:
        if (found := _of_the_disk(error)) is None:
            raise
        advice = ADVICE.get(found.errno or 0, "choose another place")
        raise StorageError(f"{what}: {found.strerror or found}{after}: {advice}.") from error


def _of_the_disk(error: Exception) -> OSError | None:
    """The system's error, which safetensors has in the words of another language."""
    if isinstance(error, OSError):
        return error
    found = OF_THE_SYSTEM.search(str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else None


class _RememberingFile(io.FileIO):
    """Keeps the disk's error."""

    failed: OSError | None = None

    def write(self, content: Any) -> int:
        """All of it."""
        left = memoryview(content).cast("B")
        try:
            while left:
                left = left[super().write(left) :]
        except OSError as error:
            self.failed = error
            raise
        return len(memoryview(content).cast("B"))


@contextmanager
def disk_file(path: Path) -> Iterator[io.FileIO]:
    """A file to write to; the disk's error comes out of the block even where a library raises its own in its place."""
    with _RememberingFile(path, "wb") as file:
        try:
            yield file
        except Exception as error:
            raise (file.failed or error) from None


def write_text(path: Path, text: str) -> None:
    """A text file, whole or not at all."""
    with whole_or_nothing(path) as scratch:
        scratch.write_text(text, encoding="utf-8")


def to_json(value: Any) -> str:
    """Readable JSON. Names of files that are no UTF-8 come back as they were."""
    text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
    plain = all(character.isprintable() or character == "\n" for character in text)
    return text if plain else json.dumps(value, indent=2) + "\n"


def write_json(path: Path, value: Any) -> None:
    """A JSON file, whole or not at all."""
    write_text(path, to_json(value))


def read_text(path: Path, most: int) -> str:
    """The text of a file that anybody may have written, or an error that names it: of no more than so many bytes."""
    try:
        if not path.is_file():  # opening a pipe would wait for ever
            reason = "is not a file" if path.exists() else "is missing"
            raise StorageError(f"{path} {reason}; check the path, or give a folder that was written by kernelseed.")
        with path.open("rb") as file:
            content = file.read(most + 1)
        if len(content) > most:
            raise StorageError(f"{path} has more than {most:,} bytes; take another copy of it.")
        return content.decode()
    except UnicodeDecodeError as error:
        raise StorageError(f"{path} is not readable text ({error}); take another copy of it.") from None
    except OSError as error:
        if isinstance(error, StorageError):
            raise
        raise StorageError(f"{path} can't be read ({error.strerror}); take another copy of it.") from None


MOST_JSON = 8 << 20  # bytes, of which the worst become 200 MB of objects


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an error that names the file."""
    text = read_text(path, MOST_JSON)
    try:
        value = parse_json(text)
    except ValueError as error:
        raise StorageError(f"{path} is not readable JSON ({error}); take another copy of it.") from None
    if not isinstance(value, dict):
        raise StorageError(f"{path} holds a {type(value).__name__}, not an object; take another copy of it.")
    return value


def parse_json(text: str) -> Any:
    """A JSON value, or a ValueError; so is a key that is there twice."""
    try:
        return json.loads(text, object_pairs_hook=_each_key_once)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"{twice[:60]!r} is there twice")
    return found
