"""One strategy of the malicious server: what it tells whom, drawn at random, stage by stage."""

import copy
import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

from gdpfed.errors import GdpfedError
from gdpfed.secure import masks, messages
from gdpfed.secure.client import confirmations
from gdpfed.secure.client_state import Masked
from gdpfed.secure.primitives import sign
from tests.attacks.malicious_cohort import Prepared, Rostered, stood
from tests.attacks.malicious_knowledge import Knowledge, Learnt
from tests.secure.cohorts import identity


class Attack(Knowledge):
    """One strategy against one roster."""

    # How often a client's confirmations are left out, or another's.
    _tampered = 0.03

    def __init__(self, at: Prepared, rostered: Rostered, rng: np.random.Generator) -> None:
        super().__init__(at, rostered)
        self._rng = rng
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
            (sender, self._of.shared[sender].delivered(box))
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
        secrets = machine._state.secrets if machine is not None else None
        if secrets is None or client not in self._of.shared:
            return []
        digest, public = self._roster.digest, self._of.shared[client].seal_public
        key = masks.confirmation_key(secrets.seal, public, session=digest, one=colluder, other=client)
        made = Masked(sharers=frozenset(sharers), held={}, channels={client: key})
        return [(colluder, sealed) for _, sealed in confirmations(made, roster=digest, client=colluder)]

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
