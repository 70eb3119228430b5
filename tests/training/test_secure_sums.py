"""Secure sums in the simulator: the same model as the float path up to the grid, and the plan's noise."""

import dataclasses
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdpfed.errors import InputError
from gdpfed.planning.methods import METHODS
from gdpfed.planning.plan import Plan
from gdpfed.runs.folder import open_run
from gdpfed.runs.simulate import prepare, simulate
from gdpfed.secure.noise_shares import Tolerance, excess
from gdpfed.tasks.task import Task, load_task
from gdpfed.training import rounds
from gdpfed.training.clients.cohort import CohortTrainer
from gdpfed.training.releases import secure_sums as secure_sum
from gdpfed.training.releases.float_sums import float_release
from gdpfed.training.releases.secure_sums import MAX_ATTEMPTS, SecureRelease
from gdpfed.training.rounds import IntArray, TrainingState, initial_state, sparsified
from gdpfed.training.sampling import sample_clients, simulated, tossed
from tests.runs.conftest import TINY, start
from tests.training import checkers
from tests.training.worlds import assignment_of, changed, plan_of, world

pytestmark = pytest.mark.training

SEED = 11
PRIVATE = [method for method in METHODS if method != "fedavg"]


def no_noise(num: int, **_named: object) -> NDArray[np.int64]:
    return np.zeros(num, dtype=np.int64)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both paths without noise, all else as it is."""
    monkeypatch.setattr("gdpfed.secure.client.discrete_gaussian", no_noise)
    monkeypatch.setattr("gdpfed.secure.server.discrete_gaussian", no_noise)
    monkeypatch.setattr("gdpfed.training.mechanism.noise", lambda num, **_named: torch.zeros(num, dtype=torch.float64))


def updates(state: TrainingState, clients: IntArray) -> Iterator[tuple[IntArray, Tensor]]:
    where = world("cnn")
    trainer = CohortTrainer(where.model, where.data, where.local, num_workers=1)
    try:
        yield from trainer.updates(state.parameters, clients, seed=SEED, round_number=state.round_number)
    finally:
        trainer.close()


def run(state: TrainingState, plan: Plan, release: rounds.Release, *, without: int | None = None) -> Any:
    draw = simulated(plan, assignment_of(plan), seed=SEED)
    return rounds.run_round(
        state,
        plan=plan,
        sample=lambda now: draw(now)[draw(now) != without],
        release=release,
        layer_sizes=[part.numel() for part in world("cnn").model.parameters()],
    )


def trained(plan: Plan) -> rounds.Updates:
    return tossed(updates, plan, assignment_of(plan), seed=SEED)


def floating(plan: Plan) -> rounds.Release:
    return float_release(plan, assignment_of(plan), trained(plan), seed=SEED)


def secure(plan: Plan, **lost: float) -> SecureRelease:
    num_params = len(world("cnn").start().parameters)
    return SecureRelease(plan, assignment_of(plan), trained(plan), seed=SEED, num_params=num_params, **lost)


@pytest.mark.usefixtures("silent")
@pytest.mark.parametrize("asks", [None, 3])
@pytest.mark.parametrize("method", PRIVATE)
def test_secure_equals_float_up_to_the_grid(method: str, asks: int | None) -> None:
    """Every coordinate of the step differs by less than a grid step for each client, times the weights.

    Everything is kept: at the edge of Top-k a grid step decides which of two nearly equal coordinates stays.
    """
    plan = changed(plan_of(method, asks=asks), lambda _: {"keep_fraction": 1.0, "projected": False})
    start_state = world("cnn").start()
    (plain, told), (kept, record) = (run(start_state, plan, release) for release in (floating(plan), secure(plan)))
    assert (record.cohort, record.clipped, record.dropped) == (told.cohort, told.clipped, told.dropped)
    sums = secure(plan)._planned
    largest = sum(
        plan.groups[planned.groups[0]].weight * planned.unit * sum(told.cohort[group] for group in planned.groups)
        for planned in sums
    )
    moved = float((plain.parameters - start_state.parameters).abs().max())
    apart = float((plain.parameters - kept.parameters).abs().max())
    assert 0 < apart <= plan.server_learning_rate * largest + 1e-7
    assert apart < 1e-4 * moved
    assert np.array_equal(plain.participations, kept.participations)


@pytest.mark.usefixtures("silent")
def test_dropouts_are_left_out_of_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a chosen client lost before its input, the secure sum is the float sum without it."""
    plan = plan_of("dp-fedavg")
    where = world("cnn").start()
    clients = sample_clients(plan, assignment_of(plan), where.participations, seed=SEED, round_number=0)
    lost = int(clients[1])
    release = secure(plan, dropout=0.2)
    monkeypatch.setattr(release, "_vanishing", lambda *_: {lost: secure_sum.Stage.INPUT})
    without, _ = run(where, plan, release)
    expected, _ = run(where, plan, floating(plan), without=lost)
    moved = float((expected.parameters - where.parameters).abs().max())
    assert float((expected.parameters - without.parameters).abs().max()) < 1e-3 * moved
    assert without.participations[lost] == 1


def secure_mechanism(plan: Plan, groups: list[int], updates: Tensor, *, seed: int, round_number: int) -> list[Tensor]:
    """In the form that the checkers of the float mechanism take."""
    state = dataclasses.replace(initial_state(torch.zeros(updates.shape[1]), len(groups)), round_number=round_number)
    release = SecureRelease(
        plan,
        np.array(groups, dtype=np.int64),
        lambda _, chosen: iter([(chosen, updates[torch.from_numpy(chosen)])] if len(chosen) else []),
        seed=seed,
        num_params=updates.shape[1],
    )
    return sparsified(plan, release(state, np.arange(len(groups))).sums)


@pytest.mark.parametrize("method", ["gdpfed", "pooled"])
def test_secure_noise_matches_the_plan(method: str) -> None:
    """The float mechanism's own checker: variance within 0.5 %, mean, shape, independence of sums and rounds."""
    plan = plan_of(method)
    stds = [group.noise_multiplier * group.clip_norm * group.scale for group in plan.groups]
    checkers.check_noise(secure_mechanism, plan, stds[:1] if plan.release == "pooled" else stds)


@pytest.mark.parametrize("method", ["gdpfed", "pooled", "idp-scale"])
def test_a_client_moves_a_sum_by_its_bound(method: str) -> None:
    """One long update, with and without: the noise is at the same address."""
    plan = plan_of(method)
    direction = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for place, group in enumerate(plan.groups):
        sent = [
            secure_mechanism(plan, [place], update, seed=1, round_number=0)
            for update in (1e6 * direction, 0 * direction)
        ]
        moved = math.sqrt(sum(float((one - two).norm() ** 2) for one, two in zip(*sent, strict=True)))
        assert moved <= group.clip_norm * group.scale
        assert moved == pytest.approx(group.clip_norm * group.scale, rel=1e-4)


def test_bad_updates_count_as_zero() -> None:
    """Here a broken update is in the cohort, so that the noise is the same as with a zero one."""
    plan = plan_of("gdpfed")
    zeros = torch.zeros(3, 50, dtype=torch.float64)
    broken = zeros.clone()
    broken[0, 1], broken[1, 2], broken[2] = math.nan, math.inf, 1e200
    for one, two in zip(
        secure_mechanism(plan, [0, 1, 2], zeros, seed=1, round_number=0),
        secure_mechanism(plan, [0, 1, 2], broken, seed=1, round_number=0),
        strict=True,
    ):
        assert torch.equal(one, two)


def test_empty_cohorts_release_noise() -> None:
    plan = plan_of("gdpfed")
    released = secure_mechanism(plan, [], torch.zeros(0, 2000, dtype=torch.float64), seed=1, round_number=0)
    for group, noise in zip(plan.groups, released, strict=True):
        assert float(noise.std()) == pytest.approx(group.noise_std, rel=0.15)
    assert not torch.equal(released[0] / plan.groups[0].noise_std, released[1] / plan.groups[1].noise_std)


def test_noise_is_over_provisioned_for_those_who_may_vanish() -> None:
    """With dropout 0.2 and nobody lost, the variance is that of the cohort which needs most, and the same for all."""
    plan = plan_of("dp-fedavg")
    num = 50_000
    tolerance = Tolerance(dropout_rate=0.2)
    release = SecureRelease(
        plan,
        np.zeros(12, dtype=np.int64),
        lambda _, chosen: iter([(chosen, torch.zeros(len(chosen), num, dtype=torch.float64))]),
        seed=1,
        num_params=num,
        dropout=0.2,
    )
    expected = float(excess(tolerance, release._planned[0].largest_cohort))
    assert expected >= 12 / (12 - tolerance.dropouts(12)) > 1.5
    release._vanishing = lambda *_: {}  # type: ignore[method-assign,assignment]
    for cohort in (0, 1, 5, 12):
        (noise,) = release(initial_state(torch.zeros(num), cohort), np.arange(cohort)).sums
        assert float((noise / plan.groups[0].noise_std).square().mean()) == pytest.approx(expected, rel=0.04)


def is_noise_alone(before: TrainingState, after: TrainingState, plan: Plan, release: SecureRelease) -> bool:
    """The released variance, and nothing of the updates: what an empty cohort gives."""
    (planned,) = release._planned
    step = plan.server_learning_rate * plan.groups[0].weight
    noise = (after.parameters - before.parameters).double() / (step * planned.unit)
    low, high = checkers.variance_window(len(noise))
    return bool(low <= float((noise**2).mean()) / planned.released_variance <= high * 1.001)


def test_too_many_losses_are_tried_again_then_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("dp-fedavg")
    state = world("cnn").start()
    attempts: list[int] = []

    def vanishing(cohort: list[int], _round: int, attempt: int) -> dict[int, secure_sum.Stage]:
        attempts.append(attempt)
        return dict.fromkeys(cohort[1:], secure_sum.Stage.INPUT) if attempt < fail else {}

    release = secure(plan, dropout=0.1)
    monkeypatch.setattr(release, "_vanishing", vanishing)
    fail = 2
    following, record = run(state, plan, release)
    assert attempts == [0, 1, 2]
    assert record.vanished > 0
    attempts.clear()
    fail = MAX_ATTEMPTS
    given_up, record = run(state, plan, release)
    assert attempts == list(range(MAX_ATTEMPTS))
    assert is_noise_alone(state, given_up, plan, release)
    assert not torch.equal(following.parameters, given_up.parameters)


def test_what_is_given_up_is_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once signatures were shown, a server with colluders may have unmasked: a second sum would be a second release."""
    plan = plan_of("dp-fedavg")
    state = world("cnn").start()
    attempts: list[int] = []

    def vanishing(cohort: list[int], _round: int, attempt: int) -> dict[int, secure_sum.Stage]:
        attempts.append(attempt)
        return dict.fromkeys(cohort, stage) if attempt == 0 else {}

    release = secure(plan, dropout=0.1)
    monkeypatch.setattr(release, "_vanishing", vanishing)
    stage = secure_sum.Stage.AGREEMENT
    run(state, plan, release)
    assert attempts == [0, 1]
    attempts.clear()
    stage = secure_sum.Stage.REVEAL
    lost, record = run(state, plan, release)
    assert attempts == [0]
    assert is_noise_alone(state, lost, plan, release)
    # The same as that of a cohort that nobody answered in.
    stage = secure_sum.Stage.KEYS
    empty, other = run(state, plan, release)
    assert torch.equal(lost.parameters, empty.parameters)
    assert record == other


def test_a_rotation_is_tried_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another attempt would be another ask; what lost too many, or has too small a roster, is noise alone."""
    plan = plan_of("pooled", asks=3)
    release = secure(plan, dropout=0.1)
    (planned,) = release._planned
    asked = sum(group.num_clients for group in plan.groups) * 3 // 4
    assert asked // 2 - len(plan.groups) <= planned.smallest_cohort <= asked // 2
    start_state = world("cnn").start()
    for lost, stage in ((asked // 2, secure_sum.Stage.INPUT), (asked // 2 + 4, secure_sum.Stage.KEYS)):
        monkeypatch.setattr(
            release, "_vanishing", lambda cohort, *_, lost=lost, stage=stage: dict.fromkeys(cohort[:lost], stage)
        )
        after, record = run(start_state, plan, release)
        assert record.vanished == lost
        assert record.clipped is None
        assert is_noise_alone(start_state, after, plan, release)


def test_a_smaller_excess_for_rosters_that_are_nearly_constant() -> None:
    """What a minimum roster wins, of 1,000 clients: 1.14 times the planned variance, in place of 1.5 for any cohort."""
    tolerance = Tolerance(dropout_rate=0.1)
    assert float(excess(tolerance, 1000)) == pytest.approx(1.5, abs=0.01)
    assert float(excess(tolerance, 1000, 500)) < 1.15


def test_opening_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of("dp-fedavg")
    release = secure(plan, dropout=0.1)
    monkeypatch.setattr(release, "_vanishing", lambda cohort, *_: dict.fromkeys(cohort[1:], secure_sum.Stage.SHARES))
    state = world("cnn").start()
    assert is_noise_alone(state, run(state, plan, release)[0], plan, release)


def test_vanishing_follows_the_rate() -> None:
    release = secure(plan_of("dp-fedavg"), dropout=0.3)
    counts = [release._vanishing(range(100), number, attempt) for number in range(20) for attempt in (0, 1)]
    lost = sum(len(found) for found in counts)
    assert 0.25 * 4000 < lost < 0.35 * 4000
    assert {stage for found in counts for stage in found.values()} == set(secure_sum.Stage)
    assert counts[0] != counts[1]


def test_plans_without_noise_are_refused() -> None:
    with pytest.raises(InputError, match="clip norm and noise"):
        secure(plan_of("fedavg"))


# Whole runs


@pytest.fixture
def task(tmp_path: Path) -> Task:
    (tmp_path / "tiny.toml").write_text(TINY + "secure = true\ndropout = 0.1\ncolluders = 0.05\n")
    return load_task(str(tmp_path / "tiny.toml"))


def test_secure_runs_repeat(task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run to the end, or interrupted after two rounds and resumed from the folder: the same bytes."""
    whole = start(task, tmp_path / "whole", num_rounds=4)
    simulate(whole, num_workers=1)
    cut = start(task, tmp_path / "cut", num_rounds=4)
    with monkeypatch.context() as patched:
        patched.setattr(type(cut), "save_model", lambda *_: None)
        done = []

        def stop(progress: object) -> None:
            done.append(progress)
            if len(done) == 2:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            simulate(cut, num_workers=2, watch=stop)
    resumed = open_run(tmp_path / "cut")
    assert resumed.task.training == task.training
    simulate(resumed, num_workers=1)
    for name in ("records.jsonl", "model.safetensors", "checkpoint.safetensors"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes()
    told = [json.loads(line) for line in (tmp_path / "whole" / "records.jsonl").read_text().splitlines()]
    assert any("vanished" in record for record in told)
    assert "secure = true" in (tmp_path / "whole" / "run.toml").read_text()


def test_no_secret_is_in_a_run_folder(task: Task, tmp_path: Path) -> None:
    """Keys of clients that took part, by their addresses, as bytes and as text: in no file of the run."""
    made = start(task, tmp_path / "run", num_rounds=2)
    simulate(made, num_workers=1)
    content = b"".join(path.read_bytes() for path in sorted((tmp_path / "run").rglob("*")) if path.is_file())
    assert len(content) > 100_000
    prepared = prepare(made.task, made.plan, seed=1, num_workers=1)
    prepared.trainer.close()
    clients = sample_clients(
        made.plan, prepared.assignment, np.zeros(len(prepared.assignment), dtype=np.int64), seed=1, round_number=0
    )
    for client in clients.tolist():
        for place in (0, 1):
            source = secure_sum.SimulatedRandomness(seed=1, round_number=0, client=client, place=place)
            secrets = [source.stream("keys").take(128)[at : at + 32] for at in (0, 32, 64, 96)]
            secrets += [source.stream("identity").take(32), source.stream("noise").take(32)]
            for secret in secrets:
                assert secret not in content
                assert secret.hex().encode() not in content


def test_float_runs_are_as_before(tmp_path: Path) -> None:
    """No word of secure sums in the records of a run without."""
    (tmp_path / "tiny.toml").write_text(TINY)
    made = start(load_task(str(tmp_path / "tiny.toml")), tmp_path / "run", num_rounds=2)
    simulate(made, num_workers=1)
    assert set(json.loads((made.path / "records.jsonl").read_text())) == {
        "round",
        "accuracy",
        "loss",
        "epsilons",
        "cohort",
        "clipped",
        "dropped",
        "update_norm",
    }


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("dropout = 0.1\n", "secure = true"),
        ("secure = true\ndropout = 0.5\n", "dropout < 0.5"),
        ("secure = true\ncolluders = -0.1\n", "colluders < 0.5"),
        ("secure = 1\n", "true or false"),
    ],
)
def test_bad_settings_are_refused(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(TINY + text)
    with pytest.raises(InputError, match=named):
        load_task(str(tmp_path / "tiny.toml"))
