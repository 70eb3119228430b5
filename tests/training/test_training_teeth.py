"""The checkers of training, pointed at known-wrong code: each mistake must be rejected, by the check that is meant to.

A wrong mechanism is the right one, written out with numpy, with one thing changed; unchanged it passes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdpfed import streams
from gdpfed.planning.plan import Group, Plan
from gdpfed.training import mechanism
from tests.training import checkers
from tests.training.worlds import changed, plan_of


def gaussian(num: int, *, seed: int, round_number: int, place: int) -> Tensor:
    drawn = streams.generator(seed, "noise", round_number=round_number, client=place).standard_normal(num)
    return torch.from_numpy(drawn)


@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Clip, sum, noise for each group, with a place for every mistake."""

    std: Callable[[Group, int], float] = lambda group, _: group.noise_multiplier * group.clip_norm
    place: Callable[[int], int] = lambda place: place
    round_number: Callable[[int], int] = lambda round_number: round_number
    clip: Callable[[Tensor, float], Tensor] = lambda rows, bound: mechanism.clip(rows, clip_norm=bound)[0]
    clip_sum: bool = False
    draw: Callable[[Tensor], Tensor] = lambda noise: noise

    def __call__(self, plan: Plan, groups: list[int], updates: Tensor, *, seed: int, round_number: int) -> list[Tensor]:
        released = []
        for place, group in enumerate(plan.groups):
            rows = updates[[row for row, own in enumerate(groups) if own == place]]
            total = rows.sum(0) if self.clip_sum else self.clip(rows, group.clip_norm).sum(0)
            noise = gaussian(
                updates.shape[1], seed=seed, round_number=self.round_number(round_number), place=self.place(place)
            )
            noisy = total + self.draw(noise) * self.std(group, len(rows))
            released.append(self.clip(noisy[None], group.clip_norm)[0] if self.clip_sum else noisy)
        return released


def unbounded_if_nan(rows: Tensor, bound: float) -> Tensor:
    """NaN > bound is false, so NaN passes as a short update."""
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return torch.where(norms > bound, rows * (bound / norms), rows)


def by_minimum(rows: Tensor, bound: float) -> Tensor:
    """min(1, bound / norm): infinity times zero."""
    return rows * torch.clamp(bound / torch.linalg.vector_norm(rows, dim=1, keepdim=True), max=1)


def by_coordinate(rows: Tensor, bound: float) -> Tensor:
    return mechanism.clip(rows, clip_norm=math.inf)[0].clamp(-bound, bound)


# In a sum of r shares each share has std sigma C / sqrt(r); with sigma C / r the sum has sigma C / sqrt(r).
NOISE_MISTAKES = {
    "variance for std": Mechanism(std=lambda group, _: group.noise_multiplier**2 * group.clip_norm),
    "shares of 1/r instead of 1/sqrt(r)": Mechanism(
        std=lambda group, cohort: group.noise_multiplier * group.clip_norm / math.sqrt(max(cohort, 1))
    ),
    "the clip norm forgotten": Mechanism(std=lambda group, _: group.noise_multiplier),
    "one percent less variance": Mechanism(
        std=lambda group, _: math.sqrt(0.99) * group.noise_multiplier * group.clip_norm
    ),
    "one percent more variance": Mechanism(
        std=lambda group, _: math.sqrt(1.01) * group.noise_multiplier * group.clip_norm
    ),
    "one stream for all groups": Mechanism(place=lambda _: 0),
    "noise reused in the next round": Mechanism(round_number=lambda round_number: round_number // 2),
    "clip after noise": Mechanism(clip_sum=True),
    "noise that is not zero in the mean": Mechanism(draw=lambda noise: noise + 0.01),
    "uniform noise of the right variance": Mechanism(draw=lambda noise: (torch.erf(noise / 2**0.5)) * 3**0.5),
}
CONTRIBUTION_MISTAKES = {
    "no clip": Mechanism(clip=lambda rows, _: rows),
    "clip each coordinate": Mechanism(clip=by_coordinate),
    "clip to twice the norm": Mechanism(clip=lambda rows, bound: mechanism.clip(rows, clip_norm=2 * bound)[0]),
    "clip after noise": Mechanism(clip_sum=True),
}
NON_FINITE_MISTAKES = {
    "unclipped NaN": Mechanism(clip=unbounded_if_nan),
    "minimum with 1": Mechanism(clip=by_minimum),
    "NaN to numbers": Mechanism(clip=lambda rows, bound: mechanism.clip(rows.nan_to_num(), clip_norm=bound)[0]),
}


@pytest.fixture
def plan() -> Plan:
    return plan_of("gdpfed", clip_norm=0.7)


def stds(plan: Plan) -> list[float]:
    return [group.noise_multiplier * group.clip_norm for group in plan.groups]


def test_the_right_mechanism_passes(plan: Plan) -> None:
    checkers.check_noise(Mechanism(), plan, stds(plan))
    checkers.check_contributions(Mechanism(), plan)
    checkers.check_non_finite(Mechanism(), plan)


@pytest.mark.training
@pytest.mark.parametrize("mistake", NOISE_MISTAKES)
def test_wrong_noise_is_rejected(plan: Plan, mistake: str) -> None:
    seen = {
        "one stream for all groups": "independent",
        "noise reused in the next round": "independent",
        "noise that is not zero in the mean": "^mean",
        "uniform noise of the right variance": "not Gaussian",
    }
    with pytest.raises(AssertionError, match=seen.get(mistake, "^variance")):
        checkers.check_noise(NOISE_MISTAKES[mistake], plan, stds(plan))


@pytest.mark.parametrize("mistake", CONTRIBUTION_MISTAKES)
def test_wrong_clip_is_rejected(plan: Plan, mistake: str) -> None:
    with pytest.raises(AssertionError, match="a client moves"):
        checkers.check_contributions(CONTRIBUTION_MISTAKES[mistake], plan)


@pytest.mark.parametrize("mistake", NON_FINITE_MISTAKES)
def test_escaping_nan_is_rejected(plan: Plan, mistake: str) -> None:
    with pytest.raises(AssertionError, match="a broken update moved a sum"):
        checkers.check_non_finite(NON_FINITE_MISTAKES[mistake], plan)


def test_pooled_mistakes_are_rejected() -> None:
    """Noise of one group's multiplier on the pooled sum; and clients who forget to scale."""
    plan = plan_of("pooled", clip_norm=0.7)
    assert plan.groups[0].noise_std == pytest.approx(0.7, rel=1e-9)

    def too_quiet(*arguments: object, **address: int) -> list[Tensor]:
        quieter = changed(plan, lambda group: {"noise_multiplier": group.noise_multiplier * 0.9})
        return checkers.release(quieter, *arguments[1:], **address)  # type: ignore[arg-type]

    def unscaled(*arguments: object, **address: int) -> list[Tensor]:
        loud = changed(plan, lambda group: {"scale": 1.0, "noise_multiplier": 0.7 / group.clip_norm})
        return checkers.release(loud, *arguments[1:], **address)  # type: ignore[arg-type]

    with pytest.raises(AssertionError, match="variance"):
        checkers.check_noise(too_quiet, plan, [0.7])
    with pytest.raises(AssertionError, match="a client moves"):
        checkers.check_contributions(unscaled, plan)


def coins(plan: Plan, assignment: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.array([group.sampling_rate for group in plan.groups])[assignment]


def fixed_size(
    plan: Plan, assignment: NDArray[np.int64], _: NDArray[np.int64], *, seed: int, round_number: int
) -> NDArray[np.int64]:
    """The paper's Algorithm 1 as printed: r_m clients of each group."""
    generator = np.random.default_rng([seed, round_number])
    chosen = [
        generator.choice(np.flatnonzero(assignment == place), round(group.expected_cohort), replace=False)
        for place, group in enumerate(plan.groups)
    ]
    return np.sort(np.concatenate(chosen))


def same_every_round(
    plan: Plan, assignment: NDArray[np.int64], _: NDArray[np.int64], *, seed: int, round_number: int
) -> NDArray[np.int64]:
    return np.flatnonzero(np.random.default_rng(seed).random(len(assignment)) < coins(plan, assignment))


def every_other_round_anew(
    plan: Plan, assignment: NDArray[np.int64], _: NDArray[np.int64], *, seed: int, round_number: int
) -> NDArray[np.int64]:
    drawn = np.random.default_rng([seed, round_number // 2]).random(len(assignment))
    return np.flatnonzero(drawn < coins(plan, assignment))


def one_coin_for_all(
    plan: Plan, assignment: NDArray[np.int64], _: NDArray[np.int64], *, seed: int, round_number: int
) -> NDArray[np.int64]:
    return np.flatnonzero(np.random.default_rng([seed, round_number]).random() < coins(plan, assignment))


def one_rate_for_all(
    plan: Plan, assignment: NDArray[np.int64], _: NDArray[np.int64], *, seed: int, round_number: int
) -> NDArray[np.int64]:
    return np.flatnonzero(np.random.default_rng([seed, round_number]).random(len(assignment)) < plan.participation)


def right_coins(
    plan: Plan, assignment: NDArray[np.int64], _: NDArray[np.int64], *, seed: int, round_number: int
) -> NDArray[np.int64]:
    drawn = np.random.default_rng([seed, round_number]).random(len(assignment))
    return np.flatnonzero(drawn < coins(plan, assignment))


WRONG_SAMPLERS = {
    fixed_size: "the cohort's variance",
    same_every_round: "rate|often|variance",
    every_other_round_anew: "depends on the one before|often",
    one_coin_for_all: "the rate is|variance",
    one_rate_for_all: "the rate is",
}


def population() -> tuple[Plan, NDArray[np.int64]]:
    plan = changed(plan_of("gdpfed-opc"), lambda group: {"num_clients": 25 * group.num_clients})
    return plan, np.repeat(np.arange(len(plan.groups)), [group.num_clients for group in plan.groups])


def test_the_right_sampler_passes() -> None:
    checkers.check_sampler(right_coins, *population())


@pytest.mark.parametrize("sampler", WRONG_SAMPLERS)
def test_wrong_sampling_is_rejected(sampler: checkers.Sampler) -> None:
    with pytest.raises(AssertionError, match=WRONG_SAMPLERS[sampler]):
        checkers.check_sampler(sampler, *population())
