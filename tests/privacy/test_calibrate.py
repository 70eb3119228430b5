"""Calibration: never above the budget, nothing left of it; judged by other implementations too."""

import math
import warnings

import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gdpfed.errors import InputError, PrivacyError
from gdpfed.privacy.accountant import Accountant, SampledGaussian, epsilon_of
from gdpfed.privacy.calibrate import (
    noise_multiplier_for,
    num_rounds_for,
    rough_noise_multiplier,
    rough_sampling_rate,
    sampling_rate_for,
)

# Squared noise multipliers (strictest group first): uniform rates, then the paper's printed optimal rates.
GOLDEN = {
    "fmnist": {
        "clients": 6000,
        "rounds": 50,
        "epsilons": (0.5, 1.5, 3.0),
        "uniform": (0.02, 0.02, 0.02),
        "printed": (0.0069, 0.0189, 0.0342),
        "rdp": ((2.250, 0.896, 0.532), (1.416, 0.872, 0.702)),
        "pld": ((1.627, 0.692, 0.435), (0.714, 0.670, 0.584)),
    },
    "svhn": {
        "clients": 6000,
        "rounds": 100,
        "epsilons": (0.5, 1.5, 3.0),
        "uniform": (0.05, 0.05, 0.05),
        "printed": (0.0166, 0.0467, 0.0868),
        "rdp": ((12.93, 2.497, 1.156), (2.346, 2.276, 2.220)),
        "pld": ((10.56, 2.110, 0.991), (1.826, 1.924, 1.901)),
    },
    "shakespeare": {
        "clients": 714,
        "rounds": 50,
        "epsilons": (0.5, 1.5, 3.0),
        "uniform": (0.1, 0.1, 0.1),
        "printed": (0.0479, 0.0983, 0.1521),
        "rdp": ((16.75, 3.251, 1.407), (4.648, 3.169, 2.427)),
        "pld": ((12.91, 2.613, 1.157), (3.605, 2.547, 1.991)),
    },
    "cifar10": {
        "clients": 600,
        "rounds": 100,
        "epsilons": (2.0, 6.0, 12.0),
        "uniform": (0.1, 0.1, 0.1),
        "printed": (0.0361, 0.0962, 0.1677),
        "rdp": ((3.516, 0.954, 0.494), (0.977, 0.915, 0.831)),
        "pld": ((2.862, 0.807, 0.428), (0.799, 0.774, 0.717)),
    },
}


def golden_cases() -> list[tuple[str, str, float, float, int, float, float]]:
    return [
        (dataset, accountant, epsilon, rate, values["rounds"], values["clients"] ** -1.1, expected)
        for dataset, values in GOLDEN.items()
        for accountant in ("rdp", "pld")
        for place, rates in enumerate(("uniform", "printed"))
        for epsilon, rate, expected in zip(values["epsilons"], values[rates], values[accountant][place], strict=True)
    ]


def opacus_epsilon(noise: float, rate: float, rounds: int, delta: float) -> float:
    """RDP from Opacus, an implementation that shares no code with dp-accounting's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus.accountants.analysis import rdp as analysis

        orders = [1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64)) + [128, 256, 512]
        spent = analysis.compute_rdp(q=rate, noise_multiplier=noise, steps=rounds, orders=orders)
        epsilon, _ = analysis.get_privacy_spent(orders=orders, rdp=spent, delta=delta)
    return float(epsilon)


def dp_accounting_epsilon(accountant: str, noise: float, rate: float, rounds: int, delta: float) -> float:
    """dp-accounting's own accountant, from its own event, at its own default accuracy."""
    judge = PLDAccountant() if accountant == "pld" else RdpAccountant()
    judge.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)), rounds))
    return float(judge.get_epsilon(delta))


def test_there_are_48_golden_values() -> None:
    assert len(golden_cases()) == 48


@pytest.mark.training
@pytest.mark.parametrize(("dataset", "accountant", "epsilon", "rate", "rounds", "delta", "expected"), golden_cases())
def test_golden_noise_and_other_implementations(
    dataset: str, accountant: Accountant, epsilon: float, rate: float, rounds: int, delta: float, expected: float
) -> None:
    noise = noise_multiplier_for(
        epsilon=epsilon, delta=delta, sampling_rate=rate, num_rounds=rounds, accountant=accountant
    )
    assert noise**2 == pytest.approx(expected, rel=0.01)
    # The budget also holds as others compute it: PLD for both, and RDP for what was calibrated by RDP.
    assert dp_accounting_epsilon("pld", noise, rate, rounds, delta) <= epsilon
    if accountant == "rdp":
        assert opacus_epsilon(noise, rate, rounds, delta) <= epsilon * (1 + 1e-9)


@st.composite
def mechanisms(draw: st.DrawFn) -> dict[str, float]:
    def log_uniform(low: float, high: float) -> float:
        return math.exp(draw(st.floats(math.log(low), math.log(high))))

    case = {
        "epsilon": log_uniform(0.1, 20),
        "delta": log_uniform(1e-8, 1e-3),
        "sampling_rate": min(log_uniform(0.001, 1.05), 1.0),
        "num_rounds": round(log_uniform(1, 1000)),
    }
    takes_part = 1 - (1 - case["sampling_rate"]) ** case["num_rounds"]
    assume(case["delta"] < 0.5 * takes_part)
    return case


def check_calibrated(case: dict[str, float], accountant: Accountant) -> None:
    rate, rounds = case["sampling_rate"], int(case["num_rounds"])
    noise = noise_multiplier_for(**case, accountant=accountant)  # type: ignore[arg-type]
    spent = epsilon_of(
        SampledGaussian(noise_multiplier=noise, sampling_rate=rate, num_rounds=rounds),
        delta=case["delta"],
        accountant=accountant,
    )
    assert spent <= case["epsilon"]
    less = SampledGaussian(noise_multiplier=0.995 * noise, sampling_rate=rate, num_rounds=rounds)
    assert epsilon_of(less, delta=case["delta"], accountant=accountant) > case["epsilon"]


@pytest.mark.training
@settings(max_examples=200, deadline=None)
@given(mechanisms())
def test_never_exceeds_the_budget(case: dict[str, float]) -> None:
    check_calibrated(case, "pld")


@pytest.mark.training
@settings(max_examples=30, deadline=None)
@given(mechanisms())
def test_never_exceeds_the_budget_with_rdp(case: dict[str, float]) -> None:
    check_calibrated(case, "rdp")


@pytest.mark.training
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
@pytest.mark.parametrize(("epsilon", "rate", "rounds"), [(0.5, 0.02, 50), (3.0, 0.1, 20), (8.0, 0.5, 10)])
def test_leaves_no_room(accountant: Accountant, epsilon: float, rate: float, rounds: int) -> None:
    delta = 1e-5
    noise = noise_multiplier_for(
        epsilon=epsilon, delta=delta, sampling_rate=rate, num_rounds=rounds, accountant=accountant
    )

    def spent(noise: float, rate: float, rounds: int) -> float:
        judged = SampledGaussian(noise_multiplier=noise, sampling_rate=rate, num_rounds=rounds)
        return epsilon_of(judged, delta=delta, accountant=accountant)

    assert spent(noise, rate, rounds) <= epsilon < spent(0.995 * noise, rate, rounds)
    largest = sampling_rate_for(
        noise_multiplier=noise, epsilon=epsilon, delta=delta, num_rounds=rounds, accountant=accountant
    )
    assert largest == pytest.approx(rate, rel=1e-4)
    assert spent(noise, largest, rounds) <= epsilon < spent(noise, largest * 1.005, rounds)
    most = num_rounds_for(
        noise_multiplier=noise, sampling_rate=rate, epsilon=epsilon, delta=delta, accountant=accountant
    )
    assert most == rounds
    assert spent(noise, rate, most) <= epsilon < spent(noise, rate, most + 1)


def test_rate_is_one_where_everyone_may_take_part() -> None:
    assert sampling_rate_for(noise_multiplier=50.0, epsilon=1.0, delta=1e-5, num_rounds=10) == 1.0


def test_rounds_at_the_ends() -> None:
    assert num_rounds_for(noise_multiplier=0.3, sampling_rate=0.5, epsilon=0.1, delta=1e-6) == 0
    assert (
        num_rounds_for(noise_multiplier=30.0, sampling_rate=1e-6, epsilon=5.0, delta=1e-5, accountant="rdp") > 100_000
    )


def test_vacuous_delta_is_refused() -> None:
    with pytest.raises(PrivacyError, match="in clear"):
        noise_multiplier_for(epsilon=1.0, delta=0.01, sampling_rate=0.001, num_rounds=5)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"epsilon": math.nan}, "epsilon"),
        ({"epsilon": math.inf}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"sampling_rate": 1.2}, "sampling_rate"),
        ({"num_rounds": 0}, "num_rounds"),
    ],
)
def test_bad_input_is_refused(changes: dict[str, float], named: str) -> None:
    case = {"epsilon": 1.0, "delta": 1e-5, "sampling_rate": 0.1, "num_rounds": 10, **changes}
    with pytest.raises(InputError, match=named):
        noise_multiplier_for(**case)  # type: ignore[arg-type]


@pytest.mark.training
@pytest.mark.parametrize("rate", [1e-9, 1e-4, 0.999])
@pytest.mark.parametrize("delta", [1e-300, 1e-13, 1e-6, 0.3])
def test_extreme_budgets_are_met_or_refused(rate: float, delta: float) -> None:
    """A noise multiplier whose epsilon is a number within the budget, or an error that says why not; nothing else."""
    for epsilon in (1e-2, 30.0):
        try:
            noise = noise_multiplier_for(epsilon=epsilon, delta=delta, sampling_rate=rate, num_rounds=5)
        except PrivacyError:
            continue
        spent = SampledGaussian(noise_multiplier=noise, sampling_rate=rate, num_rounds=5)
        assert 0 <= epsilon_of(spent, delta=delta) <= epsilon


def test_an_impossible_budget_is_refused_with_a_remedy() -> None:
    with pytest.raises(PrivacyError, match="out of range"):
        noise_multiplier_for(epsilon=1.0, delta=1e-16, sampling_rate=0.1, num_rounds=10)


@pytest.mark.parametrize(("accountant", "tolerance"), [("pld", 2e-4), ("rdp", 0.03)])
def test_rough_is_near(accountant: Accountant, tolerance: float) -> None:
    budget = {"epsilon": 1.0, "delta": 1e-5, "num_rounds": 50, "accountant": accountant}
    noise = noise_multiplier_for(sampling_rate=0.05, **budget)  # type: ignore[arg-type]
    assert rough_noise_multiplier(sampling_rate=0.05, **budget) == pytest.approx(noise, rel=tolerance)  # type: ignore[arg-type]
    assert rough_sampling_rate(noise_multiplier=noise, **budget) == pytest.approx(0.05, rel=tolerance)  # type: ignore[arg-type]
