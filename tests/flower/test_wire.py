"""Packets, standings and terms: round trips, and mutations that are refused."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gdpfed.errors import GdpfedError, InputError, PrivacyError
from gdpfed.flower.shared.terms import Terms
from gdpfed.flower.shared.wire import STAGES, Standing, pack, unpack
from gdpfed.secure.primitives import signing_public

KEY = bytes(range(32))
TERMS = Terms(
    run="run",
    plan="format = 1",
    dropout_rate=0.1,
    colluding_fraction=0.0,
    complete_up_to=100,
    enrolment=bytes(32),
    num_params=9,
)


@given(stage=st.sampled_from(STAGES), parts=st.lists(st.binary(max_size=50), max_size=5))
def test_packets_round_trip(stage: str, parts: list[bytes]) -> None:
    assert unpack(pack(stage, *parts), stage=stage, num_parts=len(parts)) == tuple(parts)


def mutated(content: bytes, data: st.DataObject) -> bytes:
    made = bytearray(content)
    for _ in range(data.draw(st.integers(0, 5))):
        made[data.draw(st.integers(0, len(made) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(made)))
    return bytes(made[:cut]) if data.draw(st.booleans()) else bytes(made) + data.draw(st.binary(max_size=5))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_packets_are_refused(data: st.DataObject) -> None:
    parts = data.draw(st.lists(st.binary(max_size=20), min_size=1, max_size=3))
    content = mutated(pack("keys", *parts), data)
    try:
        found = unpack(content, stage="keys", num_parts=len(parts))
    except InputError:
        return
    assert pack("keys", *found) == content


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_standings_are_refused(data: st.DataObject) -> None:
    made = Standing(client=3, nonce=bytes(32), node=5, num_rows=7, head=bytes(32)).signed_by(KEY)
    assert Standing.decode(made.encode()) == made
    content = mutated(made.encode(), data)
    try:
        found = Standing.decode(content)
    except InputError:
        return
    assert found.encode() == content
    assert found.is_signed_by(signing_public(KEY)) == (found == made)


def test_terms_are_signed() -> None:
    signed = TERMS.signed(KEY)
    assert Terms.opened(signed, server=signing_public(KEY)) == TERMS
    with pytest.raises(PrivacyError, match="not signed by the pinned server"):
        Terms.opened(signed, server=signing_public(bytes(32)))
    other = Terms(**{**vars(TERMS), "run": "other"})
    with pytest.raises(PrivacyError, match="not signed"):
        Terms.opened(signed[:64] + other.encode(), server=signing_public(KEY))
    assert other.digest != TERMS.digest


def test_a_plan_beyond_measure_is_refused() -> None:
    """Before it is parsed, which would take seconds: by the server that would send it, and by the node that gets it."""
    large = {**vars(TERMS), "plan": "x" * (1 << 18)}
    content = Terms(**large).encode()
    assert Terms.decode(content).plan == large["plan"]
    with pytest.raises(InputError, match="a plan of up to 262144 characters, got 262145: make fewer groups"):
        Terms(**{**large, "plan": large["plan"] + "x"})
    with pytest.raises(InputError, match="a plan of up to 262144 characters"):
        Terms.decode(content.replace(b"xxx", b"xxxx", 1))


@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_mutated_terms_are_refused(data: st.DataObject) -> None:
    content = mutated(TERMS.signed(KEY), data)
    try:
        found = Terms.opened(content, server=signing_public(KEY))
    except GdpfedError:
        return
    assert found == TERMS
    assert content == TERMS.signed(KEY)


@settings(max_examples=40, deadline=None)
@example(value=10**400)
@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner)
    )
)
def test_terms_of_other_types_are_refused(value: object) -> None:
    for name in vars(TERMS):
        content = json.loads(TERMS.encode())
        content[name] = value
        encoded = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
        try:
            found = Terms.decode(encoded)
        except InputError:
            continue
        assert found.encode() == encoded
