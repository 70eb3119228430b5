"""Cohorts for the malicious server: keys, rosters and shares, up to where strategies begin."""

import copy
import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gdpfed.secure import masks, messages
from gdpfed.secure.client import SecureClient
from gdpfed.secure.graph import topology
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.secure.primitives import sign, unseal
from gdpfed.secure.shares import SHARE_BYTES
from tests.secure.cohorts import World, identity

Secret = tuple[int, int]  # whose, and which: messages.OF_MASK or messages.OF_SEED


@dataclass(frozen=True, kw_only=True, eq=False)
class Rostered:
    """One roster, who answered it, and what the colluders among its clients know from their shares."""

    roster: messages.Roster
    clients: dict[int, SecureClient]
    shared: dict[int, messages.SealedShares]
    held: dict[Secret, dict[int, bytes]]
    answers: dict[tuple[int, bytes], tuple[bytes, SecureClient] | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """A cohort after the shares were sent: strategies start from here."""

    world: World
    colluders: frozenset[int]
    rosters: tuple[Rostered, ...]
    other: messages.Roster

    @property
    def honest(self) -> list[int]:
        """All but the colluders."""
        return [client for client in range(self.world.size) if client not in self.colluders]


def stood(tolerance: Tolerance, cohort: int) -> int:
    """How many colluders a cohort is said to stand, whatever the code makes of it."""
    return min(max(1, tolerance.colluders(cohort)), cohort - 1)


def prepared(world: World, rng: np.random.Generator) -> Prepared:
    """Keys, rosters and shares; the colluders answer every roster, the others one."""
    size, most = world.size, stood(world.tolerance, world.size)
    count = most if rng.random() < 0.8 else int(rng.integers(0, most + 1))
    colluders = frozenset(rng.choice(size, count, replace=False).tolist())
    machines = {client: world.client(client) for client in range(size)}
    entries = {number: messages.Advertisement.decode(client.advertise()) for number, client in machines.items()}
    honest = [client for client in range(size) if client not in colluders]
    parts = [honest]
    if len(honest) >= 4 and rng.random() < 0.2:
        cut = int(rng.integers(1, len(honest)))
        mixed = rng.permutation(honest).tolist()
        parts = [sorted(mixed[:cut]), sorted(mixed[cut:])]
    made = []
    for part in parts:
        listed = set(part) | set(colluders)
        if len(parts) == 2 and rng.random() < 0.5:
            # Some of the others, who never answer this one.
            listed |= {client for client in honest if rng.random() < 0.3}
        made.append(_rostered(world, machines, entries, sorted(listed), {*part, *colluders}, frozenset(colluders), rng))
    later = dataclasses.replace(world, attempt=world.attempt + 1)
    strangers = tuple(messages.Advertisement.decode(later.client(client).advertise()) for client in range(size))
    return Prepared(
        world=world,
        colluders=frozenset(colluders),
        rosters=tuple(made),
        other=_signed(later, strangers),
    )


def _signed(world: World, entries: Sequence[messages.Advertisement]) -> messages.Roster:
    unsigned = messages.Roster(
        session=world.session, topology=topology(len(entries), world.tolerance), entries=tuple(entries)
    )
    return dataclasses.replace(unsigned, signature=sign(identity("server"), unsigned.signed))


def _rostered(
    world: World,
    machines: dict[int, SecureClient],
    entries: dict[int, messages.Advertisement],
    listed: Sequence[int],
    answering: set[int],
    colluders: frozenset[int],
    rng: np.random.Generator,
) -> Rostered:
    roster = _signed(world, [entries[client] for client in listed])
    most = roster.topology.dropouts
    silent = set(rng.choice(listed, int(rng.integers(0, most + 1)), replace=False).tolist()) if most else set()
    if rng.random() < 0.5:
        silent = set()
    clients: dict[int, SecureClient] = {}
    shared: dict[int, messages.SealedShares] = {}
    for client in listed:
        if client in answering and client not in silent - colluders:
            clients[client] = copy.copy(machines[client])
            shared[client] = messages.SealedShares.decode(clients[client].share(roster.encode()))
    return Rostered(roster=roster, clients=clients, shared=shared, held=_opened_by(roster, clients, shared, colluders))


def _opened_by(
    roster: messages.Roster,
    clients: dict[int, SecureClient],
    shared: dict[int, messages.SealedShares],
    colluders: frozenset[int],
) -> dict[Secret, dict[int, bytes]]:
    """The shares that honest clients sealed for colluders."""
    held: dict[Secret, dict[int, bytes]] = {}
    for owner, sealed in shared.items():
        for holder, box in sealed.sealed:
            secrets = clients[holder]._state.secrets if holder in colluders and holder in clients else None
            if secrets is None or owner in colluders:
                continue
            route = roster.digest + owner.to_bytes(4, "little") + holder.to_bytes(4, "little")
            nonce = owner.to_bytes(4, "little") + bytes(8)
            key = masks.seal_key(secrets.once, sealed.seal_public, session=roster.digest, one=holder, other=owner)
            plain = unseal(key, nonce=nonce, sealed=box, bound_to=route)
            point = roster.point_of(holder)
            held.setdefault((owner, messages.OF_MASK), {})[point] = plain[:SHARE_BYTES]
            held.setdefault((owner, messages.OF_SEED), {})[point] = plain[SHARE_BYTES:]
    return held
