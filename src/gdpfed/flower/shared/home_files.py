"""Files in a home: settings, keys that only their owner reads, and a log that cannot fill the disk.

Place: under the server's home and the nodes' homes.
"""

import datetime
import logging
from pathlib import Path
from typing import TypeVar

from gdpfed.config import from_mapping, parse_toml, read_toml
from gdpfed.errors import InputError, PrivacyError
from gdpfed.files import private_opener
from gdpfed.secure.primitives import KEY_BYTES

__all__ = ["append_log", "new_home", "read_content", "read_key", "read_settings"]

T = TypeVar("T")
_LARGEST_LOG = 4 << 20
_LOGGER = logging.getLogger("gdpfed.flower")


def read_content(path: Path, what: str) -> bytes:
    """The bytes of a file; ``what`` it should be is for the message."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"expected {what} at {str(path)!r}: {error.strerror or error}") from None


def read_settings(cls: type[T], path: Path) -> T:
    """A TOML file as a ``cls``."""
    return from_mapping(cls, parse_toml(read_toml(path), source=str(path)), source=str(path))


def read_key(path: Path) -> bytes:
    """A private key; refused if others could read it."""
    key = read_content(path, "a private key")
    if len(key) != KEY_BYTES:
        raise InputError(f"expected {KEY_BYTES} bytes in {str(path)!r}, got {len(key)}: restore its copy")
    if path.stat().st_mode & 0o077:
        raise PrivacyError(f"{str(path)!r} can be read by others: chmod 600 {path}")
    return key


def new_home(path: Path, *, key_name: str) -> None:
    """Makes the folder; one that has a key is somebody's home."""
    if (path / key_name).exists():
        raise InputError(f"{str(path)!r} is a home already: it is never overwritten; choose another folder")
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(f"cannot make {str(path)!r}: {error.strerror or error}") from None


def append_log(path: Path, text: str) -> None:
    """A line with the time; what came from others is made harmless."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = "".join(letter if letter.isprintable() else "?" for letter in text)[:2000]
    _LOGGER.info("%s", line)
    # Whoever sends nonsense all day must not fill the disk.
    if path.is_file() and path.stat().st_size > _LARGEST_LOG:
        path.replace(path.with_name(path.name + ".1"))
    with open(path, "a", encoding="utf-8", opener=private_opener) as file:
        file.write(f"{now} {line}\n")
