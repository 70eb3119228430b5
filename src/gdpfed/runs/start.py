"""A run is started: plan, checks, folder.

Place: task -> plan -> run folder, before `simulate`. What cannot be run is refused before there is a folder.

Guarantees (tests of the same name):
  nothing_is_left_of_what_cannot_run   of an unknown data set or model, a bad seed, or data that are not there.
"""

import dataclasses
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.book import Ledger
from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import settings_of
from gdpfed.runs.folder import RunFolder, check_new, create_run, open_run
from gdpfed.runs.ledgered import LedgerLink, check_link, population_of, with_whole_budgets
from gdpfed.runs.simulate import Simulation, dealt_groups, dealt_order, prepare
from gdpfed.streams import check_seed
from gdpfed.tasks.task import Task

__all__ = ["open_if_same", "open_or_start", "prepared_run", "spent_by_group", "start_run"]


def start_run(
    task: Task,
    *,
    seed: int,
    folder: Path | None = None,
    ledger: Path | None = None,
    population: str | None = None,
    plan: Plan | None = None,
) -> RunFolder:
    """Plans ``task``, unless a ``plan`` is given, and makes the folder of its run; by default runs/TITLE-METHOD-seedN.

    With ``ledger`` every round will be charged to it: to ``population``, or the only one that it has. With both, the
    budgets are the ledger's.
    """
    return _Start.of(task, plan, seed=seed, folder=folder, ledger=ledger, population=population).create()


def prepared_run(
    task: Task,
    *,
    seed: int,
    folder: Path | None = None,
    ledger: Path | None = None,
    population: str | None = None,
    plan: Plan | None = None,
    **how: Any,
) -> tuple[RunFolder, Simulation]:
    """As `start_run`, and the simulation that goes on with it; ``how`` is for `simulate.prepare`.

    The folder is made last: whatever is wrong with the data, the model or the loss leaves nothing behind.
    """
    start = _Start.of(task, plan, seed=seed, folder=folder, ledger=ledger, population=population)
    simulation = prepare(start.task, start.plan, seed=seed, **how)
    try:
        return start.create(), simulation
    except BaseException:
        simulation.trainer.close()
        raise


@dataclass(frozen=True, kw_only=True, eq=False)
class _Start:
    """A run that may begin, without its folder."""

    task: Task
    plan: Plan
    seed: int
    folder: Path
    link: LedgerLink | None

    @classmethod
    def of(
        cls,
        task: Task,
        plan: Plan | None,
        *,
        seed: int,
        folder: Path | None,
        ledger: Path | None,
        population: str | None,
    ) -> "_Start":
        """Raises what can be known before the data are read."""
        check_seed(seed)
        if population is not None and ledger is None:
            raise InputError(f"expected a ledger for the population {population!r}, got none: give --ledger too")
        if folder is not None:
            check_new(folder)
        if plan is None:
            plan = make_plan(task.budgets, task.settings)
        else:
            _check_people(task, plan)
            task = dataclasses.replace(task, settings=settings_of(plan, task.settings))
            if ledger is not None:
                task = with_whole_budgets(task, population_of(Ledger.read(ledger), population))
            assign(plan, task.budgets)
        if task.training.secure:
            # They need a package that a float simulation does without.
            from gdpfed.secure.encoding import planned_sums
            from gdpfed.secure.noise_shares import Tolerance

            tolerance = Tolerance(dropout_rate=task.training.dropout, colluding_fraction=task.training.colluders)
            planned_sums(plan, num_params=1, tolerance=tolerance)
        if folder is None:
            title, method = (_in_a_name(text) for text in (task.title, plan.method))
            secure = "-secure" if task.training.secure else ""
            folder = Path("runs") / f"{title}-{method}{secure}-seed{seed}"
            check_new(folder)
        link = None if ledger is None else _link(ledger, population, task, plan, seed=seed, name=folder.name)
        return cls(task=task, plan=plan, seed=seed, folder=folder, link=link)

    def create(self) -> RunFolder:
        return create_run(self.folder, task=self.task, plan=self.plan, seed=self.seed, ledger=self.link)


def _check_people(task: Task, plan: Plan) -> None:
    """Raises PrivacyError where the task asks more for people in several clients than a plan made before promises."""
    asked, promised = task.settings, plan.person_epsilon
    limited = asked.person_epsilon is None or (promised is not None and promised <= asked.person_epsilon)
    if not limited or asked.clients_per_person > plan.clients_per_person or len(asked.linked) > len(plan.linked):
        raise PrivacyError(
            "the task asks for people in several clients (clients_per_person, linked, person_epsilon), the plan "
            "promises them less: make the plan with the same settings, or take them out of the task"
        )


def _in_a_name(text: str) -> str:
    return "".join(letter if letter.isalnum() or letter in "-+." else "-" for letter in text)


def _link(path: Path, population: str | None, task: Task, plan: Plan, *, seed: int, name: str) -> LedgerLink:
    """The run's name in the ledger; raises what the ledger would refuse."""
    chosen = population_of(Ledger.read(path), population)
    link = LedgerLink(path=path.absolute(), population=chosen.name, run=f"{name}-{secrets.token_hex(3)}")
    groups = dealt_groups(plan, task.budgets, seed)
    check_link(link, plan, task.budgets, order=dealt_order(task.budgets, seed), assignment=groups)
    return link


def open_if_same(folder: Path, task: Task) -> RunFolder | None:
    """The run in ``folder``, which must be of this task; None where there is none."""
    if not (folder / "run.toml").exists():
        return None
    run = open_run(folder)
    if run.plan != make_plan(task.budgets, task.settings) or run.task.training != task.training:
        raise InputError(f"{str(folder)!r} holds a run with other settings: choose another folder")
    return run


def open_or_start(folder: Path, task: Task, *, seed: int) -> RunFolder:
    """The run in ``folder``, which must be of this task, or a new one."""
    return open_if_same(folder, task) or start_run(task, seed=seed, folder=folder)


def spent_by_group(run: RunFolder) -> list[float]:
    """Each group's release epsilon: the plan's, or what its clients have spent by the ledger, over all its runs."""
    if run.ledger is None:
        return [group.epsilon_release for group in run.plan.groups]
    ledger = Ledger.read(run.ledger.path)
    return list(ledger.spent_by_group(ledger.state.run(run.ledger.run)).values())
