"""Agreement, derivation, key stream, sealing and signatures: the only module that calls the package `cryptography`.

Place: below everything else in this package. Each function is a few lines over one primitive; nothing is invented here.

Guarantees (tests of the same name):
  agreement_is_rfc7748      X25519, by the vectors of the standard.
  derivation_is_rfc5869     HKDF with SHA-256.
  key_stream_is_rfc8439     ChaCha20, also when it is read in pieces.
  sealing_is_rfc8439        ChaCha20-Poly1305; whatever was changed does not open.
"""

import functools
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, MissingExtraError, PrivacyError

try:
    from cryptography.exceptions import InvalidSignature, InvalidTag
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ModuleNotFoundError:
    raise MissingExtraError(package="cryptography", extra="secure", purpose="secure aggregation") from None

__all__ = [
    "KEY_BYTES", "SEAL_BYTES", "SIGNATURE_BYTES", "AgreementKey", "KeyStream", "derive", "is_low_order", "seal", "sign",
    "signing_public", "unseal", "verified",
]  # fmt: skip

KEY_BYTES = 32
SIGNATURE_BYTES = 64
# What sealing adds: the tag of Poly1305.
SEAL_BYTES = 16
# Curve25519's field, and the coordinates of its points of order 1, 2, 4 and 8 (RFC 7748, section 6.1, says why).
_FIELD = 2**255 - 19
_LOW_ORDER = frozenset(
    {
        0,
        1,
        _FIELD - 1,
        325606250916557431795983626356110631294008115727848805560023387167927233504,
        39382357235489614581723060781553021112529911719440698176882885853963445705823,
    }
)
# A piece of the key stream that stays in the second-level cache; smaller ones pay for the calls.
_PIECE = 1 << 18
_ZEROS = bytes(_PIECE)


class AgreementKey:
    """An X25519 private key."""

    __slots__ = ("_key", "private", "public")

    def __init__(self, private: bytes) -> None:
        self._key = X25519PrivateKey.from_private_bytes(private)
        self.private = private
        self.public = self._key.public_key().public_bytes_raw()

    def agree(self, public: bytes) -> bytes:
        """The secret shared with the owner of ``public``; one that forces a known secret is refused."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:
            raise PrivacyError("expected a public key of full order, got one that forces a known secret") from None


def is_low_order(public: bytes) -> bool:
    """Whether an X25519 public key forces a known secret: its coordinate is one of five."""
    return (int.from_bytes(public, "little") & (2**255 - 1)) % _FIELD in _LOW_ORDER


def derive(secret: bytes, *, info: bytes, salt: bytes | None = None, num_bytes: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256: a key for one purpose, which ``info`` names."""
    return HKDF(algorithm=SHA256(), length=num_bytes, salt=salt, info=info).derive(secret)


class KeyStream:
    """ChaCha20 under a key that is used for nothing else, read in pieces."""

    __slots__ = ("_cipher",)

    def __init__(self, key: bytes, *, counter: int = 0, nonce: bytes = bytes(12)) -> None:
        start = struct.pack("<I", counter) + nonce
        self._cipher: Any = Cipher(algorithms.ChaCha20(key, start), mode=None).encryptor()

    def take(self, num_bytes: int) -> bytes:
        """The next bytes."""
        return bytes(self._cipher.update(bytes(num_bytes)))

    def fill(self, out: NDArray[np.uint8]) -> None:
        """Writes the next bytes over ``out``."""
        for start in range(0, len(out), _PIECE):
            piece = out[start : start + _PIECE]
            self._cipher.update_into(_ZEROS if len(piece) == _PIECE else bytes(len(piece)), piece)

    def pieces(self, num_words: int) -> Iterator[tuple[slice, NDArray[np.uint32]]]:
        """The next words, little-endian, piece by piece: where each belongs, and a buffer that is used again."""
        buffer = np.empty(min(_PIECE, 4 * num_words), dtype=np.uint8)
        words = buffer.view("<u4")
        for start in range(0, num_words, _PIECE // 4):
            count = min(_PIECE // 4, num_words - start)
            self.fill(buffer[: 4 * count])
            yield slice(start, start + count), words[:count]


def seal(key: bytes, *, nonce: bytes, plain: bytes, bound_to: bytes) -> bytes:
    """ChaCha20-Poly1305; ``bound_to`` must be the same for `unseal`."""
    return ChaCha20Poly1305(key).encrypt(nonce, plain, bound_to)


def unseal(key: bytes, *, nonce: bytes, sealed: bytes, bound_to: bytes) -> bytes:
    """The plain bytes, or PrivacyError if anything was changed."""
    try:
        return ChaCha20Poly1305(key).decrypt(nonce, sealed, bound_to)
    except InvalidTag:
        raise PrivacyError("expected a sealed share of this session, got one that does not open") from None


def signing_public(private: bytes) -> bytes:
    """The public half of an Ed25519 private key."""
    return Ed25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def sign(private: bytes, content: bytes) -> bytes:
    """An Ed25519 signature."""
    return Ed25519PrivateKey.from_private_bytes(private).sign(content)


@functools.lru_cache(maxsize=8192)
def verified(public: bytes, content: bytes, signature: bytes) -> bool:
    """Whether the signature is right. Remembered: a simulation has every client check the same public bytes."""
    if len(public) != KEY_BYTES:
        raise InputError(f"expected an identity of {KEY_BYTES} bytes, got {len(public)}")
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True
