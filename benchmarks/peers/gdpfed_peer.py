"""gdpfed's own simulator: `run_round` over a `CohortTrainer`, as `gdpfed train` calls them.

    python -m peers.gdpfed_peer --rounds 3 --workers 2

The plan has one group. Its sampler still tosses 6,000 coins a round, but the benchmark's cohort of exactly 120 clients
is trained in place of what it drew, as the other contestants do.
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
from gdpfed.training.clients.blocks import ClientData, LocalTraining
from gdpfed.training.clients.cohort import CohortTrainer
from gdpfed.training.clients.engines import Engine
from gdpfed.training.mechanism import noise
from gdpfed.training.releases.float_sums import float_release
from gdpfed.training.rounds import RoundRecord, TrainingState, initial_state, run_round
from gdpfed.training.sampling import poisson
from peers import work

Round = Callable[[TrainingState, NDArray[np.int64] | None], tuple[TrainingState, RoundRecord]]


def one_group(*, num_clients: int, cohort: int, clip_norm: float, num_rounds: int) -> Plan:
    """A plan by dp-fedavg: everyone in one group, with the benchmark's noise and a budget that it keeps."""
    budgets = Budgets(epsilons=np.full(num_clients, 100.0), deltas=np.full(num_clients, 1e-5))
    settings = PlanSettings(
        method="dp-fedavg",
        num_rounds=num_rounds,
        participation=cohort / num_clients,
        clip_norm=clip_norm,
        noise_multipliers=(work.NOISE_MULTIPLIER,),
        accountant="rdp",
    )
    return make_plan(budgets, settings)


def without_noise(state: TrainingState, plan: Plan) -> TrainingState:
    """Takes the noise of the round before ``state`` out again, for the check: it follows from the seed.

    A plan without noise would have no clip norm either.
    """
    (group,) = plan.groups
    size = len(state.parameters)
    added = noise(size, std=group.noise_std, seed=work.SEED, round_number=state.round_number - 1, place=0)
    return dataclasses.replace(state, parameters=(state.parameters.double() - group.weight * added).float())


def gdpfed_contestant(
    plan: Plan, data: ClientData, *, workers: int, engine: Engine | None = None
) -> tuple[TrainingState, Round]:
    """The state before the first round, and a function that runs one, with a cohort of the caller's if there is one."""
    torch.set_num_threads(1)
    model = work.make_model()
    local = LocalTraining(learning_rate=work.LEARNING_RATE, local_steps=work.LOCAL_STEPS, batch_size=10)
    trainer = CohortTrainer(model, data, local, num_workers=workers, engine=engine)
    assignment = np.zeros(plan.num_clients, dtype=np.int64)

    def one_round(state: TrainingState, cohort: NDArray[np.int64] | None) -> tuple[TrainingState, RoundRecord]:
        def updates(now: TrainingState, clients: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
            return trainer.updates(now.parameters, clients, seed=work.SEED, round_number=now.round_number)

        return run_round(
            state,
            plan=plan,
            sample=poisson(plan, assignment, seed=work.SEED) if cohort is None else lambda _: cohort,
            release=float_release(plan, assignment, updates, seed=work.SEED),
            layer_sizes=trainer.layer_sizes,
        )

    return initial_state(work.flatten(model), plan.num_clients), one_round


def run(settings: work.Settings, *, name: str, engine: Engine | None = None) -> None:
    """Runs the rounds and prints the report."""
    images, labels = work.make_data()
    places = np.arange(work.NUM_CLIENTS * work.IMAGES_PER_CLIENT).reshape(work.NUM_CLIENTS, work.IMAGES_PER_CLIENT)
    data = ClientData(inputs=images.flatten(0, 1), labels=labels.flatten(), members=tuple(places))
    plan = one_group(
        num_clients=work.NUM_CLIENTS,
        cohort=work.CLIENTS_PER_ROUND,
        clip_norm=settings.clip_norm,
        num_rounds=len(settings.cohorts),
    )
    state, one_round = gdpfed_contestant(plan, data, workers=settings.workers, engine=engine)
    report = work.Report(name=name, settings=settings, initial=state.parameters)
    for cohort in settings.cohorts:
        report.round_begins()
        state, _ = one_round(state, np.array(cohort))
        if not settings.noise_std:
            state = without_noise(state, plan)
        report.round_ends(state.parameters)
    report.finish()


def main() -> None:
    """With the local engine."""
    settings = work.read_settings()
    run(settings, name=f"gdpfed, {settings.workers} workers")


if __name__ == "__main__":
    main()
