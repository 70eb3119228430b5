"""The key that signs receipts: Ed25519, derived from the ledger's secret.

Place: beside the store. The public half stands in the ledger's first row, so that the chain covers it. Needs the
package cryptography (the extra `secure`); a ledger made without it works, and signs nothing.
"""

import hashlib
from typing import TYPE_CHECKING

from gdpfed.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["is_signed", "public_key", "sign"]


def _private(secret: bytes) -> "Ed25519PrivateKey":
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ModuleNotFoundError:
        raise MissingExtraError(package="cryptography", extra="secure", purpose="signing a receipt") from None
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"gdpfed receipt" + secret).digest())


def public_key(secret: bytes | None) -> str | None:
    """The public half in hexadecimal; None without a secret or without the package."""
    if secret is None:
        return None
    try:
        return _private(secret).public_key().public_bytes_raw().hex()
    except MissingExtraError:
        return None


def sign(secret: bytes, message: bytes) -> str:
    """The signature of a message, in hexadecimal."""
    return _private(secret).sign(message).hex()


def is_signed(public: str, signature: str, message: bytes) -> bool:
    """Whether the signature is that of the message under the public key."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ModuleNotFoundError:
        raise MissingExtraError(package="cryptography", extra="secure", purpose="checking a receipt") from None
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(bytes.fromhex(signature), message)
    except InvalidSignature:
        return False
    except ValueError:
        raise InputError("expected a public key and a signature in hexadecimal") from None
    return True
