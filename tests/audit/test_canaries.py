"""Canaries on the real path."""

import dataclasses

import numpy as np
import pytest
import torch

from gdpfed.audit.canaries import float_path, ideal_canaries, integer_path, observe, of_size, send_canaries
from gdpfed.audit.integer_release import course_of, every_size_complete, integer_release
from gdpfed.audit.privacy_curves import AuditedGroup
from gdpfed.errors import InputError
from gdpfed.secure.encoding import planned_sums
from gdpfed.secure.noise_shares import noise_share
from gdpfed.training.releases.secure_sums import SecureRelease
from gdpfed.training.rounds import Updates, initial_state
from gdpfed.training.sampling import sample_clients, simulated, tossed
from tests.audit.plans import small_plan, small_rotation

pytestmark = pytest.mark.training


@pytest.mark.parametrize("method", ["gdpfed", "gdpfed+", "pooled", "auto"])
@pytest.mark.parametrize("integers", [False, True])
def test_only_canaries_inside_move_the_sum(method: str, integers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise the sums are the canaries' own, clipped from ten times the norm, to the grid."""
    monkeypatch.setattr("gdpfed.training.mechanism.noise", lambda num, **_named: torch.zeros(num, dtype=torch.float64))
    for module in ("audit.integer_release", "secure.server"):
        monkeypatch.setattr(f"gdpfed.{module}.discrete_gaussian", lambda num, **_named: np.zeros(num, dtype=np.int64))
    plan = small_plan(method)
    for index, group in enumerate(plan.groups):
        path = integer_path if integers else float_path
        seen = observe(path, AuditedGroup(plan=plan, group_index=index, num_canaries=80, seed=3))
        expected = (seen.taking_part & seen.inside) / group.noise_multiplier
        np.testing.assert_allclose(seen.sums, expected, atol=1e-3 if integers else 1e-9)
        assert seen.inside.sum() == 40
        # The real sampler's coins, of all 80.
        coins = sample_clients(plan, np.full(80, index), np.zeros(80, dtype=np.int64), seed=3, round_number=2)
        np.testing.assert_array_equal(np.flatnonzero(seen.taking_part[2]), coins)


@pytest.mark.parametrize("method", ["gdpfed", "gdpfed+", "pooled", "auto"])
@pytest.mark.parametrize("integers", [False, True])
def test_canaries_of_a_rotation_are_asked(method: str, integers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of them, four times in eight rounds; without noise the sums are those of the heads inside."""
    monkeypatch.setattr("gdpfed.training.mechanism.noise", lambda num, **_named: torch.zeros(num, dtype=torch.float64))
    for module in ("audit.integer_release", "secure.server"):
        monkeypatch.setattr(f"gdpfed.{module}.discrete_gaussian", lambda num, **_named: np.zeros(num, dtype=np.int64))
    plan = small_rotation(method)
    for index, group in enumerate(plan.groups):
        path = integer_path if integers else float_path
        seen = observe(path, AuditedGroup(plan=plan, group_index=index, num_canaries=80, seed=3))
        assert seen.asked is not None
        assert set(seen.asked.sum(axis=0)) == {4}
        assert set(seen.asked.sum(axis=1)) == {40}
        assert not (seen.taking_part & ~seen.asked).any()
        # The coins of those outside are tossed too: 160 asks on either side, at 6 standard errors.
        for side in (seen.inside, ~seen.inside):
            rate = seen.taking_part[:, side].sum() / 160
            assert abs(rate - group.sampling_rate) < 6 * np.sqrt(group.sampling_rate / 160)
        expected = (seen.taking_part & seen.inside) / group.noise_multiplier
        np.testing.assert_allclose(seen.sums, expected, atol=1e-3 if integers else 1e-9)


def test_the_cap_is_kept() -> None:
    plan = dataclasses.replace(small_plan(), max_participations=1)
    seen = observe(float_path, AuditedGroup(plan=plan, group_index=2, num_canaries=60, seed=1))
    assert seen.taking_part.sum(axis=0).max() == 1


def test_canaries_follow_the_seed() -> None:
    plan = small_plan()
    for path in (float_path, integer_path):
        first, again, other = (
            send_canaries(path, AuditedGroup(plan=plan, group_index=1, num_canaries=400, seed=seed))["release"]
            for seed in (1, 1, 2)
        )
        for name, scores in first.scores.items():
            np.testing.assert_array_equal(scores, again.scores[name])
            assert (scores != other.scores[name]).mean() > 0.9
        assert len(first.inside) >= 400
        # Batches are trainings of their own: no two canaries have the same noise.
        assert len(np.unique(first.scores["likelihood ratio"])) == len(first.inside)


def sending(updates: torch.Tensor) -> Updates:
    """Clients that send their row."""
    return lambda _state, chosen: iter([(chosen, updates[torch.from_numpy(chosen)])])


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
            release(plan, assignment, sending(updates), seed=9, num_params=40)(state, clients).sums
            for release in (integer_release, SecureRelease)
        ]
        for ours, theirs in zip(*sums, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("method", ["gdpfed", "pooled"])
def test_same_as_the_protocol_with_losses(method: str) -> None:
    """Three tenths vanish, a tenth colludes: whatever becomes of a sum, the bits are those of the protocol."""
    plan = small_plan(method)
    generator = np.random.default_rng(7)
    assignment = np.array([0] * 6 + [1] * 5 + [2] * 4)
    updates = torch.from_numpy(generator.normal(size=(15, 12)))
    tolerance = every_size_complete(dropout=0.3, colluders=0.1)
    ends = set()
    for seed in (1, 2, 3):
        bound = (plan, assignment, sending(updates))
        ours = integer_release(*bound, seed=seed, num_params=12, tolerance=tolerance)
        theirs = SecureRelease(*bound, seed=seed, num_params=12, dropout=0.3, colluders=0.1)
        for number in range(10):
            # Of one or two clients also: those are given up.
            clients = np.flatnonzero(generator.random(15) < (0.1, 0.4)[number % 2])
            state = dataclasses.replace(initial_state(torch.zeros(12), 15), round_number=number)
            one, two = (release(state, clients).sums for release in (ours, theirs))
            assert all(torch.equal(mine, yours) for mine, yours in zip(one, two, strict=True))
            for planned in planned_sums(plan, num_params=12, tolerance=tolerance):
                cohort = [int(client) for client in clients if assignment[client] in planned.groups]
                course = course_of(cohort, tolerance=tolerance, seed=seed, round_number=number)
                ends.add((course.roster > 0, bool(course.arrived), course.unmasked, course.attempt > 0))
    # Released at once, and after an abort; charged and lost.
    assert {(True, True, True, False), (True, True, True, True), (True, True, False, False)} <= ends


@pytest.mark.parametrize("method", ["gdpfed", "pooled"])
def test_a_rotation_is_the_protocols(method: str) -> None:
    """Some send something, the others zero; a fifth vanishes, a tenth colludes: the bits are those of the protocol."""
    plan = small_rotation(method)
    plan = dataclasses.replace(
        plan, groups=tuple(dataclasses.replace(group, num_clients=12) for group in plan.groups), linked=()
    )
    assignment = np.repeat(np.arange(3), 12)
    moved = torch.from_numpy(np.random.default_rng(7).normal(size=(36, 10)))
    sample = simulated(plan, assignment, seed=2)
    for seed in (1, 2, 3):
        bound = (plan, assignment, tossed(sending(moved), plan, assignment, seed=seed))
        ours = integer_release(
            *bound, seed=seed, num_params=10, tolerance=every_size_complete(dropout=0.2, colluders=0.1)
        )
        theirs = SecureRelease(*bound, seed=seed, num_params=10, dropout=0.2, colluders=0.1)
        for number in range(4):
            state = dataclasses.replace(initial_state(torch.zeros(10), 36), round_number=number)
            clients = sample(state)
            one, two = (release(state, clients).sums for release in (ours, theirs))
            assert all(torch.equal(mine, yours) for mine, yours in zip(one, two, strict=True))
            # Fewer than half of those who are asked: noise alone.
            one, two = (release(state, clients[::3]).sums for release in (ours, theirs))
            assert all(torch.equal(mine, yours) for mine, yours in zip(one, two, strict=True))


def test_a_sum_that_is_given_up_is_the_protocols() -> None:
    """Seeds in which a cohort of two loses somebody five times, and one of three after the charge."""
    plan = small_plan()
    tolerance = every_size_complete(dropout=0.45)
    updates = torch.ones((3, 6), dtype=torch.float64)
    for clients, wanted in (([0, 1], (5, False)), ([0, 1, 2], (0, True))):
        seed = next(
            seed
            for seed in range(5000)
            if (course := course_of(clients, tolerance=tolerance, seed=seed, round_number=0)).roster
            and not course.unmasked
            and (course.attempt, bool(course.arrived)) == wanted
        )
        bound = (plan, np.zeros(3, dtype=np.int64), sending(updates))
        one, two = (
            release(initial_state(torch.zeros(6), 3), np.array(clients)).sums
            for release in (
                integer_release(*bound, seed=seed, num_params=6, tolerance=tolerance),
                SecureRelease(*bound, seed=seed, num_params=6, dropout=0.45),
            )
        )
        assert all(torch.equal(mine, yours) for mine, yours in zip(one, two, strict=True))
        assert (one[0] != 0).all()


def test_the_server_is_left_with_the_planned_noise() -> None:
    """In every round of small and larger cohorts, variance 1 at 6 standard errors; what is released has more."""
    plan = small_plan()
    num = 4_000
    for dropout, colluders in ((0.0, 0.0), (0.3, 0.0), (0.1, 0.1), (0.3, 0.2)):
        tolerance = every_size_complete(dropout=dropout, colluders=colluders)
        for cohort in (0, 1, 2, 5, 12):
            squares = []
            for seed in range(4):
                release = integer_release(
                    plan,
                    np.zeros(12, dtype=np.int64),
                    sending(torch.zeros((12, num), dtype=torch.float64)),
                    seed=seed,
                    num_params=num,
                    tolerance=tolerance,
                )
                made = release(initial_state(torch.zeros(num), 12), np.arange(cohort))
                squares.append((made.server_sums[0] / plan.groups[0].noise_std).square().mean().item())
                assert made.sums[0].std() >= 0.9 * made.server_sums[0].std()
            assert abs(np.mean(squares) - 1) < 6 * np.sqrt(2 / (4 * num))
            if cohort:
                planned = planned_sums(plan, num_params=num, tolerance=tolerance)[0]
                share = noise_share(
                    total_variance=planned.noise_variance, cohort=cohort, tolerance=tolerance, num_params=num
                )
                guaranteed_variance = share.guaranteed_shares * share.variance
                assert planned.noise_variance <= guaranteed_variance < planned.noise_variance + cohort


@pytest.mark.parametrize("zeros_add_noise", [True, False])
def test_who_sends_zero_adds_noise(zeros_add_noise: bool) -> None:
    """A roster of 40, of whom three send something: all of the planned noise, or three shares in 40 of it."""
    plan, num, roster = of_size(small_rotation(), 0, 80), 4_000, 40
    release = integer_release(
        plan,
        np.zeros(80, dtype=np.int64),
        lambda _state, clients: iter([(clients[:3], torch.zeros((3, num), dtype=torch.float64))]),
        seed=1,
        num_params=num,
        tolerance=every_size_complete(),
        zeros_add_noise=zeros_add_noise,
    )
    made = release(initial_state(torch.zeros(num), 80), np.arange(roster))
    variance = (made.server_sums[0] / plan.groups[0].noise_std).square().mean().item()
    expected = 1 if zeros_add_noise else 3 / roster
    assert abs(variance - expected) < 6 * expected * np.sqrt(2 / num)


def test_a_small_roster_is_given_up() -> None:
    """Half of those who are asked is the least; there is one attempt."""
    plan = of_size(small_rotation(), 0, 80)
    for present, unmasked in ((19, False), (20, True)):
        course = course_of(
            range(present), tolerance=every_size_complete(), seed=1, round_number=0, smallest=20, attempts=1
        )
        assert course.unmasked == unmasked
        release = integer_release(
            plan,
            np.zeros(80, dtype=np.int64),
            lambda _state, clients: iter([(clients, torch.ones((len(clients), 4), dtype=torch.float64))]),
            seed=1,
            num_params=4,
        )
        made = release(initial_state(torch.zeros(4), 80), np.arange(present))
        largest = made.sums[0].abs().max().item() / plan.groups[0].noise_std
        # 20 clients of length 0.7 over four coordinates, in stds of the noise.
        assert (largest > 3.5) == unmasked


def test_too_few_canaries_are_refused() -> None:
    with pytest.raises(InputError, match="200 canaries"):
        send_canaries(float_path, AuditedGroup(plan=small_plan(), group_index=0, num_canaries=100, seed=1))


def test_ideal_is_the_planned_mechanism() -> None:
    """Server scores are sums of k Gaussians: mean +-k / (2 sigma^2) inside and outside, at 6 standard errors."""
    plan = small_plan()
    group = plan.groups[2]
    made = ideal_canaries(AuditedGroup(plan=plan, group_index=2, num_canaries=20_000, seed=1))["server"]
    scores = made.scores["likelihood ratio"]
    mean = plan.num_rounds * group.sampling_rate / (2 * group.noise_multiplier**2)
    for inside, sign in ((made.inside, 1), (~made.inside, -1)):
        values = scores[inside]
        error = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - sign * mean) < 6 * error
        assert error < 0.05 * mean
