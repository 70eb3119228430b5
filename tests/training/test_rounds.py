"""One suite for the fast round and for the readable one, and that they agree."""

import copy
import dataclasses
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gdpfed.errors import InputError
from gdpfed.planning.methods import METHODS
from gdpfed.planning.plan import Group, Plan
from gdpfed.training.clients.blocks import ClientData, local_batches
from gdpfed.training.releases.float_sums import with_noise
from gdpfed.training.rounds import sparsified
from tests.training import checkers
from tests.training.worlds import (
    LOCAL,
    NUM_CLIENTS,
    ROUNDS,
    SEED,
    Round,
    World,
    after,
    assignment_of,
    changed,
    far,
    fast,
    plain,
    plan_of,
    quiet,
    world,
)

pytestmark = pytest.mark.training


@pytest.fixture(params=ROUNDS)
def run(request: pytest.FixtureRequest) -> Round:
    return ROUNDS[request.param]


@pytest.mark.parametrize("kind", ["cnn", pytest.param("lstm", marks=pytest.mark.training)])
@pytest.mark.parametrize("method", METHODS)
def test_fast_equals_reference(method: str, kind: str) -> None:
    """To 1e-5: of the parameters with the noise as planned, and of the step itself with the noise all but gone, where
    nothing hides a mistake in training."""
    where = world(kind)
    start = where.start()
    # Of a step that adapts the first is so short that rounding shows: three rounds, in which it grows.
    for plan, rounds in ((plan_of(method), 3), (quiet(plan_of(method)), 3 if METHODS[method].needs_no_tuning else 1)):
        one = two = start
        for _ in range(rounds):
            (one, of_fast), (two, of_plain) = fast(one, plan, where), plain(two, plan, where)
            assert (of_fast.cohort, of_fast.clipped, of_fast.dropped) == (
                of_plain.cohort, of_plain.clipped, of_plain.dropped,
            )  # fmt: skip
            assert of_fast.update_norm == pytest.approx(of_plain.update_norm, rel=1e-5)
            assert np.array_equal(one.participations, two.participations)
        torch.testing.assert_close(one.parameters, two.parameters, rtol=0, atol=1e-5)
        assert far(one.parameters, two.parameters, start.parameters) < 2e-5
    assert sum(of_fast.cohort) > 5
    if plan.is_private:
        assert plan.normalised or of_fast.clipped > 0


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.is_private])
def test_fast_equals_reference_in_a_rotation(method: str) -> None:
    where = world("cnn")
    plan = quiet(plan_of(method, asks=3))
    one = two = where.start()
    for _ in range(3):
        (one, of_fast), (two, of_plain) = fast(one, plan, where), plain(two, plan, where)
        assert dataclasses.replace(of_fast, update_norm=0.0) == dataclasses.replace(of_plain, update_norm=0.0)
        assert of_fast.clipped is None
        assert of_fast.dropped is None
        assert np.array_equal(one.participations, two.participations)
        torch.testing.assert_close(one.parameters, two.parameters, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["gdpfed", "pooled"])
def test_fast_equals_reference_with_correlated_noise(method: str) -> None:
    where = world("cnn")
    plan = dataclasses.replace(plan_of(method, asks=2), bands=2)
    one = two = where.start()
    for _ in range(4):
        (one, _), (two, _) = fast(one, plan, where), plain(two, plan, where)
        torch.testing.assert_close(one.parameters, two.parameters, rtol=0, atol=1e-5)


@pytest.mark.parametrize("method", ["gdpfed+", "pooled", "idp-scale"])
def test_asking_everybody_in_every_round_has_the_bytes_of_poisson_sampling(method: str) -> None:
    where = world("cnn")
    today = always = where.start()
    for _ in range(4):
        (today, one), (always, other) = (
            fast(today, plan_of(method), where),
            fast(always, plan_of(method, asks=4), where),
        )
        assert torch.equal(today.parameters, always.parameters)
        assert one.update_norm == other.update_norm
        assert other.cohort == tuple(group.num_clients for group in plan_of(method).groups)


@pytest.mark.parametrize("kind", ["cnn", "features"])
@pytest.mark.parametrize("method", ["gdpfed+", "pooled"])
def test_fast_equals_reference_with_averaging(method: str, kind: str) -> None:
    where = world(kind)
    plan = dataclasses.replace(plan_of(method), averaging=0.6)
    one = two = where.start()
    for _ in range(3):
        (one, _), (two, _) = fast(one, plan, where), plain(two, plan, where)
        torch.testing.assert_close(one.model, two.model, rtol=0, atol=1e-5)
        torch.testing.assert_close(one.parameters, two.parameters, rtol=0, atol=1e-5)
    assert not torch.equal(one.model, one.parameters)


def test_averaging_changes_no_round() -> None:
    """Only what is kept of it: the same bytes are released, and clients train from the same models."""
    where = world("cnn")
    plan = plan_of("pooled")
    one = two = where.start()
    for _ in range(3):
        (one, of_one), (two, of_two) = (
            fast(one, plan, where),
            fast(two, dataclasses.replace(plan, averaging=0.9), where),
        )
        assert torch.equal(one.parameters, two.parameters)
        assert of_one == of_two
    assert torch.equal(one.model, one.parameters)
    assert not torch.equal(two.model, two.parameters)


def plain_fedavg(where: World, plan: Plan, participants: list[int], round_number: int, start: Tensor) -> Tensor:
    """FedAvg from nothing but PyTorch: the mean over the expected cohort."""
    total = torch.zeros(len(start), dtype=torch.float64)
    for client in participants:
        model = copy.deepcopy(where.model)
        nn.utils.vector_to_parameters(start.clone(), model.parameters())
        momenta = [torch.zeros_like(parameter) for parameter in model.parameters()]
        batches = local_batches(where.data.members[client], LOCAL, seed=SEED, round_number=round_number, client=client)
        for batch in batches.tolist():
            loss = nn.functional.cross_entropy(model(where.data.inputs[batch]), where.data.labels[batch])
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            for parameter, momentum, gradient in zip(model.parameters(), momenta, gradients, strict=True):
                momentum.mul_(LOCAL.momentum).add_(gradient)
                parameter.data -= LOCAL.rate(round_number) * momentum
        total += nn.utils.parameters_to_vector(model.parameters()).detach().double() - start.double()
    return (start.double() + total / (0.3 * NUM_CLIENTS)).float()


def without_privacy(plan: Plan) -> Plan:
    """No noise, no clip, everything kept, every group's weight the same."""
    return changed(
        plan,
        lambda _: {
            "epsilon": math.inf, "noise_multiplier": 0.0, "clip_norm": math.inf, "keep_fraction": 1.0,
            "weight": 1 / (0.3 * NUM_CLIENTS), "epsilon_release": math.inf, "epsilon_server": math.inf,
        },
    )  # fmt: skip


def test_off_switches_are_fedavg(run: Round) -> None:
    where = world("cnn")
    start = where.start()
    plan = plan_of("fedavg")
    state, record = run(start, plan, where)
    participants = np.flatnonzero(state.participations).tolist()
    expected = plain_fedavg(where, plan, participants, 0, start.parameters)
    assert record.cohort == (len(participants),)
    torch.testing.assert_close(state.parameters, expected, rtol=0, atol=1e-6)
    # The same with everything of the other methods switched off, with one group and with three.
    for method in ("dp-fedavg", "gdpfed"):
        off, _ = run(start, without_privacy(plan_of(method)), where)
        torch.testing.assert_close(off.parameters, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("switch", ["noise", "clip", "keep", "weights"])
def test_every_switch_does_something(run: Round, switch: str) -> None:
    where = world("cnn")
    off = without_privacy(plan_of("gdpfed"))
    on: dict[str, dict[str, object]] = {
        "noise": {"noise_multiplier": 0.5, "clip_norm": 1e3},
        "clip": {"clip_norm": 0.05},
        "keep": {"keep_fraction": 0.5},
        "weights": {"weight": 0.05},
    }
    changed_one = changed(off, lambda _: on[switch])
    one, two = after(run, off, where, num_rounds=1), after(run, changed_one, where, num_rounds=1)
    assert float((one - two).abs().max()) > 1e-4


@pytest.mark.training
def test_keeping_everything_is_opc(run: Round) -> None:
    where = world("cnn")
    full = plan_of("gdpfed+", keep=(1.0, 1.0, 1.0))
    assert torch.equal(after(run, full, where), after(run, plan_of("gdpfed-opc"), where))
    assert not torch.equal(after(run, plan_of("gdpfed+"), where), after(run, plan_of("gdpfed-opc"), where))


def test_pooled_with_one_group_is_dp_fedavg(run: Round) -> None:
    """Noise included: there is one draw in both, at the same address, of std C on updates divided by sigma in one and
    of std sigma C on updates in the other."""
    where = world("cnn")
    one, two = plan_of("pooled", budgets="40@2"), plan_of("dp-fedavg", budgets="40@2")
    assert one.release != two.release
    assert one.groups[0].sampling_rate == pytest.approx(two.groups[0].sampling_rate, rel=1e-12)
    # dp-fedavg's own calibration may differ in its last digits from that of the rates' search.
    multiplier = two.groups[0].noise_multiplier
    one = changed(
        one,
        lambda group: {
            "noise_multiplier": multiplier, "scale": 1 / multiplier, "weight": multiplier / group.expected_cohort,
        },
    )  # fmt: skip
    assert one.groups[0].noise_std == pytest.approx(one.clip_norm, rel=1e-12)
    torch.testing.assert_close(after(run, one, where), after(run, two, where), rtol=0, atol=1e-6)


def broken(where: World, clients: list[int], value: float) -> World:
    """The same with bad numbers in the examples of some clients."""
    inputs = where.data.inputs.clone()
    for client in clients:
        inputs[where.data.members[client]] = value
    return dataclasses.replace(where, data=dataclasses.replace(where.data, inputs=inputs))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_broken_client_counts_as_zero(run: Round, value: float) -> None:
    """Its update is zero, everybody else's is what it was, and the round goes on."""
    where = world("cnn")
    plan = plan_of("gdpfed")
    before, _ = run(where.start(), plan, where)
    taking_part = np.flatnonzero(before.participations)
    state, record = run(where.start(), plan, broken(where, taking_part[:3].tolist(), value))
    assert record.dropped == 3
    assert np.array_equal(state.participations, before.participations)
    assert bool(state.parameters.isfinite().all())
    # Those who stay away change nothing, whatever they hold.
    absent = np.flatnonzero(before.participations == 0).tolist()
    same, record = run(where.start(), plan, broken(where, absent, value))
    assert record.dropped == 0
    assert torch.equal(same.parameters, before.parameters)


class Nothing(nn.Module):
    """A model that returns NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(5))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.flatten(1)[:, :5] * self.weight * math.nan


def test_a_model_that_returns_nan(run: Round) -> None:
    where = World(model=Nothing(), data=world("cnn").data)
    state, record = run(where.start(), plan_of("fedavg"), where)
    assert record.dropped == sum(record.cohort) > 0
    assert torch.equal(state.parameters, where.start().parameters)


def test_a_round_is_state_in_state_out(run: Round) -> None:
    where = world("cnn")
    state = where.start()
    kept = state.parameters.clone()
    one, of_one = run(state, plan_of("gdpfed+"), where)
    two, of_two = run(state, plan_of("gdpfed+"), where)
    assert torch.equal(one.parameters, two.parameters)
    assert of_one == of_two
    assert torch.equal(state.parameters, kept)
    assert state.participations.sum() == 0
    assert one.round_number == 1
    other, _ = run(state, plan_of("gdpfed+"), where, seed=SEED + 1)
    assert not torch.equal(one.parameters, other.parameters)


def test_the_plan_ends_the_run(run: Round) -> None:
    where = world("cnn")
    state = dataclasses.replace(where.start(), round_number=4)
    with pytest.raises(InputError, match="4 rounds"):
        run(state, plan_of("gdpfed"), where)


def test_the_cap_is_kept_by_rounds(run: Round) -> None:
    where = world("cnn")
    plan = dataclasses.replace(plan_of("gdpfed"), max_participations=1)
    state = where.start()
    cohorts = 0
    for _ in range(4):
        state, record = run(state, plan, where)
        cohorts += sum(record.cohort)
    assert state.participations.max() == 1
    assert state.participations.sum() == cohorts


def test_an_empty_cohort_still_gets_noise(run: Round) -> None:
    where = world("cnn")
    plan = changed(plan_of("gdpfed"), lambda _: {"sampling_rate": 1e-9})
    state, record = run(where.start(), plan, where)
    assert sum(record.cohort) == 0
    moved = (state.parameters - where.start().parameters).double()
    std = math.sqrt(sum((group.weight * group.noise_multiplier * group.clip_norm) ** 2 for group in plan.groups))
    assert float(moved.std()) == pytest.approx(std, rel=0.3)


def noise_std(plan: Plan, place: int) -> float:
    """From the plan's definition, without its `noise_std`."""
    group: Group = plan.groups[place]
    if plan.method == "pooled":
        return plan.clip_norm
    if plan.method == "idp-scale":
        everyone = sum(group.num_clients for group in plan.groups)
        return plan.clip_norm * sum(group.num_clients * group.noise_multiplier for group in plan.groups) / everyone
    return group.noise_multiplier * plan.clip_norm


# With and without averaging: it must leave the mechanism alone.
VARIANTS = [
    *((method, 0.0) for method in ("dp-fedavg", "gdpfed", "gdpfed-opc", "idp-fedavg", "idp-scale", "pooled")),
    ("pooled", 0.8),
    ("gdpfed", 0.8),
]


def variant(method: str, averaging: float) -> Plan:
    return dataclasses.replace(plan_of(method, clip_norm=0.7), averaging=averaging)


@pytest.mark.training
@pytest.mark.parametrize(("method", "averaging"), VARIANTS)
def test_released_sums_match_the_plan(method: str, averaging: float) -> None:
    """Mean, variance, shape and independence of the noise; every check has a false-alarm rate of 1e-6 and the variance
    is seen to 1 % (see checkers.py for the numbers)."""
    plan = variant(method, averaging)
    stds = [noise_std(plan, place) for place in range(1 if plan.release == "pooled" else len(plan.groups))]
    checkers.check_noise(checkers.release, plan, stds)


@pytest.mark.parametrize(("method", "averaging"), VARIANTS)
def test_every_client_has_its_noise_multiplier(method: str, averaging: float) -> None:
    """What one client can move is the noise std divided by its group's noise multiplier: no more, no less."""
    checkers.check_contributions(checkers.release, variant(method, averaging))


def test_non_finite_updates_move_nothing() -> None:
    for method in ("gdpfed", "pooled"):
        checkers.check_non_finite(checkers.release, plan_of(method, clip_norm=0.7))


def test_top_k_is_after_the_noise() -> None:
    plan = plan_of("gdpfed+")
    sums = [torch.zeros(1000, dtype=torch.float64) for _ in plan.groups]
    released = sparsified(plan, with_noise(plan, sums, seed=1, round_number=0))
    assert [int((part != 0).sum()) for part in released] == [700, 800, 900]


def test_released_sums_leave_the_sums_alone() -> None:
    plan = plan_of("gdpfed")
    sums = [torch.ones(10, dtype=torch.float64) for _ in plan.groups]
    with_noise(plan, sums, seed=1, round_number=0)
    assert all(bool((part == 1).all()) for part in sums)


def test_worlds_have_what_the_tests_need() -> None:
    """Clients with fewer examples than a batch, and with more; groups of the sizes that were planned."""
    sizes = [len(indices) for indices in world("cnn").data.members]
    assert min(sizes) == 1
    assert max(sizes) > 2 * LOCAL.batch_size
    assert isinstance(world("lstm").data, ClientData)
    assert np.bincount(assignment_of(plan_of("gdpfed"))).tolist() == [12, 18, 10]
