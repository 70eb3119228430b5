import dataclasses
import json
import math
from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.runs.record import Record
from gdpfed_reproduce.batch import PlannedJob
from gdpfed_reproduce.experiments import EXPERIMENTS, SMOKE, Scale, cells_of
from gdpfed_reproduce.records import (
    CellRecord,
    config_of,
    differences,
    load_records,
    load_timing,
    records_of,
    save_records,
    save_timing,
)
from tests.reproduce.test_verdicts import record


def finished_run(folder: Path, *, seed: int, epsilon: float = math.inf) -> PlannedJob:
    """A folder with what a record is made of, as a run leaves it."""
    task = cells_of(EXPERIMENTS["main"], "fmnist", SMOKE)[0].task
    job = PlannedJob(name="x", task=task, seed=seed, plan="p", key=f"key{seed}", folder=folder / str(seed))
    job.folder.mkdir(parents=True)
    rest = {"loss": 1.0, "cohort": (9,), "dropped": 0, "update_norm": 1.0}
    records = [
        Record(
            round_number=number,
            accuracy=100 / 3 + number + seed,
            epsilons=(epsilon,),
            clipped=number,
            metrics={"of_text": number / 7},
            **rest,  # type: ignore[arg-type]
        )
        for number in (3, 6)
    ]
    (job.folder / "records.jsonl").write_text("".join(record.to_line() for record in records))
    versions = {"gdpfed": "0", "python": "3", "torch": "2", "numpy": "1"}
    (job.folder / "versions.json").write_text(json.dumps(versions))
    header = json.dumps({"__metadata__": {}, "a": {"shape": [3, 4]}, "b": {"shape": []}}).encode()
    (job.folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    (job.folder / "cost.json").write_text('{"core_seconds": 12.345}')
    return job


def test_same_runs_same_bytes(tmp_path: Path) -> None:
    cell = cells_of(EXPERIMENTS["main"], "fmnist", SMOKE)[0]
    jobs = [finished_run(tmp_path / "runs", seed=seed) for seed in (2, 1)]
    for folder in ("one", "two"):
        save_records(records_of([(cell, job) for job in jobs], scale="smoke"), tmp_path / folder)
        save_timing([(cell, job) for job in jobs], tmp_path / folder)
        jobs.reverse()
    for name in ("main.json", "timing.json"):
        one, two = (tmp_path / folder / "fmnist" / name for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()
    (found,) = load_records(tmp_path / "one")
    assert found.parameters == 13
    assert [run.accuracy for run in found.runs] == [40.333333, 41.333333]
    assert found.runs[0].rounds == (3, 6)
    assert [run.metrics for run in found.runs] == [{"of_text": 0.857143}] * 2
    assert found.config == config_of(cell.task)
    assert "not a private release" in (tmp_path / "one" / "fmnist" / "main.json").read_text()
    costs = load_timing(tmp_path / "one")
    assert [cost.core_seconds for cost in costs] == pytest.approx([12.345] * 2, abs=0.01)


def test_private_runs_keep_how_many_were_clipped(tmp_path: Path) -> None:
    """Three of nine and six of nine; nothing is said of a run without a clip norm."""
    cell = cells_of(EXPERIMENTS["main"], "fmnist", SMOKE)[0]
    for epsilon, part in ((1.5, 0.5), (math.inf, None)):
        job = finished_run(tmp_path / f"runs-{epsilon}", seed=1, epsilon=epsilon)
        folder = tmp_path / f"records-{epsilon}"
        save_records(records_of([(cell, job)], scale="smoke"), folder)
        assert [run.clipped for run in load_records(folder)[0].runs] == [part]


def test_nothing_is_lost(tmp_path: Path) -> None:
    save_records([record("gdpfed", 70.0, 71.0, 72.0), record("fedavg", 78.0)], tmp_path)
    before = load_records(tmp_path)
    path = tmp_path / "fmnist" / "main.json"
    text = path.read_text()
    save_records([record("gdpfed", 70.0)], tmp_path)
    assert path.read_text() == text
    save_records([dataclasses.replace(record("gdpfed", 1.0), scale="smoke")], tmp_path)
    kept = load_records(tmp_path)
    assert [entry for entry in kept if entry.scale == "full"] == before
    assert len(kept) == 3
    save_records([record("fedavg", 78.0, 79.0)], tmp_path)
    assert sum(len(entry.runs) for entry in load_records(tmp_path)) == 6


@pytest.mark.parametrize("field", ["cells", "plan", "config", "accuracies", "seed", "format", "cut", "empty", "types"])
def test_damaged_record_is_refused(field: str, tmp_path: Path) -> None:
    save_records([record("gdpfed", 70.0)], tmp_path)
    path = tmp_path / "fmnist" / "main.json"
    content = json.loads(path.read_text())
    cell = content["cells"][0]
    if field == "format":
        content["format"] = 99
    elif field == "types":
        content["cells"] = 3
    elif field == "empty":
        cell["runs"][0]["accuracies"] = []
    elif field in ("accuracies", "seed"):
        del cell["runs"][0][field]
    elif field == "cells":
        del content["cells"]
    elif field != "cut":
        del cell[field]
    broken = json.dumps(content)[: -40 if field == "cut" else None]
    path.write_text(broken)
    with pytest.raises(InputError, match=r"main\.json"):
        save_records([record("gdpfed", 70.0), dataclasses.replace(record("gdpfed", 70.0), dataset="svhn")], tmp_path)
    assert path.read_text() == broken
    assert not (tmp_path / "svhn").exists()


def test_models_are_not_mixed(tmp_path: Path) -> None:
    save_records([record("gdpfed", 70.0, 71.0)], tmp_path)
    save_records([dataclasses.replace(record("gdpfed", 60.0), experiment="steps", parameters=999)], tmp_path)
    with pytest.raises(InputError, match="some of 10 and some of 999 parameters"):
        load_records(tmp_path)
    (tmp_path / "fmnist" / "main.json").unlink()
    assert [entry.parameters for entry in load_records(tmp_path)] == [999]


def test_differences_in_words() -> None:
    expected = config_of(cells_of(EXPERIMENTS["main"], "cifar10")[0].task)
    short = cells_of(EXPERIMENTS["main"], "cifar10", Scale(num_rounds=3, participation=0.04))[0].task
    short = dataclasses.replace(short, training=dataclasses.replace(short.training, model_width=16, evaluate_every=1))
    assert differences(expected, expected) == []
    assert differences(config_of(short), expected) == [
        "model_width 16, not 8", "3 of 100 rounds", "participation 0.04, not 0.1",
    ]  # fmt: skip


def test_records_of_unfinished_runs_are_not_made(tmp_path: Path) -> None:
    cell = cells_of(EXPERIMENTS["main"], "fmnist", SMOKE)[0]
    job = finished_run(tmp_path, seed=1)
    (job.folder / "model.safetensors").unlink()
    made: list[CellRecord] = records_of([(cell, job)], scale="smoke")
    assert made == []
