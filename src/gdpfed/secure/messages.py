"""The messages of a secure sum: versioned, bounded in size, strictly decoded.

Place: between client and server; how they travel is another's business. Little-endian, no padding. Every message starts
with the format's name, its version and its kind; lists are in increasing order of the clients' numbers, each once; a
message ends where its content ends.

    advertisement   client -> all      terms, number, a public key for one session; signed by the client
    roster          server -> clients  session, degree, threshold, ..., all advertisements; signed by the server
    sealed shares   client -> server   two public keys of this session, signed for the roster; for each neighbour a
                                       sealed pair of shares; a commitment to the seed
    delivery        server -> client   who shared; of each neighbour its two keys, and the shares for this client
    masked input    client -> server   4 bytes for each coordinate; for each neighbour a confirmation of who shared
    survivors       server -> client   whose input arrived, and whose did not; its neighbours' confirmations
    agreement       client -> server   a signature of the survivors
    agreements      server -> clients  a quorum of signatures
    shares          client -> server   for each holder's peer one share of one secret

A message lists its fields once: the type of a field says how it is written and read, and their order is that of the
bytes. Reading is strict, writing trusts its caller. A signature covers the message's name
and all but the last field.

Guarantees (tests of the same name):
  every_message_round_trips       what was encoded is what is decoded.
  mutated_messages_are_refused    10^5 of them: an InputError, or a value that encodes to the same bytes; never another
                                  error.
  sizes_are_bounded               by the cohort and the model, before anything is copied.
"""

import functools
import hashlib
import itertools
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, ClassVar, NamedTuple, Self, get_type_hints

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError
from gdpfed.secure.graph import Topology, circle, neighbours
from gdpfed.secure.primitives import KEY_BYTES, SEAL_BYTES, SIGNATURE_BYTES, verified
from gdpfed.secure.session import HASH_BYTES, LARGEST_COHORT, SESSION_BYTES, Session
from gdpfed.secure.shares import PRIME, SHARE_BYTES

__all__ = [
    "OF_MASK", "OF_SEED", "Advertisement", "Agreement", "Agreements", "Delivered", "Delivery", "MaskedInput", "Message",
    "Roster", "SealedShares", "Shares", "Survivors",
]  # fmt: skip

_MAGIC = b"gdpfed-sum"
_VERSION = 3
_HEAD = struct.Struct("<10sBB")
OF_MASK, OF_SEED = 0, 1


class _Reader:
    """Takes a message apart; whatever is not as expected is an InputError that does not quote it.

    A vector must have ``num_params`` coordinates: where that is None, there can be none.
    """

    __slots__ = ("_at", "_content", "_name", "_num_params")

    def __init__(self, content: bytes, *, kind: int, name: str, num_params: int | None) -> None:
        self._content, self._at, self._name, self._num_params = content, 0, name, num_params
        if not isinstance(content, bytes):
            raise self.error(f"a {type(content).__name__}")
        magic, version, stated_kind = _HEAD.unpack(self.take(_HEAD.size))
        if magic != _MAGIC or stated_kind != kind:
            raise self.error("another kind of message")
        if version != _VERSION:
            raise self.error(f"version {version}, this is version {_VERSION}")

    def error(self, got: str) -> InputError:
        return InputError(f"expected a message of kind {self._name!r}, got {got}")

    def take(self, num_bytes: int) -> bytes:
        start, end = self._at, self._at + num_bytes
        if end > len(self._content):
            raise self.error("one that is cut off")
        self._at = end
        return self._content[start:end]

    def number(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def session(self) -> Session:
        try:
            return Session.decoded(self.take(SESSION_BYTES))
        except InputError:
            raise self.error("an impossible session") from None

    def rows(self, row_bytes: int, *, fewest: int = 0) -> tuple[tuple[int, bytes], ...]:
        """A list of numbered rows, in strictly increasing order."""
        count = self.number()
        if not fewest <= count <= LARGEST_COHORT:
            raise self.error("a list of an impossible length")
        content = self.take(count * (4 + row_bytes))
        rows = tuple(
            (int.from_bytes(content[at : at + 4], "little"), content[at + 4 : at + 4 + row_bytes])
            for at in range(0, len(content), 4 + row_bytes)
        )
        if any(one[0] >= other[0] for one, other in itertools.pairwise(rows)):
            raise self.error("clients that are not in increasing order")
        return rows

    def shares(self) -> tuple[tuple[int, int, bytes], ...]:
        rows = self.rows(1 + SHARE_BYTES)
        if any(row[0] > OF_SEED or int.from_bytes(row[1:], "little") >= PRIME for _, row in rows):
            raise self.error("something that is no share")
        return tuple((peer, row[0], row[1:]) for peer, row in rows)

    def vector(self) -> NDArray[np.uint32]:
        length = self.number()
        if length != self._num_params:
            raise self.error(f"a vector that is not of {self._num_params} coordinates")
        return np.frombuffer(self.take(4 * length), dtype="<u4").astype(np.uint32, copy=False)

    def end(self) -> None:
        if self._at != len(self._content):
            raise self.error("one that goes on after its end")


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _rows(rows: tuple[tuple[int, bytes], ...]) -> bytes:
    return _number(len(rows)) + b"".join(_number(number) + content for number, content in rows)


class _Kind(NamedTuple):
    """How a field is written, and how it is read."""

    write: Callable[[Any], bytes]
    read: Callable[[_Reader], Any]


def _fixed(num_bytes: int) -> _Kind:
    return _Kind(bytes, lambda reader: reader.take(num_bytes))


def _rows_of(row_bytes: int) -> _Kind:
    return _Kind(_rows, lambda reader: reader.rows(row_bytes))


def _clients(*, fewest: int) -> _Kind:
    return _Kind(
        lambda numbers: _rows(tuple((number, b"") for number in numbers)),
        lambda reader: tuple(number for number, _ in reader.rows(0, fewest=fewest)),
    )


_Number = Annotated[int, _Kind(_number, _Reader.number)]
_Session = Annotated[Session, _Kind(Session.encoded, _Reader.session)]
_Digest = Annotated[bytes, _fixed(HASH_BYTES)]
_PublicKey = Annotated[bytes, _fixed(KEY_BYTES)]
_Signature = Annotated[bytes, _fixed(SIGNATURE_BYTES)]
_Signatures = Annotated[tuple[tuple[int, bytes], ...], _rows_of(SIGNATURE_BYTES)]
# The shares of the mask's private key and of the seed, sealed together.
_BOX_BYTES = 2 * SHARE_BYTES + SEAL_BYTES
_SealedPairs = Annotated[tuple[tuple[int, bytes], ...], _rows_of(_BOX_BYTES)]
_Confirmations = Annotated[tuple[tuple[int, bytes], ...], _rows_of(SEAL_BYTES)]
_Clients = Annotated[tuple[int, ...], _clients(fewest=0)]
_SomeClients = Annotated[tuple[int, ...], _clients(fewest=1)]


class Delivered(NamedTuple):
    """What a neighbour sends to a client: its two keys of this session, its signature of them, and sealed shares."""

    seal_public: bytes
    mask_public: bytes
    signature: bytes
    box: bytes

    def signed(self, *, roster: bytes, client: int) -> bytes:
        """What the neighbour, whose number is ``client``, signs: its keys are for this roster alone."""
        return b"gdpfed session keys v1\x00" + roster + _number(client) + self.seal_public + self.mask_public

    @staticmethod
    def read(row: bytes) -> "Delivered":
        """From the bytes of a row."""
        ends = list(itertools.accumulate((KEY_BYTES, KEY_BYTES, SIGNATURE_BYTES, _BOX_BYTES), initial=0))
        return Delivered(*(row[begin:end] for begin, end in itertools.pairwise(ends)))


_Deliveries = Annotated[
    tuple[tuple[int, Delivered], ...],
    _Kind(
        lambda rows: _rows(tuple((peer, b"".join(row)) for peer, row in rows)),
        lambda reader: tuple(
            (peer, Delivered.read(row)) for peer, row in reader.rows(2 * KEY_BYTES + SIGNATURE_BYTES + _BOX_BYTES)
        ),
    ),
]
_Shares = Annotated[
    tuple[tuple[int, int, bytes], ...],
    _Kind(lambda shares: _rows(tuple((peer, bytes([of]) + share) for peer, of, share in shares)), _Reader.shares),
]
_Vector = Annotated[
    NDArray[np.uint32],
    _Kind(lambda values: b"".join((_number(len(values)), values.astype("<u4", copy=False).data)), _Reader.vector),
]


@dataclass(frozen=True, kw_only=True, eq=False)
class Message:
    """What all messages have in common."""

    _kind: ClassVar[int]
    _name: ClassVar[str]

    def __init_subclass__(cls, *, kind: int, name: str) -> None:
        cls._kind, cls._name = kind, name

    @classmethod
    @functools.cache
    def _layout(cls) -> tuple[tuple[str, _Kind], ...]:
        hints = get_type_hints(cls, include_extras=True)
        return tuple((part.name, hints[part.name].__metadata__[0]) for part in fields(cls))

    def _head(self) -> bytes:
        return _HEAD.pack(_MAGIC, _VERSION, self._kind)

    def _fields(self) -> list[bytes]:
        return [kind.write(getattr(self, name)) for name, kind in self._layout()]

    def _all_but_the_last(self, start: bytes) -> bytes:
        return b"".join((start, *self._fields()[:-1]))

    @classmethod
    def _read(cls, reader: _Reader) -> Self:
        return cls(**{name: kind.read(reader) for name, kind in cls._layout()})

    @functools.cached_property
    def signed(self) -> bytes:
        """What a signature covers."""
        return self._all_but_the_last(f"gdpfed {self._name} v1\x00".encode())

    def encode(self) -> bytes:
        """As bytes."""
        return b"".join((self._head(), *self._fields()))

    @classmethod
    def decode(cls, content: bytes, *, num_params: int | None = None) -> Self:
        """From bytes, strictly. ``num_params`` is the length of the vector, where there is one."""
        reader = _Reader(content, kind=cls._kind, name=cls._name, num_params=num_params)
        message = cls._read(reader)
        reader.end()
        return message


@dataclass(frozen=True, kw_only=True)
class Advertisement(Message, kind=1, name="advertisement"):
    """A client's one-time key, for one session of a run with these terms; made before it is known for which.

    Others seal for it. A key of zeros says that the client takes part in no more sessions of the run.
    """

    plan_hash: _Digest
    client: _Number
    public: _PublicKey
    signature: _Signature = b""

    @property
    def is_last_word(self) -> bool:
        """Whether there is no key in it: its client is done with the run."""
        return self.public == bytes(KEY_BYTES)


@dataclass(frozen=True, kw_only=True)
class Roster(Message, kind=2, name="roster"):
    """The cohort: every advertisement, and the numbers that follow from how many there are."""

    session: Session
    topology: Topology
    entries: tuple[Advertisement, ...]
    signature: bytes = b""

    # Neither the plan's hash nor the cohort's size is written twice.
    _NUMBERS: ClassVar = ("degree", "threshold", "quorum", "dropouts", "colluders")

    def _fields(self) -> list[bytes]:
        numbers = [_number(getattr(self.topology, name)) for name in self._NUMBERS]
        rows = tuple((entry.client, entry.public + entry.signature) for entry in self.entries)
        return [self.session.encoded(), *numbers, _rows(rows), self.signature]

    @classmethod
    def _read(cls, reader: _Reader) -> Self:
        session = reader.session()
        numbers = {name: reader.number() for name in cls._NUMBERS}
        entries = tuple(
            Advertisement(
                plan_hash=session.plan_hash,
                client=client,
                public=row[:KEY_BYTES],
                signature=row[KEY_BYTES:],
            )
            for client, row in reader.rows(KEY_BYTES + SIGNATURE_BYTES, fewest=1)
        )
        shape = Topology(cohort=len(entries), **numbers)
        return cls(session=session, topology=shape, entries=entries, signature=reader.take(SIGNATURE_BYTES))

    @classmethod
    def decode(cls, content: bytes, *, num_params: int | None = None) -> "Roster":
        """From bytes, strictly. Remembered: in a simulation every client reads the same one."""
        return (
            _remembered_roster(content)
            if isinstance(content, bytes)
            else super().decode(content, num_params=num_params)
        )

    @functools.cached_property
    def digest(self) -> bytes:
        """Names this roster in all later messages."""
        return hashlib.sha256(self.signed).digest()

    @functools.cached_property
    def clients(self) -> tuple[int, ...]:
        """Their numbers, in order."""
        return tuple(entry.client for entry in self.entries)

    @functools.cached_property
    def _indices(self) -> dict[int, int]:
        return {client: index for index, client in enumerate(self.clients)}

    def entry_of(self, client: int) -> Advertisement:
        """A client's advertisement."""
        return self.entries[self._indices[client]]

    def point_of(self, client: int) -> int:
        """Of the shares that this client holds: 1 for the first of the roster."""
        return self._indices[client] + 1

    @property
    def circle(self) -> tuple[int, ...]:
        """The clients in the order in which they stand, where not everyone is everyone's neighbour."""
        return tuple(self.clients[index] for index in circle(self.digest, cohort=self.topology.cohort))

    def neighbours_of(self, client: int) -> tuple[Advertisement, ...]:
        """A client's neighbours, in order."""
        everyones = neighbours(self.digest, cohort=self.topology.cohort, degree=self.topology.degree)
        return tuple(self.entries[index] for index in everyones[self._indices[client]])


@functools.lru_cache(maxsize=8)
def _remembered_roster(content: bytes) -> Roster:
    return super(Roster, Roster).decode(content)


@dataclass(frozen=True, kw_only=True)
class SealedShares(Message, kind=3, name="sealed shares"):
    """A client's two keys of this session, signed for the roster; a commitment to its seed; and its shares, sealed with
    the first of the keys for each neighbour's one-time key."""

    roster: _Digest
    client: _Number
    seal_public: _PublicKey
    mask_public: _PublicKey
    signature: _Signature
    commitment: _Digest
    sealed: _SealedPairs = field(repr=False)

    def delivered(self, box: bytes = b"") -> Delivered:
        """What one neighbour gets, with the ``box`` that is sealed for it."""
        return Delivered(self.seal_public, self.mask_public, self.signature, box)

    def is_signed_by(self, public: bytes) -> bool:
        """Whether the owner of the identity ``public`` signed the two keys for this roster."""
        return verified(public, self.delivered().signed(roster=self.roster, client=self.client), self.signature)


@dataclass(frozen=True, kw_only=True)
class Delivery(Message, kind=4, name="delivery"):
    """Who shared, and what a client's neighbours sent to it."""

    roster: _Digest
    client: _Number
    sharers: _SomeClients
    sealed: _Deliveries = field(repr=False)


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedInput(Message, kind=5, name="masked input"):
    """A client's update, noise and masks, mod 2^32; for each neighbour a seal of the sharers that it masked with."""

    roster: _Digest
    client: _Number
    confirmed: _Confirmations = field(repr=False)
    values: _Vector = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class Survivors(Message, kind=6, name="survivors"):
    """Whose masked input arrived, and who shared but was lost; what a client's surviving neighbours confirmed to it."""

    roster: _Digest
    survivors: _SomeClients
    lost: _Clients
    confirmed: _Confirmations = field(default=(), repr=False)

    def encode_for_each(self, confirmed: Mapping[int, Mapping[int, bytes]]) -> dict[int, bytes]:
        """For each survivor, with what was confirmed to it; what is the same for all is encoded once."""
        common = self._all_but_the_last(self._head())
        return {client: common + _rows(tuple(sorted(confirmed.get(client, {}).items()))) for client in self.survivors}


@dataclass(frozen=True, kw_only=True)
class Agreement(Message, kind=7, name="agreement"):
    """A client's signature of the survivors."""

    roster: _Digest
    client: _Number
    signature: _Signature


@dataclass(frozen=True, kw_only=True)
class Agreements(Message, kind=8, name="agreements"):
    """A quorum of signatures of the survivors."""

    roster: _Digest
    signatures: _Signatures


@dataclass(frozen=True, kw_only=True)
class Shares(Message, kind=9, name="shares"):
    """For each peer one share: of its seed if it survived, of its mask's private key if it was lost."""

    roster: _Digest
    client: _Number
    shares: _Shares = field(repr=False)
