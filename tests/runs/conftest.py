"""A task that trains in a second on the embedded data."""

import dataclasses
from pathlib import Path

import pytest

from gdpfed.planning.methods import make_plan
from gdpfed.runs.folder import RunFolder, create_run
from gdpfed.tasks.task import Task, load_task

TINY = """\
title = "Tiny"
budgets = "600@1,600@4"
method = "gdpfed+"
num_rounds = 6
participation = 0.01
clip_norm = 1.5
local_steps = 2

[training]
dataset = "fmnist-mini"
model = "small-cnn"
batch_size = 5
evaluate_every = 2
"""


@pytest.fixture
def tiny_file(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def tiny(tiny_file: Path) -> Task:
    return load_task(str(tiny_file))


def start(task: Task, path: Path, *, seed: int = 1, **changes: object) -> RunFolder:
    task = dataclasses.replace(task, settings=dataclasses.replace(task.settings, **changes))  # type: ignore[arg-type]
    return create_run(path, task=task, plan=make_plan(task.budgets, task.settings), seed=seed)
