"""Small federations on which both rounds are run."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Group, Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import parse_compact
from gdpfed.tasks.features import Scattering
from gdpfed.tasks.models import CharLSTM
from gdpfed.training import rounds
from gdpfed.training.clients.blocks import ClientData, LocalTraining, flat_parameters
from gdpfed.training.clients.cohort import CohortTrainer
from gdpfed.training.releases.float_sums import float_release
from gdpfed.training.rounds import RoundRecord, TrainingState, initial_state
from gdpfed.training.sampling import simulated, tossed
from tests.training import reference

T = TypeVar("T")

BUDGETS = "12@1,18@2,10@6"
NUM_CLIENTS = 40
LOCAL = LocalTraining(learning_rate=0.2, learning_rate_decay=0.9, momentum=0.5, local_steps=3, batch_size=5)
SEED = 11


@dataclass(frozen=True, kw_only=True, eq=False)
class World:
    """A model, its clients' data, and how they train."""

    model: nn.Module
    data: ClientData
    local: LocalTraining = LOCAL

    def start(self) -> TrainingState:
        return initial_state(flat_parameters(self.model), len(self.data.members))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
    )


def members(num_examples: int, *, num_clients: int = NUM_CLIENTS) -> list[NDArray[np.int64]]:
    """Clients of 1 to 14 examples, all disjoint."""
    generator = np.random.default_rng(5)
    sizes = generator.integers(1, 15, size=num_clients)
    sizes[0], sizes[1] = 1, 14
    return np.split(generator.permutation(num_examples)[: sizes.sum()], np.cumsum(sizes)[:-1])


@functools.cache
def world(kind: str) -> World:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        labels = torch.randint(0, 5, (14 * NUM_CLIENTS,))
        if kind == "cnn":
            return World(
                model=small_cnn(),
                data=ClientData(
                    inputs=torch.randn(len(labels), 1, 14, 14), labels=labels, members=members(len(labels))
                ),
            )
        if kind == "features":
            return World(
                model=nn.Sequential(Scattering(), nn.Linear(Scattering.num_features(12), 5)),
                data=ClientData(
                    inputs=torch.randn(len(labels), 1, 12, 12), labels=labels, members=members(len(labels))
                ),
                local=dataclasses.replace(LOCAL, learning_rate=0.01),
            )
        return World(
            model=CharLSTM(num_classes=7, embedding=3, hidden=6),
            data=ClientData(inputs=torch.randint(0, 7, (len(labels), 6)), labels=labels, members=members(len(labels))),
        )


@functools.cache
def plan_of(
    method: str,
    *,
    budgets: str = BUDGETS,
    clip_norm: float = 0.3,
    keep: tuple[float, ...] | None = None,
    asks: int | None = None,
) -> Plan:
    """Clip norms that some updates exceed and some do not; with ``asks`` a rotation, of as many trainings."""
    settings = PlanSettings(method=method, num_rounds=4, participation=0.3, clip_norm=clip_norm, keep=keep)
    if asks is not None:
        settings = dataclasses.replace(settings, against="server", asks=asks, trainings=1.2)
    return make_plan(parse_compact(budgets), settings)


def _unchecked(value: T, **changes: object) -> T:
    """A changed copy that skips the checks of a plan: tests switch noise and clip off one by one, which no plan may."""
    made: T = object.__new__(type(value))
    for field in dataclasses.fields(value):  # type: ignore[arg-type]
        object.__setattr__(made, field.name, changes.get(field.name, getattr(value, field.name)))
    return made


def changed(plan: Plan, change: Callable[[Group], dict[str, object]], **of_plan: object) -> Plan:
    """The plan with something else in every group; its epsilons are no longer true, which no test here reads."""
    groups = tuple(_unchecked(group, **change(group)) for group in plan.groups)
    return _unchecked(plan, groups=groups, **of_plan)


def quiet(plan: Plan) -> Plan:
    """Noise too small to matter; scales, clips and weights as planned."""
    return changed(plan, lambda group: {"noise_multiplier": group.noise_multiplier * 1e-12})


def assignment_of(plan: Plan) -> NDArray[np.int64]:
    """Groups one after the other, as the compact budgets are."""
    return np.repeat(np.arange(len(plan.groups)), [group.num_clients for group in plan.groups])


Round = Callable[..., tuple[TrainingState, RoundRecord]]


def updates_of(trainer: CohortTrainer, *, seed: int) -> rounds.Updates:
    return lambda state, clients: trainer.updates(state.parameters, clients, seed=seed, round_number=state.round_number)


def fast(
    state: TrainingState, plan: Plan, where: World, *, seed: int = SEED, workers: int = 2, chunk: int | None = None
) -> tuple[TrainingState, RoundRecord]:
    trainer = CohortTrainer(where.model, where.data, where.local, num_workers=workers, chunk_clients=chunk)
    try:
        groups = assignment_of(plan)
        return rounds.run_round(
            state,
            plan=plan,
            sample=simulated(plan, groups, seed=seed),
            release=float_release(
                plan, groups, tossed(updates_of(trainer, seed=seed), plan, groups, seed=seed), seed=seed
            ),
            layer_sizes=trainer.layer_sizes,
        )
    finally:
        trainer.close()


def plain(state: TrainingState, plan: Plan, where: World, *, seed: int = SEED) -> tuple[TrainingState, RoundRecord]:
    return reference.reference_round(
        state,
        plan=plan,
        assignment=assignment_of(plan),
        model=where.model,
        data=where.data,
        local=where.local,
        seed=seed,
    )


ROUNDS: dict[str, Round] = {"fast": fast, "reference": plain}


def after(run: Round, plan: Plan, where: World, *, num_rounds: int = 2, **more: object) -> Tensor:
    """The parameters after some rounds."""
    state = where.start()
    for _ in range(num_rounds):
        state, _ = run(state, plan, where, **more)
    return state.parameters


def far(left: Tensor, right: Tensor, start: Tensor) -> float:
    """The largest difference, relative to the largest step."""
    return float((left - right).abs().max() / (right - start).abs().max())
