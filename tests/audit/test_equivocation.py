"""A server that tells two stories, against the real clients."""

import dataclasses

import numpy as np
import pytest

from gdpfed.audit import equivocation
from gdpfed.audit.controls import CONTROLS
from gdpfed.audit.equivocation import ONE_LIAR, LyingServer
from gdpfed.secure.discrete_gaussian import discrete_gaussian
from gdpfed.secure.encoding import PlannedSum, decode, encode, planned_sums
from gdpfed.secure.graph import topology
from gdpfed.secure.noise_shares import Tolerance, noise_share
from gdpfed.secure.randomness import SimulatedRandomness
from tests.audit.plans import small_plan

BELIEVED = next(control.believed for control in CONTROLS if control.believed is not None)


SEED = 4


def planned_sum(tolerance: Tolerance) -> PlannedSum:
    return planned_sums(small_plan(), num_params=3, tolerance=tolerance)[0]


def lying(tolerance: Tolerance, cohort: int) -> LyingServer:
    return LyingServer(planned_sum(tolerance), group=0, tolerance=tolerance, cohort=cohort, seed=SEED)


def noisy_inputs(tolerance: Tolerance, updates: np.ndarray) -> list[np.ndarray]:
    """What each client hides, by its address."""
    planned = planned_sum(tolerance)
    share = noise_share(total_variance=planned.noise_variance, cohort=len(updates), tolerance=tolerance, num_params=3)
    return [
        encode(update, planned.encoding(0))
        + discrete_gaussian(
            3,
            variance=share.variance,
            stream=SimulatedRandomness(seed=SEED, round_number=0, client=client).stream("noise"),
        )
        for client, update in enumerate(updates)
    ]


@pytest.mark.parametrize("cohort", [5, 8, 11])
def test_two_stories_are_refused(cohort: int) -> None:
    """Those who were told of another set, fewer than a quorum with the colluder, reveal nothing. What is left is the
    sum of the honest, whose noise is no less than the plan's."""
    made = lying(ONE_LIAR, cohort)
    updates = np.random.default_rng(cohort).normal(size=(cohort, 3))
    reading = made.attack(updates)
    shape = topology(cohort, ONE_LIAR)
    assert reading.alone == {}
    assert reading.refusals == cohort - shape.quorum > 0
    hidden = noisy_inputs(ONE_LIAR, updates)
    assert reading.total is not None
    np.testing.assert_array_equal(reading.total, sum(hidden[:-1]).astype(np.uint32))
    variance = planned_sum(ONE_LIAR).noise_variance
    share = noise_share(total_variance=variance, cohort=cohort, tolerance=ONE_LIAR, num_params=3)
    assert (cohort - 1) * share.variance >= variance


@pytest.mark.parametrize("cohort", [5, 9, 11])
def test_a_smaller_quorum_is_broken(cohort: int) -> None:
    """Bit for bit what the victim hid: its update and its own noise share, smaller than the plan's noise."""
    assert BELIEVED is not None
    made, planned = lying(BELIEVED, cohort), planned_sum(BELIEVED)
    assert topology(cohort, BELIEVED).quorum == cohort // 2 + 1
    updates = np.random.default_rng(cohort).normal(size=(cohort, 3))
    reading = made.attack(updates)
    assert reading.refusals == 0
    assert list(reading.alone) == list(made.victims)
    assert len(made.victims) >= 2
    hidden = noisy_inputs(BELIEVED, updates)
    for victim, read in reading.alone.items():
        np.testing.assert_array_equal(read, hidden[victim].astype(np.uint32))
        noise = decode(read, unit=planned.unit) - decode(
            encode(updates[victim], planned.encoding(0)).astype(np.uint32), unit=planned.unit
        )
        assert np.abs(noise).max() < 6 * small_plan().groups[0].noise_std / np.sqrt(cohort // 2)


def test_only_the_quorum_makes_the_difference() -> None:
    """A tolerance that differs in nothing else, and is not taken for the other."""
    assert BELIEVED is not None
    assert dataclasses.asdict(BELIEVED) == dataclasses.asdict(ONE_LIAR)
    assert BELIEVED != ONE_LIAR
    assert topology(5, BELIEVED).quorum == 3
    assert topology(5, ONE_LIAR).quorum == 4


def test_cohorts_grow_with_the_noise() -> None:
    sizes = [equivocation.cohort_size(noise) for noise in (0.5, 1.28, 1.8, 3.0, 50.0)]
    assert sizes == sorted(sizes)
    assert all(size % 2 for size in sizes)
    assert equivocation.num_victims(400) == 300
    assert equivocation.num_victims(100_000) > 3000
