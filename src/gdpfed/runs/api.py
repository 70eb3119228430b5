"""`gdpfed.train`: one's own model, one's own clients, their budgets.

Place: the library's front door to a simulation without a folder. The example in docs/tutorial.md is run by the tests.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gdpfed.errors import InputError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets
from gdpfed.runs.simulate import Simulation
from gdpfed.tasks.models import refuse_running_statistics
from gdpfed.training.clients.cohort import ClientData, CohortTrainer, LocalTraining
from gdpfed.training.clients.engines import Engine
from gdpfed.training.rounds import RoundRecord

__all__ = ["Trained", "train"]

Examples = tuple[Tensor, Tensor]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A trained copy of the model, its plan, and the accuracy after each round (empty without a test set)."""

    model: nn.Module
    plan: Plan
    accuracies: tuple[float, ...]
    records: tuple[RoundRecord, ...]


def train(
    *,
    model: nn.Module,
    clients: Sequence[Examples],
    budgets: Budgets,
    seed: int,
    settings: PlanSettings | None = None,
    local: LocalTraining | None = None,
    test: Examples | None = None,
    num_workers: int | None = None,
    watch: Callable[[RoundRecord], None] | None = None,
    engine: str = "local",
    ray_address: str | None = None,
    device: str = "cpu",
) -> Trained:
    """Simulates federated training of ``model`` on ``clients`` (inputs and labels for each), within their ``budgets``.

    A simulation: the noise comes from ``seed``, so the result is reproducible and no private release.
    With ``engine="ray"`` the clients are trained by a Ray cluster, for the same result; ``device`` "cuda" or "auto"
    trains on a GPU, for a result that is the same up to rounding.
    """
    if len(clients) != len(budgets):
        raise InputError(f"expected a budget for each of {len(clients)} clients, got {len(budgets)}")
    plan = make_plan(budgets, settings or PlanSettings())
    refuse_running_statistics(model)
    lengths = [len(labels) for _, labels in clients]
    ends = np.cumsum(lengths)
    data = ClientData(
        inputs=torch.cat([inputs for inputs, _ in clients]),
        labels=torch.cat([labels for _, labels in clients]).long(),
        members=[np.arange(end - length, end, dtype=np.int64) for length, end in zip(lengths, ends, strict=True)],
    )
    chosen = settings or PlanSettings()
    local = local or LocalTraining(learning_rate=chosen.learning_rate, local_steps=chosen.local_steps)
    trained = copy.deepcopy(model)
    simulation = Simulation(
        plan=plan,
        assignment=assign(plan, budgets),
        model=trained,
        trainer=CohortTrainer(
            trained,
            data,
            local,
            num_workers=num_workers,
            engine=Engine(name=engine, ray_address=ray_address, device=device),
        ),
        test_inputs=test[0] if test is not None else torch.empty(0),
        test_labels=test[1].long() if test is not None else torch.empty(0, dtype=torch.long),
        seed=seed,
    )
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    accuracies, records = [], []
    try:
        state = simulation.initial_state()
        for _ in range(plan.num_rounds):
            state, record = simulation.run_round(state)
            records.append(record)
            if test is not None:
                accuracies.append(simulation.evaluate(state.model).accuracy)
            if watch is not None:
                watch(record)
        simulation.load(state.model)
    finally:
        simulation.trainer.close()
        torch.set_num_threads(threads)
    if not math.isfinite(float(state.parameters.abs().sum())):
        raise InputError("the model diverged (its parameters are not finite): lower learning_rate or clip_norm")
    return Trained(model=trained, plan=plan, accuracies=tuple(accuracies), records=tuple(records))
