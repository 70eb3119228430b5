"""One secure sum as a conversation, and several of them in step.

Place: between `gdpfed.secure.server` and whatever carries messages. A sum is a generator: it yields what goes out at a
stage, takes what came back, and ends with a total. `together` runs all sums of a round side by side: the messages
of a stage go out at once, so that a round takes as long as one sum.

A sum begins with the keys that its clients have deposited (`keys_ahead`), so that it is four exchanges: shares, input,
agree, reveal. Who has no key there is not in the roster. A client's last answer brings the key of its next session.

A sum that loses too many clients ends alone. From the moment at which signatures go out it counts as released: `charge`
is called before, and whatever happens afterwards there is no other attempt in this round. If it comes to nothing then,
the noise of an empty cohort is released in its place: nobody outside can tell the two apart.

Guarantees (tests of the same name):
  a_bad_answer_is_its_senders_loss     garbage, another's name, another round's message, the same one twice.
  a_group_that_loses_too_many_aborts_alone   the others go on.
  a_round_is_four_exchanges            whoever takes part, once everybody has a key on deposit.
  charged_before_unmasking             nothing of stage `reveal` is sent before the charge.
  what_is_lost_is_released_as_noise    a sum that was charged and came to nothing is as that of an empty cohort.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import GdpfedError, InputError
from gdpfed.flower.shared.wire import pack, unpack
from gdpfed.ledger.book import Charge
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.secure import messages
from gdpfed.secure.encoding import PlannedSum
from gdpfed.secure.randomness import Randomness
from gdpfed.secure.server import AbortedError, SecureServer, empty_sum
from gdpfed.secure.session import Session

__all__ = ["Exchange", "Outgoing", "SumConversation", "together"]

Total = NDArray[np.uint32]


@dataclass(frozen=True, kw_only=True, eq=False)
class Outgoing:
    """What goes to each client at a stage, and what takes each answer as it comes: inputs are added up, not kept."""

    stage: str
    packets: Mapping[int, bytes]
    receive: Callable[[int, bytes], None]


# What came back, as it comes: a client's number and its packet. Who does not answer in time is not in it.
Exchange = Callable[[str, Mapping[int, bytes]], Iterable[tuple[int, bytes]]]
# What is answered at each stage, in how many parts, and what takes the first.
_ANSWERS: dict[str, tuple[type[Any], int, Callable[[SecureServer, bytes], None]]] = {
    "shares": (messages.SealedShares, 2, SecureServer.receive_shares),
    "input": (messages.MaskedInput, 1, SecureServer.receive_input),
    "agree": (messages.Agreement, 1, SecureServer.receive_agreement),
    "reveal": (messages.Shares, 3, SecureServer.receive_revealed),
}


@dataclass(kw_only=True, eq=False)
class SumConversation:
    """One attempt at one sum. ``charge`` must be durable; ``name`` is what the operator calls a client.

    ``keys`` are those that clients had on deposit; ``key_used`` hears of each whose client has shared. ``next_key``
    takes the one for a client's next session, ``standing`` what it signed of its ledger. ``witnesses`` are what clients
    had signed of theirs before this sum began: shown to each before its input leaves, so that a node whose home was put
    back to an old copy notices.

    ``is_given_up``: what is released is noise alone. Only the operator may know.
    """

    planned: PlannedSum
    session: Session
    server: SecureServer
    invited: Sequence[int]
    model: bytes
    charges: Mapping[str, Charge]
    terms: bytes
    keys: Mapping[int, bytes]
    witnesses: Mapping[int, bytes]
    key_used: Callable[[int], object]
    next_key: Callable[[int, bytes], object]
    charge: Callable[[], None]
    standing: Callable[[int, bytes], object]
    randomness: Randomness
    log: Callable[..., None]
    name: Callable[[int], str]
    is_charged: bool = False
    is_given_up: bool = False
    vanished: int = 0
    # Who was in the roster and would not share.
    refused: set[int] = field(default_factory=set)

    def steps(self) -> Generator[Outgoing, None, Total | None]:
        """What may be seen, the server's noise included; None if nothing was charged, and it may be tried again."""
        try:
            return (yield from self._total())
        except (AbortedError, ExhaustedError) as error:
            number = self.session.round_number
            self.log(f"round {number}, sum {self.session.place}: {error}", round=number, sum=self.session.place)
            self.is_given_up = self.is_charged
            return empty_sum(self.planned, randomness=self.randomness) if self.is_charged else None

    def _total(self) -> Generator[Outgoing, None, Total]:
        server, digest = self.server, self.session.digest()
        present = self._with_keys()
        self.vanished = len(self.invited) - len(present)
        if len(present) < self.planned.smallest_cohort:
            # Of an empty cohort; or, in a rotation, of one for which the noise is not sized.
            self._charge_now()
            self.is_given_up = self.is_given_up or bool(present)
            return empty_sum(self.planned, randomness=self.randomness)

        packet = pack("shares", self.terms, self.session.encoded(), server.roster())
        yield from self._asked("shares", dict.fromkeys(present, packet))

        deliveries = server.deliveries()
        packets = {
            client: pack("input", digest, delivery, self.model, self.witnesses.get(client, b""))
            for client, delivery in deliveries.items()
        }
        arrived = yield from self._asked("input", packets)
        self.vanished = len(self.invited) - len(arrived)

        packets = {client: pack("agree", digest, survivors) for client, survivors in server.survivors().items()}
        yield from self._asked("agree", packets)

        packet = pack("reveal", digest, server.agreements())
        self._charge_now()
        yield from self._asked("reveal", dict.fromkeys(arrived, packet))
        return server.total() + server.top_up(self.planned, randomness=self.randomness)

    def _with_keys(self) -> list[int]:
        """Whose key was on deposit; it was checked when it came."""
        present = [client for client in self.invited if client in self.keys]
        for client in present:
            self.server.receive_advertisement(self.keys[client])
        return present

    def _charge_now(self) -> None:
        self.charge()
        self.is_charged = True

    def _asked(self, stage: str, packets: Mapping[int, bytes]) -> Generator[Outgoing, None, list[int]]:
        """Who gave an answer that can be used; the others are lost, each for itself."""
        kind, num_parts, receive = _ANSWERS[stage]
        present: list[int] = []

        def take(sender: int, packet: bytes) -> None:
            if stage == "shares" and not packet:
                self.refused.add(sender)
            try:
                parts = unpack(packet, stage=stage, num_parts=num_parts)
                # Only advertisements and agreements are signed: the connection says who sends.
                if kind.decode(parts[0], num_params=self.session.num_params).client != sender:
                    raise InputError("expected a message in the sender's own name, got another's")
                receive(self.server, parts[0])
            except GdpfedError as error:
                number, name = self.session.round_number, self.name(sender)
                text = f"round {number}, {stage}: an answer of {name!r} was not used: {error}"
                self.log(text, round=number, stage=stage, client=name)
                return
            present.append(sender)
            if stage == "shares":
                self.key_used(sender)
            if stage in ("shares", "reveal"):
                self.standing(sender, parts[-1])
            if stage == "reveal" and parts[1]:
                self._deposit(sender, parts[1])

        yield Outgoing(stage=stage, packets=packets, receive=take)
        return sorted(present)

    def _deposit(self, sender: int, advertised: bytes) -> None:
        """The shares count whatever the next key is; without it the client is asked."""
        try:
            self.next_key(sender, advertised)
        except InputError as error:
            name = self.name(sender)
            self.log(f"reveal: the next key of {name!r} was not used: {error}", stage="reveal", client=name)


def together(conversations: Mapping[int, SumConversation], exchange: Exchange) -> Iterator[tuple[int, Total | None]]:
    """Runs the sums side by side; yields each one's place and total when it ends."""
    running = {place: conversation.steps() for place, conversation in conversations.items()}
    while running:
        waiting: dict[int, Outgoing] = {}
        for place, steps in list(running.items()):
            try:
                waiting[place] = next(steps)
            except StopIteration as ended:
                del running[place]
                yield place, ended.value
        if not waiting:
            return
        # All sums that wait are at the same stage.
        (stage,) = {outgoing.stage for outgoing in waiting.values()}
        receivers = {client: outgoing.receive for outgoing in waiting.values() for client in outgoing.packets}
        packets = {client: packet for outgoing in waiting.values() for client, packet in outgoing.packets.items()}
        for sender, packet in exchange(stage, packets):
            if sender in receivers:
                receivers[sender](sender, packet)
