"""Attacks on keys that are made ahead of time. Each is performed and fails; without its fix it works."""

import dataclasses
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message
from numpy.typing import NDArray

from gdpfed.errors import PrivacyError
from gdpfed.flower.node.answers import Node
from gdpfed.flower.node.own_ledger import OwnLedger
from gdpfed.flower.server.keys_ahead import KeysAhead
from gdpfed.flower.server.sums import SumConversation
from gdpfed.flower.shared.carrier import packet_in, record_of
from gdpfed.flower.shared.wire import pack, unpack
from gdpfed.secure import masks, messages
from gdpfed.secure.client import SecureClient
from gdpfed.secure.client_state import Secrets
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.secure.primitives import AgreementKey, sign, unseal
from gdpfed.secure.shares import SHARE_BYTES, restore
from tests.flower.federations import Federation, stage_of
from tests.flower.test_keys_ahead import FOUR, SEEDS, Watched, exchanges_with_and_without
from tests.secure.cohorts import Stages, World

pytestmark = pytest.mark.training

VICTIM = 1
defences = pytest.mark.parametrize("defended", [True, False])


# Whoever counts exchanges.


@defences
def test_exchanges_do_not_tell_who_was_sampled(defended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client without a key is asked for one when it is sampled: the round is longer, and everybody knows."""
    if not defended:
        ask, taken_out = KeysAhead.ask, KeysAhead.taken_out

        def taken_when_needed(self: KeysAhead, clients: list[int]) -> dict[int, bytes]:
            ask(self, clients, round_number=0)
            return taken_out(self, clients)

        monkeypatch.setattr(KeysAhead, "ask", lambda *_, **__: None)
        monkeypatch.setattr(KeysAhead, "taken_out", taken_when_needed)
    found = exchanges_with_and_without(tmp_path, SEEDS)
    assert found.keys() == {True, False}
    assert bool(found[True] & found[False]) is defended


@defences
@pytest.mark.parametrize("asks", [None, 2])
def test_a_last_participation_is_not_told(
    asks: int | None, defended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that may send no more gives no key: it is asked for one before every round that follows."""
    if not defended:
        right = Node._next_advertisement

        def nothing(self: Node, terms: Any, run: Any, ledger: OwnLedger) -> bytes:
            made = right(self, terms, run, ledger)
            return b"" if messages.Advertisement.decode(made).is_last_word else made

        monkeypatch.setattr(Node, "_next_advertisement", nothing)
    hidden = {"dropout_rate": 0.0, "input_seconds": 9.0, "answer_seconds": 0.2}
    federation = Federation(
        tmp_path, sizes=(4, 4), epsilons=(1.0, 4.0), participation=0.9, rounds=4, asks=asks,
        cap=None if asks else 2, settings=hidden if asks else {},
    )  # fmt: skip
    watched = Watched()
    lengths: set[tuple[str, int]] = set()

    def disturb(client: int, reply: Message) -> list[Message]:
        del client
        if stage_of(reply) == "reveal":
            lengths.add((stage_of(reply), len(unpack(packet_in(reply), stage="reveal", num_parts=3)[1])))
        return [reply]

    federation.serve(federation.grid(deliver=watched.deliver, disturb=disturb))
    assert len(lengths) == (1 if defended else 2)
    assert (watched.names.count("keys") == 1) is defended
    if defended:
        assert watched.names[:2] == ["announce", "keys"]
        assert set(watched.names[2:]) == set(FOUR)


# Whoever puts something back.


@defences
def test_a_ledger_that_is_put_back_while_the_server_runs_is_refused(
    defended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ledger forgets a round; its sessions, with the key on deposit, are as they were. Nobody asks it for a key:
    only what the server shows before the input tells the node."""
    if not defended:
        right = SumConversation.__init__

        def silent(self: SumConversation, **named: Any) -> None:
            right(self, **{**named, "witnesses": {}})

        monkeypatch.setattr(SumConversation, "__init__", silent)
    federation = Federation(tmp_path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=1.0, rounds=4)
    home, copy = federation.node_path(VICTIM), tmp_path / "copy"
    arrived: list[int] = []

    def spends(path: Path) -> list[Path]:
        return [one for one in path.iterdir() if one.name.startswith("spend.db")]

    def fault(point: str, number: int) -> None:
        if (point, number) == ("checkpointed", 0):
            copy.mkdir()
            for path in spends(home):
                shutil.copy2(path, copy)
        if (point, number) == ("checkpointed", 1):
            for path in spends(home):
                path.unlink()
            for path in spends(copy):
                shutil.copy2(path, home)

    def disturb(client: int, reply: Message) -> list[Message]:
        if client == VICTIM and stage_of(reply) == "input" and packet_in(reply):
            arrived.append(client)
        return [reply]

    federation.serve(federation.grid(disturb=disturb), fault=fault)
    assert len(arrived) == (2 if defended else 4)
    assert ("the node once signed that it had" in federation.node_log(VICTIM)) is defended
    with OwnLedger(federation.node(VICTIM)) as ledger:
        (run,) = ledger.runs.values()
        # Of the two before, one is forgotten; without the fix the node goes on from there.
        assert run.sent == len(arrived) - 1
    assert {attempts[-1] for attempts in federation.states().values()} == {"published"}


@defences
def test_a_home_that_is_put_back_while_the_server_runs_is_refused(
    defended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it, with the key of then: the roster has another; when the node is asked for one, it is shown its word."""
    if not defended:
        monkeypatch.setattr(Node, "_check_witness", lambda *_: None)
        # Nor does the server remember which keys were used.
        monkeypatch.setattr(KeysAhead, "answered", lambda *_: None)
    federation = Federation(tmp_path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=1.0, rounds=5)
    arrived: list[int] = []

    def fault(point: str, number: int) -> None:
        if (point, number) == ("checkpointed", 0):
            shutil.copytree(federation.node_path(VICTIM), tmp_path / "copy")
        if (point, number) == ("checkpointed", 1):
            shutil.rmtree(federation.node_path(VICTIM))
            shutil.copytree(tmp_path / "copy", federation.node_path(VICTIM))

    def disturb(client: int, reply: Message) -> list[Message]:
        if client == VICTIM and stage_of(reply) == "input" and packet_in(reply):
            arrived.append(client)
        return [reply]

    federation.serve(federation.grid(disturb=disturb), fault=fault)
    assert (len(arrived) == 2) is defended
    assert ("put back to an old copy" in federation.node_log(VICTIM)) is defended


@defences
def test_a_key_that_is_put_back_has_no_second_session(
    defended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that replays the key of an earlier session, to a node whose folder of sessions was put back."""
    if not defended:
        monkeypatch.setattr(OwnLedger, "has_used", lambda *_: False)
    federation = Federation(tmp_path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=1.0, rounds=3)
    path = federation.node(VICTIM).sessions / "next.key"
    kept: dict[str, bytes] = {}
    taken: list[bytes] = []

    def deliver(client: int, message: Message) -> bool:
        if client == VICTIM and stage_of(message) == "shares":
            roster = messages.Roster.decode(unpack(packet_in(message), stage="shares", num_parts=3)[2])
            if "roster" in kept:
                path.write_bytes(kept["key"])
                made = roster.entries
                old = messages.Roster.decode(kept["roster"]).entry_of(VICTIM)
                changed = dataclasses.replace(
                    roster, entries=tuple(old if entry.client == VICTIM else entry for entry in made)
                )
                signature = sign(federation.home.identity, changed.signed)
                signed = dataclasses.replace(changed, signature=signature)
                terms, session, _ = unpack(packet_in(message), stage="shares", num_parts=3)
                message.content = record_of(pack("shares", terms, session, signed.encode()))
            else:
                kept.update(roster=roster.encode(), key=path.read_bytes())
        return True

    def disturb(client: int, reply: Message) -> list[Message]:
        if client == VICTIM and stage_of(reply) == "shares":
            taken.append(packet_in(reply))
        return [reply]

    federation.serve(federation.grid(deliver=deliver, disturb=disturb))
    assert bool(taken[0])
    assert any(taken[1:]) is (not defended)
    assert ("one-time key that had no session yet" in federation.node_log(VICTIM)) is defended


# Whoever speaks in another's name.


@defences
def test_a_key_in_anothers_name_is_not_taken(defended: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client sends, as its own next key, one that another gave before: the other is lost when it is next sampled."""
    if not defended:
        right = KeysAhead.take

        def careless(self: KeysAhead, client: int, content: bytes) -> None:
            del client
            right(self, messages.Advertisement.decode(content).client, content)

        monkeypatch.setattr(KeysAhead, "take", careless)
    federation = Federation(tmp_path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=1.0, rounds=2)
    liar, given = VICTIM + 1, {}

    def disturb(client: int, reply: Message) -> list[Message]:
        if client == VICTIM and stage_of(reply) == "reveal":
            given["key"] = unpack(packet_in(reply), stage="reveal", num_parts=3)[1]
        if client == liar and stage_of(reply) == "reveal" and "key" in given and "told" not in given:
            shares, _, standing = unpack(packet_in(reply), stage="reveal", num_parts=3)
            # What the victim never sent: it has a key of its own on deposit.
            forged = messages.Advertisement.decode(given["old"])
            given["told"] = given["old"]
            reply.content = record_of(pack("reveal", shares, forged.encode(), standing))
        return [reply]

    def deliver(client: int, message: Message) -> bool:
        if client == VICTIM and stage_of(message) == "shares" and "old" not in given:
            roster = messages.Roster.decode(unpack(packet_in(message), stage="shares", num_parts=3)[2])
            given["old"] = roster.entry_of(VICTIM).encode()
        return True

    # The old key was answered: a server that remembers would not take it even in its owner's name.
    if not defended:
        monkeypatch.setattr(KeysAhead, "answered", lambda *_: None)
    federation.serve(federation.grid(deliver=deliver, disturb=disturb))
    assert given["told"]
    assert ("in the sender's own name" in federation.server_log) is defended
    assert ("expected a roster with the key that this client advertised" in federation.node_log(VICTIM)) is not defended


# Whoever has a stolen key, or sits in the middle.

WORLD = World(size=5, tolerance=Tolerance(dropout_rate=0.2))


def opened(key: bytes, box: bytes, *, digest: bytes, sender: int, recipient: int) -> bytes | None:
    try:
        nonce, route = struct.pack("<IQ", sender, 0), digest + struct.pack("<II", sender, recipient)
        return unseal(key, nonce=nonce, sealed=box, bound_to=route)
    except PrivacyError:
        return None


@defences
def test_a_stolen_next_key_does_not_open_its_owners_input(defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read from the victim's disk before its session, by one who then sees all messages of it."""
    if not defended:
        right = SecureClient.share

        def sealed_by_it(self: SecureClient, roster: bytes) -> bytes:
            secrets = self._state.secrets
            assert secrets is not None
            self._state = dataclasses.replace(self._state, secrets=dataclasses.replace(secrets, seal=secrets.once))
            return right(self, roster)

        monkeypatch.setattr(SecureClient, "share", sealed_by_it)
    stages = Stages.start(WORLD)
    stolen = _secrets(stages, VICTIM).once
    stages.share().mask()
    roster = messages.Roster.decode(stages.roster)
    shared = {one.client: one for one in map(messages.SealedShares.decode, stages.sent[5:10])}
    inputs = {
        one.client: one
        for one in (messages.MaskedInput.decode(content, num_params=50) for content in stages.sent[10:15])
    }
    pairs: dict[int, bytes] = {}
    for peer, box in shared[VICTIM].sealed:
        key = masks.seal_key(stolen, roster.entry_of(peer).public, session=roster.digest, one=VICTIM, other=peer)
        plain = opened(key, box, digest=roster.digest, sender=VICTIM, recipient=peer)
        if plain is not None:
            pairs[roster.point_of(peer)] = plain
    threshold = roster.topology.threshold
    assert (len(pairs) >= threshold) is not defended
    if not defended:
        secrets = [
            restore({point: plain[part] for point, plain in pairs.items()}, threshold=threshold)
            for part in (slice(SHARE_BYTES), slice(SHARE_BYTES, None))
        ]
        private, seed = secrets
        assert private is not None
        assert seed is not None
        publics = {peer: one.mask_public for peer, one in shared.items() if peer != VICTIM}
        read = unmasked(inputs[VICTIM].values, roster.digest, seed, {VICTIM: AgreementKey(private)}, publics)
        assert np.array_equal(read, WORLD.plain_sum([VICTIM], 5))


def _secrets(stages: Stages, client: int) -> Secrets:
    secrets = stages.clients[client]._state.secrets
    assert secrets is not None
    return secrets


def unmasked(
    values: NDArray[np.uint32],
    digest: bytes,
    seed: bytes,
    private: dict[int, AgreementKey],
    publics: dict[int, bytes],
) -> NDArray[np.uint32]:
    """The victim's input without its masks; ``private`` is its own key, or those that stand for its neighbours."""
    read = values.copy()
    masks.add_mask(read, masks.seed_key(seed, session=digest, client=VICTIM), negative=True)
    for peer, public in publics.items():
        key = private.get(VICTIM) or private[peer]
        agreed = masks.pair_key(key, public, session=digest, one=VICTIM, other=peer)
        masks.add_pair_mask(read, agreed, own=VICTIM, peer=peer, remove=True)
    return read


@defences
def test_a_server_in_the_middle_reads_no_input(defended: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives the victim keys of its own for the neighbours' masks, and passes on all else: what masks the victim's
    input is known to it then, but for the seed, which survivors reveal."""
    if not defended:
        monkeypatch.setattr(SecureClient, "_check_keys", lambda *_: None)
    stages = Stages.start(WORLD).share()
    roster = messages.Roster.decode(stages.roster)
    made = {peer: AgreementKey(bytes([peer, 1]) * 16) for peer in (0, 2, 3, 4)}
    delivery = messages.Delivery.decode(stages.deliveries[VICTIM])
    forged = tuple((peer, sent._replace(mask_public=made[peer].public)) for peer, sent in delivery.sealed)
    stages.deliveries[VICTIM] = dataclasses.replace(delivery, sealed=forged).encode()
    if defended:
        with pytest.raises(PrivacyError, match="signed for this roster"):
            stages.mask()
        return
    # All goes on as ever, and nobody else notices.
    stages.mask().agree().reveal()
    seed = stages.server._secrets(roster)[VICTIM]
    shared, sent = (messages.SealedShares.decode(stages.sent[5 + VICTIM]), stages.sent[10 + VICTIM])
    values = messages.MaskedInput.decode(sent, num_params=50).values
    read = unmasked(values, roster.digest, seed, made, dict.fromkeys(made, shared.mask_public))
    assert np.array_equal(read, WORLD.plain_sum([VICTIM], 5))
