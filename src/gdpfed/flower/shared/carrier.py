"""Packets as Flower carries them, and the names of Flower's that we use: flwr's API is imported here only.

Place: between our packets and Flower's messages, on both sides.
"""

from gdpfed.errors import InputError, MissingExtraError

try:
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ModuleNotFoundError:
    raise MissingExtraError(package="flwr", extra="flower", purpose="a deployment over Flower") from None

__all__ = [
    "ClientApp", "Context", "Grid", "Message", "RecordDict", "ServerApp", "message_type", "packet_in", "record_of",
    "reply",
]  # fmt: skip

_RECORD, _PACKET = "gdpfed", "packet"


def message_type(stage: str) -> str:
    """How Flower routes a stage."""
    return f"query.{stage}" if stage == "announce" else f"train.{stage}"


def record_of(packet: bytes) -> RecordDict:
    """A packet as Flower carries it."""
    return RecordDict({_RECORD: ConfigRecord({_PACKET: packet})})


def reply(message: Message, packet: bytes) -> Message:
    """The answer to a message."""
    return Message(record_of(packet), reply_to=message)


def packet_in(message: Message) -> bytes:
    """The packet of a message; an InputError if it has none."""
    if message.has_content() and _RECORD in message.content.config_records:
        packet = message.content.config_records[_RECORD].get(_PACKET)
        if isinstance(packet, bytes):
            return packet
    raise InputError("expected a message with a packet, got another")
