from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.book import Ledger, publish
from gdpfed.ledger.verify import verify_ledger
from tests.ledger.books import book, play, start

NOBODY = np.empty(0, dtype=np.int64)


def started(shelf: Path) -> Ledger:
    ledger = book(shelf)
    start(ledger)
    return ledger


def test_charged_is_never_taken_back(shelf: Path) -> None:
    with started(shelf) as ledger:
        given_back = ledger.reserve("run", 0, "group 1")
        assert given_back.attempt.state == "reserved"
        with pytest.raises(PrivacyError, match="expected 'charged' before 'published'"):
            given_back.publish("ab")
        given_back.abort("too few clients")
        with pytest.raises(PrivacyError, match="expected 'reserved' before 'charged', got 'aborted'"):
            given_back.commit(NOBODY)
        assert ledger.state.run("run").charged == [0, 0, 0]
        charge = ledger.reserve("run", 0, "group 1", attempt=1)
        with pytest.raises(PrivacyError, match="is reserved: commit or abort"):
            ledger.reserve("run", 0, "group 1")
        charge.commit(np.array([0, 5]))
        for wrong in (lambda: charge.commit(NOBODY), lambda: charge.abort("changed my mind")):
            with pytest.raises(PrivacyError, match="got 'charged'"):
                wrong()
        assert ledger.state.run("run").charged == [1, 0, 0]
        # Lost, tried again, and both are paid for.
        again = ledger.reserve("run", 0, "group 1")
        assert again.attempt.attempt == 2
        again.commit(NOBODY)
        again.publish("ab")
        assert ledger.state.run("run").charged == [2, 0, 0]
        assert [a.state for a in ledger.state.run("run").attempts_of(0, 0)] == ["aborted", "charged", "published"]


def test_one_content_for_each_attempt(shelf: Path) -> None:
    with started(shelf) as ledger:
        charge = ledger.reserve("run", 0, "group 2")
        charge.commit(NOBODY)
        with pytest.raises(InputError, match="hash of what was released"):
            charge.publish("")
        charge.publish("aa")
        rows = len(ledger.store.rows)
        charge.publish("aa")
        assert len(ledger.store.rows) == rows
        with pytest.raises(PrivacyError, match="published with other content"):
            charge.publish("bb")
    with Ledger.open(shelf / "book") as ledger:
        with pytest.raises(PrivacyError, match="published with other content"):
            publish([ledger.charge("run", 0, "group 2")], "bb")
        assert ledger.charge("run", 0, "group 2").attempt.content_hash == "aa"


def test_a_published_round_is_closed(shelf: Path) -> None:
    with started(shelf) as ledger:
        charge = ledger.reserve("run", 3, "group 1")
        charge.commit(np.array([7]))
        charge.publish("aa")
        with pytest.raises(PrivacyError, match="release the round twice"):
            ledger.reserve("run", 3, "group 1")
        assert ledger.participants("run", 3, "group 1") is not None
        assert ledger.participants("run", 3, "group 1").tolist() == [7]  # type: ignore[union-attr]
        assert ledger.participants("run", 4, "group 1") is None
        with pytest.raises(PrivacyError, match="from 0 to 9"):
            ledger.reserve("run", 10, "group 1")
        with pytest.raises(PrivacyError, match="expected attempt 0 of round 4"):
            ledger.reserve("run", 4, "group 1", attempt=2)
        ledger.close_run("run")
        with pytest.raises(PrivacyError, match="closed"):
            ledger.reserve("run", 4, "group 1")


def test_reservations_count_while_they_last(shelf: Path) -> None:
    """Reservations of several rounds at once cannot be committed beyond the budget."""
    with started(shelf) as ledger:
        charges = [ledger.reserve("run", number, "group 1") for number in range(10)]
        assert ledger.state.run("run").count("reserved", 0) == 10
        charges[0].commit(NOBODY)
        with pytest.raises(PrivacyError, match="0 more fit"):
            ledger.reserve("run", 0, "group 1")
        charges[1].abort("room for another")
        lost = ledger.reserve("run", 0, "group 1")
        lost.commit(NOBODY)
    # Whoever held the others is gone.
    with Ledger.open(shelf / "book") as ledger:
        assert ledger.state.run("run").count("reserved", 0) == 0
        assert ledger.state.run("run").charged[0] == 2


def test_a_closed_run_charges_nothing(shelf: Path) -> None:
    """What it held is free: a reservation from before must not be paid with what another run has by now."""
    with book(shelf) as ledger:
        start(ledger)
        charge = ledger.reserve("run", 0, "group 1")
        ledger.close_run("run")
        start(ledger, "another")
        with pytest.raises(PrivacyError, match="closed"):
            charge.commit(np.array([0]))
        play(ledger, "another", range(10))
    verify_ledger(shelf / "book")
