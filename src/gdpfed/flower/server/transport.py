"""Packets over Flower's Grid: which node is which client, push, poll, and give up in time.

Place: between `deployment` and Flower. A node is bound to a client by a signature of the client's identity over a fresh
nonce and the node's own number; whoever cannot sign is not bound and gets nothing. Answers count only from the node
that was asked, and only until their stage's time is over. `send_and_receive` is not used: it sleeps three seconds.

Guarantees (tests of the same name):
  an_unregistered_identity_is_not_bound   with a line in the server's log; the others are not affected.
  a_late_answer_is_a_dropout              it is never pulled.
"""

import math
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gdpfed.errors import GdpfedError, InputError
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.flower.server.events import Events
from gdpfed.flower.shared.carrier import Grid, Message, RecordDict, message_type, packet_in, record_of
from gdpfed.flower.shared.enrolment import Enrolment
from gdpfed.flower.shared.wire import NONCE_BYTES, Standing, pack, unpack

__all__ = ["GridTransport"]

_LARGEST_TTL = 43200.0


@dataclass(kw_only=True, eq=False)
class GridTransport:
    """``take_standing`` gets each node's signed standing, and says what it accepted."""

    grid: Grid
    enrolment: Enrolment
    settings: DeploymentSettings
    take_standing: Callable[[int, bytes, bytes], Standing | None]
    log: Callable[[str], None]
    events: Events
    _nodes: dict[int, int] = field(default_factory=dict, init=False)
    # When each node was last asked who it is.
    _asked: dict[int, float] = field(default_factory=dict, init=False)
    _online: set[int] = field(default_factory=set, init=False)
    _is_first: bool = field(default=True, init=False)

    def refresh(self) -> None:
        """Asks nodes that came who they are; waits for all before the first round, for enough before the others."""
        deadline = time.monotonic() + self.settings.start_seconds
        enrolled = len(self.enrolment.clients)
        fewest = math.ceil(self.settings.min_online * enrolled)
        wanted, self._is_first = enrolled if self._is_first else fewest, False
        while True:
            self._online = set(self.grid.get_node_ids())
            if unknown := self._unknown():
                self._announce(unknown)
            present = sum(node in self._online for node in self._nodes.values())
            if present >= wanted:
                return
            if time.monotonic() >= deadline:
                break
            time.sleep(self.settings.poll_seconds)
        if present < fewest:
            raise InputError(
                f"expected {fewest} of {enrolled} enrolled nodes online (min_online), got {present}: the run stops; "
                f"start it again when they are back"
            )

    def _unknown(self) -> list[int]:
        """Nodes to ask: those that came, those that went and came back, and after a while those that did not say."""
        now, bound = time.monotonic(), set(self._nodes.values())
        self._asked = {node: when for node, when in self._asked.items() if node in self._online}
        long_ago = now - self.settings.announce_seconds
        return sorted(
            node
            for node in self._online
            if node not in self._asked or (node not in bound and self._asked[node] < long_ago)
        )

    def _announce(self, nodes: list[int]) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES)
        packet = pack("announce", nonce, self.enrolment.as_json().encode())
        self._asked |= dict.fromkeys(nodes, time.monotonic())
        for node, content in self._sent("announce", dict.fromkeys(nodes, packet)):
            try:
                (encoded,) = unpack(content, stage="announce", num_parts=1)
                self._bind(node, encoded, nonce)
            except GdpfedError as error:
                self.log(f"node {node} is not bound to a client: {error}")

    def _bind(self, node: int, encoded: bytes, nonce: bytes) -> None:
        claimed = Standing.decode(encoded)
        standing = self.take_standing(claimed.client, encoded, nonce)
        if standing is None:
            raise InputError("expected a signature of an enrolled client, got another: its key is not enrolled")
        if standing.node != node:
            raise InputError("expected a signature for this node, got one for another")
        if self._nodes.get(standing.client) in self._online - {node}:
            name = self.enrolment.clients[standing.client].name
            raise InputError(f"client {name!r} is at another node already: is its home in use twice?")
        self._nodes[standing.client] = node

    def exchange(self, stage: str, packets: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """Sends to the clients that are online; yields what comes back in time."""
        if stage == "keys":
            self._online = set(self.grid.get_node_ids())
        clients = {self._nodes[client]: client for client in packets if self._nodes.get(client) in self._online}
        names = {client: self.enrolment.clients[client].name for client in packets}
        self.events("stage", stage=stage, asked=list(names.values()))
        for node, packet in self._sent(stage, {node: packets[client] for node, client in clients.items()}):
            client = clients[node]
            self.events("answered" if packet else "refused", stage=stage, client=names.pop(client))
            yield client, packet
        for name in names.values():
            self.events("dropped", stage=stage, client=name)

    def _sent(self, stage: str, packets: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        seconds: float = getattr(self.settings, f"{stage}_seconds")
        # Equal packets share their record: it is hashed and sent once.
        records: dict[int, RecordDict] = {}
        outgoing = [
            Message(
                content=records.setdefault(id(packet), record_of(packet)),
                dst_node_id=node,
                message_type=message_type(stage),
                ttl=min(seconds, _LARGEST_TTL),
            )
            for node, packet in packets.items()
        ]
        numbers = list(self.grid.push_messages(outgoing)) if outgoing else []
        if len(numbers) != len(outgoing):
            taken = f"{len(numbers)} of {len(outgoing)}"
            raise InputError(f"the SuperLink took {taken} messages, expected all: is the model too large?")
        # A message that could not be pushed has no number: its node is lost.
        waiting = {number: node for number, node in zip(numbers, packets, strict=True) if number}
        deadline = time.monotonic() + seconds
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.get(reply.metadata.reply_to_message_id)
                if node is None or reply.metadata.src_node_id != node:
                    continue
                del waiting[reply.metadata.reply_to_message_id]
                if reply.has_error():
                    self.log(f"{stage}: no answer from a node (code {reply.error.code})")
                    continue
                try:
                    packet = packet_in(reply)
                except InputError as error:
                    self.log(f"{stage}: an answer was not used: {error}")
                    continue
                yield node, packet
            if not waiting or time.monotonic() >= deadline:
                break
            time.sleep(self.settings.poll_seconds)
        if waiting:
            self.log(f"{stage}: {len(waiting)} of {len(packets)} nodes did not answer in {seconds:g} s")
