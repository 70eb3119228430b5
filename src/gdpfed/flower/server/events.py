"""What the server is doing, for whoever watches it: a line for each event.

Place: written by the ServerApp into its home, read by `progress`. Who was asked and who answered stands there by name,
as it does in the ledger: a file for the operator only (mode 0600), and it is gone when the next run starts.

Guarantees (tests of the same name):
  events_are_for_the_operator_only   mode 0600, nothing but names, counts and what is released anyway.
"""

import contextlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gdpfed.files import private_opener

__all__ = ["EVENTS", "Events", "events_into"]

EVENTS = "progress.jsonl"
Events = Callable[..., None]


def events_into(path: Path, *, run: str) -> Events:
    """Appends events to a file that is of this run; a full disk loses events and nothing else."""

    def write(kind: str, **facts: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "event": kind, **facts})
        with contextlib.suppress(OSError), open(path, "a", encoding="utf-8", opener=private_opener) as file:
            file.write(line + "\n")

    if not _is_of(path, run):
        path.unlink(missing_ok=True)
    write("started", run=run)
    return write


def _is_of(path: Path, run: str) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return bool(json.loads(file.readline()).get("run") == run)
    except (OSError, ValueError, AttributeError):
        return False
