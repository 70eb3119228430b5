"""Train a whole cohort: many clients at once, on all cores, or on a cluster.

Place: between the sample and the mechanism. `CohortTrainer.updates` yields every sampled client's update in the
clients' order. Clients are trained in blocks (`blocks.py`: stacked parameters, one pass for all), blocks by workers
(`engines.py` says whose), each with one thread inside PyTorch: nested threading has cost ten times.

Which clients share a block follows from the cohort, the model, the data and the kind of device alone, never from the
workers: the library's matrix products take other paths for other numbers and alignments of matrices, and would differ
in the last bit. A chunk is what a worker takes at a time: one or more whole blocks.

Guarantees (tests of the same name):
  chunks_and_workers_change_nothing    the same bytes for every chunk size and number of workers.
  memory_follows_the_cohort            not the number of clients.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdpfed.errors import expect
from gdpfed.training.clients.blocks import Chunk, ClientData, LocalTraining
from gdpfed.training.clients.engines import Engine

__all__ = ["CohortTrainer"]

T = TypeVar("T")

# The number of blocks is a multiple of this, and their sizes differ by one at most: two or four workers end together.
_EVEN = 4


class CohortTrainer:
    """Trains cohorts of one model on one set of clients."""

    def __init__(
        self,
        model: nn.Module,
        data: ClientData,
        local: LocalTraining,
        *,
        num_workers: int | None,
        chunk_clients: int | None = None,
        engine: Engine | None = None,
    ) -> None:
        for name, value in (("num_workers", num_workers), ("chunk_clients", chunk_clients)):
            expect(value is None or value >= 1, f"{name} >= 1", **{name: value})
        self._team = (engine or Engine()).start(model, data, local, num_workers=num_workers, chunk=chunk_clients)
        self._trainer = self._team.trainer
        self.device = self._team.device
        self.num_params = self._trainer.num_params
        self.layer_sizes = self._trainer.layer_sizes
        self.loss = self._trainer.loss
        # Evaluation is this machine's, whoever trains.
        self._pool = ThreadPoolExecutor(self._team.num_threads, initializer=torch.set_num_threads, initargs=(1,))

    def _blocks(self, order: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        count = min(len(order), _EVEN * -(-len(order) // (_EVEN * self._team.most_clients)))
        return np.array_split(order, count) if count else []

    def updates(
        self, parameters: Tensor, clients: Sequence[int] | NDArray[np.int64], *, seed: int, round_number: int
    ) -> Iterator[tuple[NDArray[np.int64], Tensor]]:
        """Yields (clients, updates (clients, params) float64), block by block, in the order of ``clients``."""
        blocks = self._blocks(np.asarray(clients, dtype=np.int64))
        at_once = self._team.blocks_at_once(len(blocks))
        parts = [blocks[at : at + at_once] for at in range(0, len(blocks), at_once)]
        chunks: list[Chunk] = [(part, seed, round_number) for part in parts]
        for part, moved in zip(parts, self._team.workers.run(parameters, chunks), strict=True):
            yield from zip(part, torch.split(moved, [len(block) for block in part]), strict=True)

    def map(self, function: Callable[[int], T], values: Iterable[int]) -> list[T]:
        """``function`` of every value, by threads of this process, in order."""
        return list(self._pool.map(function, values))

    def close(self) -> None:
        """Ends the workers."""
        self._team.workers.close()
        self._pool.shutdown(wait=True, cancel_futures=True)
