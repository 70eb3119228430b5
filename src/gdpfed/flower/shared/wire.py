"""What travels between the apps: a packet of parts, strictly decoded.

Place: around the messages of `gdpfed.secure`, inside Flower's. Little-endian: the format's name, its version, the
stage, the number of parts, their lengths, the parts; a packet ends where its parts end. An empty answer is a refusal,
and says nothing more.

    stage      server -> node                                        node -> server
    announce   a nonce, the enrolment                                standing
    keys       the signed terms, the last standing                   advertisement, standing
    shares     the signed terms, the session, roster                 sealed shares, standing
    input      the session's digest, delivery, the model,            masked input
               the last standing
    agree      the session's digest, survivors                       agreement
    reveal     the session's digest, agreements                      shares, the next advertisement, standing

Stage keys is for everybody whose next advertisement the server does not have.

Guarantees (tests of the same name):
  packets_round_trip              what was packed is what is unpacked.
  mutated_packets_are_refused     an InputError, or parts that pack to the same bytes; never another error.
"""

import itertools
import struct
from dataclasses import dataclass, replace

from gdpfed.errors import InputError
from gdpfed.secure.primitives import SIGNATURE_BYTES, sign, verified

__all__ = ["NONCE_BYTES", "STAGES", "Standing", "pack", "unpack"]

STAGES = ("announce", "keys", "shares", "input", "agree", "reveal")
NONCE_BYTES = 32
_MAGIC, _VERSION = b"gdpfed-fl", 2
_HEAD = struct.Struct("<9sBBB")
_LENGTH = struct.Struct("<Q")
# More than the largest model takes.
_LARGEST_PACKET = 1 << 33


def pack(stage: str, *parts: bytes) -> bytes:
    """The bytes of a packet."""
    head = _HEAD.pack(_MAGIC, _VERSION, STAGES.index(stage), len(parts))
    return b"".join([head, *(_LENGTH.pack(len(part)) for part in parts), *parts])


def unpack(content: bytes, *, stage: str, num_parts: int) -> tuple[bytes, ...]:
    """The parts of a packet of this stage; anything else is an InputError."""
    start = _HEAD.size + num_parts * _LENGTH.size
    if not isinstance(content, bytes) or not start <= len(content) <= _LARGEST_PACKET:
        got = "a refusal" if content == b"" else "something else"
        raise InputError(f"expected a packet of stage {stage!r}, got {got}")
    magic, version, number, stated_parts = _HEAD.unpack_from(content)
    if magic != _MAGIC or version != _VERSION:
        raise InputError(f"expected a packet of version {_VERSION}, got something else: are both sides up to date?")
    if number != STAGES.index(stage) or stated_parts != num_parts:
        raise InputError(f"expected a packet of stage {stage!r} with {num_parts} parts, got another")
    lengths = (length for (length,) in _LENGTH.iter_unpack(content[_HEAD.size : start]))
    bounds = list(itertools.accumulate(lengths, initial=start))
    if bounds[-1] != len(content):
        raise InputError(f"expected a packet of stage {stage!r} that ends with its parts, got another length")
    return tuple(content[begin:end] for begin, end in itertools.pairwise(bounds))


_STANDING = struct.Struct("<I32sQQ32s")


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A node's signed word about its own ledger: how many rows it has, and the last one's hash.

    ``nonce`` is what it answers to, ``node`` the transport's number of it. The server keeps the last one and shows it
    to the node in every round: a node whose disk was put back to an old copy sees that it once was further.
    """

    client: int
    nonce: bytes
    node: int
    num_rows: int
    head: bytes
    signature: bytes = b""

    def _fields(self) -> bytes:
        return _STANDING.pack(self.client, self.nonce, self.node, self.num_rows, self.head)

    def signed_by(self, identity: bytes) -> "Standing":
        """The same, with the signature of a private key."""
        return replace(self, signature=sign(identity, b"gdpfed standing v1\x00" + self._fields()))

    def is_signed_by(self, public: bytes) -> bool:
        """Whether the signature is right."""
        return verified(public, b"gdpfed standing v1\x00" + self._fields(), self.signature)

    def encode(self) -> bytes:
        """For the wire."""
        return self._fields() + self.signature

    @staticmethod
    def decode(content: bytes) -> "Standing":
        """From `encode`; the signature is not checked yet."""
        if len(content) != _STANDING.size + SIGNATURE_BYTES:
            raise InputError(f"expected a standing of {_STANDING.size + SIGNATURE_BYTES} bytes, got {len(content)}")
        client, nonce, node, num_rows, head = _STANDING.unpack_from(content)
        return Standing(
            client=client, nonce=nonce, node=node, num_rows=num_rows, head=head, signature=content[_STANDING.size :]
        )
