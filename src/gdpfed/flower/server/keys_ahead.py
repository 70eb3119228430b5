"""Keys ahead of time: what clients have deposited for their next session, and who is asked for a key.

Place: between `deployment`, which has everybody asked who has no key here before it draws a sample, and
`flower_release`, which takes the keys of those who were drawn. A client's last answer of a round brings the key of its
next session, so that a round begins with shares: four exchanges. Keys are in memory only. A server that was started
again asks everybody; nodes answer with the key that waits for its session, or with a fresh one if that was used.

Whether a round has a fifth exchange, for keys, must not depend on its sample: who is asked is settled before there is
one, and follows from what happened in the rounds before. A client that may take part no more says so in place of its
key, in as many bytes, and is not asked again: when it took part for the last time shows in nobody's traffic.

Guarantees (tests of the same name):
  a_sample_does_not_tell_in_exchanges    asked is everybody who is there without a key, sampled or not.
  a_key_is_its_senders_own               signed by the client that sent it, for this run; another's is refused.
  a_deposit_is_used_once                 it is taken out before a roster names it, and taken in again only if its owner
                                         never answered that roster: a node that did not get it has the key still.
  a_last_word_is_not_asked_again         nor is its client in a roster; until its node comes anew.
  who_gives_no_key_is_asked_seldom       after three times in every tenth round, also if its node goes and comes, and
                                         if it gives keys and shares nothing.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from gdpfed.errors import GdpfedError, InputError
from gdpfed.flower.server.sums import Exchange
from gdpfed.flower.shared.wire import pack, unpack
from gdpfed.secure import messages
from gdpfed.secure.primitives import is_low_order, verified
from gdpfed.secure.session import Directory

__all__ = ["KeysAhead"]

# After so many times without a key a client is asked in some rounds only, whatever its part in others.
_MOST_IN_A_ROW = 3
_EVERY = 10


@dataclass(kw_only=True, eq=False)
class KeysAhead:
    """The deposits of a run. ``terms`` are signed; ``plan_hash`` is their digest, which every key names.

    ``shown_to`` gives what a client last signed of its ledger, ``standing`` takes what it signs now, for a nonce;
    ``name`` is what the operator calls a client.
    """

    terms: bytes
    plan_hash: bytes
    directory: Directory
    exchange: Exchange
    is_here: Callable[[int], bool]
    shown_to: Callable[[int], bytes]
    standing: Callable[[int, bytes, bytes], object]
    log: Callable[..., None]
    name: Callable[[int], str]
    _waiting: dict[int, messages.Advertisement] = field(default_factory=dict, init=False)
    _done: set[int] = field(default_factory=set, init=False)
    _out: dict[int, bytes] = field(default_factory=dict, init=False)
    _used: set[bytes] = field(default_factory=set, init=False)
    _in_vain: dict[int, int] = field(default_factory=dict, init=False)

    def ask(self, clients: Iterable[int], *, round_number: int) -> None:
        """Asks all of these who are there and have no key here; before a sample of them is drawn."""
        is_turn = round_number % _EVERY == 0
        asked = [
            client
            for client in clients
            if client not in self._waiting and client not in self._done and self.is_here(client)
            if is_turn or self._in_vain.get(client, 0) < _MOST_IN_A_ROW
        ]
        if not asked:
            return
        for client in asked:
            self._in_vain[client] = self._in_vain.get(client, 0) + 1
        packets = {client: pack("keys", self.terms, self.shown_to(client)) for client in asked}
        for client, packet in self.exchange("keys", packets):
            if client not in packets or not packet:
                continue
            try:
                advertised, standing = unpack(packet, stage="keys", num_parts=2)
                self.take(client, advertised)
            except GdpfedError as error:
                name = self.name(client)
                self.log(f"keys: an answer of {name!r} was not used: {error}", stage="keys", client=name)
                continue
            self.standing(client, standing, self.plan_hash)

    def take(self, client: int, content: bytes) -> None:
        """Keeps the key that a client sent for its next session, or its last word; InputError if it is not its own."""
        entry = messages.Advertisement.decode(content)
        if entry.client != client or entry.plan_hash != self.plan_hash:
            raise InputError("expected a key in the sender's own name, for this run, got another's")
        if not verified(self.directory.clients[client], entry.signed, entry.signature):
            raise InputError("expected a key that its sender signed, got another signature")
        if entry.is_last_word:
            self._waiting.pop(client, None)
            self._done.add(client)
        elif is_low_order(entry.public) or entry.public in self._used:
            raise InputError("expected a key of full order that was not used before, got another")
        else:
            self._waiting[client] = entry
        if client not in self._out:
            self._in_vain.pop(client, None)

    def taken_out(self, clients: Iterable[int]) -> dict[int, bytes]:
        """The keys of those who are there and have one: each is given once. Who is offline keeps its own."""
        ready = [client for client in clients if client in self._waiting and self.is_here(client)]
        taken = {client: self._waiting.pop(client) for client in ready}
        self._out |= {client: entry.public for client, entry in taken.items()}
        return {client: entry.encode() for client, entry in taken.items()}

    def why_not(self, client: int) -> str:
        """Why there is no key of a client that would take part, in words for the operator."""
        if not self.is_here(client):
            return "is offline"
        return "takes part no more" if client in self._done else "has given no key"

    def answered(self, client: int) -> None:
        """A client has shared in a roster: its key there is used for good."""
        self._used.add(self._out.pop(client))
        self._in_vain.pop(client, None)

    def forget(self, client: int) -> None:
        """A client's node came, or came back: it is asked anew, whatever it said before. How often it was asked in vain
        is not forgotten, or a node that goes and comes could have everybody wait in every round."""
        self._waiting.pop(client, None)
        self._done.discard(client)
