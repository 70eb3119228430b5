"""The life of a charge: reserved, charged, published or aborted.

Place: in the ledger's state. There is a charge for each run, round, attempt and group.

    reserved --commit--> charged --publish--> published
        \\--abort--> aborted

Charged is durable before anything is released or unmasked. There is no way back from it: whoever stops between charge
and release has spent the round, because nobody can know what left the process. Trying again is another attempt, with
its own charge; in a deployment with fresh noise, too, in a simulation with the seed's.

Guarantees (tests of the same name):
  charged_is_never_taken_back      a charged or published attempt cannot be aborted, nor charged again.
  one_content_for_each_attempt     publishing again is allowed with the same content, refused with another.
  a_published_round_is_closed      no further attempt of a round that was published.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from gdpfed.errors import InputError, PrivacyError

__all__ = ["Attempt", "ChargeState", "ExhaustedError", "moved", "next_attempt"]

ChargeState = Literal["reserved", "charged", "published", "aborted"]
# What must have come before a state.
_BEFORE: dict[ChargeState, ChargeState] = {"charged": "reserved", "published": "charged", "aborted": "reserved"}


class ExhaustedError(PrivacyError):
    """Some client's budget does not allow what was asked; ``rounds_left`` is how many rounds it allows."""

    def __init__(self, message: str, *, rounds_left: int) -> None:
        super().__init__(message)
        self.rounds_left = rounds_left


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt of a group's sum in a round, and how far it came."""

    run: str
    group: str
    round_number: int
    attempt: int
    state: ChargeState = "reserved"
    content_hash: str | None = None

    @property
    def address(self) -> dict[str, Any]:
        """What names it in a row."""
        return {"run": self.run, "round": self.round_number, "attempt": self.attempt, "group": self.group}

    @property
    def is_charged(self) -> bool:
        """Whether it is paid for, published or not."""
        return self.state in ("charged", "published")

    def __str__(self) -> str:
        return f"round {self.round_number}, attempt {self.attempt} of {self.group!r} in run {self.run!r}"


def moved(attempt: Attempt, to: ChargeState, *, content_hash: str | None = None) -> Attempt:
    """The attempt one step on; a step that does not exist raises PrivacyError."""
    if to == "published" and attempt.state == "published":
        if content_hash != attempt.content_hash:
            raise PrivacyError(f"{attempt} was published with other content: another release needs another charge")
        return attempt
    if attempt.state != _BEFORE[to]:
        raise PrivacyError(f"expected {_BEFORE[to]!r} before {to!r}, got {attempt.state!r}: {attempt} stays as it is")
    if to == "published" and not content_hash:
        raise InputError(f"expected the hash of what was released, got none: {attempt}")
    return dataclasses.replace(attempt, state=to, content_hash=content_hash)


def next_attempt(before: list[Attempt]) -> int:
    """The number of the next attempt of a round; PrivacyError if one was published, or is under way."""
    for attempt in before:
        if attempt.state == "reserved":
            raise PrivacyError(f"{attempt} is reserved: commit or abort it first")
        if attempt.state == "published":
            raise PrivacyError(f"{attempt} was published: another attempt would release the round twice")
    return len(before)
