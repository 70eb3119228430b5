"""What a server that was killed comes back to: sums that were unmasked, how far the ledger was, what nodes signed.

Place: in the run's folder and the server's home, written by `flower_release`. In a simulation a published round can be
computed again; here it cannot: a sum is on the disk between its unmasking and the checkpoint, or the round would be
released twice.

A checkpoint is the trace of releases; a ledger without their charges would let the run go on, and state less than was
spent. So the ledger's mark is written before each checkpoint: the hash of its last row, and no number of it, since how
many rows there are tells how many attempts there were.

A node that comes back with fewer rows in its ledger than it once signed was put back to an old copy. The server shows
it what it signed (`Standings`), and the node refuses by itself.

Guarantees (tests of the same name):
  a_kept_sum_comes_back      the same bytes, for the same round, sum and attempts only.
  an_old_ledger_is_noticed   put back beside a newer run folder, or rewritten since: the run is refused.
  the_furthest_standing_is_kept   an older one never replaces it, nor one as far with another end.

Does not notice: ledger and run folder put back together.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import GdpfedError, InputError, PrivacyError
from gdpfed.files import write_whole
from gdpfed.flower.shared.enrolment import Enrolment
from gdpfed.flower.shared.wire import Standing
from gdpfed.ledger.book import Ledger

__all__ = ["KeptSum", "KeptSums", "Standings", "check_ledger_mark", "write_ledger_mark"]

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


class Standings:
    """What each client last signed of its ledger; in the file by identity, since numbers belong to one enrolment."""

    def __init__(self, path: Path, enrolment: Enrolment, *, log: Callable[[str], None]) -> None:
        self._path, self._enrolment, self._log = path, enrolment, log
        self._kept: dict[str, Standing] = {}
        if path.is_file():
            try:
                read = json.loads(path.read_text(encoding="utf-8"))
                self._kept = {key: Standing.decode(bytes.fromhex(text)) for key, text in read.items()}
            except (ValueError, AttributeError, TypeError, GdpfedError):
                raise InputError(f"{str(path)!r} is damaged: restore it, or delete it") from None

    def take(self, client: int, content: bytes, nonce: bytes) -> Standing | None:
        """Keeps a standing that its client signed for this nonce; None if it did not."""
        public = self._enrolment.directory.clients.get(client)
        try:
            standing = Standing.decode(content)
        except InputError:
            return None
        is_for_us = standing.client == client and standing.nonce == nonce
        if public is None or not is_for_us or not standing.is_signed_by(public):
            return None
        known = self._kept.get(public.hex())
        # As many rows that end otherwise are those of a copy, too.
        if known is not None and (
            known.num_rows > standing.num_rows or (known.num_rows == standing.num_rows and known.head != standing.head)
        ):
            self._log(f"client {self._enrolment.clients[client].name!r} has an older ledger than it had: an old copy?")
        else:
            self._kept[public.hex()] = standing
        return standing

    def shown_to(self, client: int) -> bytes:
        """What the client signed last; empty if nothing."""
        known = self._kept.get(self._enrolment.directory.clients[client].hex())
        # A client that was enrolled again has another number: its own word still counts.
        return b"" if known is None else known.encode()

    def save(self) -> None:
        """On the disk."""
        content = {key: standing.encode().hex() for key, standing in sorted(self._kept.items())}
        write_whole(self._path, json.dumps(content, indent=1).encode(), private=True, durable=True)
