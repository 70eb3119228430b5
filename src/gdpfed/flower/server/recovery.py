"""What a server that was killed comes back to: sums that were unmasked, and how far the ledger was.

Place: in the run's folder, written by `deployment`. In a simulation a published round can be computed again; here it
cannot: a sum is on the disk between its unmasking and the checkpoint, or the round would be released twice.

A checkpoint is the trace of releases; a ledger without their charges would let the run go on, and state less than was
spent. So the ledger's mark is written before each checkpoint: the hash of its last row, and no number of it, since how
many rows there are tells how many attempts there were.

Guarantees (tests of the same name):
  a_kept_sum_comes_back      the same bytes, for the same round, sum and attempts only.
  an_old_ledger_is_noticed   put back beside a newer run folder, or rewritten since: the run is refused.

Does not notice: ledger and run folder put back together.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, PrivacyError
from gdpfed.files import write_whole
from gdpfed.ledger.book import Ledger

__all__ = ["KeptSum", "KeptSums", "check_ledger_mark", "write_ledger_mark"]

_LEDGER_MARK = "ledger_mark.json"


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptSum:
    """A sum as it may be seen, and the attempt of each group in the ledger."""

    total: NDArray[np.uint32]
    attempts: Mapping[str, int]


class KeptSums:
    """The files of one round."""

    def __init__(self, folder: Path, round_number: int) -> None:
        self._folder, self._round = folder, round_number

    def _path(self, sum_index: int) -> Path:
        return self._folder / f"released-{self._round}-{sum_index}.sum"

    def keep(self, sum_index: int, kept: KeptSum) -> None:
        """Durable when this returns."""
        content = kept.total.astype("<u4").tobytes()
        head = {
            "round": self._round,
            "place": sum_index,
            "attempts": dict(kept.attempts),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        write_whole(self._path(sum_index), json.dumps(head).encode() + b"\n" + content, private=True, durable=True)

    def find(self, sum_index: int) -> KeptSum | None:
        """What was kept of a sum; None if nothing was."""
        path = self._path(sum_index)
        if not path.is_file():
            return None
        head, _, content = path.read_bytes().partition(b"\n")
        expected = {"round": self._round, "place": sum_index, "sha256": hashlib.sha256(content).hexdigest()}
        try:
            stated = json.loads(head)
            attempts = {str(group): int(attempt) for group, attempt in stated.pop("attempts").items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            stated = None
        if stated != expected:
            raise InputError(f"{str(path)!r} is damaged: restore it; without it the round cannot be finished")
        return KeptSum(total=np.frombuffer(content, dtype="<u4").astype(np.uint32), attempts=attempts)

    def forget(self) -> None:
        """After the checkpoint: also of rounds before."""
        for path in self._folder.glob("released-*.sum"):
            path.unlink(missing_ok=True)


def write_ledger_mark(folder: Path, ledger: Ledger) -> None:
    """Durable when this returns."""
    content = json.dumps({"hash": ledger.store.last_hash}).encode() + b"\n"
    write_whole(folder / _LEDGER_MARK, content, private=True, durable=True)


def check_ledger_mark(folder: Path, ledger: Ledger) -> None:
    """Raises PrivacyError unless the ledger has the row that was its last when the mark was written."""
    path = folder / _LEDGER_MARK
    try:
        last = json.loads(path.read_bytes())["hash"]
    except (OSError, ValueError, KeyError, TypeError):
        raise PrivacyError(f"expected the ledger's mark in {str(path)!r}: restore the run folder") from None
    if not any(row.hash == last for row in reversed(ledger.store.rows)):
        raise PrivacyError(
            f"the run folder {str(folder)!r} is from when the ledger had a row that it does not have now: it was put "
            f"back to an old copy; restore both from one moment, the latest"
        )
