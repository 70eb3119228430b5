"""What a lost sum tells: one client, half of whose updates never arrive. Zeros would prove that it took part."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import parse_compact
from gdpfed.secure.encoding import PlannedSum
from gdpfed.secure.server import empty_sum
from gdpfed.training.releases import secure_sums as secure_sum
from gdpfed.training.releases.secure_sums import SecureRelease
from gdpfed.training.rounds import TrainingState, initial_state

pytestmark = pytest.mark.training

ROUNDS, PARAMS = 60, 20
NOBODY, ONE = np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64)


def plan_of_one() -> Plan:
    settings = PlanSettings(method="dp-fedavg", num_rounds=ROUNDS, participation=0.5, delta=1e-3)
    return make_plan(parse_compact("1@1"), settings)


def updates(state: TrainingState, clients: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], torch.Tensor]]:
    if len(clients):
        yield clients, torch.ones((len(clients), len(state.parameters)), dtype=torch.float64)


def sums(clients: NDArray[np.int64]) -> list[torch.Tensor]:
    """What is released in 60 rounds in which these are the cohort."""
    plan = plan_of_one()
    state = initial_state(torch.zeros(PARAMS), 1)
    groups = np.zeros(1, dtype=np.int64)
    return [
        SecureRelease(plan, groups, updates, seed=seed, num_params=PARAMS, dropout=0.45)(state, clients).sums[0]
        for seed in range(ROUNDS)
    ]


def zeros(found: list[torch.Tensor]) -> int:
    return sum(int(not total.any()) for total in found)


def test_no_release_is_without_noise() -> None:
    assert zeros(sums(NOBODY)) == 0
    assert zeros(sums(ONE)) == 0


def test_zeros_for_a_lost_sum_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake put back: with the client there are rounds of zeros, without it there are none."""

    def as_it_was(planned: PlannedSum, *, randomness: object = None) -> NDArray[np.uint32]:
        # An empty cohort is found in the first attempt, before any client is made.
        if lost:
            return np.zeros(planned.num_params, dtype=np.uint32)
        return empty_sum(planned, randomness=randomness)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(secure_sum, "empty_sum", as_it_was)
    opened = SecureRelease._opened
    lost = False

    def opening(self: SecureRelease, *given: object) -> object:
        nonlocal lost
        lost = True
        return opened(self, *given)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(SecureRelease, "_opened", opening)
    assert zeros(sums(NOBODY)) == 0
    assert zeros(sums(ONE)) > 0
