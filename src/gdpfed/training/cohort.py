"""Train a whole cohort: many clients at once, on all cores.

Place: between the sample and the mechanism. `CohortTrainer.updates` yields every sampled client's update in the
clients' order. Clients are trained in blocks (stacked parameters, one pass for all), blocks by workers (`workers.py`),
each with one thread inside PyTorch: nested threading has cost ten times.

Which clients share a block follows from the cohort, the model and the data alone, never from the machine: the library's
matrix products take other paths for other numbers and alignments of matrices, and would differ in the last bit. A chunk
is what a worker takes at a time: one or more whole blocks.

Local training: `local_steps` steps of SGD from the global model on batches of the client's own examples, drawn without
replacement until all were seen; a client with no more examples than a batch uses all of them in every step.

Guarantees (tests of the same name):
  chunks_and_workers_change_nothing    the same bytes for every chunk size and number of workers.
  same_as_plain_training               each update equals that of a plain PyTorch loop over the client's batches.
  clients_see_only_their_own           no other client's examples, however broken, change an update.
  memory_follows_the_cohort            not the number of clients.
"""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdpfed import streams
from gdpfed.errors import InputError
from gdpfed.training.batched import batched_model
from gdpfed.training.workers import start_workers

__all__ = ["ClientData", "CohortTrainer", "LocalTraining", "flat_parameters", "local_batches"]

T = TypeVar("T")

# What a block may take.
_BLOCK_BYTES = 256 * 2**20
# The number of blocks is a multiple of this, and their sizes differ by one at most: two or four workers end together.
_EVEN = 4


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains."""

    learning_rate: float = 0.1
    learning_rate_decay: float = 1.0
    momentum: float = 0.0
    local_steps: int = 5
    batch_size: int = 10

    def __post_init__(self) -> None:
        for name in ("learning_rate", "learning_rate_decay"):
            if not 0 < getattr(self, name) < float("inf"):
                raise InputError(f"expected a finite {name} > 0, got {name}={getattr(self, name)}")
        if not 0 <= self.momentum < 1:
            raise InputError(f"expected 0 <= momentum < 1, got momentum={self.momentum}")
        for name in ("local_steps", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"expected {name} >= 1, got {name}={getattr(self, name)}")

    def rate(self, round_number: int) -> float:
        """The learning rate of a round."""
        return self.learning_rate * self.learning_rate_decay**round_number


@dataclass(frozen=True, kw_only=True, eq=False)
class ClientData:
    """All training examples, and which of them each client has."""

    inputs: Tensor
    labels: Tensor
    members: Sequence[NDArray[np.int64]]

    def __post_init__(self) -> None:
        if len(self.inputs) != len(self.labels):
            raise InputError(f"expected a label for each of {len(self.inputs)} examples, got {len(self.labels)}")
        for client, indices in enumerate(self.members):
            if not len(indices):
                raise InputError(f"expected examples for every client, got none for client {client}: leave it out")
            if indices.min() < 0 or indices.max() >= len(self.labels):
                raise InputError(
                    f"expected example numbers from 0 to {len(self.labels) - 1}, got {indices.min()} to "
                    f"{indices.max()} for client {client}"
                )
        if len(self.labels) and int(self.labels.min()) < 0:
            raise InputError(f"expected labels from 0 up, got {int(self.labels.min())}")

    @property
    def most_examples(self) -> int:
        """Of the client that has the most."""
        return max(len(indices) for indices in self.members)


def flat_parameters(model: nn.Module) -> Tensor:
    """The model's parameters as one vector (float32, a copy)."""
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).float()


def local_batches(
    examples: NDArray[np.int64], local: LocalTraining, *, seed: int, round_number: int, client: int
) -> NDArray[np.int64]:
    """The example numbers of each step: (steps, min(batch size, examples)), by shuffled passes over all of them."""
    size = min(local.batch_size, len(examples))
    if size == len(examples):
        return np.broadcast_to(examples, (local.local_steps, size))
    generator = streams.generator(seed, "batches", round_number=round_number, client=client)
    needed = local.local_steps * size
    passes = [generator.permutation(examples) for _ in range(-(-needed // len(examples)))]
    return np.concatenate(passes)[:needed].reshape(local.local_steps, size)


def _check_model(model: nn.Module, data: ClientData) -> None:
    """Raises InputError for what would otherwise fail in the middle of a round, or train what should stay."""
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    if frozen:
        raise InputError(
            f"expected a model of which everything is trained, got {frozen[0]!r} with requires_grad=False: compute "
            f"what the fixed part gives beforehand, and train the rest on that"
        )
    with torch.no_grad():
        logits = copy.deepcopy(model).eval()(data.inputs[:1])
    if logits.ndim != 2:
        raise InputError(f"expected a model that returns (batch, classes), got the shape {tuple(logits.shape)}")
    if int(data.labels.max()) >= logits.shape[1]:
        raise InputError(
            f"expected labels below {logits.shape[1]}, the model's number of classes, got {int(data.labels.max())}"
        )


class CohortTrainer:
    """Trains cohorts of one model on one set of clients."""

    def __init__(
        self,
        model: nn.Module,
        data: ClientData,
        local: LocalTraining,
        *,
        num_workers: int,
        chunk_clients: int | None = None,
    ) -> None:
        if num_workers < 1:
            raise InputError(f"expected num_workers >= 1, got num_workers={num_workers}")
        if chunk_clients is not None and chunk_clients < 1:
            raise InputError(f"expected chunk_clients >= 1, got chunk_clients={chunk_clients}")
        _check_model(model, data)
        self._shapes = [parameter.shape for parameter in model.parameters()]
        self._sizes = [parameter.numel() for parameter in model.parameters()]
        self._batched = batched_model(model)
        self._data = data
        self._local = local
        # One width for all, so that a client's numbers do not depend on who shares its block.
        self._width = min(local.batch_size, data.most_examples)
        self._fixed = data.most_examples <= local.batch_size
        self._block = self._largest_block()
        self._blocks_at_once = max(1, (chunk_clients or 1) // self._block)
        self._workers = start_workers(
            self._train_chunk,
            num_workers=num_workers,
            most_rows=self._blocks_at_once * self._block,
            num_params=self.num_params,
        )
        self._pool = ThreadPoolExecutor(num_workers, initializer=torch.set_num_threads, initargs=(1,))

    @property
    def num_params(self) -> int:
        """The length of an update."""
        return sum(self._sizes)

    @property
    def layer_sizes(self) -> list[int]:
        """How many of them each parameter tensor has."""
        return list(self._sizes)

    def _largest_block(self) -> int:
        activations = 40 * self._width * int(np.prod(self._data.inputs.shape[1:]))
        return max(1, min(self._batched.block_clients, _BLOCK_BYTES // (4 * (6 * self.num_params + activations))))

    def _blocks(self, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        count = min(len(order), _EVEN * -(-len(order) // (_EVEN * self._block)))
        return np.array_split(order, count) if count else []

    def updates(
        self, parameters: Tensor, clients: Sequence[int] | NDArray[np.int64], *, seed: int, round_number: int
    ) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Yields (clients, updates (clients, params) float64), block by block, in the order of ``clients``."""
        blocks = self._blocks(np.asarray(clients, dtype=np.int64))
        chunks = [blocks[at : at + self._blocks_at_once] for at in range(0, len(blocks), self._blocks_at_once)]
        jobs = [(chunk, seed, round_number) for chunk in chunks]
        for chunk, moved in zip(chunks, self._workers.run(parameters, jobs), strict=True):
            yield from zip(chunk, torch.split(moved, [len(block) for block in chunk]), strict=True)

    def _train_chunk(self, parameters: Tensor, job: tuple[list[NDArray[np.int64]], int, int]) -> Tensor:
        chunk, seed, round_number = job
        trained = [self._train(parameters, block, seed, round_number) for block in chunk]
        return trained[0] if len(trained) == 1 else torch.cat(trained)

    def _train(self, parameters: Tensor, clients: NDArray[np.int64], seed: int, round_number: int) -> Tensor:
        count = len(clients)
        start = [
            part.view(1, *shape).expand(count, *shape)
            for part, shape in zip(torch.split(parameters, self._sizes), self._shapes, strict=True)
        ]
        trained = [part.clone() for part in start]
        momenta: list[Tensor] | None = None
        indices, weights = self._batches(clients, seed, round_number)
        rate, momentum = self._local.rate(round_number), self._local.momentum
        inputs, labels = self._gather(indices[:, 0])
        prepared = self._batched.prepare(inputs)
        for step in range(self._local.local_steps):
            if step and not self._fixed:
                inputs, labels = self._gather(indices[:, step])
                prepared = self._batched.prepare(inputs)
            gradients = self._batched.gradients(trained, prepared, labels, weights)
            if momentum:
                momenta = (
                    [gradient.clone() for gradient in gradients]
                    if momenta is None
                    else [old.mul_(momentum).add_(new) for old, new in zip(momenta, gradients, strict=True)]
                )
            for parameter, gradient in zip(trained, momenta or gradients, strict=True):
                parameter.sub_(gradient, alpha=rate)
        moved = [(end.double() - begin.double()).flatten(1) for end, begin in zip(trained, start, strict=True)]
        return torch.cat(moved, dim=1)

    def _batches(self, clients: NDArray[np.int64], seed: int, round_number: int) -> tuple[NDArray[np.int64], Tensor]:
        """Example numbers (clients, steps, width), and each example's weight in its client's mean.

        Short batches are padded with the client's own first example at weight 0: another's, if it were not finite,
        would reach this client's gradient, since 0 times NaN is NaN.
        """
        indices = np.zeros((len(clients), self._local.local_steps, self._width), dtype=np.int64)
        weights = np.zeros((len(clients), self._width), dtype=np.float32)
        for row, client in enumerate(clients):
            chosen = local_batches(
                self._data.members[client], self._local, seed=seed, round_number=round_number, client=int(client)
            )
            indices[row] = chosen[:, :1]
            indices[row, :, : chosen.shape[1]] = chosen
            weights[row, : chosen.shape[1]] = 1 / chosen.shape[1]
        return indices, torch.from_numpy(weights)

    def _gather(self, indices: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        wanted = torch.from_numpy(np.ascontiguousarray(indices))
        return self._data.inputs[wanted], self._data.labels[wanted]

    def map(self, function: Callable[[int], T], values: Iterable[int]) -> list[T]:
        """``function`` of every value, on the workers, in order."""
        return list(self._pool.map(function, values))

    def close(self) -> None:
        """Ends the workers."""
        self._workers.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
