"""The server's step, found from what it has released."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from gdpfed.errors import InputError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Group, Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import parse_compact
from gdpfed.training import adaptive_step, mechanism
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


def test_noise_for_what_may_be_lost_is_counted() -> None:
    """Of secure sums the noise is larger than planned, and z is measured in what there is."""
    from gdpfed.secure.encoding import noise_excess, planned_sums
    from gdpfed.secure.noise_shares import Tolerance

    plan = planned()
    sums = planned_sums(plan, num_params=10, tolerance=Tolerance(dropout_rate=0.1, colluding_fraction=0.1))
    assert 1.1 < noise_excess(sums) < 1.5
    direction = torch.zeros(NUM_PARAMS, dtype=torch.float64)
    direction[0] = 1
    found = Step(length=2.0, found_in=3)
    for excess, is_moved in ((1.0, True), (noise_excess(sums), False)):
        step, _ = next_step(
            plan, 5.3 * noise_std(plan) * direction, parameters=direction.float(), start=0 * direction,
            average=0 * direction, step=found, round_number=9, noise_excess=excess,
        )  # fmt: skip
        assert (step.length > 2) == is_moved


def test_steps_move_on_evidence_alone() -> None:
    plan = planned()
    direction = torch.zeros(NUM_PARAMS, dtype=torch.float64)
    direction[0] = 1
    found = Step(length=2.0, found_in=3)

    def after(*, onward: float = 0.0, swing: float = 0.0) -> float:
        """The step after an update that goes so far on from the start, and so far from the average."""
        other = torch.zeros(NUM_PARAMS, dtype=torch.float64)
        other[1] = 1
        update = noise_std(plan) * (onward * direction + swing * other)
        # From the start the model lies in the one direction, from the average in the other.
        step, moved = next_step(
            plan, update, parameters=direction.float(), start=0 * direction, average=direction - other, step=found,
            round_number=9,
        )  # fmt: skip
        assert step.found_in == 3
        torch.testing.assert_close(moved, step.length * update)
        return step.length

    for little in (4.99, -4.99):
        assert after(onward=little) == after(swing=little) == 2.0
    assert after(onward=6.0) == pytest.approx(2 * math.exp(math.tanh(0.25) / 2))
    assert after(swing=-6.0) == pytest.approx(2 / math.exp(math.tanh(0.25) / 2))
    assert after(onward=6.0, swing=-6.0) == pytest.approx(2.0)
    # Turning back from the start alone, or going on from the average alone, changes nothing.
    assert after(onward=-20.0) == after(swing=20.0) == 2.0
    assert after(onward=1e9) == pytest.approx(2 * math.exp(0.5))
    assert after(swing=-1e9) == pytest.approx(2 / math.exp(0.5))


def test_only_what_was_released_is_read() -> None:
    """Whoever has the start and the released sums, and nothing else, computes the same models, steps and averages."""
    plan = planned()
    start, kept = torch.full((NUM_PARAMS,), 0.25), []
    release = towards(TARGET, plan, 1)

    def noted(state: TrainingState, clients: IntArray) -> Released:
        released = release(state, clients)
        kept.append([one.clone() for one in released.sums])
        return released

    trained = states(plan, noted, start)

    def replayed(state: TrainingState, clients: IntArray) -> Released:
        del clients
        return Released(sums=kept[state.round_number], clients=np.zeros(0, dtype=np.int64), cohort=(0, 0))

    for one, other in zip(trained, states(plan, replayed, start), strict=True):
        assert torch.equal(one.parameters, other.parameters)
        assert torch.equal(one.model, other.model)
        assert one.step == other.step


@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_all_of_it_costs_what_dp_accounting_says(accountant: str) -> None:
    """One subsampled Gaussian release a round and nothing beside it: dp-accounting, asked alone, finds every budget
    kept, and exceeded with half a percent less noise."""
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    plan = planned(accountant=accountant)
    assert plan.release == "pooled"
    # One draw for all groups; each reckons its std from its own numbers, which may round otherwise.
    one_noise, most = (end(group.noise_std for group in plan.groups) for end in (min, max))
    assert most <= one_noise * (1 + 1e-12)

    def costs(group: Group, factor: float) -> float:
        # What a client adds at most to the released sum, over the noise in it.
        multiplier = factor * one_noise / (group.scale * group.clip_norm)
        event = dp_accounting.PoissonSampledDpEvent(group.sampling_rate, dp_accounting.GaussianDpEvent(multiplier))
        judge = PLDAccountant() if accountant == "pld" else RdpAccountant()
        return float(judge.compose(event, plan.num_rounds).get_epsilon(group.delta))

    for group in plan.groups:
        assert costs(group, 1.0) <= group.epsilon
        assert costs(group, 0.995) > group.epsilon


@pytest.mark.parametrize(("agreed", "rounds_done", "ways"), [(4.0, 3, 10 / 60), (21.0, 3, 21 / 60), (48.0, 3, 0.5)])
def test_the_step_after_the_turn(agreed: float, rounds_done: int, ways: float) -> None:
    """Ten ways to the turn in all rounds, or as many as z said, and half of it at once; the model goes there too."""
    plan = planned()
    direction = torch.zeros(NUM_PARAMS, dtype=torch.float64)
    direction[0] = 1
    # As far back as it had gone on before: the line crosses 0 in the middle, a fourth root of ten below.
    update = -agreed * noise_std(plan) * direction
    step, moved = next_step(
        plan, update, parameters=direction.float(), start=0 * direction, average=None,
        step=Step(length=2.0, agreed=agreed), round_number=rounds_done,
    )  # fmt: skip
    expected = rounds_done * 2.0 / 10**0.25 * ways
    assert step == Step(length=pytest.approx(expected), found_in=rounds_done)
    torch.testing.assert_close(moved, (step.length / 2.0 - 1) * direction)


def test_noise_ends_no_search() -> None:
    """Beyond 3 a round of noise is once in 740 times: a step or two may grow in 300 rounds, and no model runs away."""
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


@pytest.mark.parametrize("patience", [adaptive_step._PATIENCE, 1.0])
def test_a_drowned_signal_is_found(patience: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start is 800 long, so that a first step goes 66 far, the target is 8 away, and beyond 15 updates are noise.
    Without patience for a tenth of the rounds alone the step stays as it is."""
    monkeypatch.setattr(adaptive_step, "_PATIENCE", patience)
    plan = planned()
    start = torch.full((NUM_PARAMS,), 40.0)

    def missed(seed: int) -> float:
        near = towards(TARGET, plan, seed)

        def release(state: TrainingState, clients: IntArray) -> Released:
            moved = state.parameters - start
            if float(moved.norm()) < 15:
                return near(dataclasses.replace(state, parameters=moved), clients)
            noise = mechanism.noise(
                NUM_PARAMS, std=plan.groups[0].noise_std, seed=seed, round_number=state.round_number, place=0
            )
            return Released(sums=[noise], clients=clients, cohort=(len(clients), 0))

        model = states(plan, release, start)[-1].model.double() - start.double()
        return float((model - TARGET).norm()) / float(TARGET.norm())

    missed_by = [missed(seed) for seed in range(3)]
    assert (max(missed_by) < 0.1) if patience < 1 else (min(missed_by) > 1)


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
        next_step(plan, update, parameters=update.float(), start=update, average=update, step=None, round_number=3)
    state = dataclasses.replace(initial_state(update.float(), NUM_CLIENTS), round_number=3)
    with pytest.raises(InputError, match="expected the model of the start in the checkpoint"):
        run_round(
            state, plan=plan, sample=lambda _: np.arange(60, dtype=np.int64), release=towards(TARGET, plan, 1),
            layer_sizes=[NUM_PARAMS],
        )  # fmt: skip


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
