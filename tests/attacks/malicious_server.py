"""A malicious server as a program: random strategies against real clients, and what they teach it.

    python -m tests.attacks.malicious_server --strategies 10000 --cohorts 2-60
    python -m tests.attacks.malicious_server --strategies 1000 --cohorts 150,300

The clients are `SecureClient`s, with all their keys and signatures; the server is this program. It signs what it likes,
and its colluders sign whatever it likes: two sets of survivors, shares for two rosters. A strategy is drawn at random:

    rosters       one, or two that overlap in the colluders; clients that do not share
    deliveries    the same for all; or some clients, the victim among them, are not told of all who shared; or told of
                  some who did not
    inputs        all, or some that come and are called lost all the same
    survivors     up to three sets, for the same sharers or for the victim's; losses anywhere, near the victim, side by
                  side on the circle, or just those that the victim masked with; within what is tolerated, one more, or
                  many more
    who is asked  for which set: at random, in two parts, all for one; some are asked twice
    confirmations as they came, or left out, or another's
    replays       messages of another session, of another roster, of another client, out of order

What the server knows is linear algebra. An input that it holds is update + noise share + own mask + one mask for each
neighbour that the client believes to have shared. A mask is known if a threshold of shares of its seed or key came out,
or if it is a colluder's. A combination of inputs is worth something if no unknown mask is left in it. Own masks are in
one input each, so whatever has an unknown one is out; a pair's unknown mask is in two inputs at most, so that both
have the same coefficient, or none. What is left are the connected components of the inputs: the server can form the sum
of each, and nothing in between. The honest noise shares in a component are its honest members. `Learnt.fewest` is the
smallest number of them that hides anybody; every component is really unmasked, and compared with what its clients put
in (`opened`), so that what counts as learnt is learnt.

The invariant: never fewer than the plan counts on, which is cohort - tolerated dropouts - colluders.
"""

import argparse
import copy
import dataclasses
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import GdpfedError
from gdpfed.secure import masks, messages
from gdpfed.secure.client import SecureClient
from gdpfed.secure.graph import topology
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.secure.primitives import AgreementKey, sign, unseal
from gdpfed.secure.shares import SHARE_BYTES, restore
from tests.secure.cohorts import World, identity

Secret = tuple[int, int]  # whose, and which: messages.OF_MASK or messages.OF_SEED

# Strategies from one set of keys and shares; making these is the dearest part.
_FROM_ONE_WORLD = 10
# What a cohort is told to stand, and up to which size everyone is everyone's neighbour.
_TOLERANCES = tuple(
    Tolerance(dropout_rate=dropout, colluding_fraction=colluders, complete_up_to=complete)
    for dropout in (0.05, 0.1, 0.2, 0.4)
    for colluders in (0.0, 0.1, 0.2)
    for complete in (100, 12)
)


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
            joined = clients[holder]._state.joined if holder in colluders and holder in clients else None
            if joined is None or owner in colluders:
                continue
            route = roster.digest + owner.to_bytes(4, "little") + holder.to_bytes(4, "little")
            nonce = owner.to_bytes(4, "little") + bytes(8)
            plain = unseal(joined.channels[owner], nonce=nonce, sealed=box, bound_to=route)
            point = roster.point_of(holder)
            held.setdefault((owner, messages.OF_MASK), {})[point] = plain[:SHARE_BYTES]
            held.setdefault((owner, messages.OF_SEED), {})[point] = plain[SHARE_BYTES:]
    return held


class Attack:
    """One strategy against one roster."""

    # How often a client's confirmations are left out, or another's.
    _tampered = 0.03

    def __init__(self, at: Prepared, rostered: Rostered, rng: np.random.Generator) -> None:
        self._at, self._of, self._rng = at, rostered, rng
        self._roster = rostered.roster
        self._shape = rostered.roster.topology
        self._clients = {
            client: copy.copy(machine) for client, machine in rostered.clients.items() if client not in at.colluders
        }
        self._shares = {secret: dict(points) for secret, points in rostered.held.items()}
        self._inputs: dict[int, tuple[messages.MaskedInput, frozenset[int]]] = {}
        self._signed: dict[bytes, dict[int, bytes]] = {}
        self.refused = self.wrong_answers = 0
        pool = sorted(self._clients)
        self._victim = int(rng.choice(pool)) if pool else -1

    # Choices.

    def _some(self, pool: Iterable[int], count: int) -> set[int]:
        """So many of the pool, colluders last: anywhere, near the victim first, or side by side on the circle."""
        left = sorted(set(pool) - {self._victim})
        if not left or count < 1:
            return set()
        order = self._rng.permutation(left).tolist()
        kind = self._rng.random()
        if kind < 0.5:
            near = {peer.client for peer in self._roster.neighbours_of(self._victim)}
            order.sort(key=lambda client: client not in near)
        elif kind < 0.75:
            standing = self._roster.circle
            where = {client: place for place, client in enumerate(standing)}
            starts = [where[self._victim] + 1, int(self._rng.integers(len(standing)))]
            if self._rng.random() < 0.5:
                starts = starts[:1]
            order.sort(key=lambda client: min((where[client] - start) % len(standing) for start in starts))
        order.sort(key=lambda client: client in self._at.colluders)
        return set(order[:count])

    def _count(self, tolerated: int) -> int:
        """As many as may be, none, fewer, one more, or any number."""
        draw = self._rng.random()
        if draw < 0.45:
            return tolerated
        if draw < 0.7:
            return 0
        if draw < 0.8:
            return int(self._rng.integers(0, tolerated + 1))
        return tolerated + 1 if draw < 0.9 else int(self._rng.integers(0, self._shape.cohort + 1))

    def _asked(self, call: Callable[[bytes], bytes], content: bytes) -> bytes | None:
        """The answer, or None if it was refused."""
        try:
            return call(content)
        except GdpfedError:
            self.refused += 1
            return None

    # Stages.

    def run(self) -> Learnt:
        """From the deliveries to what is known in the end."""
        if self._victim >= 0:
            self._replay()
            sharers = self._deliver()
            self._replay()
            if self._inputs:
                self._agree_and_reveal(sharers)
        shape, actual = self._shape, len(self._at.colluders & set(self._roster.clients))
        counted_on = shape.cohort - shape.dropouts - max(shape.colluders, actual)
        return Learnt(
            components=tuple(self._components()),
            # A roster of a part may hold more colluders than it stands: nothing is promised then.
            counted_on=counted_on if actual <= stood(self._at.world.tolerance, shape.cohort) else 0,
            refused=self.refused,
            wrong_answers=self.wrong_answers,
        )

    def _deliver(self) -> frozenset[int]:
        """Says who shared; different things to different clients, in half of the strategies."""
        everyone = set(self._of.shared)
        lost = self._some(everyone, self._count(0)) if self._rng.random() < 0.3 else set()
        sharers = everyone - lost
        if self._rng.random() < 0.15:
            # Some who did not share: those that are asked for no share of theirs cannot tell.
            sharers |= self._some(set(self._roster.clients) - everyone, 2)
        fooled: set[int] = set()
        seen = sharers
        if self._rng.random() < 0.5:
            spare = len(sharers) - self._shape.smallest_survivors
            near = len({peer.client for peer in self._roster.neighbours_of(self._victim)} & sharers)
            spare = min(max(spare, 0), max(near + 1 - self._shape.threshold, 0))
            seen = sharers - self._some(sharers, self._count(spare))
            fooled = {self._victim}
            if self._rng.random() < 0.3:
                fooled |= self._some(self._clients, int(self._rng.integers(0, len(self._clients) + 1)))
        for client in self._clients:
            told = seen if client in fooled else sharers
            if client in told or self._rng.random() < 0.05:
                self._mask(client, frozenset(told))
            if self._rng.random() < 0.02:
                self._mask(client, frozenset(self._some(told, len(told)) | {client}))
        return frozenset(seen if self._rng.random() < 0.2 else sharers)

    def _mask(self, client: int, sharers: frozenset[int]) -> None:
        sealed = tuple(
            (sender, box)
            for sender in sorted(sharers & set(self._of.shared))
            for peer, box in self._of.shared[sender].sealed
            if peer == client
        )
        delivery = messages.Delivery(
            roster=self._roster.digest, client=client, sharers=tuple(sorted(sharers)), sealed=sealed
        ).encode()
        if client in self._inputs:
            self.wrong_answers += (
                self._asked(lambda content: self._clients[client].mask(content, [0.0]), delivery) is not None
            )
            return
        # The same delivery to the same client is answered by the same bytes: remembered between strategies.
        key = (client, delivery)
        if key not in self._of.answers:
            machine = copy.copy(self._clients[client])
            update = self._at.world.updates()[client]
            answer = self._asked(lambda content: machine.mask(content, update), delivery)
            self._of.answers[key] = None if answer is None else (answer, machine)
        found = self._of.answers[key]
        if found is None:
            self.refused += 1
            return
        self._clients[client] = copy.copy(found[1])
        self._inputs[client] = (messages.MaskedInput.decode(found[0], num_params=1), sharers)

    def _sets(self, sharers: frozenset[int]) -> list[messages.Survivors]:
        made = []
        for _ in range(int(self._rng.choice([1, 2, 3], p=[0.4, 0.5, 0.1]))):
            told = self._inputs.get(self._victim, (None, sharers))[1] if self._rng.random() < 0.2 else sharers
            missing = set(told) - set(self._inputs) - self._at.colluders
            spare = max(len(told) - len(missing) - self._shape.smallest_survivors, 0)
            lost = missing | self._some(set(told) - missing, self._count(spare))
            if self._victim in self._inputs and self._rng.random() < 0.4:
                # All that hide the victim, and are not colluders.
                lost = missing | (self._masked_with(self._victim) & set(told)) - self._at.colluders
            if self._rng.random() < 0.3:
                lost ^= {self._victim}
            if made and self._rng.random() < 0.5:
                # The set before, but for the victim.
                told, lost = frozenset(made[0].survivors + made[0].lost), set(made[0].lost) ^ {self._victim}
            if self._rng.random() < 0.05:
                lost -= self._some(missing, 1)
            made.append(
                messages.Survivors(
                    roster=self._roster.digest,
                    survivors=tuple(sorted(set(told) - lost)),
                    lost=tuple(sorted(lost)),
                )
            )
        return [one for one in made if one.survivors]

    def _confirmed_to(self, client: int, made: messages.Survivors) -> tuple[tuple[int, bytes], ...]:
        rows = []
        near = {peer.client for peer in self._roster.neighbours_of(client)}
        for peer in sorted(near & set(made.survivors)):
            if peer in self._at.colluders:
                rows += self._of_colluder(peer, client, set(made.survivors) | set(made.lost))
            elif peer in self._inputs:
                rows += [(peer, dict(self._inputs[peer][0].confirmed).get(client, bytes(16)))]
        if rows and self._rng.random() < self._tampered:
            rows = [(peer, rows[0][1]) for peer, _ in rows] if self._rng.random() < 0.5 else rows[1:]
        return tuple(rows)

    def _of_colluder(self, colluder: int, client: int, sharers: set[int]) -> list[tuple[int, bytes]]:
        """A colluder confirms whatever the server wants."""
        machine = self._of.clients.get(colluder)
        joined = machine._state.joined if machine is not None else None
        if machine is None or joined is None:
            return []
        return [
            (colluder, sealed) for peer, sealed in machine._confirmations(joined, frozenset(sharers)) if peer == client
        ]

    def _agree_and_reveal(self, sharers: frozenset[int]) -> None:
        sets = self._sets(sharers)
        if not sets:
            return
        signed: list[dict[int, bytes]] = [{} for _ in sets]
        split = self._rng.random()
        # In two parts: the victim is asked for the set that it is in.
        is_in_first = self._victim in sets[0].survivors
        order = sorted(self._clients, key=lambda client: ((client == self._victim) != is_in_first, client))
        for place, client in enumerate(order):
            first = 0 if split < 0.4 else place * len(sets) // len(self._clients)
            first = int(self._rng.integers(len(sets))) if split > 0.8 else first
            if client not in sets[first].survivors and self._rng.random() < 0.8:
                # It would refuse that one.
                first = next((number for number, made in enumerate(sets) if client in made.survivors), first)
            asked = [first, *([int(self._rng.integers(len(sets)))] if self._rng.random() < 0.1 else [])]
            for number in asked:
                made = dataclasses.replace(sets[number], confirmed=self._confirmed_to(client, sets[number]))
                answer = self._asked(self._clients[client].agree, made.encode())
                if answer is not None:
                    signed[number][client] = messages.Agreement.decode(answer).signature
        for number, made in enumerate(sets):
            for colluder in self._at.colluders & set(made.survivors):
                signed[number][colluder] = sign(identity(f"client {colluder}"), made.signed)
            agreements = messages.Agreements(
                roster=self._roster.digest, signatures=tuple(sorted(signed[number].items()))
            ).encode()
            for client in self._clients:
                if client in signed[number] or self._rng.random() < 0.05:
                    answer = self._asked(self._clients[client].reveal, agreements)
                    self._learn(client, answer)

    def _learn(self, holder: int, answer: bytes | None) -> None:
        if answer is not None:
            for owner, kind, share in messages.Shares.decode(answer).shares:
                self._shares.setdefault((owner, kind), {})[self._roster.point_of(holder)] = share

    def _replay(self) -> None:
        """Messages that belong elsewhere: none may be answered with anything new."""
        if self._rng.random() > 0.1:
            return
        client = int(self._rng.choice(sorted(self._clients)))
        machine = self._clients[client]
        before = machine._state
        others = [made.roster.encode() for made in self._at.rosters if made is not self._of]
        wrong = [
            (machine.share, self._at.other.encode()),
            *((machine.share, roster) for roster in others),
            (machine.agree, messages.Survivors(roster=self._at.other.digest, survivors=(client,), lost=()).encode()),
            (machine.reveal, messages.Agreements(roster=self._roster.digest, signatures=()).encode()),
            (machine.agree, messages.Survivors(roster=self._roster.digest, survivors=(client,), lost=()).encode()),
        ]
        for call, content in wrong:
            if self._shape.cohort > 1:
                self.wrong_answers += self._asked(call, content) is not None
                self.wrong_answers += machine._state is not before

    # What it comes to.

    def _secret(self, owner: int, kind: int) -> bytes | None:
        """Put together from shares, if there are enough; checked against what is public of it."""
        points = self._shares.get((owner, kind), {})
        if len(points) < self._shape.threshold:
            return None
        secret = restore(points, threshold=self._shape.threshold)
        if secret is None:
            return None
        if kind == messages.OF_MASK:
            right = AgreementKey(secret).public == self._roster.entry_of(owner).mask_public
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
        return self._roster.entry_of(client).mask_public


@dataclass(kw_only=True)
class Tally:
    """What many strategies came to."""

    strategies: int = 0
    came_out: int = 0
    circles: int = 0
    refused: int = 0
    margin: int | None = None
    broken: list[str] = field(default_factory=list)

    def add(self, world: World, learnt: Learnt, *, is_circle: bool, seed: str) -> None:
        """One more."""
        self.strategies += 1
        self.circles += is_circle
        self.refused += learnt.refused
        if learnt.fewest is not None:
            self.came_out += 1
            over = learnt.fewest - learnt.counted_on
            self.margin = over if self.margin is None else min(self.margin, over)
        if learnt.is_broken:
            self.broken.append(
                f"{seed}: cohort {world.size}, {world.tolerance}: {learnt.fewest} honest shares, "
                f"{learnt.counted_on} counted on, {learnt.wrong_answers} wrong answers"
            )


def play(
    *,
    strategies: int,
    cohorts: Sequence[int],
    seed: int,
    tolerances: Sequence[Tolerance] = _TOLERANCES,
    stop_when_broken: bool = False,
    say: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """So many strategies, each against a cohort of one of these sizes."""
    tally = Tally()
    number = 0
    while tally.strategies < strategies:
        rng = np.random.default_rng([seed, number])
        number += 1
        size = int(rng.choice(cohorts))
        tolerance = tolerances[int(rng.integers(len(tolerances)))]
        world = World(size=size, num_params=1, tolerance=tolerance, seed=seed * 2**20 + number)
        at = prepared(world, rng)
        for repeat in range(_FROM_ONE_WORLD):
            for rostered in at.rosters:
                learnt = Attack(at, rostered, rng).run()
                is_circle = rostered.roster.topology.degree < rostered.roster.topology.cohort - 1
                tally.add(
                    world, learnt, is_circle=is_circle, seed=f"seed {seed}, world {number - 1}, strategy {repeat}"
                )
            if tally.strategies >= strategies or (stop_when_broken and tally.broken):
                break
        say(tally)
        if stop_when_broken and tally.broken:
            break
    return tally


def _sizes(text: str) -> list[int]:
    sizes: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        sizes += range(int(first), int(last or first) + 1)
    return sizes


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--strategies", type=int, default=1000)
    parser.add_argument("--cohorts", default="150,300", help="sizes, such as 2-60 or 150,300")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()

    def say(tally: Tally) -> None:
        sys.stderr.write(
            f"\r{tally.strategies} strategies, {len(tally.broken)} broken, {time.monotonic() - began:.0f} s"
        )
        sys.stderr.flush()

    tally = play(strategies=options.strategies, cohorts=_sizes(options.cohorts), seed=options.seed, say=say)
    sys.stderr.write("\n")
    sys.stdout.write(
        f"{tally.strategies} strategies ({tally.circles} on circles), {tally.refused} messages refused; in "
        f"{tally.came_out} of them something came out, hidden by at least {tally.margin} more honest noise shares than "
        f"are counted on\n"
    )
    for line in tally.broken:
        sys.stdout.write(f"BROKEN {line}\n")
    sys.exit(1 if tally.broken else 0)


if __name__ == "__main__":
    main()
