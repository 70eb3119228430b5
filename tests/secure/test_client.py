"""What a client refuses."""

import dataclasses
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.secure import masks, messages
from gdpfed.secure.client import SecureClient
from gdpfed.secure.client_state import OneTimeKey
from gdpfed.secure.graph import topology
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.secure.primitives import AgreementKey, sign, unseal
from tests.secure.cohorts import BOUND, Stages, World, directory, identity

TOLERANCE = Tolerance(dropout_rate=0.2)
WORLD = World(size=5, tolerance=TOLERANCE)


def resigned(roster: messages.Roster, **changes: Any) -> bytes:
    """Another roster, properly signed by the server."""
    unsigned = dataclasses.replace(roster, **changes)
    return dataclasses.replace(unsigned, signature=sign(identity("server"), unsigned.signed)).encode()


@pytest.fixture
def started() -> Stages:
    return Stages.start(WORLD)


def test_refuses_both_secrets_of_one_peer() -> None:
    stages = Stages.start(WORLD).share().mask(without=[2])
    right = messages.Survivors.decode(stages.survivors[0])
    client = stages.clients[0]
    both = dataclasses.replace(right, lost=(1, 2))
    with pytest.raises(PrivacyError, match="as both"):
        client.agree(both.encode())
    # Asked one after the other: the first answer is the last.
    stages.agree()
    for survivors, lost in (((0, 1, 2, 3), (4,)), ((0, 2, 3, 4), (1,))):
        other = dataclasses.replace(right, survivors=survivors, lost=lost)
        with pytest.raises(PrivacyError, match="one set a session"):
            client.agree(other.encode())


def test_refuses_a_second_set() -> None:
    stages = Stages.start(WORLD).share().mask()
    client = stages.clients[0]
    first = client.agree(stages.survivors[0])
    right = messages.Survivors.decode(stages.survivors[0])
    other = dataclasses.replace(right, survivors=(0, 1, 2, 3), lost=(4,)).encode()
    with pytest.raises(PrivacyError, match="one set a session"):
        client.agree(other)
    assert client.agree(stages.survivors[0]) == first
    # Nor does a quorum of signatures of another set open anything.
    forged = tuple(
        (number, sign(identity(f"client {number}"), messages.Survivors.decode(other).signed)) for number in range(4)
    )
    with pytest.raises(PrivacyError, match="signatures of these survivors"):
        client.reveal(messages.Agreements(roster=right.roster, signatures=forged).encode())


def test_refuses_a_roster_it_cannot_check(started: Stages) -> None:
    client, roster = started.clients[0], messages.Roster.decode(started.roster)
    entries = roster.entries
    with pytest.raises(PrivacyError, match="server has signed"):
        client.share(dataclasses.replace(roster, signature=bytes(64)).encode())
    with pytest.raises(PrivacyError, match="server has signed"):
        client.share(dataclasses.replace(roster, signature=sign(identity("client 1"), roster.signed)).encode())
    unsigned = dataclasses.replace(entries[2], signature=bytes(64))
    with pytest.raises(PrivacyError, match="signed by client 2"):
        client.share(resigned(roster, entries=(*entries[:2], unsigned, *entries[3:])))
    # Another's key under a client's name: the server in the middle.
    swapped = dataclasses.replace(entries[2], public=entries[3].public)
    with pytest.raises(PrivacyError, match="signed by client 2"):
        client.share(resigned(roster, entries=(*entries[:2], swapped, *entries[3:])))
    stranger = dataclasses.replace(entries[4], client=77)
    stranger = dataclasses.replace(stranger, signature=sign(identity("stranger"), stranger.signed))
    with pytest.raises(PrivacyError, match="enrolled clients"):
        client.share(resigned(roster, entries=(*entries[:4], stranger)))
    without = resigned(roster, entries=entries[1:], topology=topology(4, TOLERANCE))
    with pytest.raises(PrivacyError, match="this client advertised"):
        client.share(without)
    # A smaller roster is another roster: after one was answered it is refused.
    client.share(started.roster)
    with pytest.raises(PrivacyError, match="one roster"):
        client.share(resigned(roster, entries=entries[:4], topology=topology(4, TOLERANCE)))


def test_refuses_an_old_key() -> None:
    """Client 0 was lost in a session, and the server learnt the key of its masks. Now it puts client 0's key of then
    into another roster: client 0 refuses it, and nobody else can speak for it."""
    old = Stages.start(WORLD).share().mask(without=[0]).agree()
    old.reveal()
    later = dataclasses.replace(WORLD, round_number=4)

    def with_the_old_key() -> Stages:
        made = Stages(world=later, clients={number: later.client(number) for number in range(5)}, server=later.server())
        made.server.receive_advertisement(old.clients[0].advertise())
        for number in range(1, 5):
            made.server.receive_advertisement(made.clients[number].advertise())
        made.roster = made.server.roster()
        return made

    now, spoilt = with_the_old_key(), with_the_old_key()
    with pytest.raises(PrivacyError, match="key that this client advertised"):
        now.clients[0].share(now.roster)
    # What client 0 shared then does not open now, whichever roster the server says that it is about.
    replayed = messages.SealedShares.decode(old.sent[5])
    assert replayed.client == 0
    forged = dataclasses.replace(replayed, roster=messages.Roster.decode(now.roster).digest)
    with pytest.raises(InputError, match="keys that client 0 signed for this roster"):
        spoilt.server.receive_shares(forged.encode())
    spoilt.share(without=[0])
    delivery = messages.Delivery.decode(spoilt.deliveries[1])
    (box,) = (box for peer, box in forged.sealed if peer == 1)
    told = dataclasses.replace(
        delivery, sharers=(0, *delivery.sharers), sealed=((0, forged.delivered(box)), *delivery.sealed)
    )
    with pytest.raises(PrivacyError, match="keys that client 0 signed for this roster"):
        spoilt.clients[1].mask(told.encode(), None)
    # Without it client 0 is as one that is gone: the others' sum comes out.
    total = now.share(without=[0]).mask().agree().reveal()
    assert np.array_equal(total, later.plain_sum(range(1, 5), 5))


def test_refuses_keys_that_their_owner_did_not_sign() -> None:
    """Of this roster: the server's own, another client's, or what the client itself signed for another session."""
    stages = Stages.start(WORLD).share()
    other = Stages.start(dataclasses.replace(WORLD, round_number=4)).share()
    delivery, elsewhere = (messages.Delivery.decode(one.deliveries[1]) for one in (stages, other))
    (peer, right), (third, theirs), *others = delivery.sealed
    before = stages.clients[1]._state
    made = AgreementKey(b"s" * 32).public
    for wrong in (
        right._replace(mask_public=made),
        right._replace(seal_public=made),
        right._replace(seal_public=right.mask_public, mask_public=right.seal_public),
        right._replace(signature=bytes(64)),
        theirs._replace(box=right.box),
        dict(elsewhere.sealed)[peer],
    ):
        forged = dataclasses.replace(delivery, sealed=((peer, wrong), (third, theirs), *others))
        with pytest.raises(PrivacyError, match=f"keys that client {peer} signed for this roster"):
            stages.clients[1].mask(forged.encode(), None)
        assert stages.clients[1]._state is before
    assert stages.clients[1].mask(delivery.encode(), None)


def test_a_stolen_one_time_key_opens_no_input() -> None:
    """It opens one share of each neighbour's secrets, as a colluder could, and nothing that its owner sealed."""
    stages = Stages.start(WORLD)
    stolen = stages.clients[0]._state.secrets.once
    stages.share()
    roster = messages.Roster.decode(stages.roster)
    shared = {one.client: one for one in map(messages.SealedShares.decode, stages.sent[5:10])}

    def opens(sender: int, recipient: int, public: bytes) -> bool:
        (box,) = (box for peer, box in shared[sender].sealed if peer == recipient)
        key = masks.seal_key(stolen, public, session=roster.digest, one=sender, other=recipient)
        nonce, route = struct.pack("<IQ", sender, 0), roster.digest + struct.pack("<II", sender, recipient)
        try:
            unseal(key, nonce=nonce, sealed=box, bound_to=route)
        except PrivacyError:
            return False
        return True

    publics = [*(entry.public for entry in roster.entries), *(one.seal_public for one in shared.values())]
    for peer in range(1, 5):
        assert opens(peer, 0, shared[peer].seal_public)
        assert not any(opens(0, peer, public) for public in publics)


def test_a_key_may_be_made_ahead_of_time() -> None:
    """Kept as bytes, used in a session that nobody knew of then; what masks the input is made in the session."""
    made = OneTimeKey.made(b"k" * 32, plan_hash=WORLD.plan_hash, client=2, identity=identity("client 2"))
    kept = OneTimeKey.decode(made.encode())
    assert kept.advertised == made.advertised
    stages = Stages.start(WORLD)
    client = SecureClient(
        session=WORLD.session,
        planned=WORLD.planned,
        group=0,
        client=2,
        identity=identity("client 2"),
        directory=directory(8),
        tolerance=TOLERANCE,
        randomness=WORLD.randomness(2),
        key=kept,
    )
    assert client.advertise() == made.advertised.encode()
    assert client._state.secrets is not None
    assert stages.clients[2]._state.secrets is not None
    # What masks, and what seals, is not what was made ahead.
    for name in ("mask", "seal"):
        fresh = getattr(client._state.secrets, name).private
        assert fresh == getattr(stages.clients[2]._state.secrets, name).private != kept.private.private
    for damaged in (b"", made.encode()[:40], bytes(32) + made.encode()[32:], made.encode() + b"x"):
        with pytest.raises(InputError):
            OneTimeKey.decode(damaged)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"round_number": 4}, "round"),
        ({"attempt": 1}, "attempt"),
        ({"plan_hash": b"q" * 32}, "plan"),
        ({"model_hash": b"n" * 32}, "model"),
        ({"num_params": 51}, "number of parameters"),
    ],
)
def test_refuses_another_session(change: dict[str, Any], named: str) -> None:
    """A roster of another session, with the right signatures of all; and an old one, replayed."""
    other = Stages.start(dataclasses.replace(WORLD, **change))
    client = Stages.start(WORLD).clients[0]
    with pytest.raises(PrivacyError, match=f"another {named}"):
        client.share(other.roster)


def test_refuses_messages_about_another_roster() -> None:
    one, other = (Stages.start(dataclasses.replace(WORLD, seed=seed)).share().mask().agree() for seed in (1, 2))
    fresh = Stages.start(WORLD).share()
    with pytest.raises(PrivacyError, match="about another"):
        fresh.clients[0].mask(other.deliveries[0], None)
    with pytest.raises(PrivacyError, match="about another"):
        one.clients[0].agree(other.survivors[0])
    with pytest.raises(PrivacyError, match="about another"):
        one.clients[0].reveal(other.agreements)


def test_refuses_too_few() -> None:
    stages = Stages.start(WORLD).share()
    shape = topology(5, TOLERANCE)
    assert (shape.threshold, shape.quorum, shape.smallest_survivors) == (3, 4, 4)
    delivery = messages.Delivery.decode(stages.deliveries[0])
    fewer = dataclasses.replace(delivery, sharers=(0, 1, 2), sealed=delivery.sealed[:2])
    with pytest.raises(PrivacyError, match="at least 4 sharers"):
        stages.clients[0].mask(fewer.encode(), None)
    stages.mask()
    survivors = messages.Survivors.decode(stages.survivors[0])
    with pytest.raises(PrivacyError, match="at least 4 survivors"):
        stages.clients[0].agree(dataclasses.replace(survivors, survivors=(0, 1, 2), lost=(3, 4)).encode())
    stages.agree()
    agreements = messages.Agreements.decode(stages.agreements)
    with pytest.raises(PrivacyError, match="a quorum"):
        stages.clients[0].reveal(dataclasses.replace(agreements, signatures=agreements.signatures[:3]).encode())
    assert len(agreements.signatures) == 4
    stages.clients[0].reveal(stages.agreements)


def test_refuses_fewer_shares_than_the_threshold() -> None:
    """In a circle: so many of a client's neighbours are missing that its secrets could not be restored."""
    world = World(size=120, tolerance=Tolerance(dropout_rate=0.2))
    stages = Stages.start(world).share()
    shape = topology(120, world.tolerance)
    assert shape.degree < 119
    near = [peer.client for peer in messages.Roster.decode(stages.roster).neighbours_of(0)]
    lost = set(near[: shape.degree + 2 - shape.threshold])
    assert len(lost) <= shape.dropouts
    delivery = messages.Delivery.decode(stages.deliveries[0])
    fewer = dataclasses.replace(
        delivery,
        sharers=tuple(client for client in delivery.sharers if client not in lost),
        sealed=tuple(row for row in delivery.sealed if row[0] not in lost),
    )
    with pytest.raises(PrivacyError, match=f"{shape.threshold} holders"):
        stages.clients[0].mask(fewer.encode(), None)


def lost_in(stages: Stages, lost: set[int], *, to: int) -> bytes:
    """A set of survivors without some, with all confirmations that there are."""
    right = messages.Survivors.decode(stages.survivors[to])
    return dataclasses.replace(
        right,
        survivors=tuple(client for client in right.survivors if client not in lost),
        lost=tuple(sorted(lost)),
        confirmed=tuple(row for row in right.confirmed if row[0] not in lost),
    ).encode()


def test_refuses_a_circle_that_could_be_cut() -> None:
    """Two runs that keep one survivor fewer than the threshold; with that one they are let through."""
    world = World(size=120, tolerance=Tolerance(dropout_rate=0.2))
    stages = Stages.start(world).share().mask()
    shape = topology(120, world.tolerance)
    standing, length = messages.Roster.decode(stages.roster).circle, shape.degree // 2
    # One run from the beginning, one from the other side.
    runs = [*standing[:length], *standing[60 : 60 + length]]
    far = standing[length + 3]
    too_many = set(runs[: shape.degree - shape.threshold + 1])
    assert len(too_many) <= shape.dropouts
    with pytest.raises(PrivacyError, match="could be cut"):
        stages.clients[far].agree(lost_in(stages, too_many, to=far))
    stages.clients[far].agree(lost_in(stages, set(runs[: shape.degree - shape.threshold]), to=far))


def test_refuses_another_set_of_sharers() -> None:
    """Client 1 masks with four, the others with five: nobody signs a set with client 1 in it."""
    stages = Stages.start(WORLD).share()
    right = messages.Delivery.decode(stages.deliveries[1])
    hidden = dataclasses.replace(right, sharers=(0, 1, 2, 3), sealed=right.sealed[:-1])
    other = messages.MaskedInput.decode(stages.clients[1].mask(hidden.encode(), None), num_params=50)
    assert [peer for peer, _ in other.confirmed] == [0, 2, 3]
    with pytest.raises(InputError, match="every neighbour of client 1"):
        stages.server.receive_input(other.encode())
    stages.deliveries.pop(1)
    stages.mask()
    seals = dict(other.confirmed)
    for client in (0, 2, 3):
        made = messages.Survivors.decode(stages.survivors[client])
        forward = tuple(sorted({**dict(made.confirmed), 1: seals[client]}.items()))
        with pytest.raises(PrivacyError, match="does not open"):
            stages.clients[client].agree(
                dataclasses.replace(made, survivors=(0, 1, 2, 3, 4), lost=(), confirmed=forward).encode()
            )
    # Missing, another's, one too many, of another session: refused; the right one is signed then.
    made = messages.Survivors.decode(stages.survivors[0])
    later = Stages.start(dataclasses.replace(WORLD, attempt=1)).share().mask(without=[1])
    old = messages.Survivors.decode(later.survivors[0])
    for confirmed in (
        made.confirmed[1:],
        (*made.confirmed[:-1], (made.confirmed[-1][0], made.confirmed[0][1])),
        ((1, seals[0]), *made.confirmed),
        old.confirmed,
    ):
        with pytest.raises(PrivacyError, match=r"confirmation|does not open"):
            stages.clients[0].agree(dataclasses.replace(made, confirmed=confirmed).encode())
    stages.clients[0].agree(stages.survivors[0])


@pytest.mark.parametrize("threshold", [0, 1, 2])
def test_refuses_a_threshold_of_half(started: Stages, threshold: int) -> None:
    roster = messages.Roster.decode(started.roster)
    lower = dataclasses.replace(roster.topology, threshold=threshold)
    with pytest.raises(PrivacyError, match="above half"):
        started.clients[0].share(resigned(roster, topology=lower))


@pytest.mark.parametrize(
    "change", [{"threshold": 4}, {"threshold": 5}, {"quorum": 3}, {"dropouts": 4}, {"colluders": 1}, {"degree": 2}]
)
def test_refuses_other_numbers(started: Stages, change: dict[str, int]) -> None:
    roster = messages.Roster.decode(started.roster)
    other = dataclasses.replace(roster.topology, **change)
    with pytest.raises(PrivacyError):
        started.clients[0].share(resigned(roster, topology=other))


def test_refuses_a_cohort_that_could_overflow() -> None:
    client = Stages.start(WORLD)
    planned = dataclasses.replace(WORLD.planned, largest_cohort=4)
    tight = SecureClient(
        session=WORLD.session,
        planned=planned,
        group=0,
        client=0,
        identity=identity("client 0"),
        directory=directory(8),
        tolerance=TOLERANCE,
        randomness=WORLD.randomness(0),
    )
    with pytest.raises(PrivacyError, match="at most 4"):
        tight.share(client.roster)


def test_refuses_wrong_deliveries() -> None:
    stages = Stages.start(WORLD).share()
    client = stages.clients[0]
    right = messages.Delivery.decode(stages.deliveries[0])
    with pytest.raises(PrivacyError, match="another's"):
        client.mask(stages.deliveries[1], None)
    with pytest.raises(PrivacyError, match="this client among them"):
        client.mask(dataclasses.replace(right, sharers=(1, 2, 3, 4)).encode(), None)
    with pytest.raises(PrivacyError, match="from the roster"):
        client.mask(dataclasses.replace(right, sharers=(0, 1, 2, 3, 4, 7)).encode(), None)
    with pytest.raises(PrivacyError, match="all neighbours that shared"):
        client.mask(dataclasses.replace(right, sealed=right.sealed[1:]).encode(), None)
    one, other = right.sealed[0][1], right.sealed[1][1]
    swapped = ((1, one._replace(box=other.box)), (2, other._replace(box=one.box)), *right.sealed[2:])
    with pytest.raises(PrivacyError, match="does not open"):
        client.mask(dataclasses.replace(right, sealed=swapped).encode(), None)
    client.mask(stages.deliveries[0], None)
    with pytest.raises(PrivacyError, match="masked once"):
        client.mask(stages.deliveries[0], None)


def test_refuses_wrong_survivors() -> None:
    stages = Stages.start(WORLD).share().mask(without=[2])
    right = messages.Survivors.decode(stages.survivors[0])
    for change, named in (
        ({"survivors": (1, 3, 4), "lost": (0, 2)}, "this client among"),
        ({"survivors": (0, 1, 3), "lost": (2, 4)}, "at least 4 survivors"),
        ({"lost": ()}, "those who shared"),
        ({"lost": (2, 7)}, "those who shared"),
    ):
        with pytest.raises(PrivacyError, match=named):
            stages.clients[0].agree(dataclasses.replace(right, **change).encode())


def test_refuses_out_of_order(started: Stages) -> None:
    done = Stages.start(WORLD).share().mask().agree()
    client = started.clients[0]
    for call in (
        lambda: client.mask(done.deliveries[0], None),
        lambda: client.agree(done.survivors[0]),
        lambda: client.reveal(done.agreements),
    ):
        with pytest.raises(PrivacyError, match="expected a roster first"):
            call()
    client.share(started.roster)
    with pytest.raises(PrivacyError, match="expected a delivery first"):
        client.agree(done.survivors[0])
    with pytest.raises(PrivacyError, match="expected the survivors first"):
        client.reveal(done.agreements)


def test_refusal_changes_nothing() -> None:
    """After every refused message the state is the same object by object, and the sum is right in the end."""
    stages = Stages.start(WORLD)
    client = stages.clients[0]
    roster = messages.Roster.decode(stages.roster)

    def refused(call: Callable[[bytes], Any], *wrong: bytes) -> None:
        before = dict(vars(client))
        for message in (b"", b"gdpfed-sum\x01\x02", *wrong):
            with pytest.raises((PrivacyError, InputError)):
                call(message)
        # What the names stand for is frozen: the same objects are the same state.
        assert all(vars(client)[name] is value for name, value in before.items())

    shorter = dataclasses.replace(roster.topology, threshold=2)
    refused(client.share, resigned(roster, topology=shorter), resigned(roster, entries=roster.entries[::-1]))
    stages.share()
    delivery = messages.Delivery.decode(stages.deliveries[0])
    tampered = (*delivery.sealed[:-1], (delivery.sealed[-1][0], delivery.sealed[-1][1]._replace(box=bytes(82))))
    refused(
        lambda message: client.mask(message, np.ones(50)),
        stages.deliveries[1],
        dataclasses.replace(delivery, sealed=tampered).encode(),
    )
    stages.mask(without=[2])
    survivors = messages.Survivors.decode(stages.survivors[0])
    refused(client.agree, dataclasses.replace(survivors, lost=(1, 2)).encode())
    stages.agree()
    refused(client.reveal, messages.Agreements(roster=survivors.roster, signatures=()).encode())
    assert np.array_equal(stages.reveal(), WORLD.plain_sum([0, 1, 3, 4], 5))


def test_reveals_exactly_one_secret() -> None:
    stages = Stages.start(WORLD).share().mask(without=[2]).agree()
    for client in (0, 1, 3, 4):
        shares = messages.Shares.decode(stages.clients[client].reveal(stages.agreements)).shares
        assert [peer for peer, _, _ in shares] == [0, 1, 2, 3, 4]
        assert [kind for _, kind, _ in shares] == [
            messages.OF_MASK if peer == 2 else messages.OF_SEED for peer in range(5)
        ]


@pytest.mark.parametrize(
    "update", [np.full(50, np.nan), np.full(50, np.inf), np.full(50, 1e200), np.zeros(49), None, "x", np.zeros(50)]
)
def test_any_update_is_answered(update: Any) -> None:
    """As long as any other answer, and the sum is that of the others."""
    stages = Stages.start(WORLD).share()
    lengths = set()
    for client, delivery in stages.deliveries.items():
        sent = stages.clients[client].mask(delivery, update if client == 1 else np.zeros(50))
        lengths.add(len(sent))
        stages.server.receive_input(sent)
    assert len(lengths) == 1
    stages.survivors = stages.server.survivors()
    total = stages.agree().reveal()
    noise = sum(WORLD.noise(client, 5) for client in range(5))
    assert np.array_equal(total, (noise % 2**32).astype(np.uint32))


def test_a_huge_update_is_clipped() -> None:
    stages = Stages.start(World(size=1)).share()
    stages.server.receive_input(stages.clients[0].mask(stages.deliveries[0], np.full(50, 1e100)))
    stages.survivors = stages.server.survivors()
    steps = (stages.agree().reveal().view(np.int32) - World(size=1).noise(0, 1)).tolist()
    assert 0.999 * BOUND**2 < sum(step * step for step in steps) <= BOUND**2


def test_bad_setups_are_refused() -> None:
    with pytest.raises(InputError, match="enrolled with"):
        SecureClient(
            session=WORLD.session,
            planned=WORLD.planned,
            group=0,
            client=0,
            identity=identity("client 1"),
            directory=directory(8),
            tolerance=TOLERANCE,
        )
    with pytest.raises(InputError, match="planned sum"):
        SecureClient(
            session=WORLD.session,
            planned=WORLD.planned,
            group=1,
            client=0,
            identity=identity("client 0"),
            directory=directory(8),
            tolerance=TOLERANCE,
        )


def test_a_saved_client_goes_on() -> None:
    """Every client is saved, and a new one loaded, before every message; also when it is randomness that differs."""
    stages = Stages.start(WORLD)

    def swap() -> None:
        for number, client in stages.clients.items():
            fresh = dataclasses.replace(WORLD, seed=99).client(number)
            fresh.load(client.save())
            assert fresh.save() == client.save()
            # Noise is drawn when it is needed; here from where the test can draw it again.
            fresh._randomness = WORLD.randomness(number)
            stages.clients[number] = fresh

    swap()
    stages.share(without=[])
    swap()
    stages.mask(without=[2])
    swap()
    stages.agree()
    swap()
    with pytest.raises(PrivacyError, match="masked once"):
        stages.clients[0].mask(stages.deliveries[0], None)
    assert np.array_equal(stages.reveal(), WORLD.plain_sum([0, 1, 3, 4], 5))


def test_masks_do_not_wait_for_the_update() -> None:
    """The answer is that of one step, whatever was tried before; a second delivery is refused as it was."""
    update = np.full(WORLD.num_params, 0.01)
    at_once, in_steps = (Stages.start(WORLD).share() for _ in range(2))
    answer = at_once.clients[0].mask(at_once.deliveries[0], update)
    client = in_steps.clients[0]
    finish = client.masked(in_steps.deliveries[0])
    assert client.save() == at_once.clients[0].save()
    zero = finish(None)
    assert finish(update) == answer != zero
    assert len(zero) == len(answer)
    with pytest.raises(PrivacyError, match="masked once"):
        client.masked(in_steps.deliveries[0])


def test_other_states_are_refused() -> None:
    client, other = WORLD.client(0), WORLD.client(1)
    before = dict(vars(client))
    states = [
        b"",
        b"{}",
        b"[1]",
        b"null",
        client.save()[:-5],
        client.save().replace(b'"secrets": [', b'"secrets": [7, '),
    ]
    for wrong in (*states, other.save(), dataclasses.replace(WORLD, attempt=3).client(0).save()):
        with pytest.raises(InputError, match="saved state"):
            client.load(wrong)
        assert all(vars(client)[name] is value for name, value in before.items())
