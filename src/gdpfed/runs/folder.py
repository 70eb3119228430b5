"""A run is a folder: what was asked, the plan, a record of each round, a checkpoint, the model.

Place: between the rounds and the disk. Whoever only reads a run needs no torch.

    run.toml            the task, as `gdpfed train run.toml` would read it, and seed and stamp in comments
    budgets.csv         the clients' budgets, where they came from a file
    plan.toml           the verified plan
    records.jsonl       one line for each round that was evaluated: the same bytes for the same seed
    timing.jsonl        seconds, beside it: never the same twice
    checkpoint.safetensors   the state after the last finished round
    model.safetensors   the final model, with the plan's hash
    versions.json       what ran
    remarks.json        what makes the result worth little, if anything does
    ledger.json         where the run is charged, if it is: the ledger, the population, the run's name in it
    events/             for TensorBoard: tensorboard --logdir RUN

Every file is written whole or not at all. A record is written before its checkpoint, and records beyond the checkpoint
are dropped on resume, so a run that is killed at any moment goes on where it was and ends with the same bytes.

Guarantees (tests of the same name):
  killed_anywhere_same_bytes     SIGKILL at random moments and resume: same records, same model.
  another_plan_is_refused        a checkpoint that belongs to another plan does not load.
  budgets_are_read_back          with names, deltas and given groups, and linked people with the settings.
  one_process_runs_a_folder      a second that would go on with it is refused while the first one works.
  a_bad_record_is_refused        a missing or impossible field, with its folder, line and name.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import gdpfed
from gdpfed.config import read_toml
from gdpfed.errors import InputError, MissingExtraError
from gdpfed.files import is_text, missing, nothing_left, write_whole
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan, plan_from_toml, plan_hash, save_plan
from gdpfed.privacy.budgets import budgets_csv
from gdpfed.runs.link import LedgerLink, read_link
from gdpfed.runs.record import Record
from gdpfed.runs.stamp import STAMP, weakest_stamp
from gdpfed.tasks.task import Task, load_task, task_to_toml

if TYPE_CHECKING:
    from torch import Tensor

    from gdpfed.training.rounds import TrainingState

__all__ = [
    "OWN_DATA", "STAMP", "RunFolder", "check_new", "create_run", "find_runs", "is_finished", "json_lines", "open_run",
    "plan_reader", "read_records", "rounds_in", "run_folders",
]  # fmt: skip

# No data set has this name: that of runs of `gdpfed.train`, whose data are a caller's own.
OWN_DATA = "own"
_ADVICE = "what was written before is whole: free space, then gdpfed resume"


def is_finished(path: Path) -> bool:
    """Whether the run in this folder has its final model."""
    return (path / "model.safetensors").is_file()


def rounds_in(path: Path) -> int:
    """The largest round that a file of lines (records.jsonl, timing.jsonl) speaks of, whatever else is in it."""
    rounds = [line.get("round") for line in json_lines(path) if isinstance(line, dict)]
    return max((number for number in rounds if isinstance(number, int)), default=0)


def json_lines(path: Path) -> list[Any]:
    """The lines of a file that grows; one that was cut off by a kill ends it."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    lines = []
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except (ValueError, RecursionError):
            break
    return lines


def _json_of(path: Path) -> Any:
    """Of a file only: a pipe of that name would be waited for."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def read_records(path: Path) -> list[Record]:
    """All records in a run's folder, also of one that is not opened."""
    file = path / "records.jsonl"
    return [
        Record.from_json(content, where=f"line {number} of {str(file)!r}")
        for number, content in enumerate(json_lines(file), start=1)
    ]


def _safetensors(tensors: Mapping[str, "Tensor"], **facts: object) -> bytes:
    """A safetensors file. Facts are one entry: it writes several in any order, and files must have the same bytes."""
    try:
        import safetensors.torch
    except ModuleNotFoundError:
        raise MissingExtraError(package="safetensors", extra="torch", purpose="saving a model") from None
    return safetensors.torch.save(dict(tensors), metadata={"gdpfed": json.dumps(facts, sort_keys=True)})


@dataclass(frozen=True, kw_only=True, eq=False)
class RunFolder:
    """An existing run; ``versions`` is what versions.json says of the software and the run."""

    path: Path
    task: Task
    plan: Plan
    seed: int
    ledger: LedgerLink | None = None
    stamp: str = STAMP
    versions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        """Whether the final model is there."""
        return is_finished(self.path)

    @property
    def rounds_done(self) -> int:
        """Rounds that were done, evaluated or not; without timing.jsonl, one evaluation further than recorded."""
        recorded, timing = rounds_in(self.path / "records.jsonl"), self.path / "timing.jsonl"
        timed = rounds_in(timing)
        if recorded and not timing.is_file():
            timed = recorded + self.task.training.evaluate_every
        return min(max(recorded, timed), self.plan.num_rounds)

    def records(self) -> list[Record]:
        """All records so far; a line that was cut off by a kill is not one."""
        return read_records(self.path)

    def checked_records(self) -> list[Record]:
        """All records, of which there is at least one; InputError where they and the plan cannot both be true."""
        name, plan, records = self.path.name, self.plan, self.records()
        for number, record in enumerate(records, start=1):
            where = f"line {number} of {str(self.path / 'records.jsonl')!r}"
            if not 0 <= record.accuracy <= 100:
                raise InputError(f"expected accuracy from 0 to 100 in {where}, got {record.accuracy!r}")
            for what, values in (("epsilons", record.epsilons), ("cohort", record.cohort)):
                if len(values) != len(plan.groups):
                    raise InputError(f"expected {what} to list {len(plan.groups)} groups in {where}, got {values!r}")
        if not records:
            raise InputError(f"expected at least one record in {name!r}, got none: gdpfed resume {name}")
        rounds = [record.round_number for record in records]
        if rounds != sorted(set(rounds)) or rounds[0] < 1 or rounds[-1] > plan.num_rounds:
            raise InputError(f"expected records of rising rounds up to {plan.num_rounds} in {name!r}: it was edited")
        if not self.is_finished or self.ledger is not None:
            # What a ledger's runs have spent in all is not the plan's, and a group that cannot pay stops.
            return records
        if rounds[-1] != plan.num_rounds:
            last = f"a record of round {plan.num_rounds} in {name!r}, which is finished"
            raise InputError(f"expected {last}, got {rounds[-1]} as the last: records.jsonl is damaged")
        planned = [group.epsilon_release for group in plan.groups]
        if not np.allclose(records[-1].epsilons, planned, rtol=1e-6, atol=0.0):
            last = f"the last record of {name!r} to have spent what its plan says"
            raise InputError(f"expected {last}, got other epsilons: records.jsonl or plan.toml was edited")
        return records

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Within it, no other process goes on with this run."""
        handle = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise InputError(
                    f"another process trains the run in {str(self.path)!r}: wait for it, or end it, then gdpfed resume"
                ) from None
            yield
        finally:
            os.close(handle)

    def save_remarks(self, remarks: Sequence[str]) -> None:
        """What `runs/worth.py` says of the result; a file where there is something to say."""
        path = self.path / "remarks.json"
        if remarks or path.is_file():
            write_whole(path, (json.dumps(list(remarks), indent=2) + "\n").encode(), advice=_ADVICE)

    def remarks(self) -> tuple[str, ...]:
        """What was said of the result when it was finished; none where there was nothing to say."""
        try:
            found = _json_of(self.path / "remarks.json")
        except (OSError, ValueError, RecursionError):
            return ()
        return tuple(str(remark) for remark in found) if isinstance(found, list) else ()

    def append_record(self, record: Record) -> None:
        """Adds a line to records.jsonl."""
        self._append("records.jsonl", record.to_line())

    def append_timing(self, timing: Mapping[str, Any]) -> None:
        """Adds a line to timing.jsonl."""
        self._append("timing.jsonl", json.dumps(timing, allow_nan=False) + "\n")

    def _append(self, name: str, line: str) -> None:
        path = self.path / name
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}; {_ADVICE}") from None

    def save_checkpoint(self, state: "TrainingState") -> None:
        """The state after a round."""
        import torch

        tensors = {"parameters": state.parameters, "participations": torch.from_numpy(state.participations)}
        tensors |= {name: tensor for name in ("average", "start") if (tensor := getattr(state, name)) is not None}
        step = {} if state.step is None else {"step": vars(state.step)}
        content = _safetensors(tensors, round=state.round_number, plan=plan_hash(self.plan), **step)
        # Its name is durable, too: after it a deployment forgets the round's sums.
        write_whole(self.path / "checkpoint.safetensors", content, durable=True, advice=_ADVICE)

    def load_checkpoint(self) -> "TrainingState | None":
        """The last saved state, or None; records beyond it are dropped."""
        path = self.path / "checkpoint.safetensors"
        if not path.is_file():
            self._drop_records(after=0)
            return None
        from safetensors import SafetensorError, safe_open

        from gdpfed.training.adaptive_step import Step
        from gdpfed.training.rounds import TrainingState

        try:
            with safe_open(str(path), framework="pt") as file:
                metadata = json.loads((file.metadata() or {}).get("gdpfed", "{}"))
                parameters = file.get_tensor("parameters")
                participations = file.get_tensor("participations").numpy()
                average, start = (
                    file.get_tensor(name) if name in set(file.keys()) else None for name in ("average", "start")
                )
        except SafetensorError as error:
            raise InputError(f"{str(path)!r} is damaged ({error}): delete it to start the run again") from None
        if metadata.get("plan") != plan_hash(self.plan):
            raise InputError(f"{str(path)!r} is a checkpoint of another plan: restore plan.toml, or start a new run")
        rounds, step = int(metadata["round"]), metadata.get("step")
        if isinstance(step, float):
            raise InputError(f"{str(path)!r} was written by an earlier version of gdpfed: start the run again")
        self._drop_records(after=rounds)
        return TrainingState(
            round_number=rounds,
            parameters=parameters,
            participations=np.asarray(participations),
            average=average,
            start=start,
            step=None if step is None else Step(**step),
        )

    def _drop_records(self, *, after: int) -> None:
        path = self.path / "records.jsonl"
        if path.is_file():
            kept = [record.to_line() for record in self.records() if record.round_number <= after] if after else []
            write_whole(path, "".join(kept).encode(), advice=_ADVICE)

    def save_model(self, names: Sequence[str], tensors: Sequence["Tensor"]) -> None:
        """The final model, by parameter name."""
        named = {name: tensor.contiguous() for name, tensor in zip(names, tensors, strict=True)}
        content = _safetensors(named, plan=plan_hash(self.plan), seed=self.seed, stamp=self.stamp)
        write_whole(self.path / "model.safetensors", content, advice=_ADVICE)


def check_new(path: Path) -> None:
    """Raises InputError where no run can begin in a folder of this name, before any work is done."""
    if not is_text(str(path)):
        raise InputError(f"expected a folder whose name is text, got {str(path)!r}: choose another")
    if (path / "run.toml").exists():
        raise InputError(f"{str(path)!r} holds a run already: gdpfed resume {path}, or choose another folder")
    above = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not above.is_dir():
        raise InputError(f"expected a folder for the run, got {str(above)!r}, which is a file: choose another name")
    if not os.access(above, os.W_OK | os.X_OK):
        raise InputError(f"no permission to make {str(path)!r} in {str(above)!r}: choose another folder")


def create_run(
    path: Path,
    *,
    task: Task,
    plan: Plan,
    seed: int,
    ledger: LedgerLink | None = None,
    stamp: str = STAMP,
    files: Mapping[str, str] | None = None,
) -> RunFolder:
    """A new folder, with everything that is fixed before the first round; ``stamp`` says what kind of run it is.

    ``files`` are a caller's own texts, by name.
    """
    import torch

    check_new(path)
    files = dict(files or {})
    if task.budgets.clients is not None:
        files["budgets.csv"] = budgets_csv(task.budgets)
        task = dataclasses.replace(task, budgets_source="budgets.csv")
    versions = {
        "gdpfed": gdpfed.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "plan": plan_hash(plan),
        "seed": seed,
        "stamp": stamp,
    }
    files["versions.json"] = json.dumps(versions, indent=2) + "\n"
    if ledger is not None:
        files["ledger.json"] = ledger.as_json()
    # What is fixed here is not enough to go on with a deployment: its nodes are.
    way = f"gdpfed resume {path.name}\n# seed = {seed}"
    if task.training.dataset == OWN_DATA:
        way = f"call gdpfed.train again, with this folder\n# seed = {seed}"
    if stamp != STAMP:
        way = "flwr run, with the server's home (docs/deployment.md)\n"
        way += "# What each client trains with is its own: learning_rate, local_steps and [training] say nothing of it."
    # Last, because a folder that has it is a run.
    files["run.toml"] = f"# A gdpfed run. {stamp}.\n# Go on: {way}\n{task_to_toml(task)}"
    with nothing_left(missing(*(path / name for name in ("plan.toml", *files)))):
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"cannot make the folder {str(path)!r}: {error.strerror or error}; choose another"
            raise InputError(what) from None
        save_plan(plan, path / "plan.toml")
        for name, text in files.items():
            write_whole(path / name, text.encode(), advice=_ADVICE)
    return RunFolder(path=path, task=task, plan=plan, seed=seed, ledger=ledger, stamp=stamp, versions=versions)


def open_run(path: Path, *, read_plan: Callable[[Path], Plan] = load_plan) -> RunFolder:
    """Reads a run folder; its plan is verified, by ``read_plan``."""
    if not (path / "run.toml").is_file():
        raise InputError(f"expected a run folder (with run.toml), got {str(path)!r}: gdpfed train makes one")
    try:
        versions = _json_of(path / "versions.json")
    except (OSError, ValueError, RecursionError):
        versions = None
    if not isinstance(versions, dict) or not isinstance(versions.get("seed"), int):
        raise InputError(
            f"expected a run folder whose versions.json states its seed, got {str(path)!r}: gdpfed train makes one"
        )
    return RunFolder(
        path=path,
        task=load_task(str(path / "run.toml")),
        plan=read_plan(path / "plan.toml"),
        seed=versions["seed"],
        ledger=read_link(path / "ledger.json"),
        stamp=weakest_stamp([versions.get("stamp")]),
        versions=versions,
    )


def plan_reader() -> Callable[[Path], Plan]:
    """Reads and verifies plans, once for each text: runs share them, and it takes time."""
    verified: dict[str, Plan] = {}

    def read_plan(path: Path) -> Plan:
        text = read_toml(path)
        if text not in verified:
            verified[text] = plan_from_toml(text, source=str(path))
        return verified[text]

    return read_plan


def run_folders(path: Path) -> list[Path]:
    """This folder if it is a run, else the runs one level below it; InputError where there is none."""
    found = [path] if (path / "run.toml").is_file() else sorted(child.parent for child in path.glob("*/run.toml"))
    if not found:
        raise InputError(f"expected a run folder, or a folder of runs, got {str(path)!r}: gdpfed train makes one")
    return found


def find_runs(paths: Sequence[Path]) -> list[RunFolder]:
    """The runs in these folders, or one level below them, each once."""
    folders = [folder for path in paths for folder in run_folders(path)]
    resolved = [Path(os.path.realpath(folder)) for folder in folders]
    for index, folder in enumerate(resolved):
        if folder in resolved[:index]:
            raise InputError(f"expected every run once, got {str(folders[index])!r} twice: name it once")
    read_plan = plan_reader()
    return [open_run(folder, read_plan=read_plan) for folder in folders]
