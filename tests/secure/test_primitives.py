"""Known answers of the standards, through the code that is really used."""

import subprocess
import sys

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.secure import primitives
from gdpfed.secure.primitives import (
    AgreementKey,
    KeyStream,
    derive,
    is_low_order,
    seal,
    sign,
    signing_public,
    unseal,
    verified,
)

COUNTING = bytes(range(0x80, 0xA0))
SUNSCREEN = (
    b"Ladies and Gentlemen of the class of '99: If I could offer you only one tip for the future, "
    b"sunscreen would be it."
)


def test_agreement_is_rfc7748() -> None:
    """Section 6.1."""
    alice = AgreementKey(bytes.fromhex("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = AgreementKey(bytes.fromhex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert alice.public.hex() == "8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"
    assert bob.public.hex() == "de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"
    shared = "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742"
    assert alice.agree(bob.public).hex() == bob.agree(alice.public).hex() == shared


@pytest.mark.parametrize("public", [bytes(32), b"\x01" + bytes(31)])
def test_known_secrets_are_refused(public: bytes) -> None:
    with pytest.raises(PrivacyError, match="full order"):
        AgreementKey(COUNTING).agree(public)


def test_derivation_is_rfc5869() -> None:
    """Appendix A, test cases 1 and 3."""
    first = derive(b"\x0b" * 22, salt=bytes(range(13)), info=bytes(range(0xF0, 0xFA)), num_bytes=42)
    assert first.hex() == "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865"
    third = derive(b"\x0b" * 22, info=b"", num_bytes=42)
    assert third.hex() == "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8"


def test_key_stream_is_rfc8439() -> None:
    """Appendix A.1, test vectors 1 and 2 (they follow each other), and 2.4.2, by all ways of reading."""
    zeros = (
        "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
        "da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed"
        "29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
    )
    assert KeyStream(bytes(32)).take(128).hex() == zeros
    assert KeyStream(bytes(32), counter=1).take(64).hex() == zeros[128:]
    stream = KeyStream(bytes(32))
    assert (stream.take(1) + stream.take(63) + stream.take(64)).hex() == zeros
    filled = np.empty(128, dtype=np.uint8)
    KeyStream(bytes(32)).fill(filled)
    assert filled.tobytes().hex() == zeros
    ((where, words),) = KeyStream(bytes(32)).pieces(32)
    assert (where, words.astype("<u4").tobytes().hex()) == (slice(0, 32), zeros)
    text = KeyStream(bytes(range(32)), counter=1, nonce=bytes.fromhex("000000000000004a00000000")).take(16)
    sealed = bytes(one ^ other for one, other in zip(SUNSCREEN, text, strict=False))
    assert sealed.hex() == "6e2e359a2568f98041ba0728dd0d6981"


@pytest.mark.parametrize("num_words", [1, 65_535, 65_536, 65_537, 200_000])
def test_pieces_are_one_stream(num_words: int) -> None:
    whole = np.frombuffer(KeyStream(COUNTING).take(4 * num_words), dtype="<u4")
    found = np.zeros(num_words, dtype=np.uint32)
    for where, words in KeyStream(COUNTING).pieces(num_words):
        found[where] = words
    assert np.array_equal(found, whole)


def test_sealing_is_rfc8439() -> None:
    """Section 2.8.2."""
    nonce, bound_to = bytes.fromhex("070000004041424344454647"), bytes.fromhex("50515253c0c1c2c3c4c5c6c7")
    sealed = seal(COUNTING, nonce=nonce, plain=SUNSCREEN, bound_to=bound_to)
    assert sealed.hex() == (
        "d31a8d34648e60db7b86afbc53ef7ec2a4aded51296e08fea9e2b5a736ee62d63dbea45e8ca9671282fafb69da92728b1a71de0a9e060b"
        "2905d6a5b67ecd3b3692ddbd7f2d778b8c9803aee328091b58fab324e4fad675945585808b4831d7bc3ff4def08e4b7a9de576d26586ce"
        "c64b61161ae10b594f09e26a7e902ecbd0600691"
    )
    assert unseal(COUNTING, nonce=nonce, sealed=sealed, bound_to=bound_to) == SUNSCREEN
    for place in range(len(sealed)):
        changed = bytearray(sealed)
        changed[place] ^= 1
        with pytest.raises(PrivacyError, match="does not open"):
            unseal(COUNTING, nonce=nonce, sealed=bytes(changed), bound_to=bound_to)
    with pytest.raises(PrivacyError, match="does not open"):
        unseal(COUNTING, nonce=nonce, sealed=sealed, bound_to=b"another roster")


def test_signatures() -> None:
    """RFC 8032, section 7.1, test 2; and whatever was changed is not verified."""
    private = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    public = signing_public(private)
    assert public.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    signature = sign(private, b"\x72")
    assert signature.hex().startswith("92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da")
    assert verified(public, b"\x72", signature)
    assert not verified(public, b"\x73", signature)
    assert not verified(public, b"\x72", bytes(64))
    assert not verified(public, b"\x72", b"")
    assert not verified(signing_public(COUNTING), b"\x72", signature)
    with pytest.raises(InputError, match="32 bytes"):
        verified(b"short", b"\x72", signature)


def test_without_the_package_the_extra_is_named() -> None:
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from gdpfed.errors import MissingExtraError\n"
        "try:\n    import gdpfed.secure.client\n"
        "except MissingExtraError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'gdpfed[secure]'" in done.stdout


def test_low_order_keys_are_known() -> None:
    """All ways to write one of the five coordinates: none agrees on anything, and others do."""
    key = AgreementKey(b"1" * 32)
    for coordinate in primitives._LOW_ORDER:
        # The highest of the 256 bits is ignored, and small numbers can be written with the field's size added.
        unreduced = [coordinate + primitives._FIELD] if coordinate + primitives._FIELD < 2**255 else []
        for written in (coordinate, coordinate + 2**255, *unreduced):
            public = written.to_bytes(32, "little")
            assert is_low_order(public)
            with pytest.raises(PrivacyError, match="full order"):
                key.agree(public)
    for number in range(2, 50):
        public = AgreementKey(bytes([number]) * 32).public
        assert not is_low_order(public)
        key.agree(public)
