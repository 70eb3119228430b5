"""Plans that were made before, beside a task and a ledger: nobody's promise is lost on the way."""

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest

import gdpfed
from gdpfed.errors import InputError, PrivacyError
from gdpfed.files import missing, nothing_left
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.replan import rest_of
from gdpfed.runs.start import start_run
from gdpfed.tasks.task import Task, load_task
from tests.cli.test_cli import call

SETTINGS = gdpfed.PlanSettings(num_rounds=4, participation=0.5, method="gdpfed")
NAMES = "".join(f"c{number},{1 if number < 30 else 3}\n" for number in range(60))


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "clients.csv").write_text("client,epsilon\n" + NAMES)
    (tmp_path / "task.toml").write_text('budgets = "clients.csv"\ndelta = 1e-7\n[training]\ndataset = "fmnist-mini"\n')
    return load_task(str(tmp_path / "task.toml"))


def test_a_ledger_counts_at_the_tasks_delta(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(capsys, "ledger", "init", "book", "task.toml")[0] == 0
    assert set(Ledger.read(tmp_path / "book").state.population("clients").deltas) == {1e-7}


def test_a_plan_at_a_smaller_delta_is_not_let_in(task: Task, tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "book") as ledger:
        ledger.add_population("clients", task.budgets, default_delta=1e-3)
    plan = gdpfed.make_plan(task.budgets, dataclasses.replace(SETTINGS, delta=1e-7))
    with pytest.raises(PrivacyError, match="the ledger counts at 1e-03"):
        start_run(task, plan=plan, seed=1, folder=tmp_path / "run", ledger=tmp_path / "book")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "asked", [{"clients_per_person": 3}, {"linked": (("c0", "c1"),)}, {"clients_per_person": 2, "person_epsilon": 5.0}]
)
def test_people_of_the_task_are_not_forgotten(task: Task, tmp_path: Path, asked: dict[str, object]) -> None:
    plan = gdpfed.make_plan(task.budgets, dataclasses.replace(SETTINGS, delta=1e-7))
    stated = dataclasses.replace(task, settings=dataclasses.replace(task.settings, **asked))  # type: ignore[arg-type]
    with pytest.raises(PrivacyError, match="people in several clients"):
        start_run(stated, plan=plan, seed=1, folder=tmp_path / "run")


def test_a_smaller_budget_of_the_task_is_not_forgotten(task: Task, tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "book") as ledger:
        ledger.add_population("clients", task.budgets, default_delta=1e-7)
    plan = gdpfed.make_plan(task.budgets, dataclasses.replace(SETTINGS, delta=1e-7))
    lower = task.budgets.epsilons.copy()
    lower[0] = 0.5
    stricter = dataclasses.replace(task, budgets=dataclasses.replace(task.budgets, epsilons=lower))
    with pytest.raises(PrivacyError, match="gdpfed ledger tighten"):
        start_run(stricter, plan=plan, seed=1, folder=tmp_path / "run", ledger=tmp_path / "book")


def test_a_plan_for_the_rest_promises_whole_budgets(tmp_path: Path) -> None:
    """Also where its groups are given by name: over all runs the client has spent that much."""
    budgets = gdpfed.parse_compact("40@3")
    with Ledger.create(tmp_path / "book") as ledger:
        people = ledger.add_population("clients", budgets, default_delta=1e-4)
        half = gdpfed.make_plan(gdpfed.parse_compact("20@1"), dataclasses.replace(SETTINGS, delta=1e-4))
        groups = np.where(np.arange(len(people)) < 20, 0, -1).astype(np.int16)
        ledger.start_run("past", "clients", half, groups)
        rest = rest_of(ledger.state, ledger.state.population("clients"), dataclasses.replace(SETTINGS, delta=1e-4))
    assert rest.plan.grouping == "given"
    assert {group.epsilon for group in rest.plan.groups} == {3.0}


def test_what_others_made_stays(tmp_path: Path) -> None:
    """A command that fails removes what it made; not a folder that another process is filling."""

    def fails() -> None:
        with nothing_left(missing(tmp_path / "clients" / "a" / "key")):
            (tmp_path / "clients" / "a").mkdir(parents=True)
            (tmp_path / "clients" / "a" / "key").write_text("mine")
            (tmp_path / "clients" / "b").mkdir()
            raise InputError("no")

    with pytest.raises(InputError):
        fails()
    assert [path.name for path in (tmp_path / "clients").iterdir()] == ["b"]


def test_a_place_has_one_name(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "book") as ledger:
        ledger.add_population("clients", gdpfed.parse_compact("40@3"), default_delta=1e-4)
    people = Ledger.read(tmp_path / "book").state.population("clients")
    assert people.index("5") == 5
    for label in ("05", "\u0665", "+5"):
        with pytest.raises(InputError, match="has no client"):
            people.index(label)


def test_public_functions_can_be_sent_to_workers() -> None:
    for name in ("train", "make_plan", "epsilon_of"):
        assert pickle.loads(pickle.dumps(getattr(gdpfed, name))) is getattr(gdpfed, name)  # noqa: S301 - just pickled
