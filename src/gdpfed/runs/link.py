"""Which run of which ledger a run folder is charged to.

Place: `ledger.json` in a run folder; needs no torch, so that a folder can be looked at anywhere.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from gdpfed.errors import InputError

__all__ = ["LedgerLink", "read_link"]


@dataclass(frozen=True, kw_only=True)
class LedgerLink:
    """Where a run is accounted for: the ledger's file, the population, and the run's name in it."""

    path: Path
    population: str
    run: str

    def as_json(self) -> str:
        """For the run's folder."""
        content = {"ledger": str(self.path), "population": self.population, "run": self.run}
        return json.dumps(content, indent=2) + "\n"


def read_link(path: Path) -> LedgerLink | None:
    """What `as_json` wrote, or None where there is no such file."""
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return LedgerLink(path=Path(content["ledger"]), population=content["population"], run=content["run"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise InputError(f"expected ledger, population and run in {str(path)!r}: restore the file") from None
