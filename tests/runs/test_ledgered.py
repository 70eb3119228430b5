"""Simulated runs through a ledger."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.book import Ledger, publish
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.ledger.spend import merged, spent
from gdpfed.ledger.state import check_participants
from gdpfed.ledger.status import run_history, run_status
from gdpfed.ledger.verify import verify_ledger
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.accountant import SampledGaussian
from gdpfed.privacy.budgets import parse_compact
from gdpfed.runs.folder import create_run, open_run
from gdpfed.runs.ledgered import LedgerLink, check_link, joined_run
from gdpfed.runs.simulate import dealt_groups, dealt_order, simulate
from gdpfed.tasks.task import Task
from gdpfed.training.releases.charged import ChargedRelease
from gdpfed.training.rounds import IntArray, Released, TrainingState
from gdpfed.training.sampling import simulated
from tests.ledger.books import DELTA, TWO, book, plan_for, start

pytestmark = pytest.mark.training

# Trains in children that are killed where the ledger writes: each point and occasion once, then to the end.
KILLER = """
import os, signal, sys
from pathlib import Path
import torch
from gdpfed.ledger import book as books
from gdpfed.runs import simulate as simulating
from gdpfed.runs.folder import open_run
from gdpfed.tasks.datasets import load_dataset
load_dataset("fmnist-mini")
path = Path(sys.argv[1])
points = ["charge:before-journal", "charge:after-commit", "publish:before-journal", "publish:after-commit",
          "charge:torn-journal", "close:after-commit", ""]
opened = books.Ledger.open
for number, point in enumerate(points):
    child = os.fork()
    if child == 0:
        seen = 0
        def fault(name):
            global seen
            seen += name == point
            if seen == 1 + number % 2 and name == point:
                os.kill(os.getpid(), signal.SIGKILL)
        if point.startswith("close"):
            number = 0
        books.Ledger.open = classmethod(lambda cls, path: opened(path, fault=fault))
        simulating.simulate(open_run(path), num_workers=1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) == bool(point), (point, status)
"""


def linked(task: Task, folder: Path, *, factor: float = 1.5, run: str = "run") -> tuple[LedgerLink, Plan]:
    budgets = dataclasses.replace(task.budgets, epsilons=task.budgets.epsilons * factor)
    path = folder / "book"
    plan = make_plan(task.budgets, task.settings)
    if not path.exists():
        with Ledger.create(path) as ledger:
            ledger.add_population("people", budgets, default_delta=plan.groups[0].delta)
    return LedgerLink(path=path, population="people", run=run), plan


def test_a_run_goes_on_through_its_ledger(tiny: Task, tmp_path: Path) -> None:
    link, plan = linked(tiny, tmp_path)
    calm = create_run(tmp_path / "calm", task=tiny, plan=plan, seed=1)
    run = create_run(tmp_path / "run", task=tiny, plan=plan, seed=1, ledger=link)
    simulate(calm, num_workers=1)
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(run.path)],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    # The same model and, but for what was spent, the same records: lost rounds were computed again.
    assert (calm.path / "model.safetensors").read_bytes() == (run.path / "model.safetensors").read_bytes()
    for one, other in zip(calm.records(), run.records(), strict=True):
        assert dataclasses.replace(one, epsilons=()) == dataclasses.replace(other, epsilons=())
    state = Ledger.read(link.path).state
    found = state.run("run")
    assert not found.is_open
    assert found.count("published") == 2 * 6
    lost = [
        sum(
            attempt.state == "charged"
            for (_, place), tried in found.attempts.items()
            if place == group
            for attempt in tried
        )
        for group in range(2)
    ]
    # Two of the six kills came between a durable charge and its publication.
    assert lost == [2, 2]
    for group in range(2):
        (number,) = state.population("people").classes_in("run", group)
        expected = merged(found.event(group, 6 + 2))
        actual = spent(state.history(state.population("people"), number), delta=plan.groups[group].delta)
        assert actual == pytest.approx(spent(expected, delta=plan.groups[group].delta), rel=1e-9)
        assert run.records()[-1].epsilons[group] == pytest.approx(actual, rel=1e-9)
    verify_ledger(link.path)
    assert open_run(run.path).ledger == link


def test_a_stopped_group_is_left_out(tmp_path: Path) -> None:
    plan = plan_for(TWO)
    trained: list[list[int]] = []

    def inner(state: TrainingState, clients: IntArray) -> Released:
        trained.append(clients.tolist())
        return Released(sums=[torch.ones(3, dtype=torch.float64) for _ in plan.groups], clients=clients, cohort=())

    with book(tmp_path, text=TWO) as ledger:
        start(ledger, text=TWO)
        # Simulated client 0 has place 199, and so on.
        places = np.arange(200)[::-1]
        groups = ledger.state.run("run").assignment[places].astype(np.int64)
        release = ChargedRelease(inner, plan, groups, ledger=ledger, run="run", places=places)

        def play(number: int) -> Released:
            state = TrainingState(
                round_number=number, parameters=torch.zeros(3), participations=np.zeros(200, dtype=np.int64)
            )
            sampled = np.array([3, 50, 120, 199])
            return release(state, sampled)

        released = play(0)
        assert trained[-1] == [3, 50, 120, 199]
        assert released.cohort == (2, 2)
        assert released.clients.tolist() == [3, 50, 120, 199]
        ledger.tighten("people", ["40"], epsilon=0.3)
        released = play(1)
        assert trained[-1] == [3, 50]
        assert released.cohort == (0, 2)
        assert released.clients.tolist() == [3, 50]
        assert [float(total.sum()) for total in released.sums] == [0.0, 3.0]
        assert ledger.state.run("run").charged == [1, 2]
        # Played again after a kill: the same, and nothing is charged.
        rows = len(ledger.store.rows)
        play(1)
        assert trained[-1] == [3, 50]
        assert len(ledger.store.rows) == rows
        ledger.tighten("people", ["140"], epsilon=0.3)
        with pytest.raises(ExhaustedError, match="no group of run 'run' can pay for round 2"):
            play(2)


def test_lost_rounds_count_as_participations(tmp_path: Path) -> None:
    """With a cap of two: a client that was in a lost round is left out one round earlier."""
    plan = plan_for(TWO, cap=2)
    trained: list[list[int]] = []

    def inner(state: TrainingState, clients: IntArray) -> Released:
        trained.append(clients.tolist())
        if len(trained) == 1:
            raise KeyboardInterrupt
        return Released(sums=[torch.ones(3, dtype=torch.float64) for _ in plan.groups], clients=clients, cohort=())

    with book(tmp_path, text=TWO, factor=2.0) as ledger:
        start(ledger, text=TWO, plan=plan)
        groups = ledger.state.run("run").assignment.astype(np.int64)
        release = ChargedRelease(inner, plan, groups, ledger=ledger, run="run", places=np.arange(200))

        def play(number: int, clients: list[int]) -> None:
            state = TrainingState(
                round_number=number, parameters=torch.zeros(3), participations=np.zeros(200, dtype=np.int64)
            )
            release(state, np.array(clients))

        with pytest.raises(KeyboardInterrupt):
            play(0, [1, 2])
        play(0, [1, 2])
        play(1, [1, 3])
        # What was published is played again with those who took part.
        play(0, [1, 2])
        assert trained == [[1, 2], [1, 2], [3], [1, 2]]
        assert ledger.state.run("run").participations[:4].tolist() == [0, 2, 2, 1]
        assert ledger.state.run("run").charged == [3, 3]


def rotating() -> Plan:
    settings = PlanSettings(
        num_rounds=4, method="gdpfed", delta=DELTA, against="server", asks=2, trainings=0.8, participation=0.2
    )
    return make_plan(parse_compact(TWO), settings)


def test_an_ask_is_charged(tmp_path: Path) -> None:
    """Half of the clients in each round; the first round is lost, so that those in it have one ask fewer left."""
    plan = rotating()
    released: list[list[int]] = []

    def inner(state: TrainingState, clients: IntArray) -> Released:
        released.append(clients.tolist())
        if len(released) == 1:
            raise KeyboardInterrupt
        return Released(sums=[torch.ones(3, dtype=torch.float64) for _ in plan.groups], clients=clients, cohort=())

    with book(tmp_path, text=TWO, factor=1.0) as ledger:
        start(ledger, text=TWO, plan=plan)
        run = ledger.state.run("run")
        groups = run.assignment.astype(np.int64)
        asked = simulated(plan, groups, seed=3)
        release = ChargedRelease(inner, plan, groups, ledger=ledger, run="run", places=np.arange(200))

        def play(number: int) -> None:
            state = TrainingState(
                round_number=number, parameters=torch.zeros(3), participations=np.zeros(200, dtype=np.int64)
            )
            release(state, asked(state))

        def spent_now() -> list[float]:
            return list(ledger.spent_by_group(run).values())

        with pytest.raises(KeyboardInterrupt):
            play(0)
        once = [dataclasses.replace(plan.mechanism(group), num_rounds=1) for group in plan.groups]
        assert spent_now() == [spent([event], delta=DELTA) for event in once]
        play(0)
        assert run.charged == [2, 2]
        play(1)
        # Who was in the lost round has had both asks; the others have one left.
        play(2)
        play(3)
        assert [len(clients) for clients in released] == [100, 100, 100, 0, 100]
        assert run.participations.tolist() == [2] * 200
        assert spent_now() == [group.epsilon_release for group in plan.groups]
        for part in run_status(ledger.state, run):
            assert part.spent_server_max == part.spent_release == part.promised <= part.epsilon
            assert (part.charged, part.num_rounds, part.most_participations) == (2, 2, 2)
        last = run_history(ledger.state, run, ledger.store.rows, points=1)[-1]
        assert last.epsilon_release == last.epsilon_server == spent_now()[1]
        with pytest.raises(PrivacyError, match="has taken part 2 times"):
            check_participants(run, 0, np.array([0]))
        for refused in (lambda: ledger.extend("run", 8), lambda: ledger.enrol("run", ["1"], "group 1")):
            with pytest.raises(PrivacyError):
                refused()
        ledger.close_run("run")
    verify_ledger(tmp_path / "book")


def test_a_tightened_budget_stops_a_rotation(tmp_path: Path) -> None:
    """Also once the most asked client has had all its asks, and the others have not."""
    plan = rotating()
    with book(tmp_path, text=TWO, factor=1.0) as ledger:
        start(ledger, text=TWO, plan=plan)
        groups = ledger.state.run("run").assignment
        strict = np.flatnonzero(groups == 0)
        for number, asked in enumerate((strict[:50], strict[:50])):
            charge = ledger.reserve("run", number, "group 1")
            charge.commit(asked)
            charge.publish("aa")
        assert ledger.state.run("run").charged[0] == 2
        ledger.reserve("run", 2, "group 1").commit(strict[50:])
        people = ledger.state.population("people")
        ledger.tighten("people", [people.label(int(strict[60]))], epsilon=0.05)
        with pytest.raises(ExhaustedError):
            ledger.reserve("run", 3, "group 1")


def test_rotations_and_poisson_runs_compose(tmp_path: Path) -> None:
    """Against the server: the asks of one, and the participations of the other, in one composition."""
    with book(tmp_path, text=TWO, factor=3.0) as ledger:
        rotation, poisson = rotating(), plan_for(TWO, rounds=4)
        start(ledger, "rotation", text=TWO, plan=rotation)
        start(ledger, "poisson", text=TWO, plan=poisson)
        groups = ledger.state.run("rotation").assignment
        for name in ("rotation", "poisson"):
            nobody = np.array([], dtype=np.int64)
            taking_part = {"group 1": np.flatnonzero(groups == 0)[:5], "group 2": nobody}
            charges, _ = ledger.charge_round(name, 0, taking_part)
            publish(list(charges.values()), "aa", "bb")
        strict, *_ = run_status(ledger.state, ledger.state.run("rotation"))
        asked = dataclasses.replace(rotation.mechanism(rotation.groups[0]), num_rounds=1)
        noise = poisson.groups[0].noise_multiplier
        seen = SampledGaussian(noise_multiplier=noise, sampling_rate=1.0, num_rounds=1)
        assert strict.spent_server_max == pytest.approx(spent([asked, seen], delta=DELTA), rel=1e-9)
        assert strict.spent_server_max > spent([seen], delta=DELTA) > spent([asked], delta=DELTA)


def test_a_rotation_through_a_ledger_resumes(tiny: Task, tmp_path: Path) -> None:
    settings = dataclasses.replace(tiny.settings, against="server", asks=3, trainings=0.06)
    task = dataclasses.replace(tiny, settings=settings)
    link, plan = linked(task, tmp_path)
    run = create_run(tmp_path / "run", task=task, plan=plan, seed=1, ledger=link)
    done = subprocess.run([sys.executable, "-c", KILLER, str(run.path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    verify_ledger(link.path)
    with Ledger.open(link.path) as ledger:
        charged = ledger.state.run("run")
        assert int(charged.participations.max()) <= 3
        assert list(ledger.spent_by_group(charged).values()) == [group.epsilon_release for group in plan.groups]
    record = open_run(run.path).records()[-1]
    assert record.clipped is None
    assert record.epsilons == tuple(group.epsilon_release for group in plan.groups)


def test_a_run_that_does_not_fit_is_refused(tiny: Task, tmp_path: Path) -> None:
    link, plan = linked(tiny, tmp_path, factor=1.0)
    order, groups = dealt_order(tiny.budgets, 1), dealt_groups(plan, tiny.budgets, 1)
    check_link(link, plan, tiny.budgets, order=order, assignment=groups)
    simulate(create_run(tmp_path / "one", task=tiny, plan=plan, seed=1, ledger=link), num_workers=1)
    assert Ledger.read(link.path).state.run("run").charged == [6, 6]
    # Another seed deals budgets to other simulated clients; places in the population keep theirs.
    again, _ = linked(tiny, tmp_path, run="again")
    order, groups = dealt_order(tiny.budgets, 2), dealt_groups(plan, tiny.budgets, 2)
    with pytest.raises(ExhaustedError, match="0 of 6 rounds would fit"):
        check_link(again, plan, tiny.budgets, order=order, assignment=groups)
    fedavg = make_plan(tiny.budgets, dataclasses.replace(tiny.settings, method="fedavg"))
    with pytest.raises(PrivacyError, match="no privacy"):
        check_link(again, fedavg, tiny.budgets, order=order, assignment=groups)
    (tmp_path / "one" / "ledger.json").write_text(json.dumps({"ledger": "x"}))
    with pytest.raises(InputError, match=r"ledger\.json"):
        open_run(tmp_path / "one")


def test_a_run_is_found_again_as_it_was(tmp_path: Path) -> None:
    """The same name and plan, but other clients or other groups: these would be trained, and others charged."""
    with book(tmp_path, text=TWO) as ledger:
        plan = plan_for(TWO)
        budgets = parse_compact(TWO)
        ledger.add_population("others", budgets, default_delta=DELTA, other_people=True)
        order, groups = np.arange(200), np.repeat([0, 1], 100)
        link = LedgerLink(path=tmp_path / "book", population="people", run="run")
        for _ in range(2):
            joined_run(ledger, link, plan, budgets, order=order, assignment=groups)
        with pytest.raises(PrivacyError, match="population 'people', not 'others'"):
            joined_run(
                ledger,
                dataclasses.replace(link, population="others"),
                plan,
                budgets,
                order=order,
                assignment=groups,
            )
        with pytest.raises(PrivacyError, match="other groups"):
            joined_run(ledger, link, plan, budgets, order=order[::-1], assignment=groups)
