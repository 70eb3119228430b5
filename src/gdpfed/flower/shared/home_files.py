"""A home: settings, a key that only its owner reads, and a log that cannot fill the disk.

Place: under the server's home and the nodes' homes. A line of the log is a time and a text; with GDPFED_FLOWER_LOG=json
in the environment it is a JSON object with ``time``, ``home``, ``text`` and what is known as a field (``stage``,
``client``, ``round``).
"""

import datetime
import json
import logging
import os
import secrets
from pathlib import Path
from typing import ClassVar, Self, TypeVar

import tomli_w

from gdpfed.config import from_mapping, parse_toml, read_toml
from gdpfed.errors import InputError, PrivacyError
from gdpfed.files import private_opener, write_whole
from gdpfed.secure.primitives import KEY_BYTES

__all__ = ["LOG_VARIABLE", "Home", "log_lines", "read_content", "read_settings"]

LOG_VARIABLE = "GDPFED_FLOWER_LOG"

T = TypeVar("T")
_LARGEST_LOG = 4 << 20
_END_OF_LOG = 1 << 18
_LOGGER = logging.getLogger("gdpfed.flower")


def read_content(path: Path, what: str) -> bytes:
    """The bytes of a file; ``what`` it should be is for the message."""
    try:
        if path.is_fifo():
            raise InputError(f"expected {what} at {str(path)!r}, got a pipe: give the path of a file")
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"expected {what} at {str(path)!r}: {error.strerror or error}") from None


def read_settings(cls: type[T], path: Path) -> T:
    """A TOML file as a ``cls``."""
    return from_mapping(cls, parse_toml(read_toml(path), source=str(path)), source=str(path))


class Home:
    """An existing home; what is in it is read each time, since its owner may change it at any moment."""

    whose: ClassVar[str]
    key_name: ClassVar[str]
    settings_name: ClassVar[str]

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if not (self.path / self.key_name).is_file():
            home = f"a {self.whose}'s home (with {self.key_name})"
            raise InputError(f"expected {home}, got {str(self.path)!r}: make one first")

    @property
    def identity(self) -> bytes:
        """The private key; refused if others could read it."""
        path = self.path / self.key_name
        key = read_content(path, "a private key")
        if len(key) != KEY_BYTES:
            raise InputError(f"expected {KEY_BYTES} bytes in {str(path)!r}, got {len(key)}: restore its copy")
        if path.stat().st_mode & 0o077:
            raise PrivacyError(f"{str(path)!r} can be read by others: chmod 600 {path}")
        return key

    @classmethod
    def made(cls, path: str | Path, settings: object) -> Self:
        """A new home with these settings and a key of its own; a folder that has a key is somebody's home."""
        path = Path(path)
        if (path / cls.key_name).exists():
            raise InputError(f"{str(path)!r} is a home already: it is never overwritten; choose another folder")
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise InputError(f"cannot make {str(path)!r}: {error.strerror or error}") from None
        stated = {name: value for name, value in vars(settings).items() if value is not None}
        write_whole(path / cls.settings_name, tomli_w.dumps(stated).encode(), private=True, durable=True)
        write_whole(path / cls.key_name, secrets.token_bytes(KEY_BYTES), private=True, durable=True)
        return cls(path)

    @property
    def log_path(self) -> Path:
        """Of its log."""
        return self.path / f"{self.whose}.log"

    def log(self, text: str, **facts: object) -> None:
        """A line for its owner only (0600), with the time; what came from others is made harmless."""
        path = self.log_path
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = "".join(letter if letter.isprintable() else "?" for letter in text)[:2000]
        _LOGGER.info("%s", line)
        # Whoever sends nonsense all day must not fill the disk.
        if path.is_file() and path.stat().st_size > _LARGEST_LOG:
            path.replace(path.with_name(path.name + ".1"))
        is_json = os.environ.get(LOG_VARIABLE) == "json"
        content = json.dumps({"time": now, "home": self.whose, "text": line, **facts}) if is_json else f"{now} {line}"
        with open(path, "a", encoding="utf-8", opener=private_opener) as file:
            file.write(content + "\n")


def log_lines(path: Path) -> list[tuple[str, str]]:
    """Time and text of the last lines of a home's log, in either form."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _END_OF_LOG))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    read = []
    for line in lines:
        time, _, text = line.partition(" ")
        if line.startswith("{"):
            try:
                content = json.loads(line)
                time, text = str(content["time"]), str(content["text"])
            except (ValueError, KeyError, TypeError):
                continue
        read.append((time, text))
    return read
