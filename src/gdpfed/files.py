"""Files that are written whole or not at all.

Place: under everything that reaches the disk.

Guarantees (tests of the same name):
  written_whole_or_not_at_all   on failure nothing new is left, and what was there before stays.
  nobody_else_reads_it          a private file has mode 0600 from the first byte, also where a file with a wider mode,
                                or a link, stood before.
  nothing_is_left               what a failed block has made, with the folders above it, is removed; nothing else is.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from gdpfed.errors import InputError

__all__ = [
    "check_writable", "is_text", "missing", "nothing_left", "private_opener", "sync_folder", "whole_file",
    "write_whole",
]  # fmt: skip


def private_opener(path: str, flags: int) -> int:
    """For files that nobody else may read: mode 0600 from the first byte."""
    return os.open(path, flags, 0o600)


def sync_folder(folder: Path) -> None:
    """Makes names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def whole_file(
    path: Path, *, private: bool = False, durable: bool = False, advice: str = "nothing was changed"
) -> Iterator[IO[bytes]]:
    """A file to write, which takes its name when the block ends without an error.

    Its content is on the disk by then; ``durable`` says the same of its name. ``advice`` ends the message of an error.
    """
    _check_name(path)
    part = path.with_name(path.name + ".part")
    try:
        # Not opened as it is: one that was left or put there keeps its mode, and may lead elsewhere.
        part.unlink(missing_ok=True)
        with open(part, "xb", opener=private_opener if private else None) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        if durable:
            sync_folder(path.parent)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}; {advice}") from None
        raise


def write_whole(
    path: Path, content: bytes, *, private: bool = False, durable: bool = False, advice: str = "nothing was changed"
) -> None:
    """Writes ``content`` to ``path`` as `whole_file` does."""
    with whole_file(path, private=private, durable=durable, advice=advice) as file:
        file.write(content)


def is_text(name: str) -> bool:
    """Whether a name can be written down: the operating system allows for names that cannot."""
    return name == name.encode(errors="replace").decode()


def missing(*paths: Path) -> list[list[Path]]:
    """Of each of these that is not there: itself, and the folders above it that are not there either."""
    absent = ([one for one in (path, *path.parents) if not os.path.lexists(one)] for path in paths)
    return [each for each in absent if each]


@contextlib.contextmanager
def nothing_left(made: list[list[Path]]) -> Iterator[None]:
    """Where the block fails, removes what was `missing` before; folders above it only if nothing else is in them."""
    try:
        yield
    except (Exception, KeyboardInterrupt):
        for path, *_ in made:
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for _, *above in made:
            for folder in above:
                with contextlib.suppress(OSError):
                    folder.rmdir()
        raise


def _check_name(path: Path) -> None:
    if path.exists() and not path.is_file():
        what = "is a folder: add a name" if path.is_dir() else "is none: choose another"
        raise InputError(f"expected the name of a file to write, got {str(path)!r}, which {what}")


def check_writable(path: Path, *, folder_may_be_missing: bool = False) -> None:
    """Finds out, before the work, whether a file of this name can be written."""
    _check_name(path)
    folder = path.parent
    if folder_may_be_missing and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(f"cannot write {str(path)!r}: {str(folder)!r} is not a folder; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {str(path)!r}: no permission to write in {str(folder)!r}; choose another place")
