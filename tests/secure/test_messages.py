"""Every decoder: exact on what is right, an InputError on everything else."""

import contextlib
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpfed.errors import GdpfedError, InputError
from gdpfed.secure import messages
from gdpfed.secure.noise_shares import Tolerance
from tests.secure.cohorts import Stages, World, server_state

NUM_PARAMS = 50
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "advertisement": messages.Advertisement.decode,
    "roster": messages._remembered_roster.__wrapped__,
    "sealed shares": messages.SealedShares.decode,
    "delivery": messages.Delivery.decode,
    "masked input": lambda content: messages.MaskedInput.decode(content, num_params=NUM_PARAMS),
    "survivors": messages.Survivors.decode,
    "agreement": messages.Agreement.decode,
    "agreements": messages.Agreements.decode,
    "shares": messages.Shares.decode,
}


@functools.cache
def samples() -> dict[str, bytes]:
    """One real message of each kind, of a cohort of 5 that lost one."""
    stages = Stages.start(World(size=5, num_params=NUM_PARAMS, tolerance=Tolerance(dropout_rate=0.2)))
    stages.share().mask(without=[2]).agree().reveal()
    found = {"roster": stages.roster, "delivery": stages.deliveries[1], "survivors": stages.survivors[1]}
    found["agreements"] = stages.agreements
    for message in stages.sent:
        kinds = {1: "advertisement", 3: "sealed shares", 5: "masked input", 7: "agreement", 9: "shares"}
        found.setdefault(kinds[message[11]], message)
    return found


@pytest.mark.parametrize("kind", DECODERS)
def test_every_message_round_trips(kind: str) -> None:
    content = samples()[kind]
    decoded = DECODERS[kind](content)
    assert decoded.encode() == content
    # Vectors are not compared: a masked input is equal to itself only.
    assert (DECODERS[kind](decoded.encode()) == decoded) == (kind != "masked input")


def mutated(content: bytes, generator: np.random.Generator) -> bytes:
    """Flipped, cut, extended, overwritten, moved: one to three times."""
    made = bytearray(content)
    for _ in range(int(generator.integers(1, 4))):
        at = int(generator.integers(0, max(1, len(made))))
        kind = int(generator.integers(0, 7))
        if kind == 0 and made:
            made[at] ^= 1 << int(generator.integers(8))
        elif kind == 1:
            del made[at:]
        elif kind == 2:
            made += generator.bytes(int(generator.integers(1, 40)))
        elif kind == 3:
            made[at : at + 4] = int(generator.choice([0, 1, 2**31, 2**32 - 1])).to_bytes(4, "little")
        elif kind == 4:
            del made[at : at + int(generator.integers(1, 9))]
        elif kind == 5:
            made[at:at] = made[at : at + int(generator.integers(1, 60))]
        elif made:
            made[at] = int(generator.integers(256))
    return bytes(made)


@pytest.mark.parametrize("kind", DECODERS)
def test_mutated_messages_are_refused(kind: str) -> None:
    """11,200 mutations for each of nine decoders: 100,800 in all. What is still a message encodes to itself."""
    content = samples()[kind]
    decode = DECODERS[kind]
    generator = np.random.default_rng(sorted(DECODERS).index(kind))
    refused = 0
    for _ in range(11_200):
        wrong = mutated(content, generator)
        try:
            decoded = decode(wrong)
        except InputError:
            refused += 1
        else:
            assert decoded.encode() == wrong
    assert refused > 2_000


@settings(max_examples=300, deadline=None)
@given(content=st.binary(max_size=400), kind=st.sampled_from(sorted(DECODERS)), headed=st.booleans())
def test_any_bytes_are_refused_or_read(content: bytes, kind: str, headed: bool) -> None:
    content = samples()[kind][:12] + content if headed else content
    with contextlib.suppress(InputError):
        assert DECODERS[kind](content).encode() == content


@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.parametrize("wrong", [b"", bytearray(b"x"), "text", None, 7])
def test_only_bytes_are_messages(kind: str, wrong: Any) -> None:
    with pytest.raises(InputError):
        DECODERS[kind](wrong)
    if kind == "roster":
        with pytest.raises(InputError):
            messages.Roster.decode(wrong)


def test_versions_and_kinds_are_checked() -> None:
    for kind, content in samples().items():
        newer = bytearray(content)
        newer[10] = 4
        with pytest.raises(InputError, match="version 4"):
            DECODERS[kind](bytes(newer))
        for other, decode in DECODERS.items():
            if other != kind:
                with pytest.raises(InputError, match=r"another kind|cut off"):
                    decode(content)


def test_sizes_are_bounded() -> None:
    """A list that claims four billion entries is refused without an attempt to read them; so is a vector that is not
    the model's."""
    content = bytearray(samples()["agreements"])
    content[44:48] = (2**32 - 1).to_bytes(4, "little")
    with pytest.raises(InputError, match="impossible length"):
        messages.Agreements.decode(bytes(content))
    content[44:48] = (2**16).to_bytes(4, "little")
    with pytest.raises(InputError, match="cut off"):
        messages.Agreements.decode(bytes(content))
    for num_params in (NUM_PARAMS - 1, NUM_PARAMS + 1, 10**9, None):
        with pytest.raises(InputError, match="a vector that is not of"):
            messages.MaskedInput.decode(samples()["masked input"], num_params=num_params)


def test_order_is_part_of_the_format() -> None:
    roster = b"r" * 32
    for numbers in ((2, 1), (1, 1)):
        wrong = messages.Survivors(roster=roster, survivors=numbers, lost=())
        with pytest.raises(InputError, match="increasing"):
            messages.Survivors.decode(wrong.encode())
    with pytest.raises(InputError, match="impossible length"):
        messages.Survivors.decode(messages.Survivors(roster=roster, survivors=(), lost=()).encode())


def test_shares_are_elements_of_the_field() -> None:
    for kind, share in ((2, bytes(33)), (0, b"\xff" * 33)):
        wrong = messages.Shares(roster=b"r" * 32, client=1, shares=((1, kind, share),))
        with pytest.raises(InputError, match="no share"):
            messages.Shares.decode(wrong.encode())


def test_a_bad_session_is_no_crash() -> None:
    content = bytearray(samples()["roster"])
    content[12 + 80 : 12 + 84] = bytes(4)
    with pytest.raises(InputError, match="impossible session"):
        messages.Roster.decode(bytes(content))


def stage_calls(stages: Stages) -> list[tuple[Callable[[bytes], Any], bytes]]:
    """What clients and server accept, and a right message for each."""
    found = samples()
    client, server = stages.clients[1], stages.server
    return [
        (client.share, stages.roster),
        (lambda content: client.mask(content, None), found["delivery"]),
        (client.agree, found["survivors"]),
        (client.reveal, found["agreements"]),
        (server.receive_advertisement, found["advertisement"]),
        (server.receive_shares, found["sealed shares"]),
        (server.receive_input, found["masked input"]),
        (server.receive_agreement, found["agreement"]),
        (server.receive_revealed, found["shares"]),
    ]


@pytest.mark.training
def test_mutated_messages_leave_no_partial_state() -> None:
    """500 for each entrance of client and server, at three stages: only errors of ours, after which all is as it was.

    What is accepted is a message that its sender could have sent.
    """
    world = World(size=5, num_params=NUM_PARAMS, tolerance=Tolerance(dropout_rate=0.2))
    generator = np.random.default_rng(1)
    refused = 0
    for stages in (Stages.start(world), Stages.start(world).share(), Stages.start(world).share().mask()):
        for call, right in stage_calls(stages):
            for _ in range(500):
                wrong = mutated(right, generator)
                of_client, of_server = stages.clients[1]._state, server_state(stages.server)
                try:
                    call(wrong)
                except GdpfedError:
                    refused += 1
                    assert stages.clients[1]._state is of_client
                    assert server_state(stages.server) == of_server
    assert refused > 13_000


def test_sizes_are_as_documented() -> None:
    """The table of docs/security.md, for a cohort of 5, all of them holders, of which one is lost."""
    clients = holders = 5
    expected = {
        "advertisement": 144,
        "roster": 184 + 100 * clients,
        "sealed shares": 212 + 86 * (holders - 1),
        "delivery": 56 + 4 * clients + 214 * (holders - 1),
        "masked input": 56 + 4 * NUM_PARAMS + 20 * (holders - 1),
        # Of a client's neighbours one is lost.
        "survivors": 56 + 4 * clients + 20 * (holders - 2),
        "agreement": 112,
        "agreements": 48 + 68 * (clients - 1),
        "shares": 52 + 38 * holders,
    }
    assert {kind: len(content) for kind, content in samples().items()} == expected
    table = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    for formula in (
        "144",
        "184 + 100 n",
        "212 + 86 (h - 1)",
        "56 + 4 n + 214 (h - 1)",
        "56 + 4 d + 20 (h - 1)",
        "56 + 4 n + 20 (h - 1)",
        "48 + 68 q",
        "112",
    ):
        assert f"| {formula} |" in table
