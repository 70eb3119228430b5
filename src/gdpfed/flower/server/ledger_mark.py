"""How far the ledger was at a run's last checkpoint: a ledger that does not get there is an old copy.

Place: in the run's folder, written by `deployment` before each checkpoint. A checkpoint is the trace of releases; a
ledger without their charges would let the run go on, and state less than was spent. The mark is the hash of the
ledger's last row and no number of it: how many rows there are tells how many attempts there were.

Guarantees (tests of the same name):
  an_old_ledger_is_noticed   put back beside a newer run folder, or rewritten since: the run is refused.

Does not notice: ledger and run folder put back together.
"""

import json
from pathlib import Path

from gdpfed.errors import PrivacyError
from gdpfed.flower.shared.homes import write_durably
from gdpfed.ledger.book import Ledger

__all__ = ["check_ledger_mark", "write_ledger_mark"]


def _path(folder: Path) -> Path:
    return folder / "ledger_mark.json"


def write_ledger_mark(folder: Path, ledger: Ledger) -> None:
    """Durable when this returns."""
    write_durably(_path(folder), json.dumps({"hash": ledger.store.last_hash}).encode() + b"\n")


def check_ledger_mark(folder: Path, ledger: Ledger) -> None:
    """Raises PrivacyError unless the ledger has the row that was its last when the mark was written."""
    try:
        last = json.loads(_path(folder).read_bytes())["hash"]
    except (OSError, ValueError, KeyError, TypeError):
        raise PrivacyError(f"expected the ledger's mark in {str(_path(folder))!r}: restore the run folder") from None
    if not any(row.hash == last for row in reversed(ledger.store.rows)):
        raise PrivacyError(
            f"the run folder {str(folder)!r} is from when the ledger had a row that it does not have now: it was put "
            f"back to an old copy; restore both from one moment, the latest"
        )
