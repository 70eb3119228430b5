"""Remember what the accountant computed, in memory and on disk.

Place: around the accountant's pure functions. Numbers are the same with and without it, because the key holds every
input and the versions of all that computes, and values are stored to the last bit.

Guarantees (tests of the same name):
  same_bits                 a remembered value equals the computed one bit for bit.
  damage_is_recomputed      a row whose checksum is wrong is computed again, never used.
  other_version_is_another_key  a different gdpfed, dp-accounting, numpy or scipy shares nothing.
  broken_disk_is_no_error   an unwritable or corrupted file costs time, not the answer.

Does not: protect against someone who may write to your home directory; `verify` never reads it.
The file is $GDPFED_CACHE (a folder; "off" switches the disk off), else $XDG_CACHE_HOME/gdpfed, else ~/.cache/gdpfed.
"""

import contextlib
import contextvars
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

__all__ = ["cache_file", "forget_memory", "remembered", "without_cache"]

# Raised when a function behind the cache changes what it computes.
_FORMAT = 1
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
def _versions() -> tuple[str, ...]:
    own = f"gdpfed {gdpfed.__version__}"
    return (own, *(f"{name} {importlib.metadata.version(name)}" for name in _COMPUTED_BY))


def _key(function: str, arguments: dict[str, Any]) -> str:
    exact = {name: value.hex() if isinstance(value, float) else value for name, value in arguments.items()}
    return json.dumps([_FORMAT, _versions(), function, sorted(exact.items())])


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
    """Remembers a pure function of keyword arguments (numbers and strings) that returns a float."""

    @functools.wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> float:
        if args:
            raise TypeError(f"{function.__name__} takes keyword arguments only")
        if not _enabled.get():
            return function(*args, **kwargs)
        key = _key(function.__name__, dict(kwargs))
        value = _memory.get(key)
        if value is None:
            value = _read(key)
            if value is None:
                value = function(*args, **kwargs)
                _write(key, value)
            _memory[key] = value
        return value

    return wrapper
