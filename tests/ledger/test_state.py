from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import PrivacyError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.chain import following
from gdpfed.ledger.spend import spent
from gdpfed.ledger.state import LedgerState
from gdpfed.privacy.budgets import parse_compact
from gdpfed.privacy.cache import forget_memory
from tests.ledger.books import DELTA, TWO, book, plan_for, play, start


def spends(ledger: Ledger) -> list[float]:
    people = ledger.state.population("people")
    return [spent(ledger.state.history(people, number), delta=DELTA) for number in range(len(people.classes))]


def test_replay_equals_live(shelf: Path) -> None:
    with book(shelf, text=TWO, factor=2.0) as ledger:
        start(ledger, "one", text=TWO)
        play(ledger, "one", range(10))
        ledger.close_run("one")
        ledger.leave("people", ["7", "177"])
        plan = plan_for(TWO, method="pooled", rounds=5)
        groups = ledger.state.run("one").assignment.copy()
        groups[ledger.state.population("people").has_left] = -1
        ledger.start_run("two", "people", plan, groups)
        ledger.reserve("two", 0, "group 1").commit(np.array([0]))
        play(ledger, "two", range(1, 4))
        live = spends(ledger)
        forget_memory()
        again = Ledger.read(shelf / "book")
        np.testing.assert_allclose(spends(again), live, rtol=1e-9, atol=0)
        one, other = ledger.state.population("people"), again.state.population("people")
        for name in ("epsilons", "deltas", "class_of", "precision", "has_left"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert again.state.run("two").charged == ledger.state.run("two").charged == [4, 3]
    assert len(set(live)) == 4


def test_groups_are_fixed_in_a_run(shelf: Path) -> None:
    with book(shelf, factor=3.0) as ledger:
        start(ledger)
        with pytest.raises(PrivacyError, match=r"'0' cannot move to 'group 2': it is in 'group 1'.*depend on data"):
            ledger.enrol("run", ["0"], "group 2")
        with pytest.raises(PrivacyError, match="'0' is in 'group 1'"):
            ledger.enrol("run", ["0"], "group 1")
        ledger.leave("people", ["0"])
        with pytest.raises(PrivacyError, match="cannot move"):
            ledger.enrol("run", ["0"], "group 2")
        (newcomer,) = ledger.join("people", parse_compact("1@9"))
        ledger.enrol("run", [str(newcomer)], "group 1")
        assert ledger.state.run("run").assignment[newcomer] == 0
        # A row that does it all the same is refused on replay.
        rows = ledger.store.rows
        content = {"run": "run", "clients": rows[-1].content["clients"], "group": "group 2"}
        forged = following(rows[-1].hash, len(rows) + 1, "enrol", content)
        with pytest.raises(PrivacyError, match=rf"row {forged.number} \(enrol\) cannot follow.*cannot move"):
            LedgerState([*rows, forged])


def test_the_cap_is_kept(shelf: Path) -> None:
    with book(shelf, factor=2.0) as ledger:
        start(ledger, plan=plan_for(cap=2))
        for number in range(2):
            ledger.reserve("run", number, "group 1").commit(np.array([1, 2]))
        charge = ledger.reserve("run", 2, "group 1")
        with pytest.raises(PrivacyError, match=r"client '2' has taken part 2 times.*do not ask it again"):
            charge.commit(np.array([3, 2]))
        with pytest.raises(PrivacyError, match="'60' takes part in 'group 1' but is not in it"):
            charge.commit(np.array([60]))
        with pytest.raises(PrivacyError, match="once"):
            charge.commit(np.array([5, 5]))
        charge.commit(np.array([3, 4]))
        assert ledger.state.run("run").participations[:5].tolist() == [0, 2, 2, 1, 1]
        ledger.leave("people", ["9"])
        with pytest.raises(PrivacyError, match="has left"):
            ledger.reserve("run", 3, "group 1").commit(np.array([9]))


def test_rows_out_of_place_are_refused(shelf: Path) -> None:
    with book(shelf) as ledger:
        rows = ledger.store.rows
        for kind in ("nothing", "ledger", "charge"):
            with pytest.raises(PrivacyError, match=rf"row 3 \({kind}\)"):
                LedgerState([*rows, following(rows[-1].hash, 3, kind, {})])
