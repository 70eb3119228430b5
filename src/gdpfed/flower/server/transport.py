"""Packets over Flower's Grid: which node is which client, push, poll, and give up in time.

Place: between `deployment` and Flower. A node is bound to a client by a signature of the client's identity over a fresh
nonce and the node's own number; whoever cannot sign is not bound and gets nothing. Answers count only from the node
that was asked, and only until its time is over (`waiting`). `send_and_receive` is not used: it sleeps three seconds.

The log and the events say for whom the server waits, until when, and why somebody was lost: by name, as the operator
knows the clients. Both are private.

Guarantees (tests of the same name):
  an_unregistered_identity_is_not_bound   with a line in the server's log; the others are not affected.
  a_late_answer_is_a_dropout              it is never pulled.
  the_log_says_whom_it_waits_for          and until when, and why it went on without somebody.
"""

import datetime
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gdpfed.errors import GdpfedError, InputError
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.flower.server.events import Events
from gdpfed.flower.server.waiting import LOOK_SECONDS, TELL_SECONDS, Patience, activations, lost_since
from gdpfed.flower.shared.carrier import Grid, Message, RecordDict, message_type, packet_in, record_of
from gdpfed.flower.shared.enrolment import Enrolment
from gdpfed.flower.shared.leaning import NODE_UNAVAILABLE
from gdpfed.flower.shared.wire import NONCE_BYTES, Standing, pack, unpack

__all__ = ["GridTransport"]

_LARGEST_TTL = 43200.0


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """Of one node: its packet, or why there is none."""

    node: int
    packet: bytes = b""
    lost: str = ""


@dataclass(kw_only=True, eq=False)
class GridTransport:
    """``take_standing`` gets each node's signed standing, and says what it accepted; ``bound`` hears of each client
    whose node came, or came back."""

    grid: Grid
    enrolment: Enrolment
    settings: DeploymentSettings
    patience: Patience
    take_standing: Callable[[int, bytes, bytes], Standing | None]
    log: Callable[..., None]
    events: Events
    bound: Callable[[int], object] = lambda _: None
    _nodes: dict[int, int] = field(default_factory=dict, init=False)
    # When each node was last asked who it is.
    _asked: dict[int, float] = field(default_factory=dict, init=False)
    # Those that are online, and since when.
    _online: dict[int, str] = field(default_factory=dict, init=False)
    _is_first: bool = field(default=True, init=False)

    def refresh(self) -> None:
        """Asks nodes that came who they are; waits for all before the first round, for enough before the others."""
        deadline = time.monotonic() + self.settings.start_seconds
        enrolled = len(self.enrolment.clients)
        fewest = math.ceil(self.settings.min_online * enrolled)
        wanted, self._is_first = enrolled if self._is_first else fewest, False
        is_told = False
        while True:
            self._online = activations(self.grid.get_nodes())
            if unknown := self._unknown():
                self._announce(unknown)
            here = [one.name for number, one in enumerate(self.enrolment.clients) if self.is_here(number)]
            present = len(here)
            if present >= wanted or time.monotonic() >= deadline:
                break
            if not is_told:
                is_told = True
                away = [one.name for number, one in enumerate(self.enrolment.clients) if not self.is_here(number)]
                self._tell_waiting("before the round", away, deadline)
                until = round(time.time() + deadline - time.monotonic(), 3)
                self.events("online", online=here, waiting=away, until=until)
            time.sleep(self.settings.poll_seconds)
        self.events("online", online=here)
        if present < fewest:
            raise InputError(
                f"expected {fewest} of {enrolled} enrolled nodes online (min_online), got {present}: the run stops; "
                f"start it again when they are back"
            )

    def is_here(self, client: int) -> bool:
        """Whether a client's node is online, as far as Flower knows: it notices within about 50 s."""
        return self._nodes.get(client) in self._online

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
        for answer in self._sent("announce", dict.fromkeys(nodes, packet)):
            try:
                if answer.lost:
                    raise InputError(answer.lost)
                (encoded,) = unpack(answer.packet, stage="announce", num_parts=1)
                self._bind(answer.node, encoded, nonce)
            except GdpfedError as error:
                self.log(f"node {answer.node} is not bound to a client: {error}", node=str(answer.node))
                self.events("unbound", node=str(answer.node), why=str(error))

    def _bind(self, node: int, encoded: bytes, nonce: bytes) -> None:
        claimed = Standing.decode(encoded)
        standing = self.take_standing(claimed.client, encoded, nonce)
        if standing is None:
            raise InputError("expected a signature of an enrolled client, got another: its key is not enrolled")
        if standing.node != node:
            raise InputError("expected a signature for this node, got one for another")
        if self._nodes.get(standing.client) in self._online.keys() - {node}:
            name = self.enrolment.clients[standing.client].name
            raise InputError(f"client {name!r} is at another node already: is its home in use twice?")
        self._nodes[standing.client] = node
        self.bound(standing.client)

    def exchange(self, stage: str, packets: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        """Sends to the clients that are online; yields what comes back in time."""
        self._online = activations(self.grid.get_nodes())
        clients = {self._nodes[client]: client for client in packets if self.is_here(client)}
        names = {client: self.enrolment.clients[client].name for client in packets}
        seconds = max((self.patience.seconds(stage, node) for node in clients), default=0.0)
        online = [one.name for number, one in enumerate(self.enrolment.clients) if self.is_here(number)]
        asked = list(names.values())
        self.events("stage", stage=stage, asked=asked, until=round(time.time() + seconds, 3), online=online)
        for client in sorted(set(packets) - set(clients.values())):
            self._lose(stage, names[client], "is offline")
        for answer in self._sent(stage, {node: packets[client] for node, client in clients.items()}):
            client = clients[answer.node]
            if answer.lost:
                self._lose(stage, names[client], answer.lost)
                continue
            self.events("answered" if answer.packet else "refused", stage=stage, client=names[client])
            yield client, answer.packet

    def _lose(self, stage: str, name: str, why: str) -> None:
        self.log(f"{stage}: {name!r} {why}: the round goes on without it", stage=stage, client=name)
        self.events("dropped", stage=stage, client=name, why=why)

    def _tell_waiting(self, stage: str, names: Iterable[str], deadline: float) -> None:
        """``deadline`` of the monotonic clock."""
        ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=deadline - time.monotonic())
        listed = sorted(names)
        text = f"{stage}: waiting for {', '.join(listed)}, until {ends:%H:%M:%S}Z at the latest"
        self.log(text, stage=stage, clients=listed)

    def _sent(self, stage: str, packets: Mapping[int, bytes]) -> Iterator[_Answer]:
        """Each node's answer as it comes, or why none will."""
        limits = {node: self.patience.seconds(stage, node) for node in packets}
        # Equal packets share their record: it is hashed and sent once.
        records: dict[int, RecordDict] = {}
        outgoing = [
            Message(
                content=records.setdefault(id(packet), record_of(packet)),
                dst_node_id=node,
                message_type=message_type(stage),
                ttl=min(limits[node], _LARGEST_TTL),
            )
            for node, packet in packets.items()
        ]
        begun = time.monotonic()
        numbers = list(self.grid.push_messages(outgoing)) if outgoing else []
        if len(numbers) != len(outgoing):
            taken = f"{len(numbers)} of {len(outgoing)}"
            raise InputError(f"the SuperLink took {taken} messages, expected all: is the model too large?")
        waiting: dict[str, int] = {}
        for number, node in zip(numbers, packets, strict=True):
            if number:
                waiting[number] = node
            else:
                yield _Answer(node=node, lost="could not be sent its message")
        yield from self._awaited(stage, waiting, begun=begun, limits=limits)

    def _awaited(
        self, stage: str, waiting: dict[str, int], *, begun: float, limits: Mapping[int, float]
    ) -> Iterator[_Answer]:
        before, told = dict(self._online), set[int]()
        undisturbed = begun + self.patience.undisturbed(stage)
        look, tell = undisturbed + LOOK_SECONDS, undisturbed + TELL_SECONDS
        while waiting:
            for reply in self.grid.pull_messages(list(waiting)):
                node = waiting.get(reply.metadata.reply_to_message_id)
                # An error may be Flower's own word, in nobody's name; it is no more than a loss.
                if node is not None and (reply.has_error() or reply.metadata.src_node_id == node):
                    del waiting[reply.metadata.reply_to_message_id]
                    yield self._read(stage, node, reply, seconds=time.monotonic() - begun)
            now = time.monotonic()
            if now >= look:
                self._online, look = activations(self.grid.get_nodes()), now + LOOK_SECONDS
            for number, node in list(waiting.items()):
                lost = lost_since(node, before, self._online)
                if lost is None and now >= begun + limits[node]:
                    lost = f"did not answer in {limits[node]:g} s"
                if lost is not None:
                    del waiting[number]
                    yield _Answer(node=node, lost=lost)
            if now >= tell and told != set(waiting.values()) and waiting:
                told, tell = set(waiting.values()), now + TELL_SECONDS
                self._tell_waiting(stage, map(self._name, told), begun + max(limits[node] for node in told))
            if waiting:
                # Nobody answers before the moment that all wait for.
                time.sleep(max(self.settings.poll_seconds, min(1.0, undisturbed - now)))

    def _name(self, node: int) -> str:
        """The client's, if it is known who is at this node."""
        bound = {where: client for client, where in self._nodes.items()}
        return self.enrolment.clients[bound[node]].name if node in bound else f"node {node}"

    def _read(self, stage: str, node: int, reply: Message, *, seconds: float) -> _Answer:
        if reply.has_error():
            why = "went offline" if reply.error.code == NODE_UNAVAILABLE else "cannot answer"
            return _Answer(node=node, lost=f"{why} (Flower's error {reply.error.code})")
        try:
            packet = packet_in(reply)
        except InputError as error:
            return _Answer(node=node, lost=f"sent an answer that was not used: {error}")
        # A refusal takes no time at all.
        if packet:
            self.patience.answered(stage, node, seconds)
        return _Answer(node=node, packet=packet)
