"""The work of each task: a preset's model, its clients' examples and their local steps.

`tests/test_benchmarks.py` compares it with the presets. It runs in every contestant's environment, so it imports
nothing but numpy and torch, and the models are written out again. Examples are random: timing does not ask what they
show. Clients hold as many as the preset's do; Shakespeare's, whose numbers differ, the mean.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

SEED = 20_250_711
LEARNING_RATE = 0.1
# One step: the places (batch,) of its examples among the client's.
Order = NDArray[np.int64]


def small_cnn() -> nn.Module:
    """Two 5x5 convolutions and a dense layer: 18,378 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


def _norm(channels: int) -> nn.Module:
    return nn.BatchNorm2d(channels, track_running_stats=False)


def normed_cnn() -> nn.Module:
    """Three 3x3 convolutions, each normalised over its batch, and three dense layers: 91,792 parameters."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise((3, 16, 32, 64)):
        layers += [nn.Conv2d(inputs, outputs, 3, bias=False), _norm(outputs), nn.ReLU(), nn.MaxPool2d(2)]
    dense = [nn.Linear(inputs, outputs, bias=False) for inputs, outputs in itertools.pairwise((256, 128, 256, 10))]
    return nn.Sequential(*layers, nn.Flatten(), dense[0], nn.ReLU(), dense[1], nn.ReLU(), dense[2])


class Residual(nn.Module):
    """Two normalised 3x3 convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm1 = _norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = _norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), _norm(outputs))

    def forward(self, images: Tensor) -> Tensor:
        """(batch, inputs, height, width) -> (batch, outputs, height / stride, width / stride)."""
        hidden = torch.relu(self.norm1(self.conv1(images)))
        return torch.relu(self.norm2(self.conv2(hidden)) + self.shortcut(images))


def resnet18(width: int = 8) -> nn.Module:
    """ResNet-18 with a 3x3 stem and batch norm: 176,402 parameters at width 8."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), _norm(width), nn.ReLU()]
    inputs = width
    for stage in range(4):
        outputs = width * 2**stage
        layers += [Residual(inputs, outputs, 1 if stage == 0 else 2), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 10))


class CharLSTM(nn.Module):
    """Embedding, two LSTM layers, a dense layer on the last state: 819,390 parameters."""

    def __init__(self, *, num_classes: int = 78, embedding: int = 8, hidden: int = 256) -> None:
        super().__init__()
        self.embed = nn.Embedding(num_classes, embedding)
        self.cells = nn.LSTM(embedding, hidden, num_layers=2, batch_first=True)
        self.output = nn.Linear(hidden, num_classes)

    def forward(self, characters: Tensor) -> Tensor:
        """(batch, length) characters -> (batch, classes) logits of the next one."""
        states, _ = self.cells(self.embed(characters))
        logits: Tensor = self.output(states[:, -1])
        return logits


@dataclass(frozen=True, kw_only=True)
class Task:
    """A preset's round. ``cohort`` is the preset's own, ``clients`` what the benchmark trains in a round."""

    name: str
    title: str
    model: str
    make: Callable[[], nn.Module]
    num_clients: int
    num_examples: int
    example_shape: tuple[int, ...]
    num_classes: int
    cohort: int
    clients: int
    batch_size: int
    local_steps: int
    momentum: float
    clip_norm: float
    # At 0.1 a few steps through batch norms turn the last bits of a sum into other models, a plain loop's too.
    check_learning_rate: float
    # About the median of an update's norm, so that the check sees both sides of the clipping.
    check_clip_norm: float
    # Of how far a model moves. A ResNet's gradient differs by 1 % where its sums take another order.
    check_tolerance: float

    def __post_init__(self) -> None:
        if not 1 <= self.clients <= self.num_clients:
            raise ValueError(f"expected from 1 to {self.num_clients} clients a round, got {self.clients}")

    @property
    def noise_multiplier(self) -> float:
        """So that the mean has the noise of the preset's cohort at 1: more would leave a model that cannot be trained.

        What is no number any more takes another time. A plan of gdpfed takes no less than 0.01.
        """
        return max(0.01, self.clients / self.cohort)

    @property
    def is_fixed(self) -> bool:
        """Whether a client's batch is all it has, so that every step uses the same."""
        return self.num_examples == self.batch_size

    @property
    def is_text(self) -> bool:
        """Whether examples are classes themselves, as characters are."""
        return len(self.example_shape) == 1


TASKS = {
    task.name: task
    for task in (
        Task(
            name="fmnist",
            title="FMNIST",
            model="CNN",
            make=small_cnn,
            num_clients=6_000,
            num_examples=10,
            example_shape=(1, 28, 28),
            num_classes=10,
            cohort=120,
            clients=120,
            batch_size=10,
            local_steps=5,
            momentum=0.0,
            clip_norm=1.5,
            check_learning_rate=0.1,
            check_clip_norm=0.45,
            check_tolerance=0.001,
        ),
        Task(
            name="svhn",
            title="SVHN",
            model="CNN with batch norm",
            make=normed_cnn,
            num_clients=6_000,
            num_examples=12,
            example_shape=(3, 32, 32),
            num_classes=10,
            cohort=300,
            clients=40,
            batch_size=10,
            local_steps=25,
            momentum=0.0,
            clip_norm=1.0,
            check_learning_rate=0.003,
            check_clip_norm=0.13,
            check_tolerance=0.01,
        ),
        Task(
            name="cifar10",
            title="CIFAR-10",
            model="ResNet-18 of width 8",
            make=resnet18,
            num_clients=600,
            num_examples=83,
            example_shape=(3, 32, 32),
            num_classes=10,
            cohort=60,
            clients=12,
            batch_size=50,
            local_steps=5,
            momentum=0.5,
            clip_norm=1.5,
            check_learning_rate=0.0003,
            check_clip_norm=0.0084,
            check_tolerance=0.05,
        ),
        Task(
            name="shakespeare",
            title="Shakespeare",
            model="LSTM",
            make=CharLSTM,
            num_clients=714,
            num_examples=445,
            example_shape=(80,),
            num_classes=78,
            cohort=71,
            clients=8,
            batch_size=4,
            local_steps=30,
            momentum=0.9,
            clip_norm=1.0,
            check_learning_rate=0.1,
            check_clip_norm=2.37,
            check_tolerance=0.001,
        ),
    )
}


def make_model(task: Task) -> nn.Module:
    """The task's model, with the same initial weights for every contestant."""
    torch.manual_seed(SEED)
    return task.make()


def make_data(task: Task) -> tuple[Tensor, Tensor]:
    """Examples (clients, examples, ...), images in [0, 1] or characters, and labels (clients, examples)."""
    generator = np.random.default_rng(SEED)
    size = (task.num_clients, task.num_examples)
    if task.is_text:
        characters = generator.integers(0, task.num_classes, size=(*size, *task.example_shape))
        return torch.from_numpy(characters), torch.from_numpy(generator.integers(0, task.num_classes, size=size))
    pixels = generator.integers(0, 256, size=(*size, *task.example_shape), dtype=np.uint8)
    labels = generator.integers(0, task.num_classes, size=size)
    return torch.from_numpy(pixels).to(torch.float32).div_(255), torch.from_numpy(labels)


def draw_cohorts(task: Task, num_rounds: int) -> list[list[int]]:
    """Which clients each round trains: the same for every contestant that can choose."""
    generator = np.random.default_rng([SEED, 1])
    return [generator.choice(task.num_clients, task.clients, replace=False).tolist() for _ in range(num_rounds)]


def draw_order(task: Task, round_number: int, client: int) -> Order:
    """The examples of each step (steps, batch), by shuffled passes over all that the client has."""
    generator = np.random.default_rng([SEED, 2, round_number, client])
    needed = task.local_steps * task.batch_size
    passes = [generator.permutation(task.num_examples) for _ in range(-(-needed // task.num_examples))]
    return np.concatenate(passes)[:needed].reshape(task.local_steps, task.batch_size)


def in_order(inputs: Tensor, labels: Tensor, order: Order) -> tuple[Tensor, Tensor]:
    """A client's examples as its steps take them, one after the other, copied once."""
    wanted = torch.from_numpy(order.reshape(-1))
    return inputs[wanted], labels[wanted]


def batches(task: Task, inputs: Tensor, labels: Tensor, order: Order | None) -> Sequence[tuple[Tensor, Tensor]]:
    """The batch of each local step of a client with these examples; without an order, all of them in each."""
    if order is None:
        return [(inputs, labels)] * task.local_steps
    taken = [torch.split(part, task.batch_size) for part in in_order(inputs, labels, order)]
    return list(zip(*taken, strict=True))


def num_parameters(task: Task) -> int:
    """Of its model."""
    return sum(parameter.numel() for parameter in make_model(task).parameters())


def floating_point_operations(task: Task) -> float:
    """Of one round, in the matrix products alone: two a multiply-add, the backward pass counted twice the forward."""
    return 3 * 2.0 * _multiply_adds(task) * task.batch_size * task.local_steps * task.clients


def _multiply_adds(task: Task) -> int:
    """Of the forward pass of one example, counted layer by layer while two pass through the model."""
    found: list[int] = []

    def count(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(layer, nn.LSTM):
            # Every matrix of the cells is used once for each character.
            weights = sum(parameter.numel() for parameter in layer.parameters() if parameter.ndim == 2)
            found.append(weights * inputs[0].shape[1])
        elif isinstance(layer, nn.Conv2d | nn.Linear):
            found.append(output[0].numel() * layer.weight[0].numel())

    model = make_model(task)
    for layer in model.modules():
        layer.register_forward_hook(count)
    examples = torch.zeros(2, *task.example_shape, dtype=torch.int64 if task.is_text else torch.float32)
    with torch.no_grad():
        model(examples)
    return sum(found)
