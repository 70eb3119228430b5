"""What lost sums tell."""

import numpy as np
import pytest

from gdpfed.audit.bounds import judge
from gdpfed.audit.controls import CONTROLS
from gdpfed.audit.integer_release import course_of, every_size_complete
from gdpfed.audit.populations import LOSS_RATE, watch_losses
from gdpfed.audit.privacy_curves import AuditedGroup, ReleaseFamily
from tests.audit.plans import small_plan

pytestmark = pytest.mark.training

LOSING = next(control.losing for control in CONTROLS if control.losing is not None)


@pytest.mark.parametrize("method", ["gdpfed", "pooled"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_lost_sums_tell_nothing(method: str, seed: int) -> None:
    plan = small_plan(method)
    group = plan.groups[0]
    seen = watch_losses(AuditedGroup(plan=plan, group_index=0, num_canaries=0, seed=seed), colluders=0.1)
    family = ReleaseFamily(mechanism=plan.mechanism(group), delta=group.delta)
    found = judge(seen, family, claim=1.0, delta=group.delta, alpha=1e-3, measure_noise=False)
    assert not found.contradicts
    assert not seen.scores["sums without noise"].any()


def test_zeros_tell_of_somebody() -> None:
    """Only where somebody is there, and as often as sums are lost: at 6 standard errors."""
    assert LOSING is not None
    plan = small_plan()
    group = plan.groups[0]
    audited = AuditedGroup(plan=plan, group_index=0, num_canaries=0, seed=1)
    seen = watch_losses(audited, colluders=0.1, make_release=LOSING)
    family = ReleaseFamily(mechanism=plan.mechanism(group), delta=group.delta)
    found = judge(seen, family, claim=1.0, delta=group.delta, alpha=1e-3, measure_noise=False)
    assert found.contradicts
    assert found.score == "sums without noise"
    assert found.epsilon_lower > 1
    zeros = seen.scores["sums without noise"]
    assert not zeros[~seen.inside].any()
    # A client alone: an attempt ends without its keys, with its sum, or charged and lost; else it is tried again.
    once, again = LOSS_RATE / 5, 3 * LOSS_RATE / 5
    lost = once * (1 - again**5) / (1 - again) + again**5
    mean = 8 * group.sampling_rate * lost
    assert abs(zeros[seen.inside].mean() - mean) < 6 * np.sqrt(mean / seen.inside.sum())


def test_losses_are_those_of_the_protocol() -> None:
    """All ways to end, in a cohort of one."""
    tolerance = every_size_complete(dropout=LOSS_RATE)
    courses = [course_of([0], tolerance=tolerance, seed=seed, round_number=0) for seed in range(3000)]
    kinds = {(course.roster > 0, bool(course.arrived), course.unmasked) for course in courses}
    assert kinds == {(False, False, False), (True, False, False), (True, True, False), (True, True, True)}
