"""Ledgers in memory where there is such a file system: killed processes, not power cuts, are what is tested."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def shelf() -> Iterator[Path]:
    """A folder for ledgers, on a fast file system."""
    memory = Path("/dev/shm")  # noqa: S108 - a fresh folder in it
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)
