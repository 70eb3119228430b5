"""Workers of a Ray cluster: actors that hold the model and the data, and train chunks of a cohort.

Place: one more implementation of `workers.Workers`, chosen by `engines.Engine`. Ray is imported here and nowhere else.

The data go into the object store once, where all actors of a node map the same memory. The global model goes there once
a round; chunks and results are plain arrays. An actor has one core, and one thread inside PyTorch.

A worker proves itself before its first chunk: it trains the first block of clients, and its update must be the one that
this machine computes, to the bit. Another PyTorch, or a processor for which the library takes other paths, is refused,
because the model would then depend on who trained whom. (On CUDA the workers are compared with each other.)

A worker that dies, or whose node does, loses nothing but time: its chunks go to others, and another worker is started
where there is room. A cluster that is gone is an error: the run's folder has all finished rounds.

Guarantees (tests of the same name):
  ray_gives_the_bytes_of_the_local_engine    on a cluster of two nodes; and a run that began here goes on there.
  a_killed_ray_worker_changes_nothing        SIGKILL in the middle of a round: the same bytes.
  a_cluster_that_is_gone_is_an_error         one line, soon; and the run is resumed elsewhere to the same bytes.
"""

import contextlib
import hashlib
import heapq
import importlib.util
import logging
import os
import platform
import socket
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import gdpfed
from gdpfed.errors import GdpfedError, InputError, MissingExtraError
from gdpfed.training.clients.blocks import BlockTrainer, Chunk, ClientData, flat_parameters
from gdpfed.training.clients.workers import Workers

__all__ = ["Cluster", "RayWorkers", "connect", "find"]

# Seconds: to answer a knock; without an answer until the cluster counts as gone (Ray itself would end this process
# after 60); without any worker until there is no room for one.
_KNOCK = 3.0
_GONE = 5.0
_NO_ROOM = 120.0
# So many chunks a worker has at a time, and so many results may wait for an earlier one.
_DEPTH = 2
_AHEAD = 8
# Deaths without a single result between them.
_MOST_DEATHS = 5

_VERSIONS = f"gdpfed {gdpfed.__version__}, torch {torch.__version__}"
_START = "start one with: ray start --head (docs/clusters.md), or give the Ray address HOST:PORT of another"
_RESUME = "gdpfed resume goes on from the last finished round, on a cluster or on this machine alone"


@dataclass(kw_only=True, eq=False)
class Cluster:
    """A connection to a Ray cluster."""

    ray: Any
    address: str
    is_ours: bool
    is_gone: bool = False

    @property
    def num_gpus(self) -> int:
        """Of all its nodes."""
        return int(self.ray.cluster_resources().get("GPU", 0))

    def check(self) -> None:
        """Raises GdpfedError if nobody answers there any more."""
        until = time.monotonic() + _GONE
        while not _answers(self.address):
            if time.monotonic() > until:
                self.is_gone = True
                raise GdpfedError(f"the Ray cluster at {self.address} does not answer any more: {_RESUME}")
            time.sleep(0.2)

    def close(self) -> None:
        """Ends the connection, if it was made here; some seconds where there is nobody to say goodbye to."""
        if self.is_ours:
            self.ray.shutdown()


def _host_and_port(address: str) -> tuple[str, int] | None:
    host, _, port = address.removeprefix("ray://").rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdigit() else None


def _is_on_loopback_alone(address: str) -> bool:
    """Whether the cluster is reached at this machine's loopback, and not at its other address."""
    host, port = _host_and_port(address) or ("", 0)
    if address.startswith("ray://") or host not in ("127.0.0.1", "localhost", "::1"):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # Nothing is sent: this only chooses the address that Ray would choose.
            probe.connect(("8.8.8.8", 53))
        except OSError:
            return True
        return not _answers(f"{probe.getsockname()[0]}:{port}")


def _answers(address: str) -> bool:
    host_and_port = _host_and_port(address)
    try:
        if host_and_port is not None:
            socket.create_connection(host_and_port, timeout=_KNOCK).close()
    except OSError:
        return False
    return True


def find(address: str | None) -> str:
    """Where to look for the cluster; InputError where nobody answers, MissingExtraError without Ray."""
    if importlib.util.find_spec("ray") is None:
        raise MissingExtraError(package="ray", extra="ray", purpose="the engine ray")
    asked = address or os.environ.get("RAY_ADDRESS") or "auto"
    if asked != "auto" and _host_and_port(asked) is None:
        raise InputError(f"expected a Ray address HOST:PORT (or ray://HOST:PORT), got {asked!r}")
    if not _answers(asked):
        raise InputError(f"nobody answers at {asked}: expected a Ray cluster there; {_START}")
    return asked


def connect(address: str | None) -> Cluster:
    """A connection to the cluster at ``address``, at $RAY_ADDRESS, or to the one that was started on this machine."""
    asked = find(address)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    if _is_on_loopback_alone(asked):
        # Read when Ray is imported. Else it looks for 127.0.0.1 at this machine's other address, for minutes.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray

    if ray.is_initialized():
        return Cluster(ray=ray, address=ray.get_runtime_context().gcs_address, is_ours=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=asked, log_to_driver=False, logging_level=logging.CRITICAL)
    except ConnectionError as error:
        where = "on this machine" if asked == "auto" else f"at {asked}"
        raise InputError(f"no Ray cluster {where} ({_one_line(error)}): {_START}") from None
    except (RuntimeError, ValueError, AssertionError, OSError, ray.exceptions.RayError) as error:
        raise InputError(f"the Ray cluster at {asked} cannot be used from here: {_one_line(error)}") from None
    known = asked if asked.startswith("ray://") else ray.get_runtime_context().gcs_address
    return Cluster(ray=ray, address=known, is_ours=True)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]


@dataclass(frozen=True, kw_only=True)
class _Proof:
    """Who computed, with what, and what came out."""

    worker: str
    process: int
    digest: str


def _proof(trainer: BlockTrainer, most_clients: int) -> _Proof:
    clients = np.arange(min(most_clients, len(trainer.data.members)), dtype=np.int64)
    update = trainer(flat_parameters(trainer.model), ([clients], 0, 0))
    return _Proof(
        worker=f"{platform.node()} ({_VERSIONS}, {torch.backends.cpu.get_cpu_capability()})",
        process=os.getpid(),
        digest=hashlib.sha256(update.numpy().tobytes()).hexdigest(),
    )


def _cargo(trainer: BlockTrainer) -> dict[str, Any]:
    """All that a worker needs, with the large parts as arrays, which Ray maps without a copy."""
    members = trainer.data.members
    return {
        "model": trainer.model,
        "local": trainer.local,
        "inputs": trainer.data.inputs.numpy(),
        "labels": trainer.data.labels.numpy(),
        "members": np.concatenate(members),
        "ends": np.cumsum([len(indices) for indices in members]),
    }


def _tensor(array: NDArray[Any]) -> Tensor:
    """The same memory; Ray's is read-only, of which PyTorch warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(array)


class _Worker:
    """What runs in the cluster, one in each actor."""

    def __init__(self, cargo: dict[str, Any], device: str, most_clients: int) -> None:
        torch.set_num_threads(1)
        data = ClientData(
            inputs=_tensor(cargo["inputs"]),
            labels=_tensor(cargo["labels"]),
            members=np.split(cargo["members"], cargo["ends"][:-1]),
        )
        self._trainer = BlockTrainer(cargo["model"], data, cargo["local"], device=device)
        self._most_clients = most_clients

    def prove(self) -> _Proof:
        return _proof(self._trainer, self._most_clients)

    def train(self, parameters: NDArray[np.float32], chunk: Chunk) -> NDArray[np.float64]:
        result: NDArray[np.float64] = self._trainer(_tensor(parameters), chunk).numpy()
        return result


@dataclass(kw_only=True, eq=False)
class _Member:
    """An actor: the proof it owes, until it has given it, then the jobs it has, by what Ray will answer with."""

    actor: Any
    owes: Any
    process: int = 0
    given: dict[Any, int] = field(default_factory=dict)


class RayWorkers(Workers[Chunk]):
    """Actors of a Ray cluster."""

    def __init__(self, cluster: Cluster, trainer: BlockTrainer, *, device: str, num_workers: int | None) -> None:
        self._cluster = cluster
        self._ray = ray = cluster.ray
        self._device = device
        self._trainer = trainer
        self._most_clients = trainer.largest_block(device)
        self._kind = "GPU" if device == "cuda" else "CPU"
        self.num_workers = num_workers or max(1, int(ray.cluster_resources().get(self._kind, 0)))
        self._expected = _proof(trainer, self._most_clients) if device == "cpu" else None
        needs: dict[str, float] = {"num_cpus": 0, "num_gpus": 1} if device == "cuda" else {"num_cpus": 1}
        self._class = ray.remote(max_restarts=0, max_task_retries=0, **needs)(_Worker)
        self._shipped = ray.put(_cargo(trainer))
        self._deaths = 0
        self._alone_since = time.monotonic()
        self._members: list[_Member] = []
        for _ in range(self.num_workers):
            self._recruit()

    def _recruit(self) -> None:
        actor = self._class.remote(self._shipped, self._device, self._most_clients)
        self._members.append(_Member(actor=actor, owes=actor.prove.remote()))

    def run(self, parameters: Tensor, jobs: Sequence[Chunk]) -> Iterator[Tensor]:
        """The updates of each chunk, in order."""
        self._cluster.check()
        shipped = self._ray.put(parameters.numpy()) if jobs else None
        # A heap: a dead worker's jobs come back, and the earliest is the one that is waited for.
        waiting = list(range(len(jobs)))
        done: dict[int, Any] = {}
        try:
            for wanted in range(len(jobs)):
                while wanted not in done:
                    self._hand_out(shipped, jobs, waiting, wanted)
                    self._collect(waiting, done)
                self._hand_out(shipped, jobs, waiting, wanted)
                # A copy, so that Ray may use the memory again.
                yield _tensor(done.pop(wanted)).clone()
        finally:
            for member in self._members:
                member.given.clear()

    def _hand_out(self, shipped: Any, jobs: Sequence[Chunk], waiting: list[int], wanted: int) -> None:
        """One job for each who has none, then a second, so that nobody waits for us."""
        for depth in range(1, _DEPTH + 1):
            for member in self._members:
                near = waiting and waiting[0] < wanted + _AHEAD * self.num_workers
                if near and member.owes is None and len(member.given) < depth:
                    number = heapq.heappop(waiting)
                    member.given[member.actor.train.remote(shipped, jobs[number])] = number

    def _collect(self, waiting: list[int], done: dict[int, Any]) -> None:
        """Waits for one answer, or for a second."""
        owners = {ref: member for member in self._members for ref in (member.owes, *member.given) if ref is not None}
        ready, _ = self._ray.wait(list(owners), num_returns=1, timeout=1.0)
        if not ready:
            self._cluster.check()
        for ref in ready:
            member = owners[ref]
            try:
                answer = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, GdpfedError):
                    raise InputError(str(error.cause)) from None
                raise RuntimeError(f"in a worker of the Ray cluster:\n{error}") from None
            except self._ray.exceptions.RayError as error:
                if getattr(error, "actor_init_failed", False):
                    raise GdpfedError(
                        f"a worker could not be started in the Ray cluster: {str(error).strip().splitlines()[-1]}; "
                        f"every node needs {_VERSIONS}, as they are here"
                    ) from None
                self._replace(member, waiting, error)
                continue
            if ref == member.owes:
                self._admit(member, answer)
            else:
                done[member.given.pop(ref)] = answer
                self._deaths = 0
        if any(member.owes is None for member in self._members):
            self._alone_since = time.monotonic()
        elif time.monotonic() - self._alone_since > _NO_ROOM:
            free = self._ray.available_resources().get(self._kind, 0)
            raise GdpfedError(
                f"no worker could be started in the Ray cluster at {self._cluster.address} within {_NO_ROOM:.0f} s "
                f"({free:g} {self._kind}s are free): end what else runs there, or add a node; then {_RESUME}"
            )

    def _admit(self, member: _Member, proof: _Proof) -> None:
        """Raises GdpfedError if a worker computes other bits than the others."""
        expected = self._expected = self._expected or proof
        if proof.digest != expected.digest:
            raise GdpfedError(
                f"the worker on {proof.worker} computes other bits than {expected.worker}, so the model would depend "
                f"on who trains whom: install the same versions, use nodes with the same kind of processor, or set "
                f"ATEN_CPU_CAPABILITY=default and MKL_CBWR=COMPATIBLE everywhere, here too"
            )
        member.owes, member.process = None, proof.process

    def _replace(self, member: _Member, waiting: list[int], error: Exception) -> None:
        """Hands a dead worker's jobs to others, and looks for another worker."""
        self._cluster.check()
        self._members.remove(member)
        for number in member.given.values():
            heapq.heappush(waiting, number)
        self._deaths += 1
        if self._deaths > _MOST_DEATHS + self.num_workers:
            raise GdpfedError(
                f"{self._deaths} workers of the Ray cluster died one after the other, the last with: "
                f"{_one_line(error)}; look for memory that runs out, then {_RESUME}"
            )
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.kill(member.actor)
        self._recruit()

    def close(self) -> None:
        """Ends the actors; the cluster stays."""
        if not self._cluster.is_gone:
            for member in self._members:
                with contextlib.suppress(self._ray.exceptions.RayError):
                    self._ray.kill(member.actor)
        self._members = []
        self._shipped = None
        self._cluster.close()
