"""Clip, scale, cut off: exact bounds, and nothing that one client's data could raise."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import parse_compact
from gdpfed.secure.encoding import ClientEncoding, PlannedSum, decode, encode, largest_cohort, planned_sums
from gdpfed.secure.noise_shares import Tolerance, excess
from tests.secure.cohorts import BOUND, CLIP_NORM, UNIT, planned_sum

ENCODING = planned_sum(40).encodings[0]


def plan_of(method: str = "gdpfed+", budgets: str = "60@1,90@2,50@6", **settings: Any) -> Plan:
    asked = {"num_rounds": 5, "participation": 0.2, "clip_norm": 0.7, **settings}
    return make_plan(parse_compact(budgets), PlanSettings(method=method, **asked))


def adversarial(num: int, generator: np.random.Generator) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Vectors of all magnitudes, shapes and signs, around and far from the bound."""
    kind = generator.integers(6)
    vector = generator.standard_normal(num)
    if kind == 0:
        vector = np.zeros(num)
        vector[generator.integers(num)] = generator.choice([-1, 1])
    elif kind == 1:
        vector = np.ones(num) * generator.choice([-1, 1], num)
    elif kind == 2:
        vector = vector ** (2 * generator.integers(1, 6) + 1)
    elif kind == 3:
        # Whole numbers of grid steps, and a hair more or less.
        return np.round(vector * 1e5) * UNIT * (1 + generator.choice([-1, 0, 1]) * 2.0**-52)
    length = np.linalg.norm(vector)
    size = CLIP_NORM * generator.choice([1, 1 - 2**-53, 1 + 2**-52, 1 + 1e-12, 2, 1e10, 1e100, 1e-10, 1e150])
    return vector / (length or 1) * size


def test_integer_norm_never_exceeds_the_bound() -> None:
    """10^4 adversarial vectors; squares summed in Python's whole numbers."""
    generator = np.random.default_rng(1)
    reached = 0
    for _ in range(10_000):
        steps = encode(adversarial(40, generator), ENCODING)
        square = sum(step * step for step in steps.tolist())
        assert square <= BOUND**2
        reached += square > (BOUND - 100) ** 2
    assert reached > 3_000


def test_the_bound_is_kept_where_floats_would_not() -> None:
    """A bound that the clip norm overshoots: the whole-numbered check is what keeps it."""
    wrong = dataclasses.replace(ENCODING, clip_norm=CLIP_NORM * 1.001)
    vector = np.ones(40) * 5
    steps = encode(vector, wrong)
    assert (BOUND - 100) ** 2 < int(steps @ steps) <= BOUND**2


@pytest.mark.parametrize(
    "update",
    [
        np.full(40, np.nan),
        np.full(40, np.inf),
        np.full(40, -np.inf),
        np.append(np.zeros(39), 1e200),
        np.full(40, 1e308),
        np.append(np.ones(39), np.nan),
        np.full(40, 3e38, dtype=np.float32) * np.float32(1),
        np.zeros(40),
        np.zeros(39),
        np.ones(41),
        np.ones((40, 1)),
        np.float64(1.0),
        [],
        None,
        "an update",
        ["a"] * 40,
        [10**400] * 40,
        np.ones(40) * 1e-310,
        np.ones(40, dtype=complex) * 1j,
    ],
)
def test_bad_values_become_zero(update: Any) -> None:
    """All but the float32 maximum, which is long but finite, and is clipped."""
    steps = encode(update, ENCODING)
    assert steps.shape == (40,)
    assert steps.dtype == np.int64
    if isinstance(update, np.ndarray) and update.dtype == np.float32:
        assert int(steps @ steps) <= BOUND**2
        assert steps.all()
    else:
        assert not steps.any()


@pytest.mark.parametrize("length", [5e-165, 3e-164, 1e-163, 1e-120])
def test_norms_that_underflow_are_bounded(length: float) -> None:
    """At a clip norm so small that the squares of what is longer are zero: still no norm above the bound."""
    tiny = dataclasses.replace(ENCODING, clip_norm=1e-170, unit=2.0**-584)
    steps = encode(np.full(40, length), tiny)
    assert sum(int(step) ** 2 for step in steps) <= BOUND**2


def test_a_float32_overflow_becomes_zero() -> None:
    with np.errstate(over="ignore"):
        overflown = np.full(40, 3e38, dtype=np.float32) * np.float32(10)
    assert not encode(overflown, ENCODING).any()


def test_decoding_is_within_the_grid() -> None:
    generator = np.random.default_rng(2)
    for _ in range(200):
        update = generator.standard_normal(40) * generator.choice([1e-3, 0.1, 10])
        norm = np.linalg.norm(update)
        clipped = update * min(1.0, CLIP_NORM / norm)
        decoded = decode(encode(update, ENCODING).astype(np.uint32), unit=UNIT)
        # Toward zero, and by less than a step.
        assert np.all(np.abs(decoded) <= np.abs(clipped) * (1 + 1e-12))
        assert np.all(np.abs(decoded - clipped) < UNIT * (1 + 1e-6))


def test_decoding_is_centred() -> None:
    values = np.array([0, 1, 2**31 - 1, 2**31, 2**32 - 1], dtype=np.uint32)
    assert decode(values, unit=0.5).tolist() == [0, 0.5, (2**31 - 1) / 2, -(2**30), -0.5]


@pytest.mark.training
@pytest.mark.parametrize("method", ["gdpfed+", "pooled", "dp-fedavg", "idp-scale", "idp-fedavg"])
def test_noise_on_the_grid_is_the_plans(method: str) -> None:
    """In every group: noise std over the integer bound is at least the noise multiplier, exactly."""
    plan = plan_of(method)
    sums = planned_sums(plan, num_params=10, tolerance=Tolerance())
    assert [place for planned in sums for place in planned.groups] == list(range(len(plan.groups)))
    assert len(sums) == (1 if plan.release == "pooled" else len(plan.groups))
    for planned in sums:
        assert math.log2(planned.unit) == int(math.log2(planned.unit))
        for place in planned.groups:
            group, encoding = plan.groups[place], planned.encoding(place)
            multiplier = Fraction(group.noise_multiplier)
            assert (multiplier * encoding.norm_bound) ** 2 <= planned.noise_variance - 25
            assert Fraction(encoding.norm_bound) * Fraction(planned.unit) <= Fraction(group.clip_norm) * Fraction(
                group.scale
            )
            # And not more than a thousandth above.
            assert planned.noise_variance <= (group.noise_std / planned.unit) ** 2 * 1.001
        assert 2**19 <= max(encoding.norm_bound for encoding in planned.encodings) <= 2**20


def all_alike(planned: PlannedSum, cohort: int) -> int:
    return cohort * max(encoding.norm_bound for encoding in planned.encodings)


@pytest.mark.training
@pytest.mark.parametrize(
    ("budgets", "participation"), [("60@1,90@2,50@6", 0.2), ("20000@1,20000@3", 0.5), ("120000@2", 0.5)]
)
def test_sum_cannot_overflow(budgets: str, participation: float) -> None:
    tolerance = Tolerance(dropout_rate=0.1, colluding_fraction=0.1)
    plan = plan_of("pooled", budgets, participation=participation, accountant="rdp", rates="uniform")
    (planned,) = planned_sums(plan, num_params=10, tolerance=tolerance)
    std = math.sqrt(planned.noise_variance * excess(tolerance, planned.largest_cohort))
    assert all_alike(planned, planned.largest_cohort) + 16 * std < 2**31
    assert planned.largest_cohort >= plan.expected_cohort
    # All alike and of one coordinate, the sum still decodes.
    steps = encode(np.array([1e9] + [0] * 9), planned.encodings[0])
    total = (steps * planned.largest_cohort).astype(np.uint32)
    assert decode(total, unit=planned.unit)[0] == planned.largest_cohort * float(steps[0]) * planned.unit


def test_what_does_not_fit_is_refused() -> None:
    plan = plan_of("dp-fedavg", "2000000@1", participation=1.0, accountant="rdp")
    with pytest.raises(InputError, match="at most 65536 clients"):
        planned_sums(plan, num_params=10, tolerance=Tolerance())
    plan = plan_of("dp-fedavg", "60000@1", participation=1.0, accountant="rdp")
    loud = dataclasses.replace(plan.groups[0], noise_multiplier=1e5)
    with pytest.raises(InputError, match="32 bits"):
        planned_sums(dataclasses.replace(plan, groups=(loud,)), num_params=10, tolerance=Tolerance())
    quiet = dataclasses.replace(plan.groups[0], noise_multiplier=0.05)
    with pytest.raises(PrivacyError, match="std >= 10 grid steps"):
        planned_sums(dataclasses.replace(plan, groups=(quiet,)), num_params=10, tolerance=Tolerance())
    with pytest.raises(InputError, match="clip norm"):
        planned_sums(plan_of("fedavg"), num_params=10, tolerance=Tolerance())
    with pytest.raises(InputError, match="num_params"):
        planned_sums(plan_of(), num_params=0, tolerance=Tolerance())


def test_cohorts_stay_below_the_largest() -> None:
    plan = plan_of("gdpfed", "600@1,900@2", participation=0.05)
    generator = np.random.default_rng(3)
    drawn = sum(generator.binomial(group.num_clients, group.sampling_rate, 10**6) for group in plan.groups)
    largest = largest_cohort(list(plan.groups))
    assert drawn.max() < largest < 3 * plan.expected_cohort


def test_scaled_clients_share_a_grid() -> None:
    """Pooled: an update of norm C becomes C times scale, of another group another."""
    plan = plan_of("pooled")
    (planned,) = planned_sums(plan, num_params=3, tolerance=Tolerance())
    for place, group in enumerate(plan.groups):
        found = decode(
            encode([group.clip_norm * 5, 0, 0], planned.encoding(place)).astype(np.uint32), unit=planned.unit
        )
        assert found[0] == pytest.approx(group.clip_norm * group.scale, rel=1e-5)
    assert isinstance(planned.encodings[0], ClientEncoding)
