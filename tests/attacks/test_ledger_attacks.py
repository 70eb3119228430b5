"""Attacks on the ledger, performed with the real one: each fails, and succeeds once its defence is taken away."""

import os
import re
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from gdpfed import files
from gdpfed.errors import PrivacyError
from gdpfed.ledger import admission, verify
from gdpfed.ledger import book as ledger
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.export import export
from gdpfed.ledger.population import Population
from gdpfed.ledger.spend import merged, spent
from gdpfed.ledger.verify import verify_ledger
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets, parse_compact
from tests.cli.test_cli import call

CLIENTS, ROUNDS, DELTA = 100, 5, 1e-3
PEOPLE = tuple(f"person {number}" for number in range(CLIENTS))
Defences = Callable[..., None]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Iterator[Defences]:
    """Takes defences away, by name."""

    def take_away(*names: str) -> None:
        for module in (admission, ledger, verify):
            for name in names:
                if hasattr(module, name):
                    monkeypatch.setattr(module, name, lambda *_, **__: None)

    yield take_away
    monkeypatch.undo()


@pytest.fixture(scope="module")
def plan() -> Plan:
    """One that spends all that everybody allows, epsilon 1."""
    settings = PlanSettings(num_rounds=ROUNDS, participation=0.2, method="dp-fedavg", delta=DELTA)
    return make_plan(parse_compact(f"{CLIENTS}@1"), settings)


def people(names: tuple[str, ...] | None = PEOPLE, *, count: int = CLIENTS) -> Budgets:
    count = count if names is None else len(names)
    return Budgets(epsilons=np.ones(count), deltas=np.full(count, DELTA), clients=names)


def train(book: Ledger, plan: Plan, population: str) -> None:
    """A whole run of everybody who is there, with everything released."""
    run, found = f"run of {population}", book.state.population(population)
    book.start_run(run, population, plan, np.where(found.has_left, -1, 0))
    for number in range(ROUNDS):
        charges, _ = book.charge_round(run, number, {"everyone": np.flatnonzero(~found.has_left)[:20]})
        charges["everyone"].publish(f"{number:064x}")
    book.close_run(run)


def spent_in_all(book: Ledger, label: str) -> float:
    """What a person has really spent, wherever it has that name."""
    events = [
        event
        for population in book.state.populations.values()
        if population.labels is None or label in population.index_by_label
        for event in book.state.history(population, int(population.class_of[population.index(label)]))
    ]
    return spent(merged(events), delta=DELTA)


def in_two_populations(path: Path, plan: Plan) -> Ledger:
    with Ledger.create(path) as book:
        book.add_population("a", people())
        book.add_population("b", people())
        train(book, plan, "a")
        train(book, plan, "b")
    return Ledger.read(path)


def join_the_second_later(path: Path, plan: Plan) -> Ledger:
    with Ledger.create(path) as book:
        book.add_population("a", people())
        train(book, plan, "a")
        book.add_population("b", people(tuple(f"other {number}" for number in range(CLIENTS - 1))))
        book.join("b", people(PEOPLE[:1]))
        train(book, plan, "b")
    return Ledger.read(path)


def leave_and_come_back_elsewhere(path: Path, plan: Plan) -> Ledger:
    with Ledger.create(path) as book:
        book.add_population("a", people())
        train(book, plan, "a")
        book.leave("a", list(PEOPLE))
        book.add_population("b", people())
        train(book, plan, "b")
    return Ledger.read(path)


def the_same_people_without_names(path: Path, plan: Plan) -> Ledger:
    with Ledger.create(path) as book:
        book.add_population("a", people(None))
        book.add_population("b", people(None))
        train(book, plan, "a")
        train(book, plan, "b")
    return Ledger.read(path)


SECOND_BUDGETS = [
    in_two_populations,
    join_the_second_later,
    leave_and_come_back_elsewhere,
    the_same_people_without_names,
]


@pytest.mark.parametrize("attack", SECOND_BUDGETS)
def test_nobody_gets_a_second_budget(tmp_path: Path, plan: Plan, attack: Callable[[Path, Plan], Ledger]) -> None:
    with pytest.raises(PrivacyError, match=r"two budgets|second budget"):
        attack(tmp_path / "book", plan)
    first = "0" if attack is the_same_people_without_names else PEOPLE[0]
    assert spent_in_all(Ledger.read(tmp_path / "book"), first) <= 1.0


@pytest.mark.parametrize("attack", SECOND_BUDGETS)
def test_teeth_a_second_budget_is_worth_having(
    tmp_path: Path, plan: Plan, attack: Callable[[Path, Plan], Ledger], without: Defences
) -> None:
    without("check_new_clients", "check_single", "check_no_doubled")
    book = attack(tmp_path / "book", plan)
    first = "0" if attack is the_same_people_without_names else PEOPLE[0]
    assert spent_in_all(book, first) > 1.4
    # And the book says that all is well.
    verify_ledger(tmp_path / "book")


def doubled_book(path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier version left: the same people twice, 'a' spent, 'b' in the middle of its run."""
    with monkeypatch.context() as earlier:
        for module, name in ((ledger, "check_new_clients"), (admission, "check_single")):
            earlier.setattr(module, name, lambda *_, **__: None)
        with Ledger.create(path) as book:
            book.add_population("a", people())
            book.add_population("b", people())
            train(book, plan, "a")
            book.start_run("run of b", "b", plan, np.zeros(CLIENTS, dtype=int))
            book.reserve("run of b", 0, "everyone").commit(np.arange(20))


def going_on(path: Path, plan: Plan) -> list[Callable[[Ledger], object]]:
    return [
        lambda book: book.reserve("run of b", 1, "everyone"),
        lambda book: book.charge_round("run of b", 1, {"everyone": np.arange(20)}),
        lambda book: book.extend("run of b", ROUNDS + 1),
        lambda book: book.start_run("more", "b", plan, np.zeros(CLIENTS, dtype=int)),
        lambda book: book.start_run("more", "a", plan, np.zeros(CLIENTS, dtype=int)),
    ]


@pytest.mark.parametrize("number", range(5))
def test_a_book_with_second_budgets_does_not_go_on(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "book"
    doubled_book(path, plan, monkeypatch)
    rows = len(Ledger.read(path).store.rows)
    with Ledger.open(path) as book, pytest.raises(PrivacyError, match=r"'person 0' \(and 99 more\).*second budget"):
        going_on(path, plan)[number](book)
    assert len(Ledger.read(path).store.rows) == rows
    with pytest.raises(PrivacyError, match=r"got 100 in several: 'person 0', .*spent epsilon 1\.\d+ in all"):
        verify_ledger(path)


def test_teeth_a_book_with_second_budgets_would_go_on(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, without: Defences
) -> None:
    path = tmp_path / "book"
    doubled_book(path, plan, monkeypatch)
    without("check_single", "check_no_doubled")
    with Ledger.open(path) as book:
        going_on(path, plan)[1](book)
    verify_ledger(path)


def laxest_delta(path: Path) -> float:
    """Somebody with a lax delta of its own is there; another joins and states none."""
    with Ledger.create(path) as book:
        deltas = np.array([0.4, *[np.nan] * (CLIENTS - 1)])
        book.add_population("people", Budgets(epsilons=np.ones(CLIENTS), deltas=deltas, clients=PEOPLE))
        nothing_stated = Budgets(epsilons=np.ones(1), deltas=np.array([np.nan]), clients=("newcomer",))
        (place,) = book.join("people", nothing_stated)
        return float(book.state.population("people").deltas[place])


def test_who_joins_does_not_get_the_laxest_delta(tmp_path: Path) -> None:
    assert laxest_delta(tmp_path / "book") == 0.1 / (CLIENTS + 1)


def test_teeth_the_laxest_delta_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Population, "joining_delta", lambda self, _: float(self.deltas.max()))
    assert laxest_delta(tmp_path / "book") == 0.4


def readable_by_others(folder: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """Everything that the ledger writes, over files that anybody may read; those that others can read afterwards."""
    mask = os.umask(0)
    try:
        exports = [f"{what}.{kind}" for what in ("clients", "rows", "charges", "status") for kind in ("json", "csv")]
        for name in (*exports, "receipt.json"):
            for planted in (name, f"{name}.part"):
                (folder / planted).touch()
                (folder / planted).chmod(0o666)
        path = folder / "book"
        assert call(capsys, "ledger", "init", str(path), "10@1")[0] == 0
        for name in exports:
            export(Ledger.read(path), name.partition(".")[0], folder / name)
        assert call(capsys, "ledger", "receipt", str(path), "3", "--out", str(folder / "receipt.json"))[0] == 0
    finally:
        os.umask(mask)
    assert len(list(folder.iterdir())) >= 13
    return {file.name for file in folder.iterdir() if stat.S_IMODE(file.stat().st_mode) & 0o077}


def test_others_read_nothing_that_a_ledger_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert readable_by_others(tmp_path, capsys) == set()


def test_teeth_others_would_read_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "private_opener", lambda path, flags: os.open(path, flags, 0o666))
    assert {"receipt.json", "rows.csv", "clients.json"} <= readable_by_others(tmp_path, capsys)


def test_a_reader_who_waits_sees_nothing(tmp_path: Path) -> None:
    """Somebody holds the file open that an export replaces, and the one that it might write to."""
    with Ledger.create(tmp_path / "book") as book:
        book.add_population("people", people())
        for name in ("all.json", "all.json.part"):
            (tmp_path / name).touch(mode=0o666)
        with (tmp_path / "all.json").open() as old, (tmp_path / "all.json.part").open() as part:
            export(book, "clients", tmp_path / "all.json")
            assert old.read() == part.read() == ""


def printed_deltas(path: Path, capsys: pytest.CaptureFixture[str]) -> list[float]:
    out = call(capsys, "ledger", "clients", str(path), "person 0")[1]
    return [float(found) for found in re.findall(r"\d(?:\.\d+)?e-\d+", out)]


def test_printed_deltas_do_not_flatter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    delta = 1.2401e-5
    with Ledger.create(tmp_path / "book") as book:
        book.add_population("people", Budgets(epsilons=np.ones(1), deltas=np.array([delta]), clients=PEOPLE[:1]))
    (shown,) = printed_deltas(tmp_path / "book", capsys)
    assert delta <= shown < 1.1 * delta
    # Teeth: rounded to nearest, it would.
    monkeypatch.setattr("gdpfed.cli.ledger_commands.delta_up", lambda value, digits: f"{value:.{digits - 1}e}")
    (shown,) = printed_deltas(tmp_path / "book", capsys)
    assert shown < delta
