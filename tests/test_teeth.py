"""The checkers, pointed at known-wrong code: each mistake that was ever made must be caught by something."""

import dataclasses
import math
from collections.abc import Callable

import pytest

from gdpfed.errors import PrivacyError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Group, Plan, guaranteed
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.accountant import SampledGaussian, epsilon_of
from gdpfed.privacy.budgets import Budgets, parse_compact
from gdpfed_reproduce.problem_one import theorem_one_noise_variance


@pytest.fixture
def plan(fmnist: Budgets) -> Plan:
    return make_plan(fmnist, PlanSettings(method="gdpfed", num_rounds=50, participation=0.02, clip_norm=1.5))


def with_noise(plan: Plan, noise: Callable[[Group], float]) -> Plan:
    """The plan as a wrong calibration would have made it, with claims as its author would have made them."""
    groups = tuple(dataclasses.replace(group, noise_multiplier=noise(group)) for group in plan.groups)
    return dataclasses.replace(plan, groups=groups)


MISTAKES: dict[str, Callable[[Group], float]] = {
    # The paper prints squares and calls them noise multipliers; below 1 the square is smaller.
    "variance for std": lambda group: group.noise_multiplier**2,
    # A share of the noise is sigma / sqrt(r), not sigma / r.
    "1/r for 1/sqrt(r)": lambda group: group.noise_multiplier / math.sqrt(group.expected_cohort),
    "Theorem 1": lambda group: math.sqrt(
        theorem_one_noise_variance(
            epsilon=group.epsilon, delta=group.delta, sampling_rate=group.sampling_rate, num_rounds=50
        )
    ),
    "one round's noise for fifty": lambda group: group.noise_multiplier / math.sqrt(50),
    "a fifth of the clients dropped out": lambda group: group.noise_multiplier * math.sqrt(0.8),
    "a hair too little": lambda group: group.noise_multiplier * (1 - 1e-4),
}


@pytest.mark.training
@pytest.mark.parametrize("mistake", MISTAKES)
def test_verify_catches_wrong_noise(plan: Plan, mistake: str) -> None:
    wrong = with_noise(plan, MISTAKES[mistake])
    with pytest.raises(PrivacyError):
        wrong.verify()
    # Also when its author recomputes the claims: then the budget is what is exceeded.
    with pytest.raises(PrivacyError, match="would spend"):
        guaranteed(wrong).verify()


def test_verify_passes_the_right_one(plan: Plan) -> None:
    plan.verify()


@pytest.mark.training
def test_rates_rounded_up_are_caught(fmnist: Budgets) -> None:
    """q |G| is not whole: whoever samples ceil(q |G|) clients runs at a higher rate."""
    plan = make_plan(fmnist, PlanSettings(method="gdpfed-opc", num_rounds=50, participation=0.02))
    group = plan.groups[0]
    ceiled = math.ceil(group.expected_cohort) / group.num_clients
    assert ceiled > group.sampling_rate
    wrong = dataclasses.replace(plan, groups=(dataclasses.replace(group, sampling_rate=ceiled), *plan.groups[1:]))
    with pytest.raises(PrivacyError, match="'group 1' would spend"):
        wrong.verify()


def test_fixed_size_sampling_would_break_the_epsilon() -> None:
    """A cohort of fixed size: who joins takes another's place.

    Let all others send -u, the client +u, both of norm C. With the client in the population its presence in the cohort
    (probability q) moves the sum by 2C; without it the sum never moves. That pair of neighbours is the Poisson one at
    half the noise.
    """
    for epsilon, noise_variance, true_epsilon in ((0.5, 2.250, 2.05), (1.5, 0.896, 7.59), (3.0, 0.532, 15.28)):
        noise = math.sqrt(noise_variance)
        poisson = SampledGaussian(noise_multiplier=noise, sampling_rate=0.02, num_rounds=50)
        assert epsilon_of(poisson, delta=6000**-1.1, accountant="rdp") == pytest.approx(epsilon, rel=0.01)
        fixed = SampledGaussian(noise_multiplier=noise / 2, sampling_rate=0.02, num_rounds=50)
        assert epsilon_of(fixed, delta=6000**-1.1) == pytest.approx(true_epsilon, abs=0.02)


def test_there_is_no_plan_for_a_fixed_cohort() -> None:
    plan = make_plan(parse_compact("50@1"), PlanSettings(method="dp-fedavg", num_rounds=2, participation=0.5))
    with pytest.raises(PrivacyError, match="poisson"):
        dataclasses.replace(plan, sampling="without-replacement")
