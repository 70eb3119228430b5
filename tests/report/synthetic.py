"""Run folders with made-up records: what training would leave, without training."""

import dataclasses
import functools
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.rotation import asked_positions
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import parse_compact
from gdpfed.runs.folder import RunFolder, create_run
from gdpfed.tasks.task import Task
from gdpfed.tasks.training_settings import TrainingSettings

BUDGETS = "60@1,90@2,50@6"
# Planned in a second, for tests that do not ask which six.
QUICK_SIX = ("fedavg", "dp-fedavg", "pfa", "gdpfed", "gdpfed-opc", "gdpfed+")
SIX = ("fedavg", "dp-fedavg", "gdpfed", "gdpfed+", "idp-fedavg", "pooled")


@functools.cache
def planned(budgets: str, settings: PlanSettings) -> Plan:
    return make_plan(parse_compact(budgets), settings)


def task_of(
    method: str, *, title: str = "Made up", budgets: str = BUDGETS, dataset: str = "fmnist-mini", **changes: object
) -> Task:
    settings = PlanSettings(method=method, num_rounds=10, participation=0.2)
    return Task(
        title=title,
        budgets=parse_compact(budgets),
        budgets_source=budgets,
        settings=dataclasses.replace(settings, **changes),  # type: ignore[arg-type]
        training=TrainingSettings(dataset=dataset),
    )


def records_of(plan: Plan, *, seed: int, level: float, rounds: int) -> list[dict[str, object]]:
    """Accuracies that rise to ``level``, cohorts as planned, a few clipped updates."""
    chance = np.random.default_rng(seed)
    made = []
    for number in range(1, rounds + 1):
        share = number / plan.num_rounds
        spent = [
            None if np.isinf(group.epsilon) else group.epsilon_release * min(1.0, share**0.5) for group in plan.groups
        ]
        made.append(
            {
                "round": number,
                "accuracy": round(level * (1 - np.exp(-4 * share)) + float(chance.normal(0, 0.2)), 2),
                "loss": 2.0 - share,
                "epsilons": spent,
                "cohort": [
                    len(asked_positions(plan, group.num_clients, round_number=number - 1))
                    if plan.is_rotation
                    else int(chance.binomial(group.num_clients, group.sampling_rate))
                    for group in plan.groups
                ],
                # A rotation does not tell.
                "clipped": None if plan.is_rotation else int(chance.integers(0, 4)) if plan.is_private else 0,
                "dropped": None if plan.is_rotation else 0,
                "update_norm": 1.0,
            }
        )
    return made


def write_run(
    path: Path, task: Task, *, seed: int = 1, level: float = 80.0, rounds: int | None = None, timed: int = 0
) -> RunFolder:
    """A finished run, or one that stopped after so many rounds (``timed``: so many were done, recorded or not)."""
    plan = planned(task.budgets_source, task.settings)
    run = create_run(path, task=task, plan=plan, seed=seed)
    done = plan.num_rounds if rounds is None else rounds
    write_records(run, records_of(plan, seed=seed, level=level, rounds=done))
    for number in range(1, max(done, timed) + 1):
        run.append_timing({"round": number, "seconds": 0.1, "clients": 40})
    if rounds is None:
        (path / "model.safetensors").write_bytes(b"")
    return run


def write_records(run: RunFolder, records: Sequence[dict[str, object]]) -> None:
    (run.path / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def write_runs(folder: Path, *, methods: Sequence[str] = SIX, seeds: int = 3, **changes: object) -> Path:
    """A folder of runs: each method a little better than the one before."""
    for place, method in enumerate(methods):
        for seed in range(1, seeds + 1):
            task = task_of(method, **changes)  # type: ignore[arg-type]
            write_run(folder / f"{method}-seed{seed}", task, seed=seed, level=60.0 + 4 * place)
    return folder
