"""The server's step, found from what it has released."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from gdpfed.errors import InputError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import parse_compact
from gdpfed.training import mechanism
from gdpfed.training.adaptive_step import Step, agreement, next_step, noise_std
from gdpfed.training.rounds import IntArray, Release, Released, TrainingState, initial_state, run_round

NUM_PARAMS, NUM_CLIENTS = 400, 600
TARGET = torch.from_numpy(np.random.default_rng(2).normal(size=NUM_PARAMS)).double()
TARGET *= 8 / TARGET.norm()


def planned(**changes: object) -> Plan:
    settings = PlanSettings(method="auto", num_rounds=60, participation=0.1, accountant="rdp")
    return make_plan(
        parse_compact(f"{NUM_CLIENTS // 2}@4,{NUM_CLIENTS // 2}@12"),
        dataclasses.replace(settings, **changes),  # type: ignore[arg-type]  # settings by name
    )


def towards(target: torch.Tensor, plan: Plan, seed: int) -> Release:
    """Everybody's update points to the target, with an error of their own in proportion to it; then the noise."""

    def release(state: TrainingState, clients: IntArray) -> Released:
        away = target - state.parameters.double()
        errors = np.random.default_rng([seed, state.round_number]).normal(size=(len(clients), NUM_PARAMS))
        rows, _ = mechanism.clip(
            away + float(target.norm()) / 32 * torch.from_numpy(errors),
            clip_norm=plan.clip_norm,
            is_normalised=plan.normalised,
        )
        noise = mechanism.noise(
            NUM_PARAMS, std=plan.groups[0].noise_std, seed=seed, round_number=state.round_number, place=0
        )
        return Released(sums=[plan.groups[0].scale * rows.sum(0) + noise], clients=clients, cohort=(len(clients), 0))

    return release


def states(plan: Plan, release: Release, start: torch.Tensor) -> list[TrainingState]:
    """After each round, in which the same sixty take part."""
    everybody = np.arange(60, dtype=np.int64)
    found = [initial_state(start, NUM_CLIENTS)]
    for _ in range(plan.num_rounds):
        following, _ = run_round(
            found[-1], plan=plan, sample=lambda _: everybody, release=release, layer_sizes=[NUM_PARAMS]
        )
        found.append(following)
    return found[1:]


def misses(plan: Plan, *, scale: float = 1.0, seed: int = 1) -> list[float]:
    """How far the kept model is from a target ``scale`` times as far, as a part of the way, after each round."""
    release, length = towards(scale * TARGET, plan, seed), scale * float(TARGET.norm())
    found = states(plan, release, torch.zeros(NUM_PARAMS))
    return [float((state.model.double() - scale * TARGET).norm()) / length for state in found]


def test_agreement_is_standard_normal() -> None:
    # 4,000 draws: their mean is beyond 0.08, or their std beyond 0.06, less than once in a million times.
    generator = np.random.default_rng(3)
    lag = torch.from_numpy(generator.normal(size=NUM_PARAMS))
    found = [
        agreement(torch.from_numpy(2.5 * generator.normal(size=NUM_PARAMS)), lag, noise_std=2.5) for _ in range(4000)
    ]
    assert abs(np.mean(found)) < 0.08
    assert abs(np.std(found) - 1) < 0.06
    assert agreement(lag, torch.zeros(NUM_PARAMS, dtype=torch.float64), noise_std=1.0) == 0


@pytest.mark.parametrize("release", ["per-group", "pooled"])
def test_noise_std_is_that_of_the_combined_update(release: str) -> None:
    from gdpfed.training.aggregate import combine
    from gdpfed.training.releases.float_sums import with_noise

    method = "gdpfed" if release == "per-group" else "pooled"
    plan = planned(method=method, server_learning_rate=3.0)
    none = [torch.zeros(200_000, dtype=torch.float64) for _ in plan.groups]
    update = combine(plan, with_noise(plan, none, seed=5, round_number=0), [200_000])
    assert float(update.std()) == pytest.approx(noise_std(plan), rel=0.02)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_search_finds_any_scale(scale: float, seed: int) -> None:
    plan = planned()
    # A start at 0 has a length of 1 as its unit, whatever the target: 8e-3, 8 or 8e3 away.
    assert misses(plan, scale=scale, seed=seed)[-1] < 0.35
    # Steps that stay as long as one that fits a scale do not fit the others.
    fixed = planned(adaptive_step=False, averaging=plan.averaging, server_learning_rate=0.5)
    assert (misses(fixed, scale=scale, seed=seed)[-1] < 0.35) == (scale == 1.0)


def test_nothing_is_lost_in_the_search() -> None:
    """While it goes on, the model is the start and the step times all updates so far."""
    plan = planned()
    start = torch.full((NUM_PARAMS,), 0.25)
    updates: list[torch.Tensor] = []
    release = towards(TARGET, plan, 1)

    def noted(state: TrainingState, clients: IntArray) -> Released:
        released = release(state, clients)
        updates.append(plan.groups[0].weight * released.sums[0])
        return released

    searched = 0
    for number, state in enumerate(states(plan, noted, start), start=1):
        assert state.step is not None
        if state.step.is_found:
            break
        searched += 1
        moved = state.step.length * torch.stack(updates[:number]).sum(0)
        torch.testing.assert_close(state.parameters.double() - start.double(), moved, rtol=1e-2, atol=1e-4)
        assert torch.equal(state.model, state.parameters)
    assert searched >= 3


def test_steps_move_on_evidence_alone() -> None:
    plan = planned()
    direction = torch.zeros(NUM_PARAMS, dtype=torch.float64)
    direction[0] = 1
    found = Step(length=2.0, found_in=3)

    def after(z: float) -> float:
        update = z * noise_std(plan) * direction
        step, moved = next_step(
            plan, update, parameters=direction.float(), average=0 * direction, step=found, round_number=9
        )
        assert step.found_in == 3
        torch.testing.assert_close(moved, step.length * update)
        return step.length

    assert after(2.99) == after(-2.99) == 2.0
    assert after(4.0) == pytest.approx(2 * math.exp(math.tanh(0.25) / 2))
    for sign in (1, -1):
        assert after(sign * 1e9) == pytest.approx(2 * math.exp(sign / 2))


def test_noise_ends_no_search() -> None:
    """Beyond 3 a round of noise is once in 740 times: of 300 rounds in 5 runs hardly one is."""
    plan = planned()

    def nothing(seed: int) -> Release:
        def release(state: TrainingState, clients: IntArray) -> Released:
            noise = mechanism.noise(
                NUM_PARAMS, std=plan.groups[0].noise_std, seed=seed, round_number=state.round_number, place=0
            )
            return Released(sums=[noise], clients=clients, cohort=(len(clients), 0))

        return release

    ends = [states(plan, nothing(seed), torch.zeros(NUM_PARAMS))[-1] for seed in range(5)]
    assert max(float(state.model.norm()) for state in ends) < 0.5


def test_a_search_ends_at_a_length() -> None:
    """Where updates never turn back, steps do not grow without end."""
    plan = planned()
    ahead = torch.ones(NUM_PARAMS, dtype=torch.float64)

    def release(state: TrainingState, clients: IntArray) -> Released:
        del state
        return Released(sums=[ahead / plan.groups[0].weight], clients=clients, cohort=(len(clients), 0))

    last = states(plan, release, torch.zeros(NUM_PARAMS))[-1].step
    assert last is not None
    assert last.is_found
    assert math.isfinite(last.length)


def test_another_unit_another_nothing() -> None:
    one, other = (misses(planned(clip_norm=norm)) for norm in (1.0, 250.0))
    assert one == pytest.approx(other, rel=1e-3)


def test_a_lost_step_is_refused() -> None:
    plan = planned()
    update = torch.ones(NUM_PARAMS, dtype=torch.float64)
    with pytest.raises(InputError, match="expected the step of 3 rounds in the checkpoint"):
        next_step(plan, update, parameters=update.float(), average=update, step=None, round_number=3)


def test_what_cannot_adapt_is_refused() -> None:
    for changes in ({"method": "fedavg", "adaptive_step": True}, {"against": "server", "correlated_noise": True}):
        stated = {"asks": 6, "trainings": 2.0} if "against" in changes else {}
        with pytest.raises(InputError, match="a step that adapts"):
            planned(**changes, **stated)
    with pytest.raises(InputError, match="a clip norm to scale updates to"):
        planned(method="fedavg", normalised=True)


def test_plans_without_it_have_the_hash_they_had() -> None:
    from gdpfed.planning.plan_file import plan_from_toml, plan_hash, plan_to_toml

    plain, auto = planned(method="pooled"), planned()
    assert "normalised" not in plan_to_toml(plain)
    assert "adaptive_step" not in plan_to_toml(plain)
    again = plan_from_toml(plan_to_toml(auto))
    assert (again.normalised, again.adaptive_step, again.averaging) == (True, True, 0.83)
    assert plan_hash(again) == plan_hash(auto) != plan_hash(plain)
    assert [group.epsilon_release for group in auto.groups] == [group.epsilon_release for group in plain.groups]
