"""gdpfed's own simulator: `run_round` over a `CohortTrainer`, as `gdpfed train` calls them.

    python -m peers.gdpfed_peer --rounds 3 --workers 2

The plan has one group. Its sampler still tosses a coin for every client, but the benchmark's cohort, of a fixed size,
is trained in place of what it drew, as the other contestants do. The examples of each step are its own draw.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets
from gdpfed.training.clients.blocks import ClientData, LocalTraining, local_batches
from gdpfed.training.clients.cohort import CohortTrainer
from gdpfed.training.clients.engines import Engine
from gdpfed.training.mechanism import noise
from gdpfed.training.releases.float_sums import float_release
from gdpfed.training.rounds import RoundRecord, TrainingState, initial_state, run_round
from gdpfed.training.sampling import poisson
from peers import tasks, work

Round = Callable[[TrainingState, NDArray[np.int64] | None], tuple[TrainingState, RoundRecord]]


def one_group(
    *, num_clients: int, cohort: int, clip_norm: float, num_rounds: int, noise_multiplier: float = 1.0
) -> Plan:
    """A plan by dp-fedavg: everyone in one group, with the benchmark's noise and a budget that it keeps."""
    budgets = Budgets(epsilons=np.full(num_clients, 1e6), deltas=np.full(num_clients, 1e-5))
    settings = PlanSettings(
        method="dp-fedavg",
        num_rounds=num_rounds,
        participation=cohort / num_clients,
        clip_norm=clip_norm,
        noise_multipliers=(noise_multiplier,),
        accountant="rdp",
    )
    return make_plan(budgets, settings)


def without_noise(state: TrainingState, plan: Plan) -> TrainingState:
    """Takes the noise of the round before ``state`` out again, for the check: it follows from the seed.

    A plan without noise would have no clip norm either.
    """
    (group,) = plan.groups
    size = len(state.parameters)
    added = noise(size, std=group.noise_std, seed=tasks.SEED, round_number=state.round_number - 1, place=0)
    return dataclasses.replace(state, parameters=(state.parameters.double() - group.weight * added).float())


def local_training(task: tasks.Task, learning_rate: float = tasks.LEARNING_RATE) -> LocalTraining:
    """As the task says."""
    return LocalTraining(
        learning_rate=learning_rate,
        momentum=task.momentum,
        local_steps=task.local_steps,
        batch_size=task.batch_size,
    )


def own_orders(settings: work.Settings) -> NDArray[np.int64] | None:
    """The examples that gdpfed draws for each round, client and step; None where every step has all of them."""
    task = settings.task
    if task.is_fixed:
        return None
    examples, local = np.arange(task.num_examples), local_training(task)
    return np.array(
        [
            [local_batches(examples, local, seed=tasks.SEED, round_number=number, client=each) for each in cohort]
            for number, cohort in enumerate(settings.cohorts)
        ]
    )


def gdpfed_contestant(
    task: tasks.Task,
    plan: Plan,
    data: ClientData,
    *,
    workers: int,
    engine: Engine | None = None,
    learning_rate: float = tasks.LEARNING_RATE,
) -> tuple[TrainingState, Round]:
    """The state before the first round, and a function that runs one, with a cohort of the caller's if there is one."""
    torch.set_num_threads(1)
    model = tasks.make_model(task)
    trainer = CohortTrainer(model, data, local_training(task, learning_rate), num_workers=workers, engine=engine)
    assignment = np.zeros(plan.num_clients, dtype=np.int64)

    def one_round(state: TrainingState, cohort: NDArray[np.int64] | None) -> tuple[TrainingState, RoundRecord]:
        def updates(now: TrainingState, clients: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
            return trainer.updates(now.parameters, clients, seed=tasks.SEED, round_number=now.round_number)

        return run_round(
            state,
            plan=plan,
            sample=poisson(plan, assignment, seed=tasks.SEED) if cohort is None else lambda _: cohort,
            release=float_release(plan, assignment, updates, seed=tasks.SEED),
            layer_sizes=trainer.layer_sizes,
        )

    return initial_state(work.flatten(model), plan.num_clients), one_round


def run(settings: work.Settings, *, name: str, engine: Engine | None = None) -> None:
    """Runs the rounds and prints the report."""
    task = settings.task
    inputs, labels = tasks.make_data(task)
    places = np.arange(labels.numel()).reshape(labels.shape)
    data = ClientData(inputs=inputs.flatten(0, 1), labels=labels.flatten(), members=tuple(places))
    plan = one_group(
        num_clients=task.num_clients,
        cohort=task.clients,
        clip_norm=settings.clip_norm,
        num_rounds=len(settings.cohorts),
        noise_multiplier=task.noise_multiplier,
    )
    state, one_round = gdpfed_contestant(
        task, plan, data, workers=settings.workers, engine=engine, learning_rate=settings.learning_rate
    )
    report = work.Report(name=name, settings=settings, initial=state.parameters)
    for cohort in settings.cohorts:
        report.round_begins()
        state, _ = one_round(state, np.array(cohort))
        if not settings.noise_std:
            state = without_noise(state, plan)
        report.round_ends(state.parameters)
    if settings.save:
        settings.orders = own_orders(settings)
    report.finish()


def main() -> None:
    """With the local engine."""
    settings = work.read_settings()
    run(settings, name=f"gdpfed, {settings.workers} workers")


if __name__ == "__main__":
    main()
