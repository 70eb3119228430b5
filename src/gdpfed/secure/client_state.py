"""What a client remembers between two stages of a secure sum.

Place: inside `client.SecureClient`, which replaces it as a whole or not at all, so that a refused message changes
nothing. It holds secrets: nothing here has a text, and what `encode` returns belongs in memory.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from gdpfed.errors import InputError
from gdpfed.secure import messages
from gdpfed.secure.primitives import KEY_BYTES, AgreementKey, sign
from gdpfed.secure.session import Session

__all__ = ["ClientState", "Joined", "Masked", "OneTimeKey", "Pair", "Secrets"]

Pair = tuple[bytes, bytes]  # shares of the mask's private key, and of the seed


@dataclass(frozen=True, kw_only=True, repr=False)
class OneTimeKey:
    """A client's key for one session. It may be advertised ahead of time: it names no round.

    It opens what others seal for this client, and nothing that this client seals: whoever stole it would hold one share
    of each neighbour's secrets, as a colluder does. What masks an input is made when the session has begun.
    """

    private: AgreementKey
    advertised: messages.Advertisement

    @staticmethod
    def made(private: bytes, *, plan_hash: bytes, client: int, identity: bytes) -> "OneTimeKey":
        """From 32 random bytes; signed by the client."""
        key = AgreementKey(private)
        return OneTimeKey(private=key, advertised=_signed(key.public, plan_hash, client, identity))

    @staticmethod
    def last_word(*, plan_hash: bytes, client: int, identity: bytes) -> messages.Advertisement:
        """Says that there is no other session of this client; as long as every other advertisement."""
        return _signed(bytes(KEY_BYTES), plan_hash, client, identity)

    def encode(self) -> bytes:
        """As bytes, the secret included."""
        return self.private.private + self.advertised.encode()

    @staticmethod
    def decode(content: bytes) -> "OneTimeKey":
        """From `encode`."""
        advertised = messages.Advertisement.decode(content[KEY_BYTES:])
        private = AgreementKey(content[:KEY_BYTES])
        if private.public != advertised.public:
            raise InputError("expected a key and its advertisement, got something else")
        return OneTimeKey(private=private, advertised=advertised)


def _signed(public: bytes, plan_hash: bytes, client: int, identity: bytes) -> messages.Advertisement:
    unsigned = messages.Advertisement(plan_hash=plan_hash, client=client, public=public)
    return replace(unsigned, signature=sign(identity, unsigned.signed))


@dataclass(frozen=True, kw_only=True, repr=False)
class Secrets:
    """Until the input is masked. All but ``once``, the one-time key, are made in the session itself."""

    mask: AgreementKey
    seal: AgreementKey
    seed: bytes
    once: AgreementKey


@dataclass(frozen=True, kw_only=True, repr=False)
class Joined:
    """After stage 2: the roster, the answer to it, and this client's shares of its own secrets."""

    roster: messages.Roster
    answer: bytes
    own_pair: Pair


@dataclass(frozen=True, kw_only=True, repr=False)
class Masked:
    """After stage 3: who shared, the shares that this client holds, by their owner, and the key for what each neighbour
    confirms."""

    sharers: frozenset[int]
    held: dict[int, Pair]
    channels: dict[int, bytes]


@dataclass(frozen=True, kw_only=True, repr=False)
class ClientState:
    """A client after some stage."""

    advertised: messages.Advertisement
    secrets: Secrets | None
    joined: Joined | None = None
    masked: Masked | None = None
    agreed: messages.Survivors | None = None

    def encode(self, *, session: Session, client: int) -> bytes:
        """As bytes, secrets included."""
        parts = {name: part for name, part in vars(self).items() if part is not None}
        content = {"session": session.encoded(), "client": client, **parts}
        return json.dumps(content, default=lambda part: _PLAIN[type(part)](part)).encode()

    @staticmethod
    def decode(content: bytes, *, session: Session, client: int) -> "ClientState":
        """From `encode`, for the same client and session."""
        try:
            saved = json.loads(content)
            is_ours = saved["session"] == session.encoded().hex() and saved["client"] == client
            state = _decoded(saved)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise InputError("expected the saved state of a client, got something else") from None
        if not is_ours:
            raise InputError("expected the saved state of this client in this session, got another's")
        return state


# What JSON does not know, in simpler parts.
_PLAIN: dict[type, Callable[[Any], Any]] = {
    bytes: bytes.hex,
    frozenset: sorted,
    AgreementKey: lambda key: key.private,
    Secrets: lambda secrets: [secrets.mask, secrets.seal, secrets.seed, secrets.once],
    Joined: vars,
    Masked: vars,
    **dict.fromkeys((messages.Advertisement, messages.Roster, messages.Survivors), messages.Message.encode),
}


def _decoded(saved: dict[str, Any]) -> ClientState:
    secrets, joined, masked = None, None, None
    if "secrets" in saved:
        mask, seal, seed, once = map(bytes.fromhex, saved["secrets"])
        secrets = Secrets(mask=AgreementKey(mask), seal=AgreementKey(seal), seed=seed, once=AgreementKey(once))
    if "joined" in saved:
        joined = Joined(
            roster=messages.Roster.decode(bytes.fromhex(saved["joined"]["roster"])),
            answer=bytes.fromhex(saved["joined"]["answer"]),
            own_pair=_pair(saved["joined"]["own_pair"]),
        )
    if "masked" in saved:
        held = {int(peer): _pair(pair) for peer, pair in saved["masked"]["held"].items()}
        channels = {int(peer): bytes.fromhex(key) for peer, key in saved["masked"]["channels"].items()}
        masked = Masked(sharers=frozenset(saved["masked"]["sharers"]), held=held, channels=channels)
    return ClientState(
        advertised=messages.Advertisement.decode(bytes.fromhex(saved["advertised"])),
        secrets=secrets,
        joined=joined,
        masked=masked,
        agreed=messages.Survivors.decode(bytes.fromhex(saved["agreed"])) if "agreed" in saved else None,
    )


def _pair(texts: list[str]) -> Pair:
    of_mask, of_seed = map(bytes.fromhex, texts)
    return of_mask, of_seed
