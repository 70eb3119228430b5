"""The secret of a ledger: 32 bytes that seal its head and sign its receipts.

Place: under the store. A seal is an HMAC. Receipts are signed with Ed25519, by a key derived from it; the public
half stands in the ledger's first row, so that the chain covers it. Signing needs the package cryptography (the extra
`secure`); a ledger made without it works, and signs nothing.
"""

import contextlib
import hashlib
import hmac
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from gdpfed.errors import InputError, MissingExtraError
from gdpfed.files import write_whole

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

__all__ = ["KEY_BYTES", "head_seal", "is_signed", "make_key", "public_key", "read_key", "sign"]

KEY_BYTES = 32


def read_key(path: Path) -> bytes:
    """The secret of a ledger, from its key file."""
    try:
        if Path(path).is_fifo():
            raise InputError(f"expected a key file, got {str(path)!r}, which is a pipe: give its path as key_file")
        key = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read the ledger's key {str(path)!r}: {error.strerror}; give its path as key_file"
        ) from None
    if len(key) != KEY_BYTES:
        raise InputError(f"expected {KEY_BYTES} bytes in the key file {str(path)!r}, got {len(key)}: restore its copy")
    return key


def make_key(path: Path) -> None:
    """Whole or not at all: half a key would be in the way for ever. One that another process makes is not replaced."""
    draft = path.with_name(f"{path.name}.new{os.getpid()}")
    write_whole(draft, secrets.token_bytes(KEY_BYTES), private=True)
    with contextlib.suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()


def head_seal(secret: bytes, number: int, last_hash: str) -> str:
    """The MAC of a ledger's length and last hash."""
    return hmac.new(secret, f"head\n{number}\n{last_hash}".encode(), hashlib.sha256).hexdigest()


def _private(secret: bytes) -> "Ed25519PrivateKey":
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ModuleNotFoundError:
        raise MissingExtraError(package="cryptography", extra="secure", purpose="signing a receipt") from None
    return Ed25519PrivateKey.from_private_bytes(hashlib.sha256(b"gdpfed receipt" + secret).digest())


def public_key(secret: bytes | None) -> str | None:
    """The public half in hexadecimal; None without a secret or without the package."""
    try:
        return _private(secret).public_key().public_bytes_raw().hex() if secret else None
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
