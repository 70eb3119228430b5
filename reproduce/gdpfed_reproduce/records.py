"""What is kept of a run when its folder is gone: small records, in the repository.

Place: run folders -> records -> tables, pictures, docs/results.md. For each data set a folder:

    fmnist/main.json, ...    an experiment: its cells, each with its configuration, its plan's hash and its runs
    fmnist/timing.json       what each run cost, in seconds of one core: beside, because it is never the same twice

A cell that two experiments share is in both files. Records are merged: what a file has and a later call has not, stays.

Guarantees (tests of the same name):
  same_runs_same_bytes      the same finished runs give the same files.
  nothing_is_lost           a later call with fewer seeds, or of another scale, leaves what is there.
  damaged_record_is_refused a file with a missing field or another format is one clear line, and nothing is written.
  models_are_not_mixed      records of one configuration whose models differ in size are refused when they are read.
"""

import fcntl
import json
import math
import os
import struct
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdpfed.errors import InputError
from gdpfed.files import write_whole
from gdpfed.runs.folder import read_records
from gdpfed.runs.record import Record
from gdpfed.runs.stamp import STAMP
from gdpfed.tasks.task import Task, task_to_toml
from gdpfed_reproduce.batch import RESULTS_VERSION, PlannedJob, finished_seconds
from gdpfed_reproduce.estimate import Cost
from gdpfed_reproduce.experiments import Cell

__all__ = [
    "CellRecord", "RunRecord", "config_of", "differences", "load_records", "load_timing", "records_locked",
    "records_of", "save_records", "save_timing",
]  # fmt: skip

_FORMAT = 1
_CELL_FIELDS = ("column", "config", "method", "parameters", "plan", "results_version", "runs", "scale", "weights")
_RUN_FIELDS = ("accuracies", "epsilons", "key", "rounds", "seed", "versions")


@dataclass(frozen=True, kw_only=True)
class RunRecord:
    """A finished run: its curve, and what made it; ``by_budget`` is kept where data were tied to budgets, ``metrics``
    after the last round where the task has some, ``clipped`` of a private run: the part of the updates that were longer
    than the clip norm, in the rounds that were evaluated."""

    seed: int
    key: str
    rounds: tuple[int, ...]
    accuracies: tuple[float, ...]
    epsilons: tuple[float | None, ...]
    versions: str
    by_budget: tuple[float, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    clipped: float | None = None

    @property
    def accuracy(self) -> float:
        """After the last round."""
        return self.accuracies[-1]


@dataclass(frozen=True, kw_only=True)
class CellRecord:
    """An entry of a table with all its runs; ``config`` is the task, as its TOML has it, without the title."""

    experiment: str
    dataset: str
    column: str
    method: str
    weights: str
    scale: str
    config: Mapping[str, Any]
    plan: str
    parameters: int
    results_version: int
    runs: tuple[RunRecord, ...]

    @property
    def identity(self) -> tuple[Any, ...]:
        """What tells a cell from all others of its file, and orders them."""
        settled = json.dumps(self.config, sort_keys=True)
        of_code = (self.plan, self.results_version, self.parameters)
        return (self.scale, self.method, self.weights, self.column, settled, *of_code)


def config_of(task: Task) -> dict[str, Any]:
    """A task as plain values; the title, which is for people, left out."""
    content = tomllib.loads(task_to_toml(task))
    del content["title"]
    return content


def differences(config: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """How a configuration differs from the expected one, in words."""
    flat = [{**content, **content["training"]} for content in (config, expected)]
    words = []
    for name in sorted({*flat[0], *flat[1]} - {"training", "evaluate_every"}):
        here, there = (content.get(name) for content in flat)
        if here != there:
            words.append(f"{here} of {there} rounds" if name == "num_rounds" else f"{name} {here}, not {there}")
    return words


def _num_parameters(model: Path) -> int:
    """The number of parameters in a safetensors file, from its header."""
    with model.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def _run_record(job: PlannedJob) -> RunRecord:
    records = read_records(job.folder)
    versions = json.loads((job.folder / "versions.json").read_text(encoding="utf-8"))
    return RunRecord(
        seed=job.seed,
        key=job.key,
        rounds=tuple(record.round_number for record in records),
        accuracies=tuple(round(record.accuracy, 6) for record in records),
        epsilons=tuple(None if math.isinf(epsilon) else epsilon for epsilon in records[-1].epsilons),
        versions=", ".join(f"{name} {versions[name]}" for name in ("gdpfed", "python", "torch", "numpy")),
        by_budget=tuple(round(value, 6) for value in records[-1].by_budget),
        metrics={name: round(value, 6) for name, value in (records[-1].metrics or {}).items()},
        clipped=_part_clipped(records),
    )


def _part_clipped(records: Sequence[Record]) -> float | None:
    """None without privacy, and where nobody counted."""
    counted = [record.clipped for record in records if record.clipped is not None]
    trained = sum(sum(record.cohort) for record in records)
    is_private = all(math.isfinite(epsilon) for epsilon in records[-1].epsilons)
    return round(sum(counted) / trained, 4) if is_private and trained and len(counted) == len(records) else None


def records_of(entries: Iterable[tuple[Cell, PlannedJob]], *, scale: str) -> list[CellRecord]:
    """A record for each cell that has a finished run."""
    grouped: dict[tuple[str, str, str, str, str, int], list[tuple[Cell, PlannedJob]]] = {}
    for cell, job in entries:
        if job.state == "finished":
            # Of a model of somebody's own the name may stay while its sizes change.
            parameters = _num_parameters(job.folder / "model.safetensors")
            where = (cell.dataset, cell.experiment, cell.column, cell.method.label, job.plan, parameters)
            grouped.setdefault(where, []).append((cell, job))
    records = []
    for (*_, parameters), same in grouped.items():
        cell, job = same[0]
        runs = {each.seed: _run_record(each) for _, each in same}
        records.append(
            CellRecord(
                experiment=cell.experiment,
                dataset=cell.dataset,
                column=cell.column,
                method=cell.method.name,
                weights=cell.method.weights,
                scale=scale,
                config=config_of(cell.task),
                plan=job.plan,
                parameters=parameters,
                results_version=RESULTS_VERSION,
                runs=tuple(runs[seed] for seed in sorted(runs)),
            )
        )
    return records


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}; choose another --records") from None
    write_whole(path, text.encode(), advice="choose another --records")


def _line(content: Mapping[str, Any]) -> str:
    return json.dumps(content, sort_keys=True, allow_nan=False)


def _text(dataset: str, experiment: str, cells: Sequence[CellRecord]) -> str:
    """JSON with a line for each cell and each run, so that a difference between two versions can be read."""
    parts = []
    for cell in cells:
        fields = {name: getattr(cell, name) for name in _CELL_FIELDS if name != "runs"}
        runs = ",\n".join("   " + _line(_run_fields(run)) for run in cell.runs)
        parts.append("  " + _line(fields)[:-1] + f', "runs": [\n{runs}\n  ]}}')
    head = {"dataset": dataset, "experiment": experiment, "format": _FORMAT, "stamp": STAMP}
    return _line(head)[:-1] + ', "cells": [\n' + ",\n".join(parts) + "\n]}\n"


def _run_fields(run: RunRecord) -> dict[str, Any]:
    fields = {name: getattr(run, name) for name in _RUN_FIELDS}
    more = {"by_budget": run.by_budget or None, "metrics": dict(run.metrics) or None, "clipped": run.clipped}
    return fields | {name: values for name, values in more.items() if values is not None}


def _parse(path: Path) -> list[CellRecord]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != _FORMAT:
            raise InputError(f"expected records with format {_FORMAT} in {str(path)!r}, got {content['format']!r}")
        return [
            CellRecord(
                experiment=content["experiment"],
                dataset=content["dataset"],
                **{name: cell[name] for name in _CELL_FIELDS if name != "runs"},
                runs=tuple(_run_of(run) for run in cell["runs"]),
            )
            for cell in content["cells"]
        ]
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"expected the field {error} in every record of {str(path)!r}: restore the file") from None
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"expected records as JSON in {str(path)!r}, got a damaged file ({error}): restore it"
        ) from None


def _run_of(content: Mapping[str, Any]) -> RunRecord:
    fields = {name: content[name] for name in _RUN_FIELDS}
    fields |= {"by_budget": list(content.get("by_budget", ())), "metrics": dict(content.get("metrics", {}))}
    fields["clipped"] = content.get("clipped")
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    if not lists.get("accuracies") or len(lists["accuracies"]) != len(lists["rounds"]):
        raise ValueError("a run needs an accuracy for each evaluated round")
    return RunRecord(**{**fields, **lists})


def load_records(folder: Path) -> list[CellRecord]:
    """Every record below ``folder``, in a fixed order."""
    files = sorted(path for path in folder.glob("*/*.json") if path.name != "timing.json")
    records = [record for path in files for record in _parse(path)]
    _check_sizes(records, folder)
    return records


def _check_sizes(records: Sequence[CellRecord], folder: Path) -> None:
    """A model of somebody's own may have changed under its name: its records are of two models then."""
    sizes: dict[tuple[str, str, str], int] = {}
    for record in records:
        same = (record.dataset, record.scale, json.dumps(record.config, sort_keys=True))
        if sizes.setdefault(same, record.parameters) != record.parameters:
            raise InputError(
                f"expected records of one model for one configuration in {str(folder / record.dataset)!r}, got some "
                f"of {sizes[same]:,} and some of {record.parameters:,} parameters ({record.experiment}, "
                f"{record.method}, {record.column!r}): delete those that are out of date"
            )


@contextmanager
def records_locked(folder: Path) -> Iterator[None]:
    """While records are merged, no other process merges into the same folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise InputError(f"cannot use {str(folder)!r}: {error.strerror or error}; choose another --records") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def save_records(records: Iterable[CellRecord], folder: Path) -> list[Path]:
    """Merges records into the files of ``folder``; returns the files."""
    by_file: dict[tuple[str, str], list[CellRecord]] = {}
    for record in records:
        by_file.setdefault((record.dataset, record.experiment), []).append(record)
    merged = {}
    for (dataset, experiment), new in by_file.items():
        path = folder / dataset / f"{experiment}.json"
        kept = {record.identity: record for record in (_parse(path) if path.is_file() else [])}
        for record in new:
            kept[record.identity] = _joined(kept.get(record.identity), record)
        merged[path] = _text(dataset, experiment, [kept[identity] for identity in sorted(kept)])
    for path, text in merged.items():
        _write(path, text)
    return list(merged)


def _joined(old: CellRecord | None, new: CellRecord) -> CellRecord:
    if old is None:
        return new
    runs = {run.seed: run for run in (*old.runs, *new.runs)}
    fields = {name: getattr(new, name) for name in _CELL_FIELDS if name != "runs"}
    joined = tuple(runs[seed] for seed in sorted(runs))
    return CellRecord(experiment=new.experiment, dataset=new.dataset, **fields, runs=joined)


def save_timing(entries: Iterable[tuple[Cell, PlannedJob]], folder: Path) -> None:
    """Notes what finished runs cost, beside the records."""
    by_dataset: dict[str, dict[str, float]] = {}
    for cell, job in entries:
        seconds = finished_seconds(job.folder) if job.state == "finished" else None
        if seconds is not None:
            by_dataset.setdefault(cell.dataset, {})[job.key] = round(seconds, 2)
    for dataset, seconds_by_key in by_dataset.items():
        path = folder / dataset / "timing.json"
        known = _timing(path)
        text = json.dumps({"unit": "core seconds", "runs": {**known, **seconds_by_key}}, indent=1, sort_keys=True)
        _write(path, text + "\n")


def _timing(path: Path) -> dict[str, float]:
    if not path.is_file():
        return {}
    try:
        return {str(key): float(value) for key, value in json.loads(path.read_text(encoding="utf-8"))["runs"].items()}
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise InputError(f"expected times as JSON in {str(path)!r}, got a damaged file: delete it") from None


def load_timing(folder: Path) -> list[Cost]:
    """What recorded runs cost, for estimates."""
    costs = {}
    for record in load_records(folder):
        known = _timing(folder / record.dataset / "timing.json")
        training, config = record.config["training"], record.config
        clients = sum(int(part.split("@")[0]) for part in config["budgets"].split(","))
        work = config["num_rounds"] * config["participation"] * clients * config["local_steps"]
        for run in record.runs:
            if run.key in known:
                costs[run.key] = Cost(
                    similarity=(
                        training["dataset"],
                        training["model"],
                        training.get("model_width"),
                        training["batch_size"],
                    ),
                    work=work * training["batch_size"],
                    core_seconds=known[run.key],
                )
    return list(costs.values())
