"""Canaries in a real training."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from gdpfed.audit.in_training import audit_training, train_with_canaries
from gdpfed.errors import InputError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.privacy.budgets import parse_compact
from gdpfed.runs.loop import run
from gdpfed.runs.simulate import prepare
from gdpfed.tasks.datasets import Dataset, load_dataset
from gdpfed.tasks.task import Task, load_task
from tests.runs.conftest import TINY

pytestmark = pytest.mark.training


@pytest.fixture
def tiny(tmp_path: Path) -> Task:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    task = load_task(str(path))
    return dataclasses.replace(task, settings=dataclasses.replace(task.settings, method="gdpfed", num_rounds=3))


@pytest.fixture
def plan(tiny: Task) -> Plan:
    return make_plan(tiny.budgets, tiny.settings)


def few_images(name: str, *, data_dir: str | Path | None = None) -> Dataset:
    whole = load_dataset(name, data_dir=data_dir)
    return dataclasses.replace(
        whole,
        train_inputs=whole.train_inputs[:1200],
        train_labels=whole.train_labels[:1200],
        test_inputs=whole.test_inputs[:100],
        test_labels=whole.test_labels[:100],
    )


def test_training_is_the_simulators(tiny: Task, plan: Plan) -> None:
    simulation = prepare(tiny, plan, seed=5, num_workers=1)
    try:
        state = run(None, simulation.work())
        seen = train_with_canaries(simulation, place=1, num_canaries=0)
    finally:
        simulation.trainer.close()
    assert torch.equal(seen.parameters, state.parameters)


def test_canaries_move_the_sums(tiny: Task, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without noise: by 1 / noise multiplier along their own direction, but for what others add by chance."""
    monkeypatch.setattr("gdpfed.training.mechanism.noise", lambda num, **_named: torch.zeros(num, dtype=torch.float64))
    simulation = prepare(tiny, plan, seed=6, num_workers=1)
    try:
        seen = train_with_canaries(simulation, place=1, num_canaries=600)
    finally:
        simulation.trainer.close()
    shift = 1 / plan.groups[1].noise_multiplier
    moved = seen.taking_part & seen.inside
    assert moved.sum() >= 3
    assert (seen.taking_part & ~seen.inside).sum() >= 3
    assert np.abs(seen.sums[moved] - shift).max() < 0.3 * shift
    assert np.abs(seen.sums[~moved]).max() < 0.3 * shift
    assert 0.4 < seen.inside.mean() < 0.6


def test_canaries_of_a_rotation_move_the_sums(tiny: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are asked; those inside whose coin says so are in the sums."""
    monkeypatch.setattr("gdpfed.training.mechanism.noise", lambda num, **_named: torch.zeros(num, dtype=torch.float64))
    settings = dataclasses.replace(tiny.settings, against="server", asks=2, trainings=0.4)
    plan = make_plan(tiny.budgets, settings)
    simulation = prepare(tiny, plan, seed=6, num_workers=1)
    try:
        seen = train_with_canaries(simulation, place=1, num_canaries=200)
        none = train_with_canaries(simulation, place=1, num_canaries=0)
        assert torch.equal(none.parameters, run(None, simulation.work()).parameters)
    finally:
        simulation.trainer.close()
    assert seen.asked is not None
    assert set(seen.asked.sum(axis=0)) == {2}
    assert not (seen.taking_part & ~seen.asked).any()
    shift = 1 / plan.groups[1].noise_multiplier
    moved = seen.taking_part & seen.inside
    assert moved.sum() >= 3
    assert (seen.taking_part & ~seen.inside).sum() >= 3
    assert np.abs(seen.sums[moved] - shift).max() < 0.3 * shift
    assert np.abs(seen.sums[~moved]).max() < 0.3 * shift
    report = audit_training(
        dataclasses.replace(tiny, settings=settings), plan, place=1, seed=2, num_canaries=60, num_workers=1
    )
    assert not report.contradicted
    assert len({finding.claim for finding in report.findings.values()}) == 1


@pytest.mark.parametrize(
    ("method", "model", "averaging"),
    [("gdpfed", "small-cnn", 0.0), ("pooled", "small-cnn", 0.8), ("pooled", "scattering-linear", 0.8)],
)
def test_audit_of_a_training(
    tiny: Task, method: str, model: str, averaging: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if model == "scattering-linear":
        # Features of all images would take half a minute.
        monkeypatch.setattr("gdpfed.runs.simulate.load_dataset", few_images)
    settings = dataclasses.replace(tiny.settings, method=method, averaging=averaging)
    tiny = dataclasses.replace(tiny, settings=settings, training=dataclasses.replace(tiny.training, model=model))
    plan = make_plan(tiny.budgets, settings)
    report = audit_training(tiny, plan, place=1, seed=2, num_canaries=60, num_workers=1)
    content = report.as_json()
    assert content["contradicted"] is False
    assert set(content["findings"]) == {"release", "server"}
    assert content["findings"]["server"]["num_canaries"] == 60
    for finding in report.findings.values():
        assert finding.curve_lower <= finding.curve_claim


def test_a_training_without_noise_is_contradicted(tiny: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    budgets = parse_compact("150@1,50@4")
    settings = dataclasses.replace(tiny.settings, num_rounds=4, participation=0.3)
    task = dataclasses.replace(tiny, budgets=budgets, settings=settings)
    plan = make_plan(budgets, settings)
    for noisy in (True, False):
        if not noisy:
            silent = lambda num, **_named: torch.zeros(num, dtype=torch.float64)  # noqa: E731
            monkeypatch.setattr("gdpfed.training.mechanism.noise", silent)
        report = audit_training(task, plan, place=0, seed=2, num_canaries=400, num_workers=1)
        assert report.contradicted is not noisy


@pytest.mark.parametrize(("method", "averaging"), [("gdpfed", 0.0), ("pooled", 0.8)])
def test_secure_sums_can_be_audited(tiny: Task, method: str, averaging: float) -> None:
    settings = dataclasses.replace(tiny.settings, method=method, averaging=averaging)
    secure = dataclasses.replace(tiny, settings=settings, training=dataclasses.replace(tiny.training, secure=True))
    plan = make_plan(secure.budgets, settings)
    report = audit_training(secure, plan, place=0, seed=2, num_canaries=40, num_workers=1)
    assert not report.contradicted


def test_too_many_canaries_for_the_memory_are_refused(tiny: Task, plan: Plan) -> None:
    with pytest.raises(InputError, match="use fewer canaries"):
        audit_training(tiny, plan, place=0, seed=2, num_canaries=10**7, num_workers=1)
