"""A ledger's content for other programs: JSON and CSV.

Place: reads the ledger, for the command line. Clients are everyone's spend, charges are every attempt, rows are the
chain itself, from which all else can be computed again.

Guarantees (tests of the same name):
  exports_are_private    samples and spends of clients are readable by their owner only.
  exports_agree          JSON and CSV hold the same clients and charges.
"""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gdpfed.errors import InputError, suggestion
from gdpfed.files import whole_file
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.status import client_statuses, run_history, run_status

__all__ = ["CONTENTS", "as_json", "export"]

CONTENTS = ("status", "clients", "charges", "rows")


def as_json(value: Any) -> dict[str, Any]:
    """A dataclass for JSON, which has no infinity: no bound is null."""
    return {
        name: None if isinstance(part, float) and math.isinf(part) else part
        for name, part in dataclasses.asdict(value).items()
    }


def _records(ledger: Ledger, content: str, points: int) -> Iterator[dict[str, Any]]:
    state = ledger.state
    if content == "rows":
        for row in ledger.store.rows:
            yield dataclasses.asdict(row)
    elif content == "clients":
        for population in state.populations.values():
            for client in client_statuses(state, population):
                yield {"population": population.name, **as_json(client)}
    elif content == "status":
        for run in state.runs.values():
            yield from map(as_json, run_status(state, run))
    elif content == "charges":
        for run in state.runs.values():
            yield from map(as_json, run_history(state, run, ledger.store.rows, points=points))
    else:
        raise InputError(f"expected one of {', '.join(CONTENTS)}, got {content!r}{suggestion(content, CONTENTS)}")


def export(ledger: Ledger, content: str, path: Path, *, points: int = 10) -> int:
    """Writes records to a .json or .csv file that only its owner can read, whole or not at all; returns how many."""
    kind = path.suffix.lower()
    if kind not in (".json", ".csv"):
        raise InputError(f"expected a file name that ends in .json or .csv, got {path.name!r}")
    records = list(_records(ledger, content, points))
    with whole_file(path, private=True) as file:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        if kind == ".json":
            about = {"ledger": ledger.state.about["id"], "head": [len(ledger.store.rows), ledger.store.last_hash]}
            json.dump({**about, content: records}, text, indent=1, allow_nan=False)
            text.write("\n")
        else:
            writer = csv.DictWriter(text, fieldnames=list(records[0]) if records else [])
            writer.writeheader()
            writer.writerows(records)
        text.detach()
    return len(records)
