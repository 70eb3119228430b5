import dataclasses
from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import PrivacyError
from gdpfed.ledger.admission import check_admission
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.ledger.replan import plan_the_rest, remaining_epsilon, rest_of
from gdpfed.ledger.spend import fits, spent
from gdpfed.planning.people import assign
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.accountant import SampledGaussian
from gdpfed.privacy.budgets import parse_compact
from tests.ledger.books import DELTA, TWO, book, play, start


@pytest.mark.training
def test_the_rest_fits(shelf: Path) -> None:
    """Half a run, then client 0 has nothing left, client 1 little; the others' rest is planned anew."""
    settings = PlanSettings(num_rounds=6, participation=0.2, method="gdpfed", delta=DELTA)
    with book(shelf, text=TWO) as ledger:
        start(ledger, text=TWO)
        play(ledger, "run", range(4))
        ledger.close_run("run")
        people = ledger.state.population("people")
        ledger.tighten("people", ["0"], epsilon=0.2)
        ledger.tighten("people", ["1"], epsilon=0.9)
        plan, groups = plan_the_rest(ledger.state, people, settings)
        assert groups[0] == -1
        assert (groups[1:] >= 0).all()
        assert groups[1] < groups[2] < groups[150]
        assert plan.num_rounds == 6
        ledger.start_run("rest", "people", plan, groups)
        play(ledger, "rest", range(6))
        for number in range(len(people.classes)):
            history = ledger.state.history(people, number)
            cost = spent(history, delta=DELTA)
            if number != int(people.class_of[0]) and number != int(people.class_of[1]):
                assert fits(history, people.strictest_of(number))
                # Nearly all of the budget is used.
                assert cost > 0.9 * people.strictest_of(number)[0][0]
        with pytest.raises(ExhaustedError):
            ledger.start_run("more", "people", plan, groups)
        ledger.leave("people", [str(client) for client in range(1, 200)])
        with pytest.raises(PrivacyError, match="nobody"):
            plan_the_rest(ledger.state, people, settings)


def test_more_than_subtraction() -> None:
    past = (SampledGaussian(noise_multiplier=2.0, sampling_rate=0.2, num_rounds=10),)
    before = spent(past, delta=DELTA)
    left = remaining_epsilon(past, ((1.5 * before, DELTA),), like=past[0])
    assert 0.5 * before < left < 1.5 * before
    assert left > 1.2 * (0.5 * before)
    assert remaining_epsilon(past, ((before * 0.9, DELTA),), like=past[0]) == 0
    assert np.isfinite(left)


@pytest.mark.training
def test_whole_budgets_find_the_groups(shelf: Path) -> None:
    """By what clients allow over all runs, as a deployment's nodes do; by name where pasts differ, or budgets ended."""
    settings = PlanSettings(num_rounds=6, participation=0.2, method="gdpfed+", delta=DELTA)
    with book(shelf, text=TWO, factor=1.2) as ledger:
        start(ledger, text=TWO)
        play(ledger, "run", range(10))
        people = ledger.state.population("people")
        with pytest.raises(ExhaustedError, match="gdpfed ledger plan makes a plan for what is left"):
            start(ledger, "again", text=TWO)
        for one in (settings, dataclasses.replace(settings, against="server", asks=3, trainings=1.2)):
            rest = rest_of(ledger.state, people, one)
            assert [group.epsilon for group in rest.plan.groups] == [1.2, 2.4]
            rest.plan.verify()
            groups = assign(rest.plan, parse_compact("100@1.2,100@2.4"))
            check_admission(ledger.state, people, rest.plan, groups.astype(np.int16), run="rest")
            for number, group in enumerate(rest.plan.groups):
                history = ledger.state.history(people, int(people.class_of[100 * number]))
                assert spent([*history, rest.plan.mechanism(group)], delta=DELTA) > 0.97 * group.epsilon
        ledger.join("people", parse_compact("50@1.2"), default_delta=DELTA)
        ledger.tighten("people", ["7"], epsilon=0.5)
        rest = rest_of(ledger.state, people, settings)
        assert (rest.plan.grouping, rest.left_out, len(rest.budgets)) == ("given", 1, 249)
        assert rest.budgets.clients is not None
        assert "7" not in rest.budgets.clients
        rest.plan.verify()
        chosen = people.indices(rest.budgets.clients)
        groups = np.full(250, -1)
        groups[chosen] = assign(rest.plan, rest.budgets)
        # Who joined has more left than those with the same budget, and a past.
        assert groups[0] < groups[200]
        ledger.start_run("rest", "people", rest.plan, groups)
