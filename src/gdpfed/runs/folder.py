"""A run is a folder: what was asked, the plan, a record of each round, a checkpoint, the model.

Place: between the rounds and the disk.

    run.toml            the task, as `gdpfed train run.toml` would read it, and seed and stamp in comments
    budgets.csv         the clients' budgets, where they came from a file
    plan.toml           the verified plan
    records.jsonl       one line for each round that was evaluated: the same bytes for the same seed
    timing.jsonl        seconds, beside it: never the same twice
    checkpoint.safetensors   the state after the last finished round
    model.safetensors   the final model, with the plan's hash
    versions.json       what ran
    ledger.json         where the run is charged, if it is: the ledger, the population, the run's name in it
    events/             for TensorBoard: tensorboard --logdir RUN

Every file is written whole or not at all. A record is written before its checkpoint, and records beyond the checkpoint
are dropped on resume, so a run that is killed at any moment goes on where it was and ends with the same bytes.

Guarantees (tests of the same name):
  killed_anywhere_same_bytes     SIGKILL at random moments and resume: same records, same model.
  another_plan_is_refused        a checkpoint that belongs to another plan does not load.
  budgets_are_read_back          with names, deltas and given groups, and linked people with the settings.
"""

import csv
import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gdpfed
from gdpfed.errors import InputError, MissingExtraError
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan, plan_hash, save_plan
from gdpfed.runs.link import LedgerLink, read_link
from gdpfed.runs.record import Record
from gdpfed.runs.stamp import STAMP
from gdpfed.tasks.task import Task, load_task, task_to_toml
from gdpfed.training.rounds import TrainingState

__all__ = ["STAMP", "RunFolder", "create_run", "open_run"]


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InputError(
            f"cannot write {str(path)!r}: {error.strerror or error}; what was written before is whole: free space, "
            f"then gdpfed resume"
        ) from None


def _replace(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all, and durably."""
    part = path.with_name(path.name + ".part")
    with _explained(path):
        with part.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ModuleNotFoundError:
        raise MissingExtraError(package="safetensors", extra="torch", purpose="saving a model") from None
    return safetensors.torch


def _metadata(**facts: str | int) -> dict[str, str]:
    """One entry, because safetensors writes several in any order, and files must have the same bytes."""
    return {"gdpfed": json.dumps(facts, sort_keys=True)}


@dataclass(frozen=True, kw_only=True, eq=False)
class RunFolder:
    """An existing run."""

    path: Path
    task: Task
    plan: Plan
    seed: int
    ledger: LedgerLink | None = None
    stamp: str = STAMP

    @property
    def is_finished(self) -> bool:
        """Whether the final model is there."""
        return (self.path / "model.safetensors").is_file()

    def records(self) -> list[dict[str, Any]]:
        """All records so far; a line that was cut off by a kill is not one."""
        path = self.path / "records.jsonl"
        found = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            try:
                found.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return found

    def append_record(self, record: Record) -> None:
        """Adds a line to records.jsonl."""
        self._append("records.jsonl", record.to_line())

    def append_timing(self, timing: dict[str, Any]) -> None:
        """Adds a line to timing.jsonl."""
        self._append("timing.jsonl", json.dumps(timing) + "\n")

    def _append(self, name: str, line: str) -> None:
        path = self.path / name
        with _explained(path), path.open("a", encoding="utf-8") as file:
            file.write(line)

    def save_checkpoint(self, state: TrainingState) -> None:
        """The state after a round."""
        average = {} if state.average is None else {"average": state.average}
        content = _safetensors().save(
            {
                "parameters": state.parameters,
                "participations": torch.from_numpy(state.participations),
                **average,
            },
            metadata=_metadata(round=state.round_number, plan=plan_hash(self.plan)),
        )
        _replace(self.path / "checkpoint.safetensors", content)

    def load_checkpoint(self) -> TrainingState | None:
        """The last saved state, or None; records beyond it are dropped."""
        path = self.path / "checkpoint.safetensors"
        if not path.is_file():
            self._drop_records(0)
            return None
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(str(path), framework="pt") as file:
                metadata = json.loads((file.metadata() or {}).get("gdpfed", "{}"))
                parameters = file.get_tensor("parameters")
                participations = file.get_tensor("participations").numpy()
                average = file.get_tensor("average") if "average" in set(file.keys()) else None
        except SafetensorError as error:
            raise InputError(f"{str(path)!r} is damaged ({error}): delete it to start the run again") from None
        if metadata.get("plan") != plan_hash(self.plan):
            raise InputError(
                f"{str(path)!r} is a checkpoint of another plan: restore plan.toml, or start a run in a new folder"
            )
        round_number = int(metadata["round"])
        self._drop_records(round_number)
        return TrainingState(
            round_number=round_number,
            parameters=parameters,
            participations=np.asarray(participations),
            average=average,
        )

    def _drop_records(self, rounds: int) -> None:
        kept = [record for record in self.records() if record["round"] <= rounds]
        path = self.path / "records.jsonl"
        if path.is_file():
            _replace(path, "".join(json.dumps(record, allow_nan=False) + "\n" for record in kept).encode())

    def event_writer(self, rounds: int) -> Any:
        """A TensorBoard writer that goes on after ``rounds``."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError:
            raise MissingExtraError(package="tensorboard", extra="torch", purpose="writing events") from None
        return SummaryWriter(str(self.path / "events"), purge_step=rounds + 1 if rounds else None)

    def save_model(self, names: list[str], tensors: list[torch.Tensor]) -> None:
        """The final model, by parameter name."""
        content = _safetensors().save(
            {name: tensor.contiguous() for name, tensor in zip(names, tensors, strict=True)},
            metadata=_metadata(plan=plan_hash(self.plan), seed=self.seed, stamp=self.stamp),
        )
        _replace(self.path / "model.safetensors", content)


def create_run(
    path: Path, *, task: Task, plan: Plan, seed: int, ledger: LedgerLink | None = None, stamp: str = STAMP
) -> RunFolder:
    """A new folder, with everything that is fixed before the first round; ``stamp`` says what kind of run it is."""
    if (path / "run.toml").exists():
        raise InputError(f"{str(path)!r} holds a run already: gdpfed resume {path}, or choose another --out")
    with _explained(path):
        path.mkdir(parents=True, exist_ok=True)
    if task.budgets.clients is not None:
        task = _with_own_budgets(path, task)
    # What is fixed here is not enough to go on with a deployment: its nodes are.
    way = f"gdpfed resume {path.name}\n# seed = {seed}"
    if stamp != STAMP:
        way = "flwr run, with the server's home (docs/deployment.md)\n"
        way += "# What each client trains with is its own: learning_rate, local_steps and [training] say nothing of it."
    header = f"# A gdpfed run. {stamp}.\n# Go on: {way}\n"
    save_plan(plan, path / "plan.toml")
    versions = {
        "gdpfed": gdpfed.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "plan": plan_hash(plan),
        "seed": seed,
        "stamp": stamp,
    }
    _replace(path / "versions.json", (json.dumps(versions, indent=2) + "\n").encode())
    if ledger is not None:
        _replace(path / "ledger.json", ledger.as_json().encode())
    _replace(path / "run.toml", (header + task_to_toml(task)).encode())
    return RunFolder(path=path, task=task, plan=plan, seed=seed, ledger=ledger, stamp=stamp)


def _with_own_budgets(path: Path, task: Task) -> Task:
    import dataclasses
    import io

    text = io.StringIO()
    writer = csv.writer(text)
    budgets = task.budgets
    # Given groups are part of the budgets: without them the plan's members could not be found again.
    writer.writerow(["client", "epsilon", "delta", *(["group"] if budgets.groups is not None else [])])
    for place, (epsilon, delta) in enumerate(zip(budgets.epsilons, budgets.deltas, strict=True)):
        group = [] if budgets.groups is None else [budgets.groups[place]]
        own = "" if np.isnan(delta) else repr(float(delta))
        writer.writerow([budgets.label(place), repr(float(epsilon)), own, *group])
    _replace(path / "budgets.csv", text.getvalue().encode())
    return dataclasses.replace(task, budgets_source="budgets.csv")


def open_run(path: Path) -> RunFolder:
    """Reads a run folder; its plan is verified."""
    if not (path / "run.toml").is_file() or not (path / "versions.json").is_file():
        raise InputError(f"expected a run folder (with run.toml), got {str(path)!r}: gdpfed train makes one")
    versions = json.loads((path / "versions.json").read_text(encoding="utf-8"))
    return RunFolder(
        path=path,
        task=load_task(str(path / "run.toml")),
        plan=load_plan(path / "plan.toml"),
        seed=int(versions["seed"]),
        ledger=read_link(path / "ledger.json"),
        stamp=str(versions.get("stamp", STAMP)),
    )
