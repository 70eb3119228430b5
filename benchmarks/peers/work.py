"""What the contestants share: how they are asked, how one client trains, and the one line of JSON of each.

A round, of `tasks.py`: some of the task's clients take their local SGD steps, every update is clipped, the sum noised,
the mean added to the model. Where a client has more examples than a batch, each step's are drawn by shuffled passes.

Runs in every contestant's environment, so it imports nothing but numpy and torch.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from peers.tasks import LEARNING_RATE, TASKS, Order, Task, draw_cohorts, draw_order, make_model


def flatten(model: nn.Module) -> Tensor:
    """A model's parameters as one new vector, in the order of `model.parameters()`."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


class LocalTrainer:
    """One client at a time, in plain PyTorch: what the plain loop and Flower's client do."""

    def __init__(self, task: Task, *, clip_norm: float, learning_rate: float = LEARNING_RATE) -> None:
        self.model = make_model(task)
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=learning_rate, momentum=task.momentum)
        self.loss = nn.CrossEntropyLoss()
        self.clip_norm = clip_norm

    def clipped_update(self, weights: Tensor, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """Trains from ``weights`` (params,) and returns the update, scaled to at most the clip norm."""
        nn.utils.vector_to_parameters(weights.clone(), self.parameters)
        # Momentum begins anew with each client.
        self.optimizer.state.clear()
        for inputs, labels in batches:
            self.optimizer.zero_grad()
            self.loss(self.model(inputs), labels).backward()
            self.optimizer.step()
        update = flatten(self.model) - weights
        return update * min(1.0, self.clip_norm / max(float(update.norm()), 1e-12))


@dataclass(kw_only=True)
class Settings:
    """What `simulators.py` asks a contestant for. Round 0 is a warm-up and belongs to the start-up."""

    task: Task
    rounds: int
    workers: int
    learning_rate: float
    clip_norm: float
    noise_std: float
    save: Path | None
    cohorts: list[list[int]]
    # (rounds, clients, steps, batch) of another contestant.
    orders: NDArray[np.int64] | None = None

    def order(self, round_number: int, place: int) -> Order | None:
        """The examples of each step of the client at this place of the cohort; None where every step has all."""
        if self.task.is_fixed:
            return None
        if self.orders is not None:
            return np.asarray(self.orders[round_number, place])
        return draw_order(self.task, round_number, self.cohorts[round_number][place])

    def noised_mean(self, total: Tensor, generator: torch.Generator) -> Tensor:
        """The server's step: Gaussian noise on the sum of the clipped updates, over the number of clients."""
        return (total + self.noise_std * torch.randn(total.shape, generator=generator)) / self.task.clients


def read_settings(arguments: Sequence[str] | None = None) -> Settings:
    """The command line that all contestants share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", choices=TASKS, default="fmnist")
    parser.add_argument("--clients", type=int, help="that train in a round; default: the task's")
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds, after one that warms up")
    parser.add_argument("--workers", type=int, default=1, help="processes that train; the two cores are shared out")
    parser.add_argument("--learning-rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--clip-norm", type=float)
    parser.add_argument("--noise-multiplier", type=float)
    parser.add_argument("--save", type=Path, help="write the model after each round, and the cohorts, to this .npz")
    parser.add_argument("--cohorts", type=Path, help="train the cohorts of this .npz, which another contestant saved")
    given = parser.parse_args(arguments)
    task = TASKS[given.task]
    task = replace(task, clients=given.clients or task.clients)
    clip_norm = given.clip_norm or task.clip_norm
    saved = dict(np.load(given.cohorts)) if given.cohorts else {}
    drawn = saved["cohorts"].tolist() if saved else draw_cohorts(task, given.rounds + 1)
    return Settings(
        task=task,
        rounds=given.rounds,
        workers=given.workers,
        learning_rate=given.learning_rate,
        clip_norm=clip_norm,
        noise_std=(task.noise_multiplier if given.noise_multiplier is None else given.noise_multiplier) * clip_norm,
        save=given.save,
        cohorts=drawn[: given.rounds + 1],
        orders=saved.get("orders"),
    )


def _seconds_since_start() -> float:
    """Since this process was started, the interpreter and all imports included."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def process_tree(root: int) -> Iterator[int]:
    """The process and everything below it."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    for process in parents:
        above = process
        while above not in (0, root):
            above = parents.get(above, 0)
        if above == root:
            yield process


def peak_memory_mb() -> float:
    """Highest resident memory so far, summed over the processes that are alive: pages they share count in each."""
    kilobytes = 0
    for process in process_tree(os.getpid()):
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue
        kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return kilobytes / 1024


def _cpu_seconds(process: int) -> float:
    """What a process has used so far; 0 when it is gone."""
    try:
        values = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


class Neighbours:
    """How many cores the machine's other processes keep busy: a round that they disturb says little."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """From now on."""
        self._before = time.perf_counter(), self._used_by_others()

    def cores_busy(self) -> float:
        """The mean since then."""
        began, used = self._before
        return max(0.0, (self._used_by_others() - used) / (time.perf_counter() - began))

    def _used_by_others(self) -> float:
        values = [int(value) for value in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        everyone = (values[0] + values[1] + values[2] + values[5] + values[6]) / os.sysconf("SC_CLK_TCK")
        return everyone - sum(_cpu_seconds(process) for process in process_tree(os.getpid()))


@dataclass(kw_only=True)
class Report:
    """Times the rounds and prints the line of JSON."""

    name: str
    settings: Settings
    initial: Tensor
    seconds: list[float] = field(default_factory=list)
    models: list[Tensor] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    startup: float = 0.0
    peak_memory: float = 0.0

    def __post_init__(self) -> None:
        self._neighbours = Neighbours()

    def round_begins(self) -> None:
        """Starts the clock."""
        self._neighbours.begin()
        self._began = time.perf_counter()

    def round_ends(self, weights: Tensor) -> None:
        """Stops the clock: ``weights`` (params,) is the model after this round."""
        spent = time.perf_counter() - self._began
        if self.models:
            self.seconds.append(spent)
            self.others.append(self._neighbours.cores_busy())
        else:
            self.startup = _seconds_since_start()
        self.models.append(weights.clone())
        self.peak_memory = max(self.peak_memory, peak_memory_mb())

    def finish(self) -> None:
        """Writes what was asked for."""
        if self.settings.save:
            kept = {
                "models": torch.stack([self.initial, *self.models]).numpy(),
                "cohorts": np.array(self.settings.cohorts),
            }
            if self.settings.orders is not None:
                kept["orders"] = self.settings.orders
            np.savez(self.settings.save, **kept)  # type: ignore[arg-type]
        line = {
            "name": self.name,
            "seconds_per_round": self.seconds,
            "others_per_round": self.others,
            "startup_seconds": self.startup,
            "peak_memory_mb": self.peak_memory,
            "clients_per_round": self.settings.task.clients,
            "result_norm": float((self.models[-1] - self.initial).norm()),
        }
        print(json.dumps(line), flush=True)


def use_threads(settings: Settings) -> None:
    """Shares the cores out among the workers."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // settings.workers))


def log(*parts: object) -> None:
    """For people; standard output belongs to the report."""
    print(*parts, file=sys.stderr)
