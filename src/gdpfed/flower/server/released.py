"""Released sums between the unmasking and the checkpoint: on the disk before they are published.

Place: in the run's folder, written by `deployment`. In a simulation a published round can be computed again; here it
cannot: whatever was unmasked must be there when a killed server comes back, or the round would be released twice.

Guarantees (tests of the same name):
  a_kept_sum_comes_back      the same bytes, for the same round, sum and attempts only.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError
from gdpfed.flower.shared.homes import write_durably

__all__ = ["Kept", "KeptSums"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Kept:
    """A sum as it may be seen, and the attempt of each group in the ledger."""

    total: NDArray[np.uint32]
    attempts: Mapping[str, int]


class KeptSums:
    """The files of one round."""

    def __init__(self, folder: Path, round_number: int) -> None:
        self._folder, self._round = folder, round_number

    def _path(self, place: int) -> Path:
        return self._folder / f"released-{self._round}-{place}.sum"

    def keep(self, place: int, kept: Kept) -> None:
        """Durable when this returns."""
        content = kept.total.astype("<u4").tobytes()
        head = {
            "round": self._round,
            "place": place,
            "attempts": dict(kept.attempts),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        write_durably(self._path(place), json.dumps(head).encode() + b"\n" + content)

    def find(self, place: int) -> Kept | None:
        """What was kept of a sum; None if nothing was."""
        path = self._path(place)
        if not path.is_file():
            return None
        head, _, content = path.read_bytes().partition(b"\n")
        try:
            read = json.loads(head)
            right = read["round"] == self._round and read["place"] == place
            right = right and read["sha256"] == hashlib.sha256(content).hexdigest()
            attempts = {str(group): int(attempt) for group, attempt in read["attempts"].items()}
        except (ValueError, KeyError, TypeError, AttributeError):
            right = False
        if not right:
            raise InputError(f"{str(path)!r} is damaged: restore it; without it the round cannot be finished")
        return Kept(total=np.frombuffer(content, dtype="<u4").astype(np.uint32), attempts=attempts)

    def forget(self) -> None:
        """After the checkpoint: also of rounds before."""
        for path in self._folder.glob("released-*.sum"):
            path.unlink(missing_ok=True)
