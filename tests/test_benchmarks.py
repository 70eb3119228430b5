"""The benchmark of simulators: its work is the presets', and its contestants do the same."""

import dataclasses
import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gdpfed.tasks.catalogue import source_of
from gdpfed.tasks.models import build_model
from gdpfed.tasks.task import PRESETS, load_task
from gdpfed.tasks.text import PLAYS_ALPHABET, WINDOW_LENGTH

ROOT = Path(__file__).parents[1]


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    threads = torch.get_num_threads()
    yield importlib.import_module
    torch.set_num_threads(threads)


@pytest.fixture
def tasks(benchmarks: Any) -> ModuleType:
    return benchmarks("peers.tasks")


@pytest.mark.parametrize("name", PRESETS)
def test_work_is_the_presets(tasks: ModuleType, name: str) -> None:
    preset, work = load_task(name), tasks.TASKS[name]
    settings, training = preset.settings, preset.training
    num_clients = len(preset.budgets.epsilons)
    assert (work.num_clients, work.cohort) == (num_clients, round(num_clients * settings.participation))
    assert (work.local_steps, work.clip_norm) == (settings.local_steps, settings.clip_norm)
    assert (work.batch_size, work.momentum) == (training.batch_size, training.momentum)
    assert settings.learning_rate == tasks.LEARNING_RATE
    assert work.num_examples == source_of(name).num_train // num_clients
    if name == "shakespeare":
        assert (work.num_classes, work.example_shape) == (len(PLAYS_ALPHABET), (WINDOW_LENGTH,))

    sizes = {} if training.model_width is None else {"width": training.model_width}
    theirs = build_model(training.model, seed=1, num_classes=work.num_classes, **sizes)
    ours = tasks.make_model(work)
    assert [item.shape for item in ours.parameters()] == [item.shape for item in theirs.parameters()]
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(theirs.parameters()), ours.parameters())
    examples, _ = tasks.make_data(dataclasses.replace(work, num_clients=1, clients=1))
    torch.testing.assert_close(ours(examples[0][:4]), theirs(examples[0][:4]), rtol=0, atol=0)


@pytest.mark.parametrize("name", PRESETS)
def test_contestants_train_the_same(
    benchmarks: Any,
    tasks: ModuleType,
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work, plain, own = (benchmarks(f"peers.{each}") for each in ("work", "plain_peer", "gdpfed_peer"))
    # Two threads that wait for each other are slow on a busy machine.
    monkeypatch.setattr(work, "use_threads", lambda _: torch.set_num_threads(1))
    task = dataclasses.replace(tasks.TASKS[name], num_clients=3, clients=2)
    settings = work.Settings(
        task=task,
        rounds=0,
        workers=1,
        learning_rate=task.check_learning_rate,
        clip_norm=task.check_clip_norm,
        noise_std=0.0,
        save=tmp_path / "gdpfed.npz",
        cohorts=[[2, 0]],
    )
    own.run(settings, name="gdpfed")
    assert json.loads(capsys.readouterr().out)["clients_per_round"] == 2
    saved = np.load(tmp_path / "gdpfed.npz")
    start, end = torch.from_numpy(saved["models"])
    assert ("orders" in saved) != task.is_fixed
    moved = plain.Loop(settings).total(start, 0, range(2)) / 2
    assert float((end - start - moved).norm()) < task.check_tolerance * float(moved.norm())
    # Other batches would be seen.
    if not task.is_fixed:
        settings.orders = None
        other = plain.Loop(settings).total(start, 0, range(2)) / 2
        assert float((other - moved).norm()) > 2 * task.check_tolerance * float(moved.norm())


def test_operations_are_those_of_the_layers(tasks: ModuleType) -> None:
    per_image = 24 * 24 * 16 * 25 + 8 * 8 * 32 * 400 + 512 * 10
    assert tasks.floating_point_operations(tasks.TASKS["fmnist"]) == 6 * per_image * 10 * 5 * 120
    per_window = 80 * 4 * 256 * (8 + 256 + 256 + 256) + 256 * 78
    assert tasks.floating_point_operations(tasks.TASKS["shakespeare"]) == 6 * per_window * 4 * 30 * 8


def test_task_chooses_work_and_contestants(benchmarks: Any) -> None:
    simulators = benchmarks("simulators")
    assert [task.name for task in simulators.chosen_tasks("all", clients=None)] == list(PRESETS)
    (task,) = simulators.chosen_tasks("svhn", clients=7)
    assert (task.name, task.clients) == ("svhn", 7)
    with pytest.raises(ValueError, match="from 1 to 600 clients a round, got 601"):
        simulators.chosen_tasks("all", clients=601)
    for name, begins in (
        ("fmnist", ["gdpfed", "plain", "plain", "pfl", "pfl", "Flower"]),
        ("svhn", ["gdpfed", "plain", "plain", "pfl", "pfl"]),
        ("all", ["gdpfed", "plain", "pfl"]),
    ):
        found = [each.name for each in simulators.chosen_contestants(name, only="")]
        assert all(each.startswith(begin) for each, begin in zip(found, begins, strict=True))
    assert [each.module for each in simulators.chosen_contestants("svhn", only="pfl,Flower")] == ["peers.pfl_peer"] * 2


def test_ratios_are_of_each_turn(benchmarks: Any) -> None:
    simulators = benchmarks("simulators")

    def turn(*seconds: float) -> dict[str, list[float]]:
        return {"seconds_per_round": list(seconds), "others_per_round": [0.0] * len(seconds)}

    ours, theirs = [turn(1.0, 2.0, 3.0), turn(4.0, 4.0, 4.0)], [turn(6.0, 6.0, 6.0), turn(8.0, 9.0, 7.0)]
    assert simulators.ratios(ours, theirs) == {"ratio": 2.5, "lowest_ratio": 2.0, "highest_ratio": 3.0}
