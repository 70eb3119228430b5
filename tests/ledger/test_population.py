from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.population import Population, packed_budgets
from gdpfed.ledger.state import LedgerState
from gdpfed.privacy.budgets import Budgets, parse_compact
from tests.ledger.books import DELTA, book, play, start


def test_classes_are_exact(shelf: Path) -> None:
    """Against a dictionary of every client's own past."""
    with book(shelf, factor=3.0) as ledger:
        start(ledger, "one")
        play(ledger, "one", range(2))
        ledger.leave("people", ["3", "4", "70"])
        play(ledger, "one", range(2, 4))
        ledger.join("people", parse_compact("4@9"))
        ledger.enrol("one", ["200", "201"], "group 3")
        play(ledger, "one", range(4, 5))
        state, people = ledger.state, ledger.state.population("people")
        own: dict[int, tuple[tuple[str, int], ...]] = dict.fromkeys(range(204), ())
        for client in range(200):
            group = int(state.run("one").assignment[client])
            own[client] = ((f"group {group}", 2 if client in (3, 4, 70) else 5),)
        own[200] = own[201] = (("group 2", 1),)
        for client, past in own.items():
            events = state.history(people, int(people.class_of[client]))
            assert sum(event.num_rounds for event in events) == sum(count for _, count in past)
            for other in (0, 3, 4, 60, 70, 150, 200, 201, 202, 203):
                same = (past == own[other]) and ((client < 200) == (other < 200))
                assert (people.class_of[client] == people.class_of[other]) == same, (client, other)


def test_a_budget_only_tightens(shelf: Path) -> None:
    with book(shelf) as ledger:
        people = ledger.state.population("people")
        ledger.tighten("people", ["0", "1"], epsilon=0.5)
        ledger.tighten("people", ["1"], delta=1e-5)
        assert people.epsilons[:3].tolist() == [0.5, 0.5, 1.0]
        assert people.deltas[:3].tolist() == [1e-3, 1e-5, 1e-3]
        rows = len(ledger.store.rows)
        with pytest.raises(PrivacyError, match=r"client '0' allows epsilon=0\.5, less than 0.7"):
            ledger.tighten("people", ["5", "0"], epsilon=0.7)
        with pytest.raises(PrivacyError, match="client '1' allows delta"):
            ledger.tighten("people", ["1"], delta=1e-4)
        with pytest.raises(InputError, match="finite epsilon"):
            ledger.tighten("people", ["1"], epsilon=-1.0)
        assert len(ledger.store.rows) == rows
        assert people.strictest_of(0) == ((0.5, 1e-5),)


def test_labels_find_clients() -> None:
    names = ("ana", "ben", "cy")
    budgets = Budgets(epsilons=np.array([1.0, 2.0, 3.0]), deltas=np.full(3, 1e-5), clients=names)
    named = Population("named", packed_budgets(budgets, 1e-5))
    assert named.indices(["cy", "ana"]).tolist() == [2, 0]
    assert named.label(1) == "ben"
    with pytest.raises(InputError, match=r"no client 'bem'.*did you mean 'ben'"):
        named.indices(["ana", "bem"])
    counted = Population("counted", packed_budgets(parse_compact("3@1"), 1e-5))
    assert counted.indices(["2"]).tolist() == [2]
    for unknown in ("3", "-1", "x"):
        with pytest.raises(InputError, match="no client"):
            counted.indices([unknown])
    with pytest.raises(InputError, match="line breaks"):
        packed_budgets(Budgets(epsilons=np.ones(1), deltas=np.full(1, 0.1), clients=("a\nb",)), 0.1)


def test_who_joins_gets_no_laxer_delta(shelf: Path) -> None:
    def deltas(name: str, budgets: Budgets, **given: float) -> list[float]:
        with Ledger.create(shelf / name) as ledger:
            ledger.add_population("people", budgets, **given)
            own = Budgets(epsilons=np.ones(2), deltas=np.array([np.nan, 0.3]), clients=None)
            newcomers = ledger.join("people", own)
            state = LedgerState(ledger.store.rows)
            assert state.population("people").default_delta == ledger.state.population("people").default_delta
            return state.population("people").deltas[newcomers].tolist()

    lax = Budgets(epsilons=np.ones(98), deltas=np.array([0.2, *[np.nan] * 97]))
    assert deltas("default", lax) == [0.1 / 100, 0.3]
    assert deltas("stated", lax, default_delta=1e-6) == [1e-6, 0.3]
    # A lax default was for those who were there; what a new population gets is what the help promises.
    assert deltas("large", lax, default_delta=0.1) == [0.1 / 100, 0.3]
    assert deltas("all their own", Budgets(epsilons=np.ones(98), deltas=np.full(98, 0.2))) == [0.1 / 100, 0.3]
    assert deltas("and strict", Budgets(epsilons=np.ones(98), deltas=np.full(98, 1e-9))) == [1e-9, 0.3]
    # A row of an earlier version does not say what the default was.
    old = Population("old", packed_budgets(lax, 1e-7))
    assert old.joining_delta(2) == 0.1 / 100


def test_who_joins_has_a_budget_at_once(shelf: Path) -> None:
    with book(shelf) as ledger:
        people = ledger.state.population("people")
        assert people.strictest_of(0) == ((1.0, DELTA),)
        ledger.join("people", parse_compact("1@0.5"), default_delta=DELTA)
        assert people.strictest_of(1) == ((0.5, DELTA),)
