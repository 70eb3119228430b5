"""Names inside the folder that is served: nothing above it is read or written by name.

Place: between what a browser asks for and the disk.

Guarantees (tests of the same name):
  path_traversal_is_refused   no name leads out of the folder: not by dots, not from the root, not by a link.
"""

import os
from pathlib import Path

from gdpfed.errors import InputError
from gdpfed.files import is_text

__all__ = ["inside", "name_inside"]

_LONGEST = 1000


def inside(folder: Path, name: str) -> Path:
    """The path of ``name`` in ``folder``, with no link in it that leads out; it need not exist."""
    parts = name.split("/")
    is_plain = name and is_text(name) and len(name) <= _LONGEST and name.isprintable() and "\\" not in name
    if not is_plain or any(part in ("", "..") for part in parts):
        raise InputError(f"expected a name inside the folder that is served, got {name[:80]!r}: give a relative name")
    path = folder / name
    root = os.path.realpath(folder)
    if os.path.commonpath([root, os.path.realpath(path)]) != root:
        raise InputError(f"expected a name inside the folder that is served, got {name[:80]!r}, which leads out of it")
    return path


def name_inside(folder: Path, path: Path) -> str:
    """The name that `inside` takes."""
    return path.relative_to(folder).as_posix()
