"""The work of the contestants, and the one line of JSON in which each reports.

The FMNIST preset's round: 120 of 6,000 clients with 10 images each, 5 local SGD steps of batch 10, every update
clipped, the sum noised, the mean added to the model. A client's batch is all it has, so there is no order of examples
that contestants could differ in. Images and labels are random: timing does not ask what they show.

Runs in every contestant's environment, so it imports nothing but numpy and torch.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

NUM_CLIENTS = 6_000
CLIENTS_PER_ROUND = 120
IMAGES_PER_CLIENT = 10
LOCAL_STEPS = 5
LEARNING_RATE = 0.1
CLIP_NORM = 1.5
NOISE_MULTIPLIER = 1.0
SEED = 20_250_711


def make_model() -> nn.Sequential:
    """The CNN of 21,840 parameters, with the same initial weights for every contestant."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        nn.Conv2d(1, 10, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(10, 20, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(320, 50),
        nn.ReLU(),
        nn.Linear(50, 10),
    )


def floating_point_operations(num_clients: int = CLIENTS_PER_ROUND) -> float:
    """Of one round, in the matrix products alone: two a multiply-add, the backward pass counted twice the forward."""
    multiply_adds = 24 * 24 * 10 * 25 + 8 * 8 * 20 * 250 + 320 * 50 + 50 * 10
    return 3 * 2.0 * multiply_adds * IMAGES_PER_CLIENT * LOCAL_STEPS * num_clients


def make_data(num_clients: int = NUM_CLIENTS) -> tuple[Tensor, Tensor]:
    """Images (clients, 10, 1, 28, 28) in [0, 1] and labels (clients, 10), from the seed."""
    generator = np.random.default_rng(SEED)
    pixels = generator.integers(0, 256, size=(num_clients, IMAGES_PER_CLIENT, 1, 28, 28), dtype=np.uint8)
    labels = generator.integers(0, 10, size=(num_clients, IMAGES_PER_CLIENT))
    return torch.from_numpy(pixels).to(torch.float32).div_(255), torch.from_numpy(labels)


def draw_cohorts(num_rounds: int) -> list[list[int]]:
    """Which clients each round trains: the same for every contestant that can choose."""
    generator = np.random.default_rng([SEED, 1])
    return [generator.choice(NUM_CLIENTS, CLIENTS_PER_ROUND, replace=False).tolist() for _ in range(num_rounds)]


def flatten(model: nn.Module) -> Tensor:
    """A model's parameters as one new vector, in the order of `model.parameters()`."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])


class LocalTrainer:
    """One client at a time, in plain PyTorch: what the plain loop and Flower's client do."""

    def __init__(self, *, clip_norm: float) -> None:
        self.model = make_model()
        self.parameters = list(self.model.parameters())
        self.optimizer = torch.optim.SGD(self.parameters, lr=LEARNING_RATE)
        self.loss = nn.CrossEntropyLoss()
        self.clip_norm = clip_norm

    def clipped_update(self, weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """Trains from ``weights`` (params,) and returns the update, scaled to at most the clip norm."""
        nn.utils.vector_to_parameters(weights.clone(), self.parameters)
        for _ in range(LOCAL_STEPS):
            self.optimizer.zero_grad()
            self.loss(self.model(images), labels).backward()
            self.optimizer.step()
        update = flatten(self.model) - weights
        return update * min(1.0, self.clip_norm / max(float(update.norm()), 1e-12))


def noised_mean(total: Tensor, *, noise_std: float, generator: torch.Generator) -> Tensor:
    """The server's step: Gaussian noise on the sum of the clipped updates, over the number of clients."""
    return (total + noise_std * torch.randn(total.shape, generator=generator)) / CLIENTS_PER_ROUND


@dataclass(kw_only=True)
class Settings:
    """What `simulators.py` asks a contestant for. Round 0 is a warm-up and belongs to the start-up."""

    rounds: int
    workers: int
    clip_norm: float
    noise_std: float
    save: Path | None
    cohorts: list[list[int]]


def read_settings(arguments: Sequence[str] | None = None) -> Settings:
    """The command line that all contestants share."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds, after one that warms up")
    parser.add_argument("--workers", type=int, default=1, help="processes that train; the two cores are shared out")
    parser.add_argument("--clip-norm", type=float, default=CLIP_NORM)
    parser.add_argument("--noise-multiplier", type=float, default=NOISE_MULTIPLIER)
    parser.add_argument("--save", type=Path, help="write the model after each round, and the cohorts, to this .npz")
    parser.add_argument("--cohorts", type=Path, help="train the cohorts of this .npz, which another contestant saved")
    given = parser.parse_args(arguments)
    drawn = np.load(given.cohorts)["cohorts"].tolist() if given.cohorts else draw_cohorts(given.rounds + 1)
    return Settings(
        rounds=given.rounds,
        workers=given.workers,
        clip_norm=given.clip_norm,
        noise_std=given.noise_multiplier * given.clip_norm,
        save=given.save,
        cohorts=drawn[: given.rounds + 1],
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
            models = torch.stack([self.initial, *self.models]).numpy()
            np.savez(self.settings.save, models=models, cohorts=np.array(self.settings.cohorts))
        line = {
            "name": self.name,
            "seconds_per_round": self.seconds,
            "others_per_round": self.others,
            "startup_seconds": self.startup,
            "peak_memory_mb": self.peak_memory,
            "clients_per_round": CLIENTS_PER_ROUND,
            "result_norm": float((self.models[-1] - self.initial).norm()),
        }
        print(json.dumps(line), flush=True)


def use_threads(settings: Settings) -> None:
    """Shares the cores out among the workers."""
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // settings.workers))


def log(*parts: object) -> None:
    """For people; standard output belongs to the report."""
    print(*parts, file=sys.stderr)
