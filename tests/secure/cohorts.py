"""Cohorts with all their keys, for tests: seeded, so that a test can compute again what a client drew."""

import copy
import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gdpfed.secure.client import SecureClient
from gdpfed.secure.discrete_gaussian import discrete_gaussian
from gdpfed.secure.encoding import ClientEncoding, PlannedSum, encode
from gdpfed.secure.in_process import InProcessSum, Stage
from gdpfed.secure.noise_shares import Tolerance, noise_share, released_variance
from gdpfed.secure.primitives import signing_public
from gdpfed.secure.randomness import SimulatedRandomness
from gdpfed.secure.server import SecureServer
from gdpfed.secure.session import Directory, Session

CLIP_NORM = 1.5
UNIT = 2.0**-19
BOUND = 3 * 2**18


@functools.cache
def identity(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()


@functools.cache
def directory(num_clients: int) -> Directory:
    return Directory(
        server=signing_public(identity("server")),
        clients={client: signing_public(identity(f"client {client}")) for client in range(num_clients)},
    )


@functools.cache
def planned_sum(
    num_params: int, *, noise_std: float = 1e5, largest_cohort: int = 1500, tolerance: Tolerance | None = None
) -> PlannedSum:
    total = round(noise_std**2) + 25
    encoding = ClientEncoding(clip_norm=CLIP_NORM, scale=1.0, unit=UNIT, norm_bound=BOUND, num_params=num_params)
    return PlannedSum(
        place=0,
        groups=(0,),
        num_params=num_params,
        unit=UNIT,
        noise_variance=total,
        released_variance=released_variance(
            total_variance=total, largest_cohort=largest_cohort, tolerance=tolerance or Tolerance()
        ),
        largest_cohort=largest_cohort,
        encodings=(encoding,),
    )


@dataclass(frozen=True, kw_only=True)
class World:
    """A cohort of ``size`` clients, numbered from 0, before the first message."""

    size: int
    num_params: int = 50
    tolerance: Tolerance = field(default_factory=Tolerance)
    seed: int = 1
    noise_std: float = 1e5
    round_number: int = 3
    attempt: int = 0
    model_hash: bytes = b"m" * 32
    plan_hash: bytes = b"p" * 32

    @property
    def planned(self) -> PlannedSum:
        return planned_sum(self.num_params, noise_std=self.noise_std, tolerance=self.tolerance)

    @property
    def session(self) -> Session:
        return Session(
            plan_hash=self.plan_hash,
            model_hash=self.model_hash,
            round_number=self.round_number,
            attempt=self.attempt,
            place=0,
            num_params=self.num_params,
        )

    def randomness(self, client: int) -> SimulatedRandomness:
        return SimulatedRandomness(seed=self.seed, round_number=self.round_number, client=client, attempt=self.attempt)

    def client(self, client: int) -> SecureClient:
        return SecureClient(
            session=self.session,
            planned=self.planned,
            group=0,
            client=client,
            identity=identity(f"client {client}"),
            directory=directory(max(self.size, 8)),
            tolerance=self.tolerance,
            randomness=self.randomness(client),
        )

    def server(self) -> SecureServer:
        return SecureServer(
            session=self.session,
            invited=range(self.size),
            identity=identity("server"),
            directory=directory(max(self.size, 8)),
            tolerance=self.tolerance,
        )

    def updates(self) -> NDArray[np.float64]:
        return np.random.default_rng(self.seed).standard_normal((self.size, self.num_params)) * 0.3

    def noise(self, client: int, cohort: int) -> NDArray[np.int64]:
        share = noise_share(
            total_variance=self.planned.noise_variance,
            cohort=cohort,
            tolerance=self.tolerance,
            num_params=self.num_params,
        )
        return discrete_gaussian(
            self.num_params, variance=share.variance, stream=self.randomness(client).stream("noise")
        )

    def plain_sum(self, survivors: Iterable[int], cohort: int) -> NDArray[np.uint32]:
        """What the clients put in, without any protocol: exact, then mod 2^32."""
        total = np.zeros(self.num_params, dtype=np.int64)
        updates = self.updates()
        for client in survivors:
            total += encode(updates[client], self.planned.encodings[0]) + self.noise(client, cohort)
        return (total % 2**32).astype(np.uint32)

    def run(self, vanish: Mapping[int, Stage] | None = None) -> NDArray[np.uint32]:
        """The whole protocol."""
        made = InProcessSum(self.server(), {client: self.client(client) for client in range(self.size)}, vanish=vanish)
        made.open()
        for client, update in enumerate(self.updates()):
            made.contribute(client, update)
        return made.close()


@dataclass
class Stages:
    """A cohort stopped after any stage, with the messages that were sent."""

    world: World
    clients: dict[int, SecureClient]
    server: SecureServer
    roster: bytes = b""
    deliveries: dict[int, bytes] = field(default_factory=dict)
    survivors: dict[int, bytes] = field(default_factory=dict)
    agreements: bytes = b""
    sent: list[bytes] = field(default_factory=list)

    @staticmethod
    def start(world: World, *, clients: Iterable[int] | None = None) -> "Stages":
        chosen = range(world.size) if clients is None else clients
        made = Stages(world=world, clients={client: world.client(client) for client in chosen}, server=world.server())
        for client in made.clients.values():
            made.keep(made.server.receive_advertisement, client.advertise())
        made.roster = made.server.roster()
        return made

    def keep(self, receive: Callable[[bytes], None], message: bytes) -> None:
        self.sent.append(message)
        receive(message)

    def share(self, without: Iterable[int] = ()) -> "Stages":
        for number, client in self.clients.items():
            if number not in without:
                self.keep(self.server.receive_shares, client.share(self.roster))
        self.deliveries = self.server.deliveries()
        return self

    def mask(self, without: Iterable[int] = ()) -> "Stages":
        updates = self.world.updates()
        for number, delivery in self.deliveries.items():
            if number not in without:
                self.keep(self.server.receive_input, self.clients[number].mask(delivery, updates[number]))
        self.survivors = self.server.survivors()
        return self

    def agree(self, without: Iterable[int] = ()) -> "Stages":
        for number, survivors in self.survivors.items():
            if number not in without:
                self.keep(self.server.receive_agreement, self.clients[number].agree(survivors))
        self.agreements = self.server.agreements()
        return self

    def reveal(self, without: Iterable[int] = ()) -> NDArray[np.uint32]:
        for number in self.survivors:
            if number not in without:
                self.keep(self.server.receive_revealed, self.clients[number].reveal(self.agreements))
        return self.server.total()


def server_state(server: SecureServer) -> dict[str, object]:
    """A copy of all that a server remembers, to compare."""
    kept = {name: copy.deepcopy(value) if isinstance(value, dict) else value for name, value in vars(server).items()}
    kept["_arrived"] = server._arrived.copy()
    kept["_sum"] = server._sum.tobytes()
    return kept
