"""Where a cohort is trained: on this machine's cores, on its GPU, or on a Ray cluster.

Place: between the cohort trainer and the workers. An engine is a value; it is no part of a run's identity. The same
plan and seed give the same bytes on any number of workers and nodes, so that a run may begin here and go on there.
Another kind of device rounds otherwise: results on CUDA agree with those on the CPU to float32's precision, not to the
bit, so the device is in the records.

Guarantees (tests of the same name):
  engines_refuse_what_is_not_there    a device, a package or a cluster: in one line that says what to do.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gdpfed.errors import InputError, suggestion
from gdpfed.training.clients.blocks import BlockTrainer, Chunk, ClientData, LocalTraining
from gdpfed.training.clients.workers import Workers, start_workers

__all__ = ["DEVICES", "ENGINES", "Engine", "Team", "chosen_device"]

ENGINES = ("local", "ray")
DEVICES = ("cpu", "cuda", "auto")

# What a chunk's result may take where chunks are made large.
_CHUNK_BYTES = 64 * 2**20
# Larger chunks cost less each; several for each worker let the quick ones help the slow.
_CHUNKS_A_WORKER = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Team:
    """Workers that have started, how many clients a block has at most, and how many blocks of so many they take."""

    trainer: BlockTrainer
    workers: Workers[Chunk]
    device: str
    most_clients: int
    num_threads: int
    blocks_at_once: Callable[[int], int]


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
            if value not in known:
                raise InputError(f"expected {what} {', '.join(known)}, got {value!r}{suggestion(value, known)}")
        if self.ray_address is not None and self.name != "ray":
            raise InputError(f"expected --engine ray with --ray-address {self.ray_address}, got --engine {self.name}")

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
        self,
        model: nn.Module,
        data: ClientData,
        local: LocalTraining,
        *,
        num_workers: int | None,
        chunk_clients: int | None = None,
    ) -> Team:
        """Workers for these clients; ``num_workers`` None is one for each core, or for each GPU, that there is."""
        if self.name == "ray":
            return self._start_ray(model, data, local, num_workers, chunk_clients)
        device = chosen_device(self.device, available=torch.cuda.is_available())
        trainer = BlockTrainer(model, data, local, device=device)
        cores = num_workers or os.cpu_count() or 1
        most_clients = trainer.largest_block(device)
        at_once = max(1, (chunk_clients or 1) // most_clients)
        workers = start_workers(
            trainer,
            # One queue for a GPU, and CUDA does not survive a fork.
            num_workers=cores if device == "cpu" else 1,
            most_rows=at_once * most_clients,
            num_params=trainer.num_params,
            processes=None if device == "cpu" else False,
        )
        return Team(
            trainer=trainer,
            workers=workers,
            device=device,
            most_clients=most_clients,
            num_threads=cores,
            blocks_at_once=lambda _: at_once,
        )

    def _start_ray(
        self, model: nn.Module, data: ClientData, local: LocalTraining, num_workers: int | None, chunk: int | None
    ) -> Team:
        from gdpfed.training.clients.ray_workers import RayWorkers, connect

        cluster = connect(self.ray_address)
        try:
            device = chosen_device(self.device, available=cluster.num_gpus > 0, where="in the Ray cluster")
            trainer = BlockTrainer(model, data, local)
            workers = RayWorkers(cluster, trainer, device=device, num_workers=num_workers)
        except BaseException:
            cluster.close()
            raise
        most_clients = trainer.largest_block(device)
        most = max(1, _CHUNK_BYTES // (8 * trainer.num_params * most_clients))

        def at_once(num_blocks: int) -> int:
            if chunk is not None:
                return max(1, chunk // most_clients)
            return max(1, min(most, num_blocks // (_CHUNKS_A_WORKER * workers.num_workers)))

        return Team(
            trainer=trainer,
            workers=workers,
            device=device,
            most_clients=most_clients,
            num_threads=os.cpu_count() or 1,
            blocks_at_once=at_once,
        )


def chosen_device(asked: str, *, available: bool, where: str = "here") -> str:
    """What is asked for, or InputError where there is none; ``auto`` takes a GPU if there is one."""
    if asked == "auto":
        return "cuda" if available else "cpu"
    if asked == "cuda" and not available:
        built: Any = torch.version.cuda
        why = f"PyTorch {torch.__version__} finds none" if built else f"PyTorch {torch.__version__} is built without"
        raise InputError(
            f"expected a CUDA device {where} for --device cuda, got none ({why}): use --device cpu or auto, or "
            f"install a PyTorch with CUDA on a machine that has a GPU"
        )
    return asked
