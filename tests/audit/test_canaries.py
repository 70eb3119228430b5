"""Canaries on the real path."""

import dataclasses

import numpy as np
import pytest
import torch

from gdpfed.audit.canaries import float_path, integer_path, observe, send_canaries
from gdpfed.audit.ideal import ideal_canaries
from gdpfed.audit.integer_release import IntegerRelease
from gdpfed.errors import InputError
from gdpfed.training.rounds import initial_state
from gdpfed.training.sampling import sample_clients
from gdpfed.training.secure_sum import SecureRelease
from tests.audit.plans import small_plan


@pytest.mark.parametrize("method", ["gdpfed", "gdpfed+", "pooled"])
@pytest.mark.parametrize("integers", [False, True])
def test_only_canaries_inside_move_the_sum(method: str, integers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise the sums are the canaries' own, clipped from ten times the norm, to the grid."""
    monkeypatch.setattr("gdpfed.training.mechanism.noise", lambda num, **_named: torch.zeros(num, dtype=torch.float64))
    for module in ("audit.integer_release", "secure.server"):
        monkeypatch.setattr(f"gdpfed.{module}.discrete_gaussian", lambda num, **_named: np.zeros(num, dtype=np.int64))
    plan = small_plan(method)
    for place, group in enumerate(plan.groups):
        path = integer_path if integers else float_path
        seen = observe(path, plan, place=place, num_canaries=80, seed=3)
        expected = (seen.taking_part & seen.inside) / group.noise_multiplier
        np.testing.assert_allclose(seen.sums, expected, atol=1e-3 if integers else 1e-9)
        assert seen.inside.sum() == 40
        # The real sampler's coins, of all 80.
        coins = sample_clients(plan, np.full(80, place), np.zeros(80, dtype=np.int64), seed=3, round_number=2)
        np.testing.assert_array_equal(np.flatnonzero(seen.taking_part[2]), coins)


def test_the_cap_is_kept() -> None:
    plan = dataclasses.replace(small_plan(), max_participations=1)
    seen = observe(float_path, plan, place=2, num_canaries=60, seed=1)
    assert seen.taking_part.sum(axis=0).max() == 1


def test_canaries_follow_the_seed() -> None:
    plan = small_plan()
    for path in (float_path, integer_path):
        first, again, other = (
            send_canaries(path, plan, place=1, num_canaries=400, seed=seed).release for seed in (1, 1, 2)
        )
        for name, scores in first.scores.items():
            np.testing.assert_array_equal(scores, again.scores[name])
            assert (scores != other.scores[name]).mean() > 0.9
        assert len(first.inside) >= 400
        # Batches are trainings of their own: no two canaries have the same noise.
        assert len(np.unique(first.scores["likelihood ratio"])) == len(first.inside)


@pytest.mark.parametrize("method", ["gdpfed", "gdpfed+", "pooled"])
def test_same_as_the_protocol(method: str) -> None:
    """Keys, masks, shares and messages change nothing; an empty group's noise is the server's."""
    plan = small_plan(method)
    generator = np.random.default_rng(7)
    assignment = np.array([0] * 6 + [1] * 5 + [2] * 4)
    updates = torch.from_numpy(generator.normal(size=(15, 40)))
    state = dataclasses.replace(initial_state(torch.zeros(40), 15), round_number=3)
    for clients in (np.array([0, 2, 5, 7, 8, 10]), np.array([], dtype=np.int64)):
        sums = [
            release(
                state,
                plan=plan,
                assignment=assignment,
                clients=clients,
                updates=lambda _parameters, chosen: iter([(chosen, updates[torch.from_numpy(chosen)])]),
                seed=9,
            ).sums
            for release in (IntegerRelease(plan, num_params=40), SecureRelease(plan, num_params=40))
        ]
        for ours, theirs in zip(*sums, strict=True):
            assert torch.equal(ours, theirs)


def test_too_few_canaries_are_refused() -> None:
    with pytest.raises(InputError, match="200 canaries"):
        send_canaries(float_path, small_plan(), place=0, num_canaries=100, seed=1)


def test_ideal_is_the_planned_mechanism() -> None:
    """Server scores are sums of k Gaussians: mean +-k / (2 sigma^2) inside and outside, at 6 standard errors."""
    plan = small_plan()
    group = plan.groups[2]
    made = ideal_canaries(plan, place=2, num_canaries=20_000, seed=1).server
    scores = made.scores["likelihood ratio"]
    mean = plan.num_rounds * group.sampling_rate / (2 * group.noise_multiplier**2)
    for inside, sign in ((made.inside, 1), (~made.inside, -1)):
        values = scores[inside]
        error = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - sign * mean) < 6 * error
        assert error < 0.05 * mean
