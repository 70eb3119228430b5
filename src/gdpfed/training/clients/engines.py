"""Where a cohort is trained: on this machine's cores, on its GPU, or on a Ray cluster.

Place: between the cohort trainer and the workers. An engine is a value; it is no part of a run's identity. The same
plan and seed give the same bytes on any number of workers and nodes, so that a run may begin here and go on there.
Another kind of device rounds otherwise: results on CUDA agree with those on the CPU to float32's precision, not to the
bit, so the device is in the records.

Guarantees (tests of the same name):
  engines_refuse_what_is_not_there    a device, a package or a cluster: in one line that says what to do.
"""

import os
from dataclasses import dataclass

import torch
from torch import nn

from gdpfed.errors import InputError, expect, expect_word
from gdpfed.training.clients.blocks import BlockTrainer, Chunk, ClientData, LocalTraining
from gdpfed.training.clients.workers import Workers, start_workers

__all__ = ["DEVICES", "ENGINES", "Engine", "Team", "chosen_device"]

ENGINES = ("local", "ray")
DEVICES = ("cpu", "cuda", "auto")

# What a chunk's result may take where chunks are made large.
_CHUNK_BYTES = 64 * 2**20
# Larger chunks cost less each; several for each worker let the quick ones help the slow.
_CHUNKS_A_WORKER = 4
_MOST = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Team:
    """Workers that have started. ``chunk``: so many clients they take at a time, or None for what is quick. So many
    threads of this process may evaluate."""

    trainer: BlockTrainer
    workers: Workers[Chunk]
    num_workers: int
    num_threads: int
    device: str
    chunk: int | None

    @property
    def most_clients(self) -> int:
        """Of a block."""
        return self.trainer.largest_block(self.device)

    def blocks_at_once(self, num_blocks: int) -> int:
        """How many of so many blocks are a chunk."""
        if self.chunk is not None:
            return max(1, self.chunk // self.most_clients)
        most = _CHUNK_BYTES // (8 * self.trainer.num_params * self.most_clients)
        return max(1, min(most, num_blocks // (_CHUNKS_A_WORKER * self.num_workers)))


@dataclass(frozen=True, kw_only=True)
class Engine:
    """A name out of `ENGINES`, a device out of `DEVICES`; ``ray_address`` as `ray.init` takes it (HOST:PORT).

    Without an address: $RAY_ADDRESS, or the cluster that was started on this machine.
    """

    name: str = "local"
    device: str = "cpu"
    ray_address: str | None = None

    def __post_init__(self) -> None:
        for what, value, known in (("engine", self.name, ENGINES), ("device", self.device, DEVICES)):
            expect_word(what, value, known)
        if self.ray_address is not None and self.name != "ray":
            raise InputError(f"expected engine ray for the Ray address {self.ray_address}, got engine {self.name}")

    @property
    def place(self) -> str:
        """In words."""
        where = "this machine" if self.name == "local" else f"Ray ({self.ray_address or 'the cluster that is there'})"
        return f"{where}, device {self.device}"

    def check(self) -> None:
        """Raises InputError where what was asked for is not there, as far as this can be seen without starting."""
        if self.name == "ray":
            from gdpfed.training.clients.ray_workers import find

            find(self.ray_address)
        else:
            chosen_device(self.device, available=torch.cuda.is_available())

    def start(
        self, model: nn.Module, data: ClientData, local: LocalTraining, *, num_workers: int | None, chunk: int | None
    ) -> Team:
        """Workers for these clients; ``num_workers`` None is one for each core, or for each GPU, that there is."""
        expect(
            num_workers is None or 1 <= num_workers <= _MOST, f"num_workers from 1 to {_MOST}", num_workers=num_workers
        )
        cores = os.cpu_count() or 1
        workers: Workers[Chunk]
        if self.name == "ray":
            from gdpfed.training.clients.ray_workers import RayWorkers, connect

            cluster = connect(self.ray_address)
            try:
                device = chosen_device(self.device, available=cluster.num_gpus > 0, where="in the Ray cluster")
                trainer = BlockTrainer(model, data, local)
                workers = RayWorkers(cluster, trainer, device=device, num_workers=num_workers)
            except BaseException:
                cluster.close()
                raise
            num_workers, num_threads = workers.num_workers, cores
        else:
            device = chosen_device(self.device, available=torch.cuda.is_available())
            trainer = BlockTrainer(model, data, local, device=device)
            num_workers = num_threads = num_workers or cores
            chunk = chunk or 1
            most_clients = trainer.largest_block(device)
            workers = start_workers(
                trainer,
                # One queue for a GPU, and CUDA does not survive a fork.
                num_workers=num_workers if device == "cpu" else 1,
                most_rows=max(1, chunk // most_clients) * most_clients,
                num_params=trainer.num_params,
                processes=None if device == "cpu" else False,
            )
        return Team(
            trainer=trainer,
            workers=workers,
            num_workers=num_workers,
            num_threads=num_threads,
            device=device,
            chunk=chunk,
        )


def chosen_device(asked: str, *, available: bool, where: str = "here") -> str:
    """What is asked for, or InputError where there is none; ``auto`` takes a GPU if there is one."""
    if asked == "auto":
        return "cuda" if available else "cpu"
    if asked == "cuda" and not available:
        reason = "finds none" if torch.version.cuda else "is built without"
        raise InputError(
            f"expected a CUDA device {where} for the device cuda, got none (PyTorch {torch.__version__} {reason}): use "
            f"device cpu or auto, or install a PyTorch with CUDA on a machine that has a GPU"
        )
    return asked
