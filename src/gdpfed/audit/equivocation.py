"""A server that tells two stories, with a colluder that signs both.

Place: beside the canaries: the one attack of the audit on the protocol itself, on its real clients and with its real
messages. The server collects from a cohort as always. Then it tells some of the honest clients that everybody
survived, and the others that its victims were lost. The first reveal shares of the victims' seeds, the others shares of
the keys of their pair masks. The colluder signs both sets, and gives its shares of both secrets. Where each set finds a
quorum, the server restores both secrets of every victim, takes its masks off, and reads its input alone: protected by
one noise share, where the plan's noise is that of all.

Where the protocol holds, one set at most finds a quorum; the others refuse. The server completes that one, and is left
with the sum of all, less what its colluder sent.

Half of the victims send their clip norm along a coordinate of their own, the others nothing. The claim is that of one
participation against the server. Victims of one cohort are independent: each has its own noise share, or its own
coordinate of the sum. Cohorts are so large that a single share is small beside the clip norm.

Guarantees (tests of the same name):
  two_stories_are_refused         the real clients reveal nothing about the second set; the server reads the right sum.
  a_smaller_quorum_is_broken      without a liar in the quorum, both secrets come out, and an input exactly.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gdpfed.audit.bounds import ScoredCanaries
from gdpfed.audit.canaries import SEEDS
from gdpfed.audit.privacy_curves import AuditedGroup
from gdpfed.errors import PrivacyError
from gdpfed.secure import masks, messages
from gdpfed.secure.client_state import ClientState, Secrets
from gdpfed.secure.encoding import PlannedSum, decode, planned_sums
from gdpfed.secure.graph import topology
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.secure.primitives import AgreementKey, sign
from gdpfed.secure.session import HASH_BYTES, Session
from gdpfed.secure.shares import restore
from gdpfed.training.releases.secure_sums import simulated_cohort, simulated_identity

__all__ = ["ONE_LIAR", "LyingServer", "Reading", "cohort_size", "num_victims", "tell_two_stories"]

# Nobody is expected to collude: the noise is sized for none, and yet one does.
ONE_LIAR = Tolerance(dropout_rate=0.4)
_SMALLEST, _LARGEST = 11, 61
_FEWEST_VICTIMS, _CANARIES_FOR_A_VICTIM = 300, 33
# The test is known beforehand: few have to choose it.
_CHOOSE_EVERY = 5
# Beyond all other seeds of an audit.
_SESSIONS = 3 * 2**30 + 2**29


def cohort_size(noise_multiplier: float) -> int:
    """So large that the clip norm is two stds of a single noise share or more, where that is quick enough.

    Odd: in even cohorts two quorums of n // 2 + 1 have two clients in common, one of whom is honest.
    """
    wanted = math.ceil((2.2 * noise_multiplier) ** 2)
    return int(np.clip(2 * wanted - 1, _SMALLEST, _LARGEST))


def num_victims(num_canaries: int) -> int:
    """A few hundred: each takes as long as a hundred canaries."""
    return max(_FEWEST_VICTIMS, num_canaries // _CANARIES_FOR_A_VICTIM)


@dataclass(frozen=True, kw_only=True, eq=False)
class Reading:
    """What the server reads, on the grid: the input of each victim ``alone``, by its number; the sum of all but the
    colluder (None: not even that). So many answers were refused."""

    alone: dict[int, NDArray[np.uint32]]
    total: NDArray[np.uint32] | None
    refusals: int


def _victims_in(cohort: int, tolerance: Tolerance) -> int:
    """As many as may be lost; they are among those who sign that they were not."""
    shape = topology(cohort, tolerance)
    return min(shape.dropouts, shape.quorum - 1)


class LyingServer:
    """One session with so many real clients, the last of which colludes, with ``tolerance`` as all of them believe it;
    the first are the ``victims``."""

    def __init__(self, planned: PlannedSum, *, group: int, tolerance: Tolerance, cohort: int, seed: int) -> None:
        self.victims = range(_victims_in(cohort, tolerance))
        self._everybody, self._colluder = range(cohort), cohort - 1
        self._colluders_identity, _ = simulated_identity(seed, self._colluder)
        self._session = Session(
            plan_hash=bytes(HASH_BYTES),
            model_hash=bytes(HASH_BYTES),
            round_number=0,
            attempt=0,
            place=planned.place,
            num_params=planned.num_params,
        )
        groups = dict.fromkeys(self._everybody, group)
        self._server, self._clients = simulated_cohort(self._session, planned, groups, tolerance=tolerance, seed=seed)
        self._roster: messages.Roster
        self._inputs: dict[int, messages.MaskedInput] = {}
        self._publics: dict[int, bytes] = {}
        # By whose secret, and which of the two, then by the holder's point.
        self._shares: dict[tuple[int, int], dict[int, bytes]] = {}
        self._refusals = 0

    def _state_of_the_colluder(self) -> ClientState:
        saved = self._clients[self._colluder].save()
        return ClientState.decode(saved, session=self._session, client=self._colluder)

    def _answer(self, call: Callable[[bytes], bytes], content: bytes) -> bytes | None:
        try:
            return call(content)
        except PrivacyError:
            self._refusals += 1
            return None

    def attack(self, updates: NDArray[np.float64]) -> Reading:
        """Collects ``updates`` (clients, parameters), tells two stories, and makes the most of the answers."""
        for client in self._clients.values():
            self._server.receive_advertisement(client.advertise())
        roster = self._server.roster()
        self._roster = messages.Roster.decode(roster)
        for client in self._clients.values():
            shared = messages.SealedShares.decode(client.share(roster))
            self._publics[shared.client] = shared.mask_public
            self._server.receive_shares(shared.encode())
        secrets = self._state_of_the_colluder().secrets
        for number, delivery in self._server.deliveries().items():
            sent = self._clients[number].mask(delivery, updates[number])
            self._inputs[number] = messages.MaskedInput.decode(sent, num_params=self._session.num_params)
        # The victims first: they do not sign that they were lost.
        honest = [client for client in self._everybody if client != self._colluder]
        needed = self._roster.topology.quorum - 1
        self._tell(honest[:needed], lost=())
        self._tell(honest[needed:], lost=tuple(self.victims))
        alone = {victim: read for victim in self.victims if (read := self._alone(victim)) is not None}
        return Reading(alone=alone, total=self._total(secrets), refusals=self._refusals)

    def _tell(self, asked: Iterable[int], *, lost: tuple[int, ...]) -> None:
        """One story. The colluder signs it, and gives its shares, whoever else does."""
        story = messages.Survivors(
            roster=self._roster.digest,
            survivors=tuple(client for client in self._everybody if client not in lost),
            lost=lost,
        )
        signatures = {self._colluder: sign(self._colluders_identity, story.signed)}
        for client in asked:
            confirmed = tuple(
                (peer, dict(self._inputs[peer].confirmed)[client]) for peer in story.survivors if peer != client
            )
            answer = self._answer(self._clients[client].agree, replace(story, confirmed=confirmed).encode())
            if answer is not None:
                signatures[client] = messages.Agreement.decode(answer).signature
        agreements = messages.Agreements(roster=self._roster.digest, signatures=tuple(sorted(signatures.items())))
        for client in signatures.keys() - {self._colluder}:
            answer = self._answer(self._clients[client].reveal, agreements.encode())
            if answer is not None:
                for owner, kind, share in messages.Shares.decode(answer).shares:
                    self._learn(client, owner, kind, share)
        masked = self._state_of_the_colluder().masked
        for owner, (of_mask, of_seed) in masked.held.items() if masked is not None else ():
            if owner in lost:
                self._learn(self._colluder, owner, messages.OF_MASK, of_mask)
            else:
                self._learn(self._colluder, owner, messages.OF_SEED, of_seed)

    def _learn(self, holder: int, owner: int, kind: int, share: bytes) -> None:
        self._shares.setdefault((owner, kind), {})[self._roster.point_of(holder)] = share

    def _secret(self, owner: int, kind: int) -> bytes | None:
        shares, threshold = self._shares.get((owner, kind), {}), self._roster.topology.threshold
        return restore(shares, threshold=threshold) if len(shares) >= threshold else None

    def _alone(self, victim: int) -> NDArray[np.uint32] | None:
        seed, private = self._secret(victim, messages.OF_SEED), self._secret(victim, messages.OF_MASK)
        return None if seed is None or private is None else self._unmasked(victim, seed, AgreementKey(private))

    def _unmasked(self, client: int, seed: bytes, private: AgreementKey) -> NDArray[np.uint32]:
        """A single input, by both secrets of its owner."""
        values = self._inputs[client].values.copy()
        digest = self._roster.digest
        masks.add_mask(values, masks.seed_key(seed, session=digest, client=client), negative=True)
        for peer in self._roster.neighbours_of(client):
            public = self._publics[peer.client]
            key = masks.pair_key(private, public, session=digest, one=client, other=peer.client)
            masks.add_pair_mask(values, key, own=client, peer=peer.client, remove=True)
        return values

    def _total(self, colluders: Secrets | None) -> NDArray[np.uint32] | None:
        """The sum of all but the colluder, by everybody's seed; pair masks cancel."""
        if colluders is None:
            return None
        total = np.zeros(self._session.num_params, dtype=np.uint32)
        for client, sent in self._inputs.items():
            seed = self._secret(client, messages.OF_SEED)
            if seed is None:
                return None
            total += sent.values
            masks.add_mask(total, masks.seed_key(seed, session=self._roster.digest, client=client), negative=True)
        return total - self._unmasked(self._colluder, colluders.seed, colluders.mask)


def tell_two_stories(audited: AuditedGroup, *, tolerance: Tolerance = ONE_LIAR) -> ScoredCanaries:
    """One score for each victim: whether what the server reads of it is nearer to the clip norm than to nothing."""
    group = audited.group
    bounds = planned_sums(audited.plan, num_params=1, tolerance=tolerance)[audited.sum_index]
    # As large as shows most, within what the plan's clients accept; odd.
    cohort = max(cohort_size(group.noise_multiplier), bounds.smallest_cohort | 1)
    if cohort > bounds.largest_cohort:
        cohort = bounds.largest_cohort - (bounds.largest_cohort % 2 == 0)
    victims = _victims_in(cohort, tolerance)
    planned = planned_sums(audited.plan, num_params=victims, tolerance=tolerance)[audited.sum_index]
    nearer, inside = [], []
    for number in range(-(-num_victims(audited.num_canaries) // victims)):
        present = (np.arange(victims) + number) % 2 == 0
        updates = np.zeros((cohort, victims))
        updates[np.arange(victims), np.arange(victims)] = group.clip_norm * present
        lying = LyingServer(
            planned,
            group=audited.group_index,
            tolerance=tolerance,
            cohort=cohort,
            seed=audited.seed * SEEDS + _SESSIONS + number,
        )
        reading = lying.attack(updates)
        for victim in range(victims):
            read = reading.alone.get(victim, reading.total)
            # Where there is nothing to read, it is the same for everybody.
            length = 0.0 if read is None else decode(read, unit=planned.unit)[victim]
            nearer.append(float(length > group.clip_norm * group.scale / 2))
        inside.append(present)
    # Neighbours are inside and outside in turns.
    choose = np.arange(len(nearer)) // 2 % _CHOOSE_EVERY == 0
    return ScoredCanaries(scores={"nearer": np.array(nearer)}, inside=np.concatenate(inside), choose=choose)
