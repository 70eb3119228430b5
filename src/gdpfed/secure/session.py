"""What a secure sum is about, and who may take part: the public facts that every signature covers.

Place: made by client and server, each from what it holds itself. A client's session says which plan it agreed to, which
model it was given, and which round and attempt it believes to be in; a roster about anything else is refused.
"""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from gdpfed.errors import InputError
from gdpfed.secure.primitives import KEY_BYTES

__all__ = ["HASH_BYTES", "LARGEST_CLIENT", "LARGEST_COHORT", "LARGEST_MODEL", "SESSION_BYTES", "Directory", "Session"]

HASH_BYTES = 32
LARGEST_CLIENT = 2**32 - 1
LARGEST_COHORT = 1 << 16
LARGEST_MODEL = 1 << 30
_LAYOUT = struct.Struct("<32s32sQIII")
SESSION_BYTES = _LAYOUT.size
# For messages.
_WORDS = {
    "plan_hash": "plan",
    "round_number": "round",
    "attempt": "attempt",
    "model_hash": "model",
    "place": "sum",
    "num_params": "number of parameters",
}


@dataclass(frozen=True, kw_only=True)
class Session:
    """One attempt at one sum of one round."""

    plan_hash: bytes
    model_hash: bytes
    round_number: int
    attempt: int
    place: int
    num_params: int

    def __post_init__(self) -> None:
        for name in ("plan_hash", "model_hash"):
            if len(getattr(self, name)) != HASH_BYTES:
                raise InputError(f"expected {name} of {HASH_BYTES} bytes, got {len(getattr(self, name))}")
        for name, largest in (("round_number", 2**64), ("attempt", 2**32), ("place", 2**32)):
            if not 0 <= getattr(self, name) < largest:
                raise InputError(f"expected {name} from 0 up, got {name}={getattr(self, name)}")
        if not 1 <= self.num_params <= LARGEST_MODEL:
            raise InputError(f"expected num_params from 1 to {LARGEST_MODEL}, got num_params={self.num_params}")

    def encoded(self) -> bytes:
        """The same bytes for the same session, other bytes for every other."""
        return _LAYOUT.pack(*(getattr(self, field.name) for field in fields(self)))

    @staticmethod
    def decoded(content: bytes) -> "Session":
        """From `encoded`."""
        names = (field.name for field in fields(Session))
        return Session(**dict(zip(names, _LAYOUT.unpack(content), strict=True)))

    def digest(self) -> bytes:
        """What keys and signatures are bound to."""
        return hashlib.sha256(b"gdpfed session v1\x00" + self.encoded()).digest()

    def differs_in(self, other: "Session") -> str | None:
        """The first fact in which the two differ, in words."""
        return next((words for name, words in _WORDS.items() if getattr(self, name) != getattr(other, name)), None)


@dataclass(frozen=True, kw_only=True)
class Directory:
    """Public identities (Ed25519), pinned at enrolment: the server's, and every enrolled client's by its number."""

    server: bytes
    clients: Mapping[int, bytes]

    def __post_init__(self) -> None:
        for key in (self.server, *self.clients.values()):
            if len(key) != KEY_BYTES:
                raise InputError(f"expected identities of {KEY_BYTES} bytes, got {len(key)}")
        if any(not 0 <= client <= LARGEST_CLIENT for client in self.clients):
            raise InputError(f"expected client numbers from 0 to {LARGEST_CLIENT}")
        object.__setattr__(self, "clients", MappingProxyType(dict(self.clients)))
