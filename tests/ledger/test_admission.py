import dataclasses
from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import PrivacyError
from gdpfed.ledger.admission import rounds_left
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.planning.plan import guaranteed
from gdpfed.privacy.budgets import parse_compact
from tests.ledger.books import DELTA, TWO, book, oracle, plan_for, play, start


@pytest.mark.training
def test_the_fourth_run_is_refused(shelf: Path) -> None:
    """Three runs by different methods fit twice the budgets of one, the fourth does not."""
    plans = [plan_for(TWO, method=method) for method in ("gdpfed", "dp-fedavg", "pooled", "gdpfed")]
    with book(shelf, text=TWO, factor=2.0) as ledger:
        for number, plan in enumerate(plans[:3]):
            start(ledger, f"run {number}", plan=plan, text=TWO)
            play(ledger, f"run {number}", range(10))
            ledger.close_run(f"run {number}")
        rows = len(ledger.store.rows)
        with pytest.raises(ExhaustedError, match=r"of 10 rounds would fit") as refused:
            start(ledger, "run 3", plan=plans[3], text=TWO)
        assert len(ledger.store.rows) == rows
        people = ledger.state.population("people")
        # Recomputed by nothing of ours, from the plans alone.
        spends = []
        for client, budget in ((0, 2.0), (150, 4.0)):
            events = []
            for number, plan in enumerate(plans[:3]):
                group = plan.groups[int(ledger.state.run(f"run {number}").assignment[client])]
                events.append((group.noise_multiplier, group.sampling_rate, 10))
            spends.append(oracle(events, DELTA))
            assert spends[-1] <= budget == people.epsilons[client]
        # What would fit is let in, and is all.
        left = refused.value.rounds_left
        assert 0 <= left < 10
        if left:
            rest = guaranteed(dataclasses.replace(plans[3], num_rounds=left))
            start(ledger, "the rest", plan=rest, text=TWO)


def test_open_runs_hold_their_rounds(shelf: Path) -> None:
    with book(shelf) as ledger:
        plan = start(ledger, "one")
        with pytest.raises(ExhaustedError, match=r"0 of 10 rounds would fit; open runs hold rounds \(one\)"):
            start(ledger, "two")
        play(ledger, "one", range(4))
        ledger.close_run("one")
        with pytest.raises(ExhaustedError, match="6 of 10 rounds would fit") as refused:
            start(ledger, "two")
        assert refused.value.rounds_left == 6
        assert plan.num_rounds == 10


def test_a_tightened_budget_stops_its_group(shelf: Path) -> None:
    with book(shelf) as ledger:
        start(ledger)
        play(ledger, "run", range(3))
        run = ledger.state.run("run")
        assert rounds_left(ledger.state, run) == {"group 1": 7, "group 2": 7, "group 3": 7}
        waiting = ledger.reserve("run", 3, "group 1")
        ledger.tighten("people", ["5"], epsilon=0.1)
        ledger.tighten("people", ["60"], epsilon=1.5)
        left = rounds_left(ledger.state, run)
        assert left["group 1"] == 0
        assert 0 < left["group 2"] < 7
        assert left["group 3"] == 7
        with pytest.raises(ExhaustedError, match=r"'group 1'.*3 rounds were charged, 0 more fit"):
            waiting.commit(np.array([1]))
        waiting.abort("stopped")
        taking_part = {f"group {number}": np.empty(0, dtype=np.int64) for number in (1, 2, 3)}
        charges, refused = ledger.charge_round("run", 3, taking_part)
        assert set(charges) == {"group 2", "group 3"}
        assert set(refused) == {"group 1"}
        # The one client leaves, and its group goes on.
        ledger.leave("people", ["5"])
        assert rounds_left(ledger.state, run)["group 1"] == 7
        ledger.reserve("run", 3, "group 1").commit(np.array([1]))


def test_what_is_lost_is_paid_again_if_it_fits(shelf: Path) -> None:
    with book(shelf, factor=1.2) as ledger:
        start(ledger)
        play(ledger, "run", range(9))
        for _ in range(20):
            try:
                ledger.reserve("run", 9, "group 1").commit(np.array([1]))
            except ExhaustedError:
                break
        else:
            raise AssertionError("a charge was not refused")
        assert 10 < ledger.state.run("run").charged[0] < 20


def test_refused_runs(shelf: Path) -> None:
    with book(shelf, factor=3.0) as ledger:
        plan = plan_for()
        with pytest.raises(PrivacyError, match="has no privacy"):
            start(ledger, plan=plan_for(method="fedavg"))
        start(ledger)
        with pytest.raises(PrivacyError, match="with another plan"):
            start(ledger, plan=plan_for(rounds=5))
        ledger.leave("people", ["3"])
        with pytest.raises(PrivacyError, match="'3' has left"):
            start(ledger, "two", plan=plan)
        # Strict clients cannot be put in a lax group, whatever the plan says.
        with pytest.raises(ExhaustedError, match="client '0'"):
            ledger.start_run("wrong", "people", plan, np.where(np.arange(200) == 3, -1, 2))
        ledger.join("people", parse_compact("2@0.01"))
        with pytest.raises(ExhaustedError, match="client '200'"):
            ledger.enrol("run", ["200"], "group 1")
