"""A task as a file."""

import dataclasses

import pytest

from gdpfed.errors import InputError
from gdpfed.tasks.task import PRESETS, load_task, task_to_toml
from gdpfed.tasks.training_settings import TrainingSettings


@pytest.mark.parametrize("preset", PRESETS)
def test_files_without_what_came_later_stay_as_they_were(preset: str) -> None:
    """Names of kept records follow from them."""
    text = task_to_toml(load_task(preset))
    for name in ("averaging", "against", "ask_cost", "loss", "metrics", "secure", "validation"):
        assert f"{name} =" not in text


def test_what_is_stated_comes_back(tmp_path: object) -> None:
    task = load_task("fmnist")
    training = dataclasses.replace(task.training, loss="mse", metrics=("a.b:c",), model="a.b:d", dataset="a:b")
    settings = dataclasses.replace(task.settings, against="server", ask_cost=0.5)
    changed = dataclasses.replace(task, training=training, settings=settings)
    path = f"{tmp_path}/task.toml"
    with open(path, "w") as file:
        file.write(task_to_toml(changed))
    read = load_task(path)
    assert read.training == training
    assert read.settings == settings
    assert "dataset" in read.stated


def test_an_unknown_loss_is_named() -> None:
    with pytest.raises(InputError, match="a loss among cross-entropy, mse"):
        TrainingSettings(loss="hinge")
