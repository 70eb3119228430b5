"""The whole protocol: sums, dropouts, aborts, secrets."""

import base64
import dataclasses
import itertools
import logging
import traceback
from collections.abc import Callable

import numpy as np
import pytest

from gdpfed.errors import InputError
from gdpfed.secure import masks, messages
from gdpfed.secure.encoding import encode
from gdpfed.secure.graph import topology
from gdpfed.secure.in_process import InProcessSum, Stage
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.secure.primitives import sign
from gdpfed.secure.server import AbortedError, SecureServer, empty_sum
from gdpfed.secure.session import Directory, Session
from tests.secure.cohorts import Stages, World, directory, identity, server_state
from tests.training.checkers import variance_window

TENTH = Tolerance(dropout_rate=0.1, colluding_fraction=0.1)


@pytest.mark.parametrize("size", [1, 2, 3, 8, 20])
@pytest.mark.parametrize("tolerance", [Tolerance(), TENTH])
def test_masked_sum_is_the_plain_sum(size: int, tolerance: Tolerance) -> None:
    world = World(size=size, tolerance=tolerance)
    assert np.array_equal(world.run(), world.plain_sum(range(size), size))


def test_a_circle_sums_too() -> None:
    """150 clients, of which 21 are lost at all stages."""
    world = World(size=150, tolerance=TENTH)
    assert topology(150, TENTH).degree == 30
    lost = {7 * number: Stage(2 + number % 4) for number in range(21)}
    silent = {client for client, stage in lost.items() if stage <= Stage.INPUT}
    survivors = [client for client in range(150) if client not in silent]
    assert np.array_equal(world.run(lost), world.plain_sum(survivors, 150))


@pytest.mark.parametrize("stage", list(Stage))
def test_every_subset_of_six_at_every_stage(stage: Stage) -> None:
    """All 63 subsets: the right sum, or an abort before anything is unmasked. Never a wrong one."""
    tolerance = Tolerance(dropout_rate=0.2)
    world = World(size=6, tolerance=tolerance, num_params=20)
    shape = topology(6, tolerance)
    assert shape.dropouts == 2
    for size in range(1, 7):
        for lost in itertools.combinations(range(6), size):
            left = [client for client in range(6) if client not in lost]
            vanish = dict.fromkeys(lost, stage)
            if stage == Stage.KEYS:
                # Not in the roster: the noise is sized by those who are.
                if left:
                    assert np.array_equal(world.run(vanish), world.plain_sum(left, len(left)))
                else:
                    with pytest.raises(AbortedError):
                        world.run(vanish)
            elif size <= shape.dropouts:
                survivors = left if stage <= Stage.INPUT else range(6)
                assert np.array_equal(world.run(vanish), world.plain_sum(survivors, 6))
            else:
                with pytest.raises(AbortedError):
                    world.run(vanish)


def test_mixed_stages_of_six() -> None:
    """Two lost, at every pair of stages."""
    world = World(size=6, tolerance=Tolerance(dropout_rate=0.2), num_params=20)
    for one, other in itertools.product(list(Stage)[1:], repeat=2):
        survivors = [c for c, s in ((1, one), (3, other)) if s > Stage.INPUT] + [0, 2, 4, 5]
        assert np.array_equal(world.run({1: one, 3: other}), world.plain_sum(survivors, 6))


@pytest.mark.parametrize("stage", [Stage.SHARES, Stage.INPUT])
def test_one_dropout_more_aborts(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cohort of 20, 4 tolerated: with 5 no client reveals, and no mask is taken off."""
    world = World(size=20, tolerance=TENTH)
    dropouts = topology(20, TENTH).dropouts
    assert dropouts == 4
    survivors = range(dropouts, 20)
    assert np.array_equal(world.run(dict.fromkeys(range(dropouts), stage)), world.plain_sum(survivors, 20))

    def forbidden(*_arguments: object, **_named: object) -> None:
        raise AssertionError("something was unmasked")

    monkeypatch.setattr("gdpfed.secure.client.SecureClient.agree", forbidden)
    monkeypatch.setattr("gdpfed.secure.client.SecureClient.reveal", forbidden)
    monkeypatch.setattr(SecureServer, "total", forbidden)
    with pytest.raises(AbortedError, match="nothing was unmasked"):
        world.run(dict.fromkeys(range(dropouts + 1), stage))


def test_a_quorum_is_needed_to_unmask() -> None:
    stages = Stages.start(World(size=5, tolerance=Tolerance(dropout_rate=0.2))).share().mask()
    with pytest.raises(AbortedError, match="4 signatures"):
        stages.agree(without=[0, 1])
    stages.server.receive_agreement(stages.clients[1].agree(stages.survivors[1]))
    stages.agreements = stages.server.agreements()
    with pytest.raises(AbortedError, match="3 shares of client"):
        stages.reveal(without=[0, 1, 2])
    stages.server.receive_revealed(stages.clients[1].reveal(stages.agreements))
    assert np.array_equal(stages.server.total(), stages.world.plain_sum(range(5), 5))


def test_noise_in_the_unmasked_sum_is_measured() -> None:
    """Through the whole protocol, 500,000 coordinates, cohort of 4: variance as planned, at a false alarm of 1e-6."""
    num = 500_000
    world = World(size=4, num_params=num, noise_std=3000)
    low, high = variance_window(num)
    sent = sum(encode(update, world.planned.encodings[0]) for update in world.updates())
    found = (world.run().view(np.int32) - sent).astype(float)
    assert low <= float(np.mean(np.square(found))) / (3000**2) <= high * 1.0001


def test_an_empty_cohort_is_noise() -> None:
    world = World(size=1, num_params=500_000, noise_std=3000)
    low, high = variance_window(500_000)
    drawn = empty_sum(world.planned, randomness=world.randomness(9)).view(np.int32).astype(float)
    assert low <= float(np.mean(drawn**2)) / 3000**2 <= high * 1.0003
    assert not np.array_equal(empty_sum(world.planned), empty_sum(world.planned))
    with pytest.raises(AbortedError, match="empty"):
        world.server().roster()


@pytest.mark.parametrize("tolerance", [Tolerance(), TENTH, Tolerance(dropout_rate=0.2)])
def test_released_variance_does_not_tell_the_cohort(tolerance: Tolerance) -> None:
    """Cohorts of 0 to 11, everybody there or as many lost as may be: the same variance, share by share and measured.

    Else whoever sees models could count the cohort, and sampling would protect no better than one of fixed size.
    """
    num = 100_000
    low, high = variance_window(num)
    for size in (1, 2, 5, 11):
        world = World(size=size, num_params=num, noise_std=3000, tolerance=tolerance)
        for lost in {0, tolerance.dropouts(size)}:
            made = InProcessSum(
                world.server(),
                {client: world.client(client) for client in range(size)},
                vanish=dict.fromkeys(range(lost), Stage.INPUT),
            )
            made.open()
            for client in range(size):
                made.contribute(client, np.zeros(num))
            noise = made.release(world.planned, randomness=world.randomness(99)).view(np.int32).astype(float)
            assert low <= float(np.mean(np.square(noise))) / world.planned.released_variance <= high
    drawn = empty_sum(world.planned, randomness=world.randomness(99)).view(np.int32).astype(float)
    assert low <= float(np.mean(np.square(drawn))) / world.planned.released_variance <= high


def test_attempts_share_nothing() -> None:
    """Noise and masks of a second attempt are fresh: two attempts do not differ by the updates alone."""
    sums = [World(size=3, attempt=attempt).run().view(np.int32) for attempt in (0, 1)]
    assert np.abs(sums[0] - sums[1]).mean() > 1e4


def test_a_bad_message_changes_nothing() -> None:
    """At every stage: unreadable, of another roster, of the wrong sender, twice. Then the sum is right."""
    world = World(size=5, tolerance=Tolerance(dropout_rate=0.2))
    stages, other = Stages.start(world), Stages.start(dataclasses.replace(world, seed=2))
    server = stages.server

    def refused(call: Callable[[bytes], None], *wrong: bytes) -> None:
        before = server_state(server)
        for message in (b"", b"x" * 100, *wrong):
            with pytest.raises(InputError):
                call(message)
        assert server_state(server) == before

    late = world.client(1).advertise()
    refused(server.receive_advertisement, late, stages.sent[0])
    foreign = other.clients[1].share(other.roster)
    mine = messages.SealedShares.decode(stages.clients[0].share(stages.roster))
    refused(
        server.receive_shares,
        foreign,
        dataclasses.replace(mine, client=7).encode(),
        dataclasses.replace(mine, sealed=mine.sealed[1:]).encode(),
        dataclasses.replace(mine, client=1).encode(),
    )
    stages.share()
    refused(server.receive_shares, mine.encode())
    confirmed = tuple((peer, bytes(16)) for peer in range(1, 5))
    vector = messages.MaskedInput(
        roster=mine.roster, client=0, confirmed=confirmed, values=np.ones(50, dtype=np.uint32)
    )
    refused(
        server.receive_input,
        dataclasses.replace(vector, roster=bytes(32)).encode(),
        dataclasses.replace(vector, client=9).encode(),
        dataclasses.replace(vector, values=np.ones(49, dtype=np.uint32)).encode(),
        dataclasses.replace(vector, confirmed=confirmed[1:]).encode(),
        dataclasses.replace(vector, confirmed=(*confirmed, (7, bytes(16)))).encode(),
    )
    stages.mask(without=[2])
    refused(server.receive_input, vector.encode(), dataclasses.replace(vector, client=2).encode())
    agreed = messages.Agreement.decode(stages.clients[0].agree(stages.survivors[0]))
    refused(
        server.receive_agreement,
        dataclasses.replace(agreed, signature=bytes(64)).encode(),
        dataclasses.replace(agreed, client=1).encode(),
        dataclasses.replace(agreed, client=2).encode(),
    )
    stages.agree()
    refused(server.receive_agreement, agreed.encode())
    shares = messages.Shares.decode(stages.clients[0].reveal(stages.agreements))
    other_kind = tuple((peer, 1 - kind, share) for peer, kind, share in shares.shares)
    refused(
        server.receive_revealed,
        dataclasses.replace(shares, shares=other_kind).encode(),
        dataclasses.replace(shares, shares=shares.shares[1:]).encode(),
        dataclasses.replace(shares, client=2).encode(),
    )
    assert np.array_equal(stages.reveal(), world.plain_sum([0, 1, 3, 4], 5))
    refused(server.receive_revealed, shares.encode())


def test_stages_come_in_order() -> None:
    server = World(size=3).server()
    for call in (server.deliveries, server.survivors, server.agreements, server.total):
        with pytest.raises(InputError, match="first"):
            call()
    done = Stages.start(World(size=3)).share().mask().agree()
    with pytest.raises(InputError, match="survivors first"):
        server.receive_agreement(done.sent[-1])


@pytest.mark.parametrize("of", [messages.OF_SEED, messages.OF_MASK])
def test_a_wrong_share_is_noticed(of: int) -> None:
    stages = Stages.start(World(size=5, tolerance=Tolerance(dropout_rate=0.2))).share().mask(without=[2]).agree()
    for client in (0, 1, 3, 4):
        made = messages.Shares.decode(stages.clients[client].reveal(stages.agreements))
        if client == 0:
            wrong = tuple(
                (peer, kind, bytes([share[0] ^ 1]) + share[1:] if kind == of else share)
                for peer, kind, share in made.shares
            )
            made = dataclasses.replace(made, shares=wrong)
        stages.server.receive_revealed(made.encode())
    with pytest.raises(AbortedError, match="do not fit together"):
        stages.server.total()


def test_advertisements_are_checked() -> None:
    world = World(size=3)
    server = world.server()
    made = messages.Advertisement.decode(world.client(0).advertise())
    wrong = [
        dataclasses.replace(made, signature=bytes(64)),
        dataclasses.replace(made, client=1),
        dataclasses.replace(made, client=5),
        messages.Advertisement.decode(dataclasses.replace(world, plan_hash=b"q" * 32).client(0).advertise()),
    ]
    # Properly signed: all neighbours would refuse it, and one client would spoil the sum.
    low = dataclasses.replace(made, public=bytes(32))
    wrong.append(dataclasses.replace(low, signature=sign(identity("client 0"), low.signed)))
    for message in wrong:
        with pytest.raises(InputError):
            server.receive_advertisement(message.encode())
    server.receive_advertisement(made.encode())
    with pytest.raises(InputError, match="once"):
        server.receive_advertisement(made.encode())


def test_bad_setups_are_refused() -> None:
    world = World(size=3)
    with pytest.raises(InputError, match="server's identity"):
        SecureServer(
            session=world.session,
            invited=[0],
            identity=identity("client 0"),
            directory=directory(8),
            tolerance=Tolerance(),
        )
    with pytest.raises(InputError, match="enrolled"):
        SecureServer(
            session=world.session,
            invited=[99],
            identity=identity("server"),
            directory=directory(8),
            tolerance=Tolerance(),
        )
    with pytest.raises(InputError, match="32 bytes"):
        Directory(server=b"", clients={})
    with pytest.raises(InputError, match="client numbers"):
        Directory(server=bytes(32), clients={2**32: bytes(32)})
    for change in ({"round_number": -1}, {"num_params": 0}, {"plan_hash": b""}):
        with pytest.raises(InputError):
            Session(**{**dataclasses.asdict(world.session), **change})


# Secrets


def forms(secret: bytes) -> list[str]:
    """How a secret could look in a text."""
    number = int.from_bytes(secret, "little")
    return [
        secret.hex(),
        repr(secret)[2:-1],
        base64.b64encode(secret).decode()[:20],
        str(number),
        str(list(secret))[1:-1],
    ]


def secrets_of(world: World, stages: Stages) -> list[bytes]:
    """Every key, seed and share of the cohort, a piece of every mask, update and noise sample."""
    found = [identity("server")]
    for client in range(world.size):
        keys = world.randomness(client).stream("keys")
        found += [*(keys.take(32) for _ in range(4)), identity(f"client {client}")]
        found += [world.noise(client, world.size)[:6].tobytes(), world.updates()[client][:6].tobytes()]
        machine = stages.clients[client]
        for joined in filter(None, [machine._state.joined]):
            found += [*joined.own_pair]
        for masked in filter(None, [machine._state.masked]):
            found += [share for pair in masked.held.values() for share in pair]
            found += masked.channels.values()
    return found


def test_no_secret_is_shown(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts of all objects at all stages, all messages' texts, and every exception's text with its traceback."""
    caplog.set_level(logging.DEBUG)
    world = World(size=5, tolerance=Tolerance(dropout_rate=0.2))
    stages = Stages.start(world)
    texts: list[str] = []
    decoders = [
        messages.Advertisement.decode,
        messages.SealedShares.decode,
        lambda content: messages.MaskedInput.decode(content, num_params=50),
        messages.Agreement.decode,
        messages.Shares.decode,
        messages.Delivery.decode,
    ]

    def look() -> None:
        for machine in (stages.server, *stages.clients.values(), *map(world.randomness, range(5))):
            texts.extend((repr(machine), str(machine)))
        for client in stages.clients.values():
            state = client._state
            parts = (
                state,
                state.secrets,
                state.joined,
                state.masked,
                state.agreed,
                state.secrets and state.secrets.mask,
            )
            texts.extend(repr(part) for part in parts)
        for wrong in (b"", *stages.sent[-3:], *(message[:-1] for message in stages.sent[-3:])):
            for client in stages.clients.values():
                for call in (client.share, client.agree, client.reveal, lambda m, c=client: c.mask(m, None)):
                    try:
                        call(wrong)
                    except Exception as error:
                        texts.extend((repr(error), "".join(traceback.format_exception(error))))
        for message, decode in itertools.product(stages.sent, decoders):
            try:
                texts.append(repr(decode(message)))
            except InputError as error:
                texts.append(str(error))

    look()
    for advance in (stages.share, lambda: stages.mask(without=[2]), stages.agree):
        secrets = secrets_of(world, stages)
        advance()
        look()
        secrets += secrets_of(world, stages)
    stages.reveal()
    look()
    shown = "\n".join([*texts, caplog.text, *capsys.readouterr()])
    assert len(shown) > 10_000
    for secret in secrets:
        assert not any(form in shown for form in forms(secret))
    # Positive control: the search finds what is there.
    assert any(form in f"leaked: {secrets[1]!r}" for form in forms(secrets[1]))


def test_only_shares_travel() -> None:
    """No private key, seed or channel is in any message as it is; the seed's mask differs from the seed."""
    world = World(size=5, tolerance=Tolerance(dropout_rate=0.2))
    stages = Stages.start(world).share().mask(without=[2]).agree()
    stages.reveal()
    everything = b"".join([*stages.sent, stages.roster, *stages.deliveries.values(), *stages.survivors.values()])
    for client in range(5):
        keys = world.randomness(client).stream("keys")
        for secret in (keys.take(32), keys.take(32), keys.take(32), identity(f"client {client}")):
            assert secret not in everything
            assert secret[::-1] not in everything
    seed = world.randomness(0).stream("keys").take(96)[64:]
    assert masks.seed_key(seed, session=b"s" * 32, client=0) not in everything


def test_silent_clients_do_nothing() -> None:
    """Whoever has vanished is not asked; inputs of unknown clients are left out."""
    world = World(size=3)
    made = InProcessSum(world.server(), {client: world.client(client) for client in range(3)}, vanish={2: Stage.KEYS})
    made.open()
    for client in (0, 1, 2, 77):
        made.contribute(client, world.updates()[client % 3])
    assert np.array_equal(made.close(), world.plain_sum([0, 1], 2))
