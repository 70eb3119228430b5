import contextlib
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.verify import verify_ledger
from tests.ledger.books import TWO, book, plan_for, play, start

Change = Callable[[sqlite3.Connection, int], object]

CHANGES: dict[str, Change] = {
    "body": lambda db, row: db.execute("UPDATE rows SET body = replace(body, ':', ': ') WHERE number = ?", (row,)),
    "kind": lambda db, row: db.execute("UPDATE rows SET kind = 'abort' WHERE number = ?", (row,)),
    "hash": lambda db, row: db.execute("UPDATE rows SET hash = hex(randomblob(32)) WHERE number = ?", (row,)),
    "deleted": lambda db, row: db.execute("DELETE FROM rows WHERE number = ?", (row,)),
    "moved": lambda db, row: [
        db.execute("UPDATE rows SET number = -1 WHERE number = ?", (row,)),
        db.execute("UPDATE rows SET number = ? WHERE number = ?", (row, row + 1)),
        db.execute("UPDATE rows SET number = ? WHERE number = -1", (row + 1,)),
    ],
}


@pytest.mark.parametrize("change", CHANGES)
def test_any_changed_row_fails(shelf: Path, change: str) -> None:
    with book(shelf, text=TWO) as ledger:
        start(ledger, text=TWO)
        play(ledger, "run", range(3))
        rows = len(ledger.store.rows)
    pristine = {file.name: file.read_bytes() for file in shelf.glob("book*")}
    for row in range(1, rows):
        for name, content in pristine.items():
            (shelf / name).write_bytes(content)
        with contextlib.closing(sqlite3.connect(shelf / "book")) as database:
            database.execute("DROP TRIGGER no_update")
            database.execute("DROP TRIGGER no_delete")
            CHANGES[change](database, row)
            database.commit()
        with pytest.raises(PrivacyError, match=f"row {row} "):
            verify_ledger(shelf / "book")


def test_rewriting_everything_needs_the_key(shelf: Path) -> None:
    """All hashes recomputed, in both records: without the key the head cannot be sealed."""
    with book(shelf, text=TWO) as ledger:
        start(ledger, text=TWO)
        play(ledger, "run", range(2))
        entries = [(row.kind, row.content) for row in ledger.store.rows]
    with Ledger.create(shelf / "forged") as forged:
        forged.store.append(entries[1:-2])
    for suffix in ("", ".journal"):
        shutil.copy(shelf / f"forged{suffix}", shelf / f"book{suffix}")
    with pytest.raises(PrivacyError, match="sealed with another key"):
        verify_ledger(shelf / "book")


def test_a_whole_ledger_verifies(shelf: Path) -> None:
    with book(shelf, text=TWO, factor=1.2) as ledger:
        start(ledger, text=TWO)
        play(ledger, "run", range(10))
        ledger.close_run("run")
        ledger.leave("people", ["3"])
        # Below what is spent: allowed, and nothing can be charged any more.
        ledger.tighten("people", ["4"], epsilon=0.2)
    verified = verify_ledger(shelf / "book")
    assert (verified.num_clients, verified.num_runs, verified.num_charges, verified.num_published) == (200, 1, 20, 20)
    assert 0.82 < verified.largest_share < 1 / 1.19
    assert verified.is_sealed
    (shelf / "book.key").unlink()
    assert not verify_ledger(shelf / "book").is_sealed


def test_overspending_fails(shelf: Path) -> None:
    """Rows written past the checks, with proper hashes and seal."""
    with book(shelf, text=TWO) as ledger:
        start(ledger, text=TWO)
        play(ledger, "run", range(10))
        attempt = {"run": "run", "round": 0, "group": "group 1", "attempt": 1}
        clients = ledger.store.rows[4].content["clients"]
        ledger.store.append([("reserve", attempt), ("charge", {**attempt, "clients": clients})])
    with pytest.raises(PrivacyError, match=r"client '0' of 'people' and its like spent epsilon 1\.0"):
        verify_ledger(shelf / "book")
    with book(shelf, name="other", text=TWO) as ledger:
        plan = plan_for(TWO, rounds=5)
        start(ledger, plan=plan, text=TWO)
        ledger.store.append([("close", {"run": "run", "spent": {"group 1": 0.01, "group 2": 0.0}})])
    with pytest.raises(PrivacyError, match=r"row 4 \(close\) records epsilon 0.01"):
        verify_ledger(shelf / "other")


def test_an_old_copy_is_noticed(shelf: Path) -> None:
    with book(shelf, text=TWO) as ledger:
        start(ledger, text=TWO)
    old = {file.name: file.read_bytes() for file in shelf.glob("book*")}
    with Ledger.open(shelf / "book") as ledger:
        ledger.reserve("run", 0, "group 1").commit(np.array([1]))
    noted = verify_ledger(shelf / "book").head
    verify_ledger(shelf / "book", known_head=noted)
    for name, content in old.items():
        (shelf / name).write_bytes(content)
    verify_ledger(shelf / "book")
    with pytest.raises(PrivacyError, match=r"row 5 was there before.*old copy"):
        verify_ledger(shelf / "book", known_head=noted)
    with pytest.raises(PrivacyError, match="row 2 is not the one"):
        verify_ledger(shelf / "book", known_head="2:" + "0" * 64)
    with pytest.raises(InputError, match="NUMBER:HASH"):
        verify_ledger(shelf / "book", known_head="nonsense")
