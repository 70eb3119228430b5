from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import gdpfed.ledger.book as writing
from gdpfed.errors import PrivacyError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.doubled import not_compared, unsettled
from gdpfed.ledger.verify import verify_ledger
from gdpfed.planning.plan import Plan
from gdpfed.privacy.budgets import Budgets, parse_compact
from tests.ledger.books import DELTA, TWO, plan_for

NAMES = tuple(f"person {number}" for number in range(200))


def named(names: tuple[str, ...] = NAMES, *, epsilon: float | None = None) -> Budgets:
    epsilons = np.repeat([1.0, 2.0], 100)[: len(names)] if epsilon is None else np.full(len(names), epsilon)
    return Budgets(epsilons=epsilons, deltas=np.full(len(names), DELTA), clients=names)


def others(first: str, *, shared: int) -> tuple[str, ...]:
    """As many names, of which so many are in NAMES too."""
    return (*NAMES[:shared], *(f"{first} {number}" for number in range(shared, 200)))


@pytest.fixture
def doubled(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """A ledger as an earlier version made it: 'a' and 'b' share clients, and each plays a run."""

    def make(*, shared: int = 2, play: tuple[str, ...] = ("a", "b")) -> Path:
        with monkeypatch.context() as earlier:
            earlier.setattr(writing, "check_new_clients", lambda *_, **__: None)
            earlier.setattr("gdpfed.ledger.admission.check_single", lambda *_: None)
            with Ledger.create(shelf / "book") as ledger:
                ledger.add_population("a", named())
                ledger.add_population("b", named(others("else", shared=shared)))
                for population in play:
                    run(ledger, population)
        return shelf / "book"

    return make


def run(ledger: Ledger, population: str, *, name: str = "", rounds: int = 10) -> Plan:
    plan = plan_for(TWO)
    name = name or f"run of {population}"
    ledger.start_run(name, population, plan, np.repeat([0, 1], 100))
    for number in range(rounds):
        ledger.charge_round(name, number, {"group 1": np.array([0]), "group 2": np.array([100])})
    return plan


def test_a_client_has_one_budget(shelf: Path) -> None:
    with Ledger.create(shelf / "book") as ledger:
        ledger.add_population("a", named())
        ledger.leave("a", [NAMES[7]])
        rows = len(ledger.store.rows)
        for shared in ((NAMES[3],), (NAMES[7],), ("new", NAMES[199])):
            with pytest.raises(PrivacyError, match=f"client '{shared[-1]}' is in population 'a'"):
                ledger.add_population("b", named(shared))
        assert len(ledger.store.rows) == rows
        ledger.add_population("b", named(("new", "newer")))
        with pytest.raises(PrivacyError, match="'person 3' is in population 'a'"):
            ledger.join("b", named((NAMES[3],)))
        with pytest.raises(PrivacyError, match="'newer' is in population 'b'"):
            ledger.join("a", named(("one more", "newer")))
        ledger.join("a", named(("one more",)))
        with pytest.raises(PrivacyError, match="'one more' is in population 'a'"):
            ledger.join("b", named(("one more",)))
        # Saying so does not help where names say otherwise.
        with pytest.raises(PrivacyError, match="is in population 'a'"):
            ledger.add_population("c", named((NAMES[0],)), other_people=True)
        assert not ledger.state.doubled
    assert not Ledger.read(shelf / "book").state.doubled


def test_without_names_somebody_says_so(shelf: Path) -> None:
    counted = parse_compact("3@1")
    with Ledger.create(shelf / "book") as ledger:
        ledger.add_population("a", counted)
        for budgets in (counted, named(("ana",)), named(("0",))):
            with pytest.raises(PrivacyError, match=r"'b' and 'a' cannot be compared.*other_people"):
                ledger.add_population("b", budgets)
        ledger.add_population("b", named(("0",)), other_people=True)
        with pytest.raises(PrivacyError, match="'c' and 'a', 'b' cannot be compared"):
            ledger.add_population("c", counted)
        ledger.add_population("c", counted, other_people=True)
        ledger.join("a", counted)
        ledger.join("c", counted)
        assert not_compared(ledger.state) == []
    assert verify_ledger(shelf / "book").not_compared == ()


def test_what_an_earlier_version_did_not_ask_is_told(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "check_new_clients", lambda *_, **__: None)
    with Ledger.create(shelf / "book") as ledger:
        ledger.add_population("a", parse_compact("3@1"))
        ledger.add_population("b", parse_compact("3@1"))
        ledger.add_population("c", named(("ana",)))
        ledger.add_population("d", named(("ben",)), other_people=True)
    assert verify_ledger(shelf / "book").not_compared == ("b", "c")


def test_a_doubled_client_stops_its_populations(doubled: Callable[..., Path]) -> None:
    path = doubled(shared=2, play=())
    with Ledger.open(path) as ledger:
        assert list(ledger.state.doubled) == list(NAMES[:2])
        for population in ("a", "b"):
            with pytest.raises(PrivacyError, match=r"client 'person 0' \(and 1 more\) of population '.' has a second"):
                run(ledger, population)
        # Never charged in 'b': leaving it settles the matter for both.
        ledger.leave("b", list(NAMES[:2]))
        assert not unsettled(ledger.state)
        run(ledger, "a")
        ledger.start_run("rest of b", "b", plan_for(TWO), np.array([-1, -1, *[0] * 98, *[1] * 100]))
        # What is less in the other population was said by the same person.
        ledger.tighten("b", [NAMES[0]], epsilon=0.5)
        assert list(unsettled(ledger.state)) == [NAMES[0]]
        with pytest.raises(PrivacyError, match="second budget"):
            ledger.reserve("run of a", 9, "group 1")
        ledger.tighten("a", [NAMES[0]], epsilon=0.5)
        assert not unsettled(ledger.state)
    assert not unsettled(Ledger.read(path).state)


def test_a_doubled_client_is_named(doubled: Callable[..., Path]) -> None:
    path = doubled(shared=30)
    assert len(Ledger.read(path).state.doubled) == 30
    message = r"got 30 in several: 'person 0', .*'person 19' \(and 10 more\).*'a', 'b' and spent epsilon 1\.[4-9]"
    with pytest.raises(PrivacyError, match=message):
        verify_ledger(path)
    with Ledger.open(path) as ledger:
        ledger.leave("a", list(NAMES[:30]))
        # Charged in both: leaving one does not make what it spent there go away.
        with pytest.raises(PrivacyError, match=r"'person 0' \(and 29 more\) of population 'b'"):
            ledger.extend("run of b", 11)
        ledger.leave("b", list(NAMES[:30]))
        ledger.close_run("run of b")
    # Nobody is charged any more, and what happened is still told.
    with pytest.raises(PrivacyError, match="got 30 in several"):
        verify_ledger(path)
