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
from gdpfed.training.adaptive_step import agreement, next_step, noise_std
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


def towards_target(plan: Plan, seed: int) -> Release:
    """Everybody's update points to the target, in a quadratic's way, with an error of their own; then the noise."""

    def release(state: TrainingState, clients: IntArray) -> Released:
        away = TARGET - state.parameters.double()
        errors = np.random.default_rng([seed, state.round_number]).normal(size=(len(clients), NUM_PARAMS)) / 4
        rows, _ = mechanism.clip(
            away + torch.from_numpy(errors), clip_norm=plan.clip_norm, is_normalised=plan.normalised
        )
        noise = mechanism.noise(
            NUM_PARAMS, std=plan.groups[0].noise_std, seed=seed, round_number=state.round_number, place=0
        )
        return Released(sums=[plan.groups[0].scale * rows.sum(0) + noise], clients=clients, cohort=(len(clients), 0))

    return release


def distances(plan: Plan, *, seed: int = 1, first: float | None = None) -> list[float]:
    """From the averaged model to the target, after each round."""
    everybody = np.arange(60, dtype=np.int64)
    state = initial_state(torch.zeros(NUM_PARAMS), NUM_CLIENTS)
    found = []
    for _ in range(plan.num_rounds):
        state, _ = run_round(
            state,
            plan=plan,
            sample=lambda _: everybody,
            release=towards_target(plan, seed),
            layer_sizes=[NUM_PARAMS],
        )
        if state.round_number == 1 and first is not None:
            assert state.step is not None
            state = dataclasses.replace(state, step=first * state.step)
        found.append(float((state.model.double() - TARGET).norm()))
    return found


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


def test_steps_grow_and_shrink() -> None:
    plan = planned()
    # As released, or from a start that is 30 times too short: both end near the target, from a distance of 8.
    assert distances(plan)[-1] < 2.5
    assert distances(plan, first=1 / 30)[-1] < 2.5
    # Steps that stay as long as the first do not arrive.
    fixed = planned(adaptive_step=False, averaging=plan.averaging, server_learning_rate=0.05)
    assert distances(fixed)[-1] > 5


def test_another_unit_another_nothing() -> None:
    one, other = (distances(planned(clip_norm=norm)) for norm in (1.0, 250.0))
    assert one == pytest.approx(other, rel=1e-3)


def test_a_lost_step_is_refused() -> None:
    plan = planned()
    update = torch.ones(NUM_PARAMS, dtype=torch.float64)
    with pytest.raises(InputError, match="expected the step of 3 rounds in the checkpoint"):
        next_step(plan, update, parameters=update.float(), average=update, step=None, round_number=3)


def test_a_step_changes_by_the_root_of_e_at_most() -> None:
    plan = planned()
    lag = torch.ones(NUM_PARAMS, dtype=torch.float64)
    for sign in (1, -1):
        update = sign * 1e9 * lag
        zero = torch.zeros(NUM_PARAMS, dtype=torch.float64)
        step = next_step(plan, update, parameters=lag.float(), average=zero, step=2.0, round_number=4)
        assert step == pytest.approx(2 * math.exp(sign / 2))


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
