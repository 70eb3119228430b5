"""A file is written whole, or not at all.

Place: where a report or a picture reaches the disk.

Guarantees (tests of the same name):
  written_whole_or_not_at_all   on failure nothing new is left, and what was there before stays.
"""

import os
from contextlib import suppress
from pathlib import Path

from gdpfed.errors import InputError

__all__ = ["check_place", "write_whole"]


def check_place(path: Path, *, folder_may_be_made: bool = False) -> None:
    """Finds out, before the work, whether a file of this name can be written."""
    if path.is_dir():
        raise InputError(f"expected the name of a file to write, got {str(path)!r}, which is a folder: add a name")
    folder = path.parent
    if folder_may_be_made and not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise InputError(f"cannot write {str(path)!r}: {str(folder)!r} is not a folder; make it first")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {str(path)!r}: no permission to write in {str(folder)!r}; choose another place")


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file beside its place, then moves it there."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}; nothing was changed") from None
