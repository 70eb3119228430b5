"""The terms of a run, signed by the server: the whole plan, and all else that a client's promise depends on.

Place: sent to a node whenever it is asked for keys. The digest of the terms stands where a session has its plan hash,
so that every key and every signature of the protocol covers the plan, the tolerances, the run's name and the enrolment.

Guarantees (tests of the same name):
  terms_are_signed            by the pinned server, or refused.
  mutated_terms_are_refused   an InputError or a PrivacyError, never another error.
  a_plan_beyond_measure_is_refused   before it is parsed: nobody can keep a node busy with one.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from gdpfed.config import from_mapping
from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_from_toml
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.secure.primitives import SIGNATURE_BYTES, sign, verified
from gdpfed.secure.session import HASH_BYTES, LARGEST_MODEL

__all__ = ["Terms"]

_FORMAT = 2
_LARGEST = 1 << 22
# Several hundred groups.
_LARGEST_PLAN = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Terms:
    """``plan`` is its TOML text, ``enrolment`` the pinned list's digest, ``test_seed`` None in a real run.

    ``answer_seconds``, of a rotation: a node's input leaves so long after it was asked for, whatever its coin.
    """

    run: str
    plan: str
    enrolment: bytes
    num_params: int
    dropout_rate: float
    colluding_fraction: float
    complete_up_to: int
    test_seed: int | None = None
    answer_seconds: float | None = None

    def __post_init__(self) -> None:
        _ = self.tolerance
        if not (0 < len(self.run) <= 200 and self.run.isprintable()):
            raise InputError("expected a printable name of the run of up to 200 characters")
        if len(self.plan) > _LARGEST_PLAN:
            raise InputError(
                f"expected a plan of up to {_LARGEST_PLAN} characters, got {len(self.plan)}: make fewer groups"
            )
        if len(self.enrolment) != HASH_BYTES or not 1 <= self.num_params <= LARGEST_MODEL:
            raise InputError("expected the enrolment's digest and the number of parameters")
        if self.test_seed is not None and not 0 <= self.test_seed < 2**63:
            raise InputError("expected test_seed >= 0")
        if self.answer_seconds is not None and not 0 < self.answer_seconds < 1e7:
            raise InputError("expected answer_seconds above 0")

    @property
    def tolerance(self) -> Tolerance:
        """What every cohort must stand."""
        stated = ("dropout_rate", "colluding_fraction", "complete_up_to")
        return Tolerance(**{name: getattr(self, name) for name in stated})

    @property
    def rotation_seed(self) -> int:
        """Of the public order in which a rotation asks: another for every run, the same for everybody in it."""
        if self.test_seed is not None:
            return self.test_seed
        return int.from_bytes(hashlib.sha256(b"gdpfed rotation of run\x00" + self.run.encode()).digest()[:8], "big")

    def verified_plan(self, *, is_known: bool = False) -> Plan:
        """The plan, every epsilon of it computed again here, unless the terms are known: verified before."""
        return plan_from_toml(self.plan, source="the plan in the terms", is_verified=is_known)

    def encode(self) -> bytes:
        """The same bytes for the same terms."""
        content: dict[str, Any] = {"gdpfed": "terms", "format": _FORMAT, **vars(self)}
        content["enrolment"] = self.enrolment.hex()
        # As it was before there were rotations.
        if self.answer_seconds is None:
            del content["answer_seconds"]
        return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()

    @property
    def digest(self) -> bytes:
        """What sessions are bound to."""
        return hashlib.sha256(b"gdpfed terms v2\x00" + self.encode()).digest()

    def signed(self, identity: bytes) -> bytes:
        """For the wire, with the server's signature."""
        return sign(identity, self.digest) + self.encode()

    @staticmethod
    def decode(content: bytes) -> "Terms":
        """From `encode`."""
        try:
            fields = json.loads(content) if len(content) <= _LARGEST else {}
            if (fields.pop("gdpfed"), fields.pop("format")) != ("terms", _FORMAT):
                raise InputError(f"expected terms of format {_FORMAT}, got something else")
            terms = from_mapping(Terms, {**fields, "enrolment": bytes.fromhex(fields["enrolment"])}, source="the terms")
            is_same = terms.encode() == content
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise InputError("expected the terms of a run as JSON, got something else") from None
        if not is_same:
            raise InputError("expected terms as this version writes them, got another spelling")
        return terms

    @staticmethod
    def opened(content: bytes, *, server: bytes) -> "Terms":
        """From `signed`, if the owner of the public key ``server`` signed it."""
        terms = Terms.decode(content[SIGNATURE_BYTES:])
        if not verified(server, terms.digest, content[:SIGNATURE_BYTES]):
            raise PrivacyError("the terms are not signed by the pinned server")
        return terms
