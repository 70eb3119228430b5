"""Who takes part: every client's own announcement, and the operator's list of them.

Place: before a deployment starts. A node announces its identity key and its budget, signed by that key; the operator
puts the announcements in an order, which gives each client its number, and signs the list. Every node pins that list:
the keys that it checks rosters with, and the groups that it computes, come from it alone.

Guarantees (tests of the same name):
  an_enrolment_is_what_was_announced   a budget, a name or a key that its owner did not sign is refused.
  every_identity_once                  and every name.
  mutated_enrolments_are_refused       an InputError or a PrivacyError, never another error.
"""

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gdpfed.errors import InputError, PrivacyError
from gdpfed.privacy.accountant import check_delta
from gdpfed.privacy.budgets import Budgets
from gdpfed.privacy.calibrate import check_epsilon
from gdpfed.secure.primitives import KEY_BYTES, SIGNATURE_BYTES, sign, signing_public, verified
from gdpfed.secure.session import LARGEST_CLIENT, Directory

__all__ = ["Announcement", "Enrolment", "announce", "enrolment_from_json", "signed_enrolment"]

FORMAT = 1
_MOST_TEXT = 1 << 28
_LONGEST_NAME = 200


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _hex(content: Mapping[str, Any], name: str, num_bytes: int) -> bytes:
    text = content.get(name)
    try:
        value = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        value = b""
    # One spelling for each value: what is signed is the value, what is pinned is the text.
    if len(value) != num_bytes or value.hex() != text:
        raise InputError(f"expected {name!r} of {num_bytes} bytes in hexadecimal, got something else")
    return value


def _checked(content: Any, kind: str, fields: set[str]) -> dict[str, Any]:
    """A mapping of this kind with these fields and no others."""
    if not isinstance(content, dict) or content.get("gdpfed") != kind or content.get("format") != FORMAT:
        raise InputError(f"expected an {kind} with format {FORMAT}, got something else")
    if set(content) != {"gdpfed", "format", *fields}:
        raise InputError(f"expected an {kind} with {', '.join(sorted(fields))}, got other fields")
    return content


def _parsed(text: str | bytes, kind: str) -> Any:
    if len(text) > _MOST_TEXT:
        raise InputError(f"expected an {kind} of at most {_MOST_TEXT} bytes, got {len(text)}")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(f"expected an {kind} as JSON, got something else") from None


@dataclass(frozen=True, kw_only=True)
class Announcement:
    """A client as it describes itself."""

    name: str
    identity: bytes
    epsilon: float
    delta: float
    signature: bytes = b""

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and 0 < len(self.name) <= _LONGEST_NAME and self.name.isprintable()):
            raise InputError(f"expected a printable name of up to {_LONGEST_NAME} characters")
        for name in ("epsilon", "delta"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"expected {name} to be a number for client {self.name!r}")
        check_epsilon(self.epsilon, field=f"epsilon of {self.name!r}")
        check_delta(self.delta, field=f"delta of {self.name!r}")

    def _content(self) -> dict[str, Any]:
        return {
            "gdpfed": "announcement",
            "format": FORMAT,
            "name": self.name,
            "identity": self.identity.hex(),
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
        }

    def signed(self) -> bytes:
        """What the client signs."""
        return b"gdpfed announcement v1\x00" + _canonical(self._content())

    def mapping(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**self._content(), "signature": self.signature.hex()}

    def as_json(self) -> str:
        """To send to the operator: nothing in it is secret."""
        return json.dumps(self.mapping(), indent=2) + "\n"

    def verify(self) -> None:
        """Raises PrivacyError unless the owner of the identity signed it."""
        if not verified(self.identity, self.signed(), self.signature):
            raise PrivacyError(f"the announcement of {self.name!r} is not signed by its identity: ask for it again")

    @staticmethod
    def from_mapping(content: Any) -> "Announcement":
        """From `mapping`; not verified yet."""
        content = _checked(content, "announcement", {"name", "identity", "epsilon", "delta", "signature"})
        return Announcement(
            name=content["name"],
            identity=_hex(content, "identity", KEY_BYTES),
            epsilon=content["epsilon"],
            delta=content["delta"],
            signature=_hex(content, "signature", SIGNATURE_BYTES),
        )

    @staticmethod
    def from_json(text: str | bytes) -> "Announcement":
        """From `as_json`, verified."""
        announcement = Announcement.from_mapping(_parsed(text, "announcement"))
        announcement.verify()
        return announcement


def announce(*, name: str, identity: bytes, epsilon: float, delta: float) -> Announcement:
    """A client's announcement; ``identity`` is its private key."""
    unsigned = Announcement(name=name, identity=signing_public(identity), epsilon=epsilon, delta=delta)
    return replace(unsigned, signature=sign(identity, unsigned.signed()))


@dataclass(frozen=True, kw_only=True)
class Enrolment:
    """All clients, in their order: a client's place is its number everywhere else."""

    server: bytes
    clients: tuple[Announcement, ...]
    signature: bytes = b""

    def __post_init__(self) -> None:
        if not self.clients or len(self.clients) > LARGEST_CLIENT:
            raise InputError("expected at least one client in an enrolment, got none")
        for name in ("name", "identity"):
            if len({getattr(client, name) for client in self.clients}) < len(self.clients):
                raise InputError(f"expected every {name} once in an enrolment, got one twice")

    def _content(self) -> dict[str, Any]:
        return {
            "gdpfed": "enrolment",
            "format": FORMAT,
            "server": self.server.hex(),
            "clients": [client.mapping() for client in self.clients],
        }

    def signed(self) -> bytes:
        """What the operator signs."""
        return b"gdpfed enrolment v1\x00" + _canonical(self._content())

    @functools.cached_property
    def digest(self) -> bytes:
        """What nodes pin."""
        return hashlib.sha256(self.signed()).digest()

    def as_json(self) -> str:
        """The text of the file."""
        return json.dumps({**self._content(), "signature": self.signature.hex()}, indent=1) + "\n"

    def verify(self) -> None:
        """Raises PrivacyError unless the server and every client signed their part."""
        if not verified(self.server, self.signed(), self.signature):
            raise PrivacyError("the enrolment is not signed by its server: ask the operator for it again")
        for client in self.clients:
            client.verify()

    @functools.cached_property
    def directory(self) -> Directory:
        """The identities, by number."""
        return Directory(
            server=self.server, clients={number: client.identity for number, client in enumerate(self.clients)}
        )

    @functools.cached_property
    def budgets(self) -> Budgets:
        """As the planner takes them."""
        return Budgets(
            epsilons=np.array([float(client.epsilon) for client in self.clients]),
            deltas=np.array([float(client.delta) for client in self.clients]),
            clients=tuple(client.name for client in self.clients),
        )

    def number_of(self, identity: bytes) -> int | None:
        """The number of the client with this public key."""
        return next((number for number, client in enumerate(self.clients) if client.identity == identity), None)


def signed_enrolment(clients: Sequence[Announcement], *, identity: bytes) -> Enrolment:
    """The operator's list; ``identity`` is the server's private key. Every announcement is verified."""
    unsigned = Enrolment(server=signing_public(identity), clients=tuple(clients))
    for client in clients:
        client.verify()
    return replace(unsigned, signature=sign(identity, unsigned.signed()))


def enrolment_from_json(text: str | bytes, *, pinned: bytes | None = None) -> Enrolment:
    """From `Enrolment.as_json`, verified; one whose digest is ``pinned`` was verified before."""
    content = _checked(_parsed(text, "enrolment"), "enrolment", {"server", "clients", "signature"})
    if not isinstance(content["clients"], list):
        raise InputError("expected a list of clients in an enrolment, got something else")
    enrolment = Enrolment(
        server=_hex(content, "server", KEY_BYTES),
        clients=tuple(Announcement.from_mapping(client) for client in content["clients"]),
        signature=_hex(content, "signature", SIGNATURE_BYTES),
    )
    if enrolment.digest != pinned:
        enrolment.verify()
    return enrolment
