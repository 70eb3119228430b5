"""The second record of every row: a text file that is only ever appended to.

Place: beside the database, under the store. A row is number, kind, hash and body, separated by tabs; a line holds the
rows that were added together, and ends with the seal of the head that it makes, as the database's head is sealed:
rows that only the journal has are believed because of it. The store writes and syncs a line before the database commits
its rows.
"""

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gdpfed.errors import InputError
from gdpfed.files import private_opener, write_whole
from gdpfed.ledger.chain import GENESIS, Row, row_hash
from gdpfed.ledger.keys import head_seal

__all__ = ["JournalRows", "companion", "journal_line", "open_journal", "read_journal", "rewrite_journal", "write_all"]

_BETWEEN = b"\x1e"


def companion(path: Path, suffix: str) -> Path:
    """The file beside the ledger: ``suffix`` is journal, lock or key."""
    if not path.name:
        raise InputError(f"expected the name of a ledger's file, got {str(path)!r}: name a file")
    return path.with_name(f"{path.name}.{suffix}")


@dataclass(frozen=True, kw_only=True)
class JournalRows:
    """The rows before the first that does not follow; how many there should be; whether a last line was cut off."""

    rows: list[Row]
    num_written: int
    is_torn: bool

    @property
    def is_damaged(self) -> bool:
        """Whether anything in it cannot be used."""
        return self.is_torn or self.num_written > len(self.rows)


def journal_line(rows: Sequence[Row], *, key: bytes) -> bytes:
    """Rows that were added together, as one line: a line that was cut off is none of them."""
    parts = [f"{row.number}\t{row.kind}\t{row.hash}\t{row.body}".encode() for row in rows]
    return _BETWEEN.join([*parts, head_seal(key, rows[-1].number, rows[-1].hash).encode()]) + b"\n"


def read_journal(path: Path, *, key: bytes | None = None) -> JournalRows:
    """What the journal of a ledger holds; without the key, seals are not checked.

    A last line without its end was never acknowledged: its writer stopped in the middle.
    """
    journal = companion(path, "journal")
    content = journal.read_bytes() if journal.is_file() else b""
    *lines, rest = content.split(b"\n")
    rows: list[Row] = []
    num_written, is_whole = 0, True
    for line in lines:
        # A line without a seal is all rows: named as such, and not believed where there is a key.
        *parts, last = line.split(_BETWEEN)
        parts, seal = (parts, last) if b"\t" not in last else ([*parts, last], b"")
        # A line without a tab is the rest of one in which a damaged byte became an end of line.
        num_written += len(parts) if b"\t" in line else 0
        added = _following(rows, parts, seal=seal, key=key) if is_whole else []
        is_whole = bool(added)
        rows += added
    return JournalRows(rows=rows, num_written=num_written, is_torn=bool(rest))


def _following(before: list[Row], parts: list[bytes], *, seal: bytes, key: bytes | None) -> list[Row]:
    """The rows of a line; none if they do not follow those before, or are not sealed."""
    added: list[Row] = []
    last_hash = before[-1].hash if before else GENESIS
    for number, part in enumerate(parts, start=len(before) + 1):
        try:
            stated, kind, digest, body = part.decode().split("\t", 3)
        except ValueError:
            return []
        if stated != str(number) or digest != row_hash(last_hash, number, kind, body):
            return []
        last_hash = digest
        added.append(Row(number=number, kind=kind, body=body, hash=digest))
    expected = seal if key is None else head_seal(key, len(before) + len(added), last_hash).encode()
    return added if hmac.compare_digest(seal, expected) else []


def open_journal(path: Path) -> IO[bytes]:
    """To append to."""
    return open(companion(path, "journal"), "ab", buffering=0, opener=private_opener)


def rewrite_journal(path: Path, rows: Sequence[Row], *, key: bytes) -> None:
    """Replaces the journal, whole or not at all."""
    lines = (journal_line([row], key=key) for row in rows)
    write_whole(companion(path, "journal"), b"".join(lines), private=True, durable=True)


def write_all(file: IO[bytes], content: bytes) -> None:
    """An unbuffered write may be short."""
    while content:
        content = content[file.write(content) :]
