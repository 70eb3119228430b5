"""A run is started: plan, checks, folder.

Place: task -> plan -> run folder, before `simulate`. What cannot be run is refused before there is a folder.
"""

import secrets
from pathlib import Path

from gdpfed.errors import InputError
from gdpfed.ledger.book import Ledger
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.runs.folder import RunFolder, create_run, open_run
from gdpfed.runs.ledgered import LedgerLink, check_link, population_of
from gdpfed.runs.simulate import dealt_groups, dealt_order
from gdpfed.secure.encoding import planned_sums
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.tasks.task import Task

__all__ = ["open_or_start", "spent_by_group", "start_run"]


def start_run(
    task: Task, *, seed: int, folder: Path | None = None, ledger: Path | None = None, population: str | None = None
) -> RunFolder:
    """Plans ``task`` and makes the folder of its run; by default runs/TITLE-METHOD-seedN.

    With ``ledger`` every round will be charged to it: to ``population``, or the only one that it has.
    """
    plan = make_plan(task.budgets, task.settings)
    if task.training.secure:
        tolerance = Tolerance(dropout_rate=task.training.dropout, colluding_fraction=task.training.colluders)
        planned_sums(plan, num_params=1, tolerance=tolerance)
    if folder is None:
        title = "".join(letter if letter.isalnum() or letter in "-+." else "-" for letter in task.title)
        secure = "-secure" if task.training.secure else ""
        folder = Path("runs") / f"{title}-{plan.method}{secure}-seed{seed}"
    link = None if ledger is None else _link(ledger, population, task, plan, seed=seed, name=folder.name)
    return create_run(folder, task=task, plan=plan, seed=seed, ledger=link)


def _link(path: Path, population: str | None, task: Task, plan: Plan, *, seed: int, name: str) -> LedgerLink:
    """The run's name in the ledger; raises what the ledger would refuse."""
    chosen = population_of(Ledger.read(path), population)
    link = LedgerLink(path=path.absolute(), population=chosen.name, run=f"{name}-{secrets.token_hex(3)}")
    groups = dealt_groups(plan, task.budgets, seed)
    check_link(link, plan, task.budgets, order=dealt_order(task.budgets, seed), assignment=groups)
    return link


def open_or_start(folder: Path, task: Task, *, seed: int) -> RunFolder:
    """The run in ``folder``, which must be of this task, or a new one."""
    if not (folder / "run.toml").exists():
        return start_run(task, seed=seed, folder=folder)
    run = open_run(folder)
    if run.plan != make_plan(task.budgets, task.settings) or run.task.training != task.training:
        raise InputError(f"{str(folder)!r} holds a run with other settings: choose another folder")
    return run


def spent_by_group(run: RunFolder) -> list[float]:
    """Each group's release epsilon: the plan's, or what its clients have spent by the ledger, over all its runs."""
    if run.ledger is None:
        return [group.epsilon_release for group in run.plan.groups]
    ledger = Ledger.read(run.ledger.path)
    return list(ledger.spent_by_group(ledger.state.run(run.ledger.run)).values())
