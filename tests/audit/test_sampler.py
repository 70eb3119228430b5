"""What the others' participation tells."""

import numpy as np
import pytest

from gdpfed.audit.bounds import judge
from gdpfed.audit.controls import CONTROLS
from gdpfed.audit.populations import rounds_watched, watch_the_others
from gdpfed.audit.privacy_curves import AuditedGroup, ReleaseFamily
from tests.audit.plans import small_plan


def audited_group() -> AuditedGroup:
    return AuditedGroup(plan=small_plan(), group_index=0, num_canaries=0, seed=1)


@pytest.fixture
def family() -> ReleaseFamily:
    return ReleaseFamily(mechanism=audited_group().mechanism, delta=audited_group().group.delta)


def test_independent_coins_tell_nothing(family: ReleaseFamily) -> None:
    audited = audited_group()
    seen = watch_the_others(audited)
    found = judge(seen, family, claim=1.0, delta=1e-4, alpha=1e-3, measure_noise=False)
    assert not found.contradicts
    missing = seen.scores["others missing"]
    # The others are Poisson whether the canary is there or not: n q a round, at 6 standard errors.
    num_others = np.ceil(3 / audited.group.sampling_rate)
    mean = rounds_watched(audited) * num_others * (1 - audited.group.sampling_rate)
    assert abs(missing.mean() - mean) < 6 * missing.std() / np.sqrt(len(missing))


def test_fixed_size_tells_everything(family: ReleaseFamily) -> None:
    fixed = next(control.sampler for control in CONTROLS if control.sampler is not None)
    seen = watch_the_others(audited_group(), sampler=fixed)
    found = judge(seen, family, claim=1.0, delta=1e-4, alpha=1e-3, measure_noise=False)
    assert found.contradicts
    assert found.epsilon_lower > 1.0
    # Without the canary the same number is missing in every population.
    assert len(np.unique(seen.scores["others missing"][~seen.inside])) == 1
