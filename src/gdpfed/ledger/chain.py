"""Rows that cannot be changed unseen: each carries a hash of itself and of all that came before.

Place: the bottom of the ledger. Whatever happens becomes a row (a number, a kind, a body of JSON text); the hash of row
n covers row n and the hash of row n - 1. All else (who spent what) is computed from the rows.

Guarantees (tests of the same name):
  an_edited_row_is_named       any changed kind, body or hash fails the check, and the message names the row.
  a_missing_row_is_named       so does a row that was taken out, put in, or moved.
  arrays_come_back             packed arrays unpack to the same values and types.

Does not: notice that the last rows are missing; the store's sealed head does.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import PrivacyError

__all__ = ["GENESIS", "Row", "checked_chain", "following", "pack", "pack_sample", "row_hash", "unpack", "unpack_sample"]

# What the first row's hash is chained to.
GENESIS = hashlib.sha256(b"gdpfed ledger").hexdigest()


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that happened. ``number`` starts at 1."""

    number: int
    kind: str
    body: str
    hash: str

    @property
    def content(self) -> dict[str, Any]:
        """The body, read."""
        content: dict[str, Any] = json.loads(self.body)
        return content


def row_hash(previous: str, number: int, kind: str, body: str) -> str:
    """The hash that chains a row to the one before."""
    return hashlib.sha256(f"{previous}\n{number}\n{kind}\n{body}".encode()).hexdigest()


def following(previous: str, number: int, kind: str, content: Mapping[str, Any]) -> Row:
    """The row ``number`` with this content, after a row with hash ``previous``."""
    body = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return Row(number=number, kind=kind, body=body, hash=row_hash(previous, number, kind, body))


def checked_chain(rows: Iterable[Row], *, source: str) -> list[Row]:
    """The rows as a list, if they are numbered from 1 and chained; else PrivacyError names the first that is not."""
    checked: list[Row] = []
    previous = GENESIS
    for expected, row in enumerate(rows, start=1):
        if row.number != expected:
            raise PrivacyError(f"row {expected} is missing from {source}, row {row.number} stands there: it was edited")
        if row.hash != row_hash(previous, row.number, row.kind, row.body):
            raise PrivacyError(
                f"row {row.number} ({row.kind}) of {source} does not match its hash: it, or the row before it, was "
                f"edited, moved or replaced; restore an untouched copy"
            )
        previous = row.hash
        checked.append(row)
    return checked


def pack(array: NDArray[Any]) -> str:
    """An array of numbers as a short text."""
    little = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return f"{little.dtype.str}:{base64.b64encode(zlib.compress(little.tobytes(), level=1)).decode()}"


def unpack(text: str) -> NDArray[Any]:
    """The array that `pack` made the text of."""
    kind, _, data = text.partition(":")
    try:
        array = np.frombuffer(zlib.decompress(base64.b64decode(data, validate=True)), dtype=np.dtype(kind))
    except (ValueError, TypeError, zlib.error):
        raise PrivacyError("expected a packed array in a row, got something else: it was edited") from None
    return array.astype(array.dtype.newbyteorder("="))


def pack_sample(clients: NDArray[np.int64]) -> str:
    """Indices of clients, each once and in increasing order, as a short text: the gaps between them."""
    gaps = _checked_gaps(np.diff(clients, prepend=-1))
    return pack(gaps.astype(np.uint16 if gaps.max(initial=0) < 1 << 16 else np.uint32))


def unpack_sample(text: str) -> NDArray[np.int64]:
    """The indices that `pack_sample` made the text of."""
    return np.cumsum(_checked_gaps(unpack(text).astype(np.int64))) - 1


def _checked_gaps(gaps: NDArray[np.int64]) -> NDArray[np.int64]:
    if (gaps < 1).any():
        raise PrivacyError("expected every participant once, in increasing order")
    return gaps
