"""Remember what the accountant computed, in memory and on disk.

Place: around the accountant's pure functions. Numbers are the same with and without it, because the key holds every
input and a hash of all code that computes, and values are stored to the last bit.

Guarantees (tests of the same name):
  same_bits                 a remembered value equals the computed one bit for bit.
  damage_is_recomputed      a row whose checksum is wrong is computed again, never used.
  other_code_is_another_key a gdpfed whose code of accounting differs, or another dp-accounting, numpy or scipy, shares
                            nothing.
  broken_disk_is_no_error   an unwritable or corrupted file costs time, not the answer.

Does not: protect against someone who may write to your home directory; `verify` never reads it.
The file is $GDPFED_CACHE (a folder; "off" switches the disk off), else $XDG_CACHE_HOME/gdpfed, else ~/.cache/gdpfed.
"""

import contextlib
import contextvars
import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ParamSpec

import gdpfed

__all__ = ["cache_file", "code_hash", "forget_memory", "remembered", "without_cache"]

# Raised when the file's layout changes; what functions compute is in their code, which the key has a hash of.
_FORMAT = 2
_COMPUTED_BY = ("dp-accounting", "numpy", "scipy")

P = ParamSpec("P")

_memory: dict[str, float] = {}
_enabled: contextvars.ContextVar[bool] = contextvars.ContextVar("gdpfed_cache_enabled", default=True)


def cache_file() -> Path | None:
    """The file on disk, or None where it is switched off."""
    chosen = os.environ.get("GDPFED_CACHE", "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen) / "accounting.sqlite"
    base = os.environ.get("XDG_CACHE_HOME", "") or str(Path.home() / ".cache")
    return Path(base) / "gdpfed" / "accounting.sqlite"


@contextlib.contextmanager
def without_cache() -> Iterator[None]:
    """Within this block nothing is looked up and nothing is remembered."""
    token = _enabled.set(False)
    try:
        yield
    finally:
        _enabled.reset(token)


def forget_memory() -> None:
    """Empties the part in memory; the disk keeps what it has."""
    _memory.clear()


@functools.cache
def code_hash(*folders: str) -> str:
    """SHA-256 of the source files in these folders of the package, and of the versions of what they compute with.

    Other code may compute otherwise, so its values are not shared. Read when first used (10 ms), not on import.
    """
    package = Path(gdpfed.__file__).parent
    sources = sorted(path for folder in folders for path in (package / folder).glob("*.py"))
    files = [[str(path.relative_to(package)), hashlib.sha256(path.read_bytes()).hexdigest()] for path in sources]
    # Where a package has no sources on disk (a zip file), its version stands for them.
    versions = [gdpfed.__version__, *(importlib.metadata.version(name) for name in _COMPUTED_BY)]
    return hashlib.sha256(json.dumps([files, versions]).encode()).hexdigest()


def _folders(module: str) -> tuple[str, ...]:
    """Where the code behind a remembered function is: the accountant's folder, and the function's own."""
    parts = module.split(".")
    own = parts[1] if parts[0] == "gdpfed" and len(parts) > 2 else "privacy"
    return tuple(sorted({"privacy", own}))


def _key(module: str, function: str, arguments: dict[str, Any]) -> str:
    # JSON has every float to the last bit; other numbers than Python's become floats.
    return json.dumps(
        [_FORMAT, code_hash(*_folders(module)), module, function, sorted(arguments.items())],
        default=lambda value: vars(value) if dataclasses.is_dataclass(value) else float(value),
    )


def _checksum(key: str, value: str) -> str:
    return hashlib.sha256(f"{key}\n{value}".encode()).hexdigest()[:16]


@contextlib.contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path, timeout=5.0)) as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS remembered (key TEXT PRIMARY KEY, value TEXT, checksum TEXT)")
        yield connection


def _read(key: str) -> float | None:
    path = cache_file()
    if path is None:
        return None
    with contextlib.suppress(sqlite3.Error, OSError, ValueError), _database(path) as connection:
        row = connection.execute("SELECT value, checksum FROM remembered WHERE key = ?", (key,)).fetchone()
        if row is not None and row[1] == _checksum(key, row[0]):
            return float.fromhex(row[0])
    return None


def _write(key: str, value: float) -> None:
    path = cache_file()
    if path is None:
        return
    text = float(value).hex()
    with contextlib.suppress(sqlite3.Error, OSError), _database(path) as connection, connection:
        connection.execute("INSERT OR REPLACE INTO remembered VALUES (?, ?, ?)", (key, text, _checksum(key, text)))


def remembered(function: Callable[P, float]) -> Callable[P, float]:
    """Remembers a pure function of keyword arguments (numbers, strings, dataclasses of them) that returns a float."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> float:
        if args:
            raise TypeError(f"{function.__name__} takes keyword arguments only")
        if not _enabled.get():
            return function(*args, **kwargs)
        key = _key(function.__module__, function.__name__, dict(kwargs))
        value = _memory.get(key)
        if value is None:
            value = _read(key)
            if value is None:
                value = function(*args, **kwargs)
                _write(key, value)
            _memory[key] = value
        return value

    return wrapper
