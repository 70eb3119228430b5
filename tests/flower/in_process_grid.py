"""A Grid in this process: whole rounds of the real apps in seconds, every message through Flower's own serialisation.

Place: instead of a SuperLink and SuperNodes, in tests and benchmarks. Each node is a ClientApp with its own
configuration; it answers when its messages are pulled. ``disturb`` stands for all that can go wrong on the way: it gets
the node's number and the reply, and returns what arrives (several, none, another, or late: see `Late`).
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gdpfed.errors import InputError, MissingExtraError

try:
    from flwr.app import Context, Error, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.proto.node_pb2 import NodeInfo
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity
except ModuleNotFoundError:
    raise MissingExtraError(package="flwr", extra="flower", purpose="a deployment over Flower") from None

__all__ = ["InProcessGrid", "Late", "LocalNode"]


@dataclass(frozen=True, eq=False)
class Late:
    """A reply that arrives after so many pulls."""

    reply: Message
    pulls: int


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalNode:
    """A node: its app, and what its owner configured."""

    app: ClientApp
    node_config: Mapping[str, Any]


# (node, message) -> whether the node gets the message; (node, reply) -> what arrives of the reply
Deliver = Callable[[int, Message], bool]
Disturb = Callable[[int, Message], Iterable[Message | Late]]


def _round_trip(message: Message) -> Message:
    """Through bytes, as over a network."""
    proto = ProtoMessage()
    proto.ParseFromString(message_to_proto(message).SerializeToString())
    return message_from_proto(proto)


class InProcessGrid(Grid):
    """Implements what a deployment uses of a Grid."""

    def __init__(
        self,
        nodes: Mapping[int, LocalNode],
        *,
        run_config: Mapping[str, Any] | None = None,
        deliver: Deliver | None = None,
        disturb: Disturb | None = None,
    ) -> None:
        # A process of Flower's runtime is told who it is; this one is the server's.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
        self._nodes = dict(nodes)
        self._run_config = dict(run_config or {})
        self._deliver, self._disturb = deliver, disturb
        self._numbers = itertools.count(1)
        self._pushed: dict[str, Message] = {}
        self._arriving: dict[str, list[tuple[int, Message]]] = {}
        self.offline: set[int] = set()
        # How often a node was started again.
        self.restarts: dict[int, int] = {}
        self.bytes_down: dict[int, int] = dict.fromkeys(nodes, 0)
        self.bytes_up: dict[int, int] = dict.fromkeys(nodes, 0)
        # Everything that went over the wire, for tests that look for secrets.
        self.recorded: list[bytes] | None = None

    def set_run(self, run: Any) -> None:
        """There is one run."""

    @property
    def run(self) -> Any:
        """There is none to describe."""
        raise InputError("an in-process grid has no run of a SuperLink")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Of the old interface."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Those that are online."""
        return [node for node in self._nodes if node not in self.offline]

    def get_nodes(self) -> Iterable[NodeInfo]:
        """Those that are online, and when they were started."""
        return [
            NodeInfo(node_id=node, last_activated_at=str(self.restarts.get(node, 0))) for node in self.get_node_ids()
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Each message is kept until it is pulled."""
        numbers = []
        for message in messages:
            number = f"message-{next(self._numbers)}"
            content = message_to_proto(message).SerializeToString()
            self.bytes_down[message.metadata.dst_node_id] += len(content)
            self._record(content)
            arrived = _round_trip(message)
            arrived.metadata.__dict__["_message_id"] = number
            self._pushed[number] = arrived
            numbers.append(number)
        return numbers

    def _record(self, content: bytes) -> None:
        if self.recorded is not None:
            self.recorded.append(content)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Lets the asked nodes answer, and returns what has arrived."""
        asked = list(message_ids)
        for number in asked:
            if number in self._pushed:
                self._arriving[number] = list(self._answered(self._pushed.pop(number)))
        return list(itertools.chain.from_iterable(self._arrived(number) for number in asked))

    def _arrived(self, number: str) -> Iterator[Message]:
        left = []
        for pulls, reply in self._arriving.get(number, ()):
            if pulls > 0:
                left.append((pulls - 1, reply))
            else:
                yield reply
        self._arriving[number] = left

    def _answered(self, message: Message) -> Iterator[tuple[int, Message]]:
        number = message.metadata.dst_node_id
        if number in self.offline or (self._deliver is not None and not self._deliver(number, message)):
            return
        node = self._nodes[number]
        context = Context(
            run_id=1,
            node_id=number,
            node_config=dict(node.node_config),
            state=RecordDict(),
            run_config=dict(self._run_config),
        )
        try:
            reply = node.app(message, context)
        except Exception as error:  # as a SuperNode does: the error's text goes to the server
            reply = Message(Error(code=0, reason=repr(error)), reply_to=message)
        for arrived in [reply] if self._disturb is None else self._disturb(number, reply):
            pulls, made = (arrived.pulls, arrived.reply) if isinstance(arrived, Late) else (0, arrived)
            content = message_to_proto(made).SerializeToString()
            self.bytes_up[number] += len(content)
            self._record(content)
            yield pulls, _round_trip(made)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """For Flower's own strategies, in benchmarks."""
        del timeout
        return self.pull_messages(self.push_messages(messages))
