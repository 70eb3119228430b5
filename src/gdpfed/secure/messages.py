"""The messages of a secure sum: versioned, bounded in size, strictly decoded.

Place: between client and server; how they travel is another's business. Little-endian, no padding. Every message starts
with the format's name, its version and its kind; lists are in increasing order of the clients' numbers, each once; a
message ends where its content ends.

    advertisement   client -> all      session, number, two public keys; signed by the client
    roster          server -> clients  session, degree, threshold, ..., all advertisements; signed by the server
    sealed shares   client -> server   for each neighbour a sealed pair of shares; a commitment to the seed
    delivery        server -> client   who shared, and the sealed shares for this client
    masked input    client -> server   4 bytes for each coordinate; for each neighbour a confirmation of who shared
    survivors       server -> client   whose input arrived, and whose did not; its neighbours' confirmations
    agreement       client -> server   a signature of the survivors
    agreements      server -> clients  a quorum of signatures
    shares          client -> server   for each holder's peer one share of one secret

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
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError
from gdpfed.secure.graph import Topology, circle, neighbours
from gdpfed.secure.primitives import KEY_BYTES, SEAL_BYTES, SIGNATURE_BYTES
from gdpfed.secure.session import HASH_BYTES, LARGEST_COHORT, SESSION_BYTES, Session
from gdpfed.secure.shares import PRIME, SHARE_BYTES

__all__ = [
    "OF_MASK",
    "OF_SEED",
    "PAIR_BYTES",
    "Advertisement",
    "Agreement",
    "Agreements",
    "Delivery",
    "MaskedInput",
    "Roster",
    "SealedShares",
    "Shares",
    "Survivors",
]

_MAGIC = b"gdpfed-sum"
_VERSION = 2
_HEAD = struct.Struct("<10sBB")
# The shares of the mask's private key and of the seed, together, and sealed.
PAIR_BYTES = 2 * SHARE_BYTES
_SEALED_BYTES = PAIR_BYTES + SEAL_BYTES
OF_MASK, OF_SEED = 0, 1


class _Reader:
    """Takes a message apart; whatever is not as expected is an InputError that does not quote it."""

    __slots__ = ("_at", "_content", "_name")

    def __init__(self, content: bytes, *, kind: int, name: str) -> None:
        self._content, self._at, self._name = content, 0, name
        if not isinstance(content, bytes):
            raise self.error(f"a {type(content).__name__}")
        magic, version, found = _HEAD.unpack(self.take(_HEAD.size))
        if magic != _MAGIC or found != kind:
            raise self.error("another kind of message")
        if version != _VERSION:
            raise self.error(f"version {version}, this is version {_VERSION}")

    def error(self, got: str) -> InputError:
        return InputError(f"expected a message of kind {self._name!r}, got {got}")

    def take(self, num_bytes: int) -> bytes:
        end = self._at + num_bytes
        if end > len(self._content):
            raise self.error("one that is cut off")
        taken = self._content[self._at : end]
        self._at = end
        return taken

    def number(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def rows(self, row_bytes: int, *, fewest: int = 0) -> list[tuple[int, bytes]]:
        """A list of numbered rows, in strictly increasing order."""
        count = self.number()
        if not fewest <= count <= LARGEST_COHORT:
            raise self.error("a list of an impossible length")
        content = self.take(count * (4 + row_bytes))
        rows = [
            (int.from_bytes(content[at : at + 4], "little"), content[at + 4 : at + 4 + row_bytes])
            for at in range(0, len(content), 4 + row_bytes)
        ]
        if any(one[0] >= other[0] for one, other in itertools.pairwise(rows)):
            raise self.error("clients that are not in increasing order")
        return rows

    def clients(self, *, fewest: int = 0) -> tuple[int, ...]:
        return tuple(number for number, _ in self.rows(0, fewest=fewest))

    def end(self) -> None:
        if self._at != len(self._content):
            raise self.error("one that goes on after its end")


def _head(kind: int) -> bytes:
    return _HEAD.pack(_MAGIC, _VERSION, kind)


def _number(value: int) -> bytes:
    return value.to_bytes(4, "little")


def _rows(rows: tuple[tuple[int, bytes], ...]) -> bytes:
    return _number(len(rows)) + b"".join(_number(number) + content for number, content in rows)


def _clients(numbers: tuple[int, ...]) -> bytes:
    return _rows(tuple((number, b"") for number in numbers))


def _session(reader: _Reader) -> Session:
    try:
        return Session.decoded(reader.take(SESSION_BYTES))
    except InputError:
        raise reader.error("an impossible session") from None


@dataclass(frozen=True, kw_only=True)
class Advertisement:
    """A client's two public keys for one session: for its masks, and for sealing."""

    session: Session
    client: int
    mask_public: bytes
    seal_public: bytes
    signature: bytes = b""

    def signed(self) -> bytes:
        """What the signature covers."""
        return (
            b"gdpfed advertisement v1\x00"
            + self.session.encoded()
            + _number(self.client)
            + self.mask_public
            + self.seal_public
        )

    def encode(self) -> bytes:
        """As bytes."""
        keys = self.mask_public + self.seal_public + self.signature
        return _head(1) + self.session.encoded() + _number(self.client) + keys

    @staticmethod
    def decode(content: bytes) -> "Advertisement":
        """From bytes, strictly."""
        reader = _Reader(content, kind=1, name="advertisement")
        session, client = _session(reader), reader.number()
        made = Advertisement(
            session=session,
            client=client,
            mask_public=reader.take(KEY_BYTES),
            seal_public=reader.take(KEY_BYTES),
            signature=reader.take(SIGNATURE_BYTES),
        )
        reader.end()
        return made


@dataclass(frozen=True, kw_only=True)
class Roster:
    """The cohort: every advertisement, and the numbers that follow from how many there are."""

    session: Session
    topology: Topology
    entries: tuple[Advertisement, ...]
    signature: bytes = b""

    def _content(self) -> bytes:
        shape = self.topology
        numbers = (shape.degree, shape.threshold, shape.quorum, shape.dropouts, shape.colluders)
        rows = tuple((entry.client, entry.mask_public + entry.seal_public + entry.signature) for entry in self.entries)
        return self.session.encoded() + b"".join(map(_number, numbers)) + _rows(rows)

    def signed(self) -> bytes:
        """What the signature covers."""
        return b"gdpfed roster v1\x00" + self._content()

    @functools.cached_property
    def digest(self) -> bytes:
        """Names this roster in all later messages."""
        return hashlib.sha256(self.signed()).digest()

    @functools.cached_property
    def clients(self) -> tuple[int, ...]:
        """Their numbers, in order."""
        return tuple(entry.client for entry in self.entries)

    @functools.cached_property
    def places(self) -> dict[int, int]:
        """Where in the roster a client stands, by its number."""
        return {client: place for place, client in enumerate(self.clients)}

    @property
    def circle(self) -> tuple[int, ...]:
        """The clients in the order in which they stand, where not everyone is everyone's neighbour."""
        return tuple(self.clients[place] for place in circle(self.digest, cohort=self.topology.cohort))

    @property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """Of each place, the places of its neighbours."""
        return neighbours(self.digest, cohort=self.topology.cohort, degree=self.topology.degree)

    def neighbours_of(self, client: int) -> tuple[Advertisement, ...]:
        """A client's neighbours, in order."""
        return tuple(self.entries[place] for place in self.neighbours[self.places[client]])

    def encode(self) -> bytes:
        """As bytes."""
        return _head(2) + self._content() + self.signature

    @staticmethod
    def decode(content: bytes) -> "Roster":
        """From bytes, strictly. Remembered: in a simulation every client reads the same one."""
        return _remembered_roster(content) if isinstance(content, bytes) else Roster._read(content)

    @staticmethod
    def _read(content: bytes) -> "Roster":
        reader = _Reader(content, kind=2, name="roster")
        session = _session(reader)
        degree, threshold, quorum, dropouts, colluders = (reader.number() for _ in range(5))
        rows = reader.rows(2 * KEY_BYTES + SIGNATURE_BYTES, fewest=1)
        signature = reader.take(SIGNATURE_BYTES)
        reader.end()
        entries = tuple(
            Advertisement(
                session=session,
                client=client,
                mask_public=keys[:KEY_BYTES],
                seal_public=keys[KEY_BYTES : 2 * KEY_BYTES],
                signature=keys[2 * KEY_BYTES :],
            )
            for client, keys in rows
        )
        shape = Topology(
            cohort=len(entries),
            degree=degree,
            threshold=threshold,
            quorum=quorum,
            dropouts=dropouts,
            colluders=colluders,
        )
        return Roster(session=session, topology=shape, entries=entries, signature=signature)


@dataclass(frozen=True, kw_only=True)
class SealedShares:
    """A client's shares for its neighbours, sealed for each, and a commitment to its seed."""

    roster: bytes
    client: int
    commitment: bytes
    sealed: tuple[tuple[int, bytes], ...] = field(repr=False)

    def encode(self) -> bytes:
        """As bytes."""
        return _head(3) + self.roster + _number(self.client) + self.commitment + _rows(self.sealed)

    @staticmethod
    def decode(content: bytes) -> "SealedShares":
        """From bytes, strictly."""
        reader = _Reader(content, kind=3, name="sealed shares")
        roster, client, commitment = reader.take(HASH_BYTES), reader.number(), reader.take(HASH_BYTES)
        sealed = tuple(reader.rows(_SEALED_BYTES))
        reader.end()
        return SealedShares(roster=roster, client=client, commitment=commitment, sealed=sealed)


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """Who shared, and what they sealed for one client."""

    roster: bytes
    client: int
    sharers: tuple[int, ...]
    sealed: tuple[tuple[int, bytes], ...] = field(repr=False)

    def encode(self) -> bytes:
        """As bytes."""
        return _head(4) + self.roster + _number(self.client) + _clients(self.sharers) + _rows(self.sealed)

    @staticmethod
    def decode(content: bytes) -> "Delivery":
        """From bytes, strictly."""
        reader = _Reader(content, kind=4, name="delivery")
        roster, client = reader.take(HASH_BYTES), reader.number()
        sharers, sealed = reader.clients(fewest=1), tuple(reader.rows(_SEALED_BYTES))
        reader.end()
        return Delivery(roster=roster, client=client, sharers=sharers, sealed=sealed)


@dataclass(frozen=True, kw_only=True, eq=False)
class MaskedInput:
    """A client's update, noise and masks, mod 2^32; for each neighbour a seal of the set of sharers that it masked
    with."""

    roster: bytes
    client: int
    confirmed: tuple[tuple[int, bytes], ...] = field(repr=False)
    values: NDArray[np.uint32] = field(repr=False)

    def encode(self) -> bytes:
        """As bytes."""
        head = _head(5) + self.roster + _number(self.client) + _rows(self.confirmed) + _number(len(self.values))
        return b"".join((head, self.values.astype("<u4", copy=False).data))

    @staticmethod
    def decode(content: bytes, *, num_params: int) -> "MaskedInput":
        """From bytes, strictly; the values are a view of them."""
        start = max(len(content) - 4 * num_params, 0) if isinstance(content, bytes) else 0
        reader = _Reader(content[:start] if start else content, kind=5, name="masked input")
        roster, client = reader.take(HASH_BYTES), reader.number()
        confirmed, length = tuple(reader.rows(SEAL_BYTES)), reader.number()
        reader.end()
        if length != num_params or not start:
            raise reader.error(f"a vector that is not of {num_params} coordinates")
        values = np.frombuffer(content, dtype="<u4", offset=start)
        return MaskedInput(
            roster=roster, client=client, confirmed=confirmed, values=values.astype(np.uint32, copy=False)
        )


@dataclass(frozen=True, kw_only=True)
class Survivors:
    """Whose masked input arrived, and who shared but was lost after that; what one client's surviving neighbours
    confirmed to it."""

    roster: bytes
    survivors: tuple[int, ...]
    lost: tuple[int, ...]
    confirmed: tuple[tuple[int, bytes], ...] = field(default=(), repr=False)

    def signed(self) -> bytes:
        """What clients sign before they reveal anything."""
        return b"gdpfed survivors v1\x00" + self.roster + _clients(self.survivors) + _clients(self.lost)

    def encode(self) -> bytes:
        """As bytes."""
        return self._common() + _rows(self.confirmed)

    def _common(self) -> bytes:
        return _head(6) + self.roster + _clients(self.survivors) + _clients(self.lost)

    def encode_for_each(self, confirmed: Mapping[int, Mapping[int, bytes]]) -> dict[int, bytes]:
        """For each survivor, with what was confirmed to it; what is the same for all is encoded once."""
        common = self._common()
        return {client: common + _rows(tuple(sorted(confirmed.get(client, {}).items()))) for client in self.survivors}

    @staticmethod
    def decode(content: bytes) -> "Survivors":
        """From bytes, strictly."""
        reader = _Reader(content, kind=6, name="survivors")
        roster, survivors, lost = reader.take(HASH_BYTES), reader.clients(fewest=1), reader.clients()
        confirmed = tuple(reader.rows(SEAL_BYTES))
        reader.end()
        return Survivors(roster=roster, survivors=survivors, lost=lost, confirmed=confirmed)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """A client's signature of the survivors."""

    roster: bytes
    client: int
    signature: bytes

    def encode(self) -> bytes:
        """As bytes."""
        return _head(7) + self.roster + _number(self.client) + self.signature

    @staticmethod
    def decode(content: bytes) -> "Agreement":
        """From bytes, strictly."""
        reader = _Reader(content, kind=7, name="agreement")
        made = Agreement(roster=reader.take(HASH_BYTES), client=reader.number(), signature=reader.take(SIGNATURE_BYTES))
        reader.end()
        return made


@dataclass(frozen=True, kw_only=True)
class Agreements:
    """A quorum of signatures of the survivors."""

    roster: bytes
    signatures: tuple[tuple[int, bytes], ...]

    def encode(self) -> bytes:
        """As bytes."""
        return _head(8) + self.roster + _rows(self.signatures)

    @staticmethod
    def decode(content: bytes) -> "Agreements":
        """From bytes, strictly."""
        reader = _Reader(content, kind=8, name="agreements")
        made = Agreements(roster=reader.take(HASH_BYTES), signatures=tuple(reader.rows(SIGNATURE_BYTES)))
        reader.end()
        return made


@dataclass(frozen=True, kw_only=True)
class Shares:
    """For each peer one share: of its seed if it survived, of its mask's private key if it was lost."""

    roster: bytes
    client: int
    shares: tuple[tuple[int, int, bytes], ...] = field(repr=False)

    def encode(self) -> bytes:
        """As bytes."""
        rows = tuple((peer, bytes([kind]) + share) for peer, kind, share in self.shares)
        return _head(9) + self.roster + _number(self.client) + _rows(rows)

    @staticmethod
    def decode(content: bytes) -> "Shares":
        """From bytes, strictly."""
        reader = _Reader(content, kind=9, name="shares")
        roster, client = reader.take(HASH_BYTES), reader.number()
        rows = reader.rows(1 + SHARE_BYTES)
        reader.end()
        if any(row[0] > OF_SEED or int.from_bytes(row[1:], "little") >= PRIME for _, row in rows):
            raise reader.error("something that is no share")
        return Shares(roster=roster, client=client, shares=tuple((peer, row[0], row[1:]) for peer, row in rows))


@functools.lru_cache(maxsize=8)
def _remembered_roster(content: bytes) -> Roster:
    return Roster._read(content)
