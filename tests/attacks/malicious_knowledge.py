"""What the malicious server knows, and what that comes to: which sums it can take the masks off."""

import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdpfed.secure import masks, messages
from gdpfed.secure.primitives import AgreementKey
from gdpfed.secure.shares import restore
from tests.attacks.malicious_cohort import Prepared, Rostered


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """Of one roster: each component that can be unmasked, and how many honest shares were counted on."""

    components: tuple[tuple[int, ...], ...]
    counted_on: int
    refused: int
    # Of clients that masked twice, or answered a message of another place.
    wrong_answers: int

    @property
    def fewest(self) -> int | None:
        """Honest noise shares that hide somebody; None if nothing came out."""
        return min((len(component) for component in self.components), default=None)

    @property
    def is_broken(self) -> bool:
        """Whether anybody is hidden by less than was counted on."""
        return self.wrong_answers > 0 or (self.fewest is not None and self.fewest < self.counted_on)


class Knowledge:
    """Of one roster: the inputs and shares that came, and those that colluders hold."""

    def __init__(self, at: Prepared, rostered: Rostered) -> None:
        self._at, self._of = at, rostered
        self._roster = rostered.roster
        self._shape = rostered.roster.topology
        self._clients = {
            client: copy.copy(machine) for client, machine in rostered.clients.items() if client not in at.colluders
        }
        self._shares = {secret: dict(points) for secret, points in rostered.held.items()}
        self._inputs: dict[int, tuple[messages.MaskedInput, frozenset[int]]] = {}

    def _learn(self, holder: int, answer: bytes | None) -> None:
        if answer is not None:
            for owner, kind, share in messages.Shares.decode(answer).shares:
                self._shares.setdefault((owner, kind), {})[self._roster.point_of(holder)] = share

    def _secret(self, owner: int, kind: int) -> bytes | None:
        """Put together from shares, if there are enough; checked against what is public of it."""
        points = self._shares.get((owner, kind), {})
        if len(points) < self._shape.threshold:
            return None
        secret = restore(points, threshold=self._shape.threshold)
        if secret is None:
            return None
        if kind == messages.OF_MASK:
            right = AgreementKey(secret).public == self._public(owner)
        else:
            committed = self._of.shared[owner].commitment
            right = masks.commitment(secret, session=self._roster.digest, client=owner) == committed
        return secret if right else None

    def _components(self) -> list[tuple[int, ...]]:
        """The sums that can be formed, each by its honest members."""
        seeds = {client: self._secret(client, messages.OF_SEED) for client in self._inputs}
        keys = {client: self._secret(client, messages.OF_MASK) for client in self._clients}
        known = {client for client, seed in seeds.items() if seed is not None}
        root = {client: client for client in known}

        def top(client: int) -> int:
            while root[client] != client:
                client = root[client]
            return client

        dead: set[int] = set()
        for client in known:
            for peer in self._masked_with(client):
                if peer in self._at.colluders or keys.get(peer) is not None or keys[client] is not None:
                    continue
                if peer in known and client in self._masked_with(peer):
                    root[top(client)] = top(peer)
                else:
                    dead.add(client)
        found: dict[int, list[int]] = {}
        for client in known:
            found.setdefault(top(client), []).append(client)
        ruined = {top(client) for client in dead}
        components = [tuple(sorted(members)) for head, members in found.items() if head not in ruined]
        for component in components:
            self._check_opened(component, seeds, keys)
        return components

    def _masked_with(self, client: int) -> set[int]:
        near = {peer.client for peer in self._roster.neighbours_of(client)}
        return near & self._inputs[client][1]

    def _check_opened(
        self, component: tuple[int, ...], seeds: dict[int, bytes | None], keys: dict[int, bytes | None]
    ) -> None:
        """Takes the masks off, with nothing but what came out, and compares with what the clients put in."""
        total: NDArray[np.uint32] = np.zeros(1, dtype=np.uint32)
        digest = self._roster.digest
        for client in component:
            vector = self._inputs[client][0].values.copy()
            seed = seeds[client]
            assert seed is not None
            masks.add_mask(vector, masks.seed_key(seed, session=digest, client=client), negative=True)
            for peer in self._masked_with(client):
                own, theirs = keys[client], keys.get(peer)
                if peer in component and client in self._masked_with(peer) and own is None and theirs is None:
                    continue
                if peer in self._at.colluders:
                    stream = self._at.world.randomness(peer).stream("keys")
                    private, public = AgreementKey(stream.take(32)), self._public(client)
                elif theirs is not None:
                    private, public = AgreementKey(theirs), self._public(client)
                else:
                    assert own is not None
                    private, public = AgreementKey(own), self._public(peer)
                key = masks.pair_key(private, public, session=digest, one=client, other=peer)
                masks.add_pair_mask(vector, key, own=client, peer=peer, remove=True)
            total += vector
        expected = self._at.world.plain_sum(component, self._shape.cohort)
        if not np.array_equal(total, expected):
            raise AssertionError("the model of what is known is wrong: a component did not come out")

    def _public(self, client: int) -> bytes:
        return self._of.shared[client].mask_public
