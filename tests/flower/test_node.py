"""What a node refuses, whom that affects, and what it leaves behind."""

import json
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gdpfed.errors import InputError, PrivacyError
from gdpfed.flower.apps import client_app
from gdpfed.flower.node import answers, coin
from gdpfed.flower.node.answers import Node, Trainer
from gdpfed.flower.node.node_home import NodeHome, make_node_home, pin
from gdpfed.flower.node.own_ledger import OwnLedger
from gdpfed.flower.node.saved_session import Saved, SavedSessions
from gdpfed.flower.operate.between_runs import enrol
from gdpfed.flower.server.flower_release import HomeRun
from gdpfed.flower.server.server_home import make_server_home
from gdpfed.flower.shared.carrier import packet_in, record_of
from gdpfed.flower.shared.wire import STAGES, pack, unpack
from gdpfed.planning.people import assign
from gdpfed.secure.messages import Advertisement, Roster
from gdpfed.secure.primitives import sign
from gdpfed.secure.session import Session
from gdpfed.training.sampling import asked_clients, public_orders
from tests.flower.federations import (
    DELTA,
    FIRST_NODE,
    MODEL,
    NUM_PARAMS,
    Federation,
    held_for,
    number_in,
    stage_of,
    train,
)

pytestmark = pytest.mark.training

VICTIM = 1


class Enough(Exception):  # noqa: N818 - no error
    """The rest of a run is not needed."""


def federation_of(path: Path, **more: Any) -> Federation:
    return Federation(path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=0.9, rounds=2, **more)


def tampered(stage: str, change: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]) -> Callable[[int, Message], bool]:
    """A server that sends one client something else."""
    parts = {"announce": 2, "keys": 2, "shares": 3, "input": 4, "agree": 2, "reveal": 2}[stage]

    def deliver(client: int, message: Message) -> bool:
        if client == VICTIM and stage_of(message) == stage:
            packet = pack(stage, *change(unpack(packet_in(message), stage=stage, num_parts=parts)))
            message.content = record_of(packet)
        return True

    return deliver


def only_the_victim_complains(federation: Federation, text: str) -> None:
    assert text in federation.node_log(VICTIM)
    assert [number for number in federation.numbers if federation.node_log(number)] == [VICTIM]
    states = federation.states()
    assert {attempts[-1] for attempts in states.values()} == {"published"}


def test_nothing_is_pinned_by_the_server(tmp_path: Path) -> None:
    """Killed while the owner pinned it, or never pinned: the first list that a server sends is not believed."""
    federation = federation_of(tmp_path)
    packet = pack("announce", bytes(32), federation.enrolment.as_json().encode())
    for missing in (["enrolment.sha256"], ["enrolment.json"], ["server.pub"]):
        home = federation.node(VICTIM)
        for name in missing:
            (home.path / name).unlink()
        before = sorted(path.name for path in home.path.iterdir() if path.name != "node.log")
        node = Node(home, node_id=1, num_params=NUM_PARAMS, train=lambda vector, _: vector)
        assert node.answer("announce", packet) == b""
        assert sorted(path.name for path in home.path.iterdir() if path.name != "node.log") == before
    assert "no enrolment is pinned: pin the one" in federation.node_log(VICTIM)


def lower_budget(home: NodeHome, **changes: float | str) -> None:
    text = (home.path / "budget.toml").read_text()
    lines = [line for line in text.splitlines() if line.split(" = ")[0] not in changes]
    (home.path / "budget.toml").write_text("\n".join([*lines, *(f"{k} = {v}" for k, v in changes.items())]) + "\n")


def test_a_plan_above_the_budget_is_refused(tmp_path: Path) -> None:
    federation = federation_of(tmp_path)
    lower_budget(federation.node(VICTIM), epsilon=0.5)
    federation.serve()
    only_the_victim_complains(federation, "this node allows 0.5")
    with OwnLedger(federation.node(VICTIM)) as ledger:
        assert not ledger.runs
        assert ledger.precision == 0


def test_a_different_model_is_refused(tmp_path: Path) -> None:
    federation = federation_of(tmp_path)

    def other(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        digest, delivery, model, witness = parts
        return digest, delivery, (np.frombuffer(model, dtype="<f4") + np.float32(1)).tobytes(), witness

    federation.serve(federation.grid(deliver=tampered("input", other)))
    only_the_victim_complains(federation, "the model is not the one that all clients of this session agreed on")


def test_another_session_for_one_client_is_refused(tmp_path: Path) -> None:
    """A server that tells one client another model from the start: the roster is not of that session."""
    federation = federation_of(tmp_path)

    def other(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        terms, encoded, roster = parts
        session = Session.decoded(encoded)
        changed = Session(**{**vars(session), "model_hash": bytes(32)})
        return terms, changed.encoded(), roster

    federation.serve(federation.grid(deliver=tampered("shares", other)))
    only_the_victim_complains(federation, "expected a roster of this session, got one of another model")


def test_a_forged_roster_is_refused(tmp_path: Path) -> None:
    federation = federation_of(tmp_path)

    def other(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        terms, session, roster = parts
        return terms, session, roster[:-1] + bytes([roster[-1] ^ 1])

    federation.serve(federation.grid(deliver=tampered("shares", other)))
    only_the_victim_complains(federation, "expected a roster that the server has signed")


def test_terms_that_the_server_did_not_sign_are_refused(tmp_path: Path) -> None:
    def other(parts: tuple[bytes, ...]) -> tuple[bytes, ...]:
        terms, *others = parts
        return terms.replace(b'"dropout_rate":0.2', b'"dropout_rate":0.1'), *others

    for stage in ("keys", "shares"):
        federation = federation_of(tmp_path / stage)
        federation.serve(federation.grid(deliver=tampered(stage, other)))
        only_the_victim_complains(federation, "the terms are not signed by the pinned server")


def test_another_enrolment_is_refused(tmp_path: Path) -> None:
    """Whoever is added later needs every owner's word: until then nobody takes part."""
    federation = federation_of(tmp_path)
    enrol(federation.home.path, [make_node_home(tmp_path / "new", epsilon=1.0, delta=DELTA)])
    before = federation.enrolment.digest
    node = Node(federation.node(VICTIM), node_id=1, num_params=NUM_PARAMS, train=lambda vector, _: vector)
    text = (federation.home.path / "enrolment.json").read_bytes()
    assert node.answer("announce", pack("announce", bytes(32), text)) == b""
    assert "differs from the pinned one" in federation.node_log(VICTIM)
    pinned = federation.node(VICTIM).enrolment
    assert pinned is not None
    assert pinned.digest == before


def test_an_owner_may_ask_for_more_colluders(tmp_path: Path) -> None:
    federation = federation_of(tmp_path)
    lower_budget(federation.node(VICTIM), colluding_fraction=0.2)
    federation.serve()
    only_the_victim_complains(federation, "this node's owner asks for 0.2")


def test_a_refused_message_ends_no_session(tmp_path: Path) -> None:
    """The roster comes again in the middle of a round, and a key is asked for: the round goes on."""
    federation = federation_of(tmp_path)
    sent: dict[tuple[int, str], bytes] = {}
    again = []

    def deliver(client: int, message: Message) -> bool:
        sent[client, stage_of(message)] = packet_in(message)
        if stage_of(message) == "input":
            again.append(node_of(federation, client).answer("shares", sent[client, "shares"]))
            assert node_of(federation, client).answer("keys", sent[client, "keys"])
            again.append(node_of(federation, client).answer("shares", sent[client, "shares"]))
        return True

    federation.serve(federation.grid(deliver=deliver))
    assert set(again) == {b""}
    assert len(again) >= 16
    assert set(map(tuple, federation.states().values())) == {("published",)}


def test_a_new_session_waits_for_a_training_that_takes_too_long(tmp_path: Path) -> None:
    """The server gave up and begins again while the node still trains: it is answered when the training has ended."""
    federation = federation_of(tmp_path)
    sent: dict[str, bytes] = {}
    happened: list[str] = []

    def again() -> None:
        advertised, _ = unpack(node_of(federation).answer("keys", sent["keys"]), stage="keys", num_parts=2)
        happened.append("keys")
        packet = begun_again(federation, sent["shares"], {VICTIM: advertised})
        assert node_of(federation).answer("shares", packet)

    def slow(model: Any, data: int, context: Context) -> Any:
        if data == VICTIM and not asking:
            asking.append(threading.Thread(target=again))
            asking[0].start()
            time.sleep(0.2)
            happened.append("trained")
        return train(model, data, context)

    def deliver(client: int, message: Message) -> bool:
        if client == VICTIM:
            sent[stage_of(message)] = packet_in(message)
            if stage_of(message) == "agree":
                asking[0].join()
                raise Enough
        return True

    asking: list[threading.Thread] = []
    federation.app = client_app(model=MODEL, data=number_in, train=slow)
    with pytest.raises(Enough):
        federation.serve(federation.grid(deliver=deliver))
    assert happened == ["trained", "keys"]
    assert not node_of(federation).answer("agree", sent["agree"])
    assert "no session waits for stage 'agree'" in federation.node_log(VICTIM)


def begun_again(federation: Federation, shares: bytes, advertised: dict[int, bytes]) -> bytes:
    """The server's next attempt at a session, with other keys of some clients."""
    terms, encoded, content = unpack(shares, stage="shares", num_parts=3)
    session = replace(Session.decoded(encoded), attempt=Session.decoded(encoded).attempt + 1)
    roster = Roster.decode(content)
    entries = tuple(
        Advertisement.decode(advertised[entry.client]) if entry.client in advertised else entry
        for entry in roster.entries
    )
    changed = replace(roster, session=session, entries=entries)
    signed = replace(changed, signature=sign(federation.home.identity, changed.signed))
    return pack("shares", terms, session.encoded(), signed.encode())


def test_a_key_is_used_once(tmp_path: Path) -> None:
    """Rosters with a key that the node has used, that it never made, or that is of other terms are refused."""
    federation = federation_of(tmp_path)
    sent: dict[tuple[int, str], bytes] = {}

    def deliver(client: int, message: Message) -> bool:
        sent[client, stage_of(message)] = packet_in(message)
        if stage_of(message) == "agree":
            raise Enough
        return True

    with pytest.raises(Enough):
        federation.serve(federation.grid(deliver=deliver))
    victim = next(client for client, stage in sent if stage == "agree")
    node = node_of(federation, victim)
    shares = sent[victim, "shares"]
    assert node.answer("shares", begun_again(federation, shares, {})) == b""
    assert "no key is advertised for another session, or it was used already" in federation.node_log(victim)
    advertised, standing = unpack(node.answer("keys", sent[victim, "keys"]), stage="keys", num_parts=2)
    assert node.answer("shares", begun_again(federation, shares, {})) == b""
    assert "expected a roster with the key that this client advertised" in federation.node_log(victim)
    # Asked again, it is the same one: a server that was started again loses nothing.
    assert node.answer("keys", sent[victim, "keys"]) == pack("keys", advertised, standing)
    # Signed for other terms.
    other = replace(Advertisement.decode(advertised), plan_hash=bytes(32), signature=b"")
    other = replace(other, signature=sign(federation.node(victim).identity, other.signed))
    assert node.answer("shares", begun_again(federation, shares, {victim: other.encode()})) == b""
    packet = begun_again(federation, shares, {victim: advertised})
    path = federation.node(victim).sessions / "next.key"
    kept = path.read_bytes()
    assert node.answer("shares", packet)
    assert node.answer("shares", packet) == b""
    assert not path.exists()
    # Put back beside a ledger that has its session, it is worth nothing; nor is it advertised again.
    path.write_bytes(kept)
    assert node.answer("shares", begun_again(federation, packet, {victim: advertised})) == b""
    assert "a one-time key that had no session yet" in federation.node_log(victim)
    fresh, _ = unpack(node.answer("keys", sent[victim, "keys"]), stage="keys", num_parts=2)
    assert Advertisement.decode(fresh).public != Advertisement.decode(advertised).public


@pytest.mark.parametrize("point", ["claimed", "begun", "forgotten", "kept"])
def test_a_key_is_claimed_once(point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that dies at any point of its first answer: the round loses it, and its key never comes again."""
    federation = Federation(tmp_path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=1.0, rounds=3)
    keys: list[bytes] = []
    # What was on its disk then: a process that is killed tidies nothing up.
    died: list[dict[Path, bytes]] = []

    def dies(function: Callable[..., Any], *, after: bool) -> Callable[..., Any]:
        def dying(*arguments: Any, **named: Any) -> Any:
            is_victim = current[0] == VICTIM and not died
            made = function(*arguments, **named) if after or not is_victim else None
            if is_victim:
                died.append({path: path.read_bytes() for path in federation.node(VICTIM).sessions.iterdir()})
                raise Killed
            return made

        return dying

    def app(message: Message, context: Context) -> Message:
        try:
            return federation.app(message, context)
        except Killed:
            for path, content in died[0].items():
                path.write_bytes(content)
            raise RuntimeError from None

    current = [0]
    place, name, after = {
        "claimed": (answers.SecureClient, "share", False),
        "begun": (OwnLedger, "begin", True),
        "forgotten": (SavedSessions, "forget", True),
        "kept": (SavedSessions, "keep", True),
    }[point]
    monkeypatch.setattr(place, name, dies(getattr(place, name), after=after))

    def deliver(client: int, message: Message) -> bool:
        current[0] = client
        if client == VICTIM and stage_of(message) == "shares":
            roster = Roster.decode(unpack(packet_in(message), stage="shares", num_parts=3)[2])
            keys.append(roster.entry_of(client).public)
        return True

    deployed = federation.serve(federation.grid(deliver=deliver, apps={VICTIM: app}))
    assert died
    assert any(path.name == "next.key.claimed" for path in died[0]) is (point in ("claimed", "begun"))
    assert deployed.round_number == 3
    assert len(keys) == len(set(keys)) == 3
    assert {attempts[-1] for attempts in federation.states().values()} == {"published"}
    assert not list(federation.node(VICTIM).sessions.glob("*.claimed"))


def test_a_damaged_key_is_made_anew(tmp_path: Path) -> None:
    federation = federation_of(tmp_path)
    packet = keys_for(federation)
    first = node_of(federation).answer("keys", packet)
    path = federation.node(VICTIM).sessions / "next.key"
    for damaged in (b"", b"x" * 10, path.read_bytes()[:-1], bytes(32) + path.read_bytes()[32:]):
        path.write_bytes(damaged)
        again = node_of(federation).answer("keys", packet)
        assert again
        assert again != first
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_last_answer_looks_like_any_other(tmp_path: Path) -> None:
    """A node at its cap says so in place of its next key, in as many bytes; nobody asks it again, or loses it."""
    federation = Federation(tmp_path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=0.9, rounds=4, cap=2)
    given: dict[int, list[bool]] = {}
    lengths: dict[tuple[int, int], set[int]] = {}
    asked: list[tuple[int, str]] = []
    cohort: dict[int, int] = {}

    def deliver(client: int, message: Message) -> bool:
        asked.append((client, stage_of(message)))
        if stage_of(message) == "shares":
            roster = Roster.decode(unpack(packet_in(message), stage="shares", num_parts=3)[2])
            cohort[client] = len(roster.entries)
            done = {other for other, words in given.items() if words[-1]}
            assert not done & set(roster.clients)
        return True

    def disturb(client: int, reply: Message) -> list[Message]:
        if stage_of(reply) == "reveal":
            _, advertised, _ = unpack(packet_in(reply), stage="reveal", num_parts=3)
            given.setdefault(client, []).append(Advertisement.decode(advertised).is_last_word)
            lengths.setdefault((client // 5, cohort[client]), set()).add(len(packet_in(reply)))
        return [reply]

    federation.serve(federation.grid(deliver=deliver, disturb=disturb))
    assert {tuple(each) for each in given.values()} <= {(False, True), (False,)}
    assert (False, True) in {tuple(each) for each in given.values()}
    # The length follows from the cohort alone.
    assert {len(each) for each in lengths.values()} == {1}
    # Nobody was asked for a key but before the first round.
    assert all(asked.count((client, "keys")) == 1 for client in federation.numbers)
    assert [stage for _, stage in asked].index("shares") >= 10


def spoiled(kind: str) -> Callable[[Any, int, Context], Any]:
    def made(model: Any, data: int, context: Context) -> Any:
        if data != VICTIM:
            return train(model, data, context)
        if kind == "raises":
            raise ValueError("a secret of the data")
        if kind == "exits":
            sys.exit("a secret of the data")
        if kind == "nan":
            return [np.full((3, 4), np.nan), np.zeros(5)]
        return [np.zeros(3)]

    return made


@pytest.mark.training
def test_a_broken_training_looks_like_any_other(tmp_path: Path) -> None:
    """An error, NaNs and a wrong shape give the same model as an update of zero, and the node answers."""
    models = []
    for kind in ("raises", "nan", "shape", "exits"):
        app = client_app(model=MODEL, data=number_in, train=spoiled(kind))
        federation = federation_of(tmp_path / kind, app=app)
        grid = federation.grid()
        grid.recorded = []
        models.append(federation.serve(grid).parameters)
        assert {attempts[-1] for attempts in federation.states().values()} == {"published"}
        assert not any(b"a secret" in content for content in grid.recorded)
        assert ("update of zero" in federation.node_log(VICTIM)) == (kind != "nan")
        assert "a secret" not in federation.node_log(VICTIM)
    assert torch.equal(models[0], models[1])
    assert torch.equal(models[0], models[2])
    assert torch.equal(models[0], models[3])


class Killed(BaseException):
    pass


def test_a_restored_node_notices(tmp_path: Path) -> None:
    """An old copy of the home put back in the middle of a run: the server shows what the node once signed."""
    federation = Federation(tmp_path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=0.9, rounds=3)
    copies: dict[int, Path] = {}

    def fault(point: str, number: int) -> None:
        if point == "checkpointed" and number == 0:
            shutil.copytree(federation.node_path(VICTIM), tmp_path / "copy")
            copies[0] = tmp_path / "copy"
        if point == "checkpointed" and number == 1:
            raise Killed

    with pytest.raises(Killed):
        federation.serve(fault=fault)
    with OwnLedger(federation.node(VICTIM)) as ledger:
        rows = ledger.num_rows
    shutil.rmtree(federation.node_path(VICTIM))
    shutil.copytree(copies[0], federation.node_path(VICTIM))
    with OwnLedger(federation.node(VICTIM)) as ledger:
        assert ledger.num_rows < rows
    federation.serve()
    only_the_victim_complains(federation, "put back to an old copy")
    assert "older ledger than it had" in federation.server_log


def test_a_node_that_went_on_from_an_old_copy_notices(tmp_path: Path) -> None:
    """As many rows as it once signed, and other ones: the server lost the standing for a while."""
    announced = make_node_home(tmp_path / "node", epsilon=1.0, delta=DELTA)
    home = NodeHome(tmp_path / "node")
    made = enrol(make_server_home(tmp_path / "server").path, [announced])
    pin(home.path, made.as_json())
    node = Node(home, node_id=1, num_params=NUM_PARAMS, train=lambda vector, _: vector)
    event = {"group": 0, "noise_multiplier": 9.0, "sampling_rate": 0.5, "num_rounds": 2, "cap": 2}
    shown = {}
    with OwnLedger(home) as ledger:
        for name in ("a", "b"):
            ledger._write("join", {"terms": name, "run": name, **event, "epsilon": 1.0, "delta": DELTA})
            shown[name] = node._standing(ledger, bytes(32))
            node._check_witness(shown[name].encode(), ledger)
        node._check_witness(shown["a"].encode(), ledger)
        other = replace(shown["b"], head=shown["a"].head).signed_by(home.identity)
        with pytest.raises(PrivacyError, match="went on from an old copy"):
            node._check_witness(other.encode(), ledger)


def test_a_restarted_node_counts_on(tmp_path: Path) -> None:
    """Every message is a new process already; a node that is gone between two rounds goes on from its ledger."""
    federation = Federation(tmp_path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=0.9, rounds=3, cap=2)
    federation.serve()
    for number in federation.numbers:
        with OwnLedger(federation.node(number)) as ledger:
            (run,) = ledger.runs.values()
            assert run.sent <= run.cap == 2
            assert run.event.num_rounds == 3
        # Of sessions nothing is left; who may send another input has a key for it.
        assert [path.name for path in federation.node(number).sessions.iterdir()] in ([], ["next.key"])


HIDDEN = {"dropout_rate": 0.0, "input_seconds": 9.0, "answer_seconds": 0.25}


def test_only_its_turn_is_answered(tmp_path: Path) -> None:
    """A server that asks one client in every round: it answers where the public order says so, and nowhere else."""
    federation = Federation(
        tmp_path, sizes=(4, 4), epsilons=(1.0, 4.0), rounds=4, asks=2, test_seed=None, settings=HIDDEN
    )
    asked: dict[int, list[int]] = {number: [] for number in federation.numbers}
    replayed: list[bytes] = []

    def deliver(client: int, message: Message) -> bool:
        if stage_of(message) == "shares":
            terms, encoded, content = unpack(packet_in(message), stage="shares", num_parts=3)
            session = Session.decoded(encoded)
            asked[client].append(session.round_number)
            if client == VICTIM and not replayed:
                for number in range(-1, 6):
                    if number != session.round_number:
                        other = replace(session, round_number=number % 2**32)
                        packet = pack("shares", terms, other.encoded(), content)
                        replayed.append(
                            Node(
                                federation.node(VICTIM),
                                node_id=101,
                                num_params=NUM_PARAMS,
                                train=lambda vector, _: vector,
                            ).answer("shares", packet)
                        )
        return True

    federation.serve(federation.grid(deliver=deliver))
    assert all(len(rounds) == 2 for rounds in asked.values())
    turns = {number for number in range(4) if number in asked[VICTIM]}
    refused = federation.node_log(VICTIM).count("is not this node's turn")
    # Of the six other rounds it answers its other turn at most: that is a session of its own, and costs an ask.
    assert refused >= 4
    assert sum(bool(answer) for answer in replayed) <= 1
    assert len(turns) == 2


def node_of(federation: Federation, number: int = VICTIM) -> Node:
    return Node(federation.node(number), node_id=101, num_params=NUM_PARAMS, train=lambda vector, _: vector)


def test_a_rotation_needs_its_moment(tmp_path: Path) -> None:
    """A server that leaves the moment out would make every node train at every ask, and answer when it is ready."""
    federation = Federation(tmp_path, sizes=(3, 3), epsilons=(1.0, 4.0), rounds=2, asks=2, settings=HIDDEN)
    assert node_of(federation).answer("keys", keys_for(federation))
    other = federation.node(VICTIM + 1)
    assert not node_of(federation, VICTIM + 1).answer("keys", keys_for(federation, answer_seconds=None))
    assert "expected a fixed moment of answering" in federation.node_log(VICTIM + 1)
    lower_budget(other, answer_seconds=0.5)
    assert not node_of(federation, VICTIM + 1).answer("keys", keys_for(federation, answer_seconds=0.49))
    assert "this node's owner asks for 0.5 at least" in federation.node_log(VICTIM + 1)
    assert node_of(federation, VICTIM + 1).answer("keys", keys_for(federation, answer_seconds=0.5))


def keys_for(federation: Federation, **changes: Any) -> bytes:
    """A key as the server asks for it, on terms of its choice."""
    run = HomeRun.read(federation.home, num_params=NUM_PARAMS)
    terms = replace(run.terms, **changes)
    return pack("keys", terms.signed(run.identity), b"")


def test_a_weaker_promise_is_refused(tmp_path: Path) -> None:
    """A server that announced a promise against itself, and sends a plan without it."""
    poisson = Federation(tmp_path / "poisson", sizes=(3, 3), epsilons=(1.0, 4.0), rounds=2)
    rotation = Federation(tmp_path / "rotation", sizes=(3, 3), epsilons=(1.0, 4.0), rounds=2, asks=2, settings=HIDDEN)
    for federation, number in ((poisson, 0), (rotation, VICTIM)):
        assert bool(node_of(federation, number).answer("keys", keys_for(federation)))
    for federation, number in ((poisson, VICTIM), (rotation, VICTIM + 1)):
        lower_budget(federation.node(number), against='"server"')
        assert bool(node_of(federation, number).answer("keys", keys_for(federation))) is (federation is rotation)
    assert "one that holds against the server: against in budget.toml" in poisson.node_log(VICTIM)
    with OwnLedger(poisson.node(VICTIM)) as ledger:
        assert not ledger.runs
    with pytest.raises(InputError, match="against"):
        make_node_home(tmp_path / "other", epsilon=1.0, delta=DELTA, against="nobody")  # type: ignore[arg-type]


def test_rosters_hold_those_whose_turn_it_is(tmp_path: Path) -> None:
    """A server cannot put colluders beside a client in a round in which they are not asked."""
    federation = Federation(tmp_path, sizes=(4, 4), epsilons=(1.0, 4.0), rounds=4, asks=2, settings=HIDDEN)
    terms = HomeRun.read(federation.home, num_params=NUM_PARAMS).terms
    node, home = node_of(federation), federation.node(VICTIM)
    with OwnLedger(home) as ledger:
        joined = ledger.join(terms, federation.plan, 0, home.budget)
    groups = assign(federation.plan, federation.enrolment.budgets)
    orders = public_orders(federation.plan, groups, seed=terms.rotation_seed)
    for number in range(4):
        session = Session(
            plan_hash=terms.digest, model_hash=bytes(32), round_number=number, attempt=0, place=0, num_params=NUM_PARAMS
        )
        known = node._directory(terms, session, joined)
        assert sorted(known.clients) == asked_clients(federation.plan, orders, round_number=number).tolist()
        assert len(known.clients) == 4


def test_nobody_is_answered_meanwhile(tmp_path: Path) -> None:
    """Neither what is right, nor nonsense, nor an input: how fast it is refused would tell whether a training runs."""
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), rounds=2, asks=2, settings=HIDDEN)
    right = pack("announce", bytes(32), federation.enrolment.as_json().encode())
    probes = [("announce", right), *((stage, b"x" * 400) for stage in (*STAGES, "unknown"))]
    for stage, packet in probes:
        started = time.monotonic()
        with held_for(federation.node(VICTIM), 0.1):
            assert bool(node_of(federation).answer(stage, packet)) is (packet == right)
            assert time.monotonic() - started >= 0.1


def test_every_answer_is_made_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From its first step to its last: one that had let go of the lock would go on beside a training."""
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), rounds=1, asks=1, settings=HIDDEN)
    held: list[tuple[str, bool]] = []

    def watched(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            stage = more.get("stage", args[0])
            held.append((stage, any(path.name == "identity.key" for _, path in coin._held)))
            return function(*args, **more)

        return call

    monkeypatch.setattr(answers, "pack", watched(pack))
    monkeypatch.setattr(answers, "unpack", watched(unpack))
    federation.serve()
    assert {stage for stage, _ in held} == set(STAGES)
    assert all(is_held for _, is_held in held)


def trying_inputs(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, after_the_coin: Callable[[NodeHome], None], train: Trainer
) -> tuple[list[bytes], list[float], int]:
    """The victim's input, sent three times: answers, their seconds, and the number of tosses; all of them yes."""
    tosses: list[float] = []
    found: list[bytes] = []
    seconds: list[float] = []
    home = federation.node(VICTIM)

    def toss(rate: float) -> bool:
        tosses.append(rate)
        after_the_coin(home)
        return True

    def deliver(client: int, message: Message) -> bool:
        if client == VICTIM and stage_of(message) == "input" and not found:
            monkeypatch.setattr(answers, "toss", toss)
            for _ in range(3):
                node = Node(home, node_id=FIRST_NODE + VICTIM, num_params=NUM_PARAMS, train=train)
                started = time.monotonic()
                found.append(node.answer("input", packet_in(message)))
                seconds.append(time.monotonic() - started)
            raise Enough
        return True

    with pytest.raises(Enough):
        federation.serve(federation.grid(deliver=deliver))
    return found, seconds, len(tosses)


def hold_the_ledger(home: NodeHome) -> None:
    """For longer than the answer takes: as the owner does who looks at it."""

    def hold() -> None:
        with OwnLedger(home):
            time.sleep(0.4)

    threading.Thread(target=hold).start()


def take_the_disk_away(home: NodeHome) -> None:
    home.path.rename(home.path.with_name("gone"))


AFTER_THE_COIN: dict[str, Callable[[NodeHome], None]] = {
    "nothing": lambda _: None,
    "ledger": hold_the_ledger,
    "disk": take_the_disk_away,
}


@pytest.mark.parametrize("happens", AFTER_THE_COIN)
def test_an_ask_has_one_coin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, happens: str) -> None:
    """The same input again, after whatever went wrong behind the coin: no answer, and no other coin."""
    federation = Federation(
        tmp_path, sizes=(3, 3), epsilons=(1.0, 4.0), rounds=1, asks=1, test_seed=None, settings=HIDDEN
    )
    found, seconds, tosses = trying_inputs(
        federation, monkeypatch, AFTER_THE_COIN[happens], lambda vector, _: vector + 1
    )
    assert tosses == 1
    assert [bool(answer) for answer in found] == [True, False, False]
    assert 0.25 <= seconds[0] < 0.9


def test_errors_after_the_coin_look_like_zero(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No memory for the update, or none for what is made of it; a training that is late, or broken: one length, one
    moment, and not a word."""
    lengths = set()

    def no_memory(*_: Any) -> Any:
        raise MemoryError

    def endless(*_: Any) -> Any:
        while True:
            time.sleep(0.001)

    cases: list[tuple[Trainer, bool]] = [
        (lambda vector, _: vector, False), (no_memory, False), (endless, False), (lambda vector, _: vector, True),
    ]  # fmt: skip
    for number, (trainer, is_cramped) in enumerate(cases):
        federation = Federation(
            tmp_path / str(number), sizes=(3, 3), epsilons=(1.0, 4.0), rounds=1, asks=1, test_seed=None, settings=HIDDEN
        )

        def after_the_coin(_: NodeHome, *, is_cramped: bool = is_cramped) -> None:
            if is_cramped:
                monkeypatch.setattr("gdpfed.secure.client.encode", no_memory)

        with monkeypatch.context() as patched:
            found, seconds, _ = trying_inputs(federation, patched, after_the_coin, trainer)
        monkeypatch.undo()
        lengths.add(len(found[0]))
        assert 0.25 <= seconds[0] < 0.9
        assert [line for line in federation.node_log(VICTIM).splitlines() if "no session waits" not in line] == []
    assert len(lengths) == 1
    assert lengths != {0}


def test_a_coin_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All say yes in the first round and no in the second: answers, rows, files and logs are of one kind and length."""
    federation = Federation(
        tmp_path, sizes=(3, 3), epsilons=(1.0, 4.0), rounds=2, asks=2, test_seed=None, settings=HIDDEN
    )
    trained: list[int] = []

    def counting(model: Any, data: int, context: Context) -> Any:
        trained.append(int(context.run_config["gdpfed-round"]))
        return train(model, data, context)

    coins = iter([True] * 6 + [False] * 6)
    monkeypatch.setattr("gdpfed.flower.node.answers.toss", lambda _: next(coins))
    lengths: dict[tuple[int, str], set[int]] = {}
    sizes: dict[int, dict[str, int]] = {}
    seconds: dict[int, list[float]] = {0: [], 1: []}
    sent: dict[int, float] = {}

    def disturb(client: int, reply: Message) -> list[Message]:
        stage = stage_of(reply)
        lengths.setdefault((current[0], stage), set()).add(len(packet_in(reply)))
        if stage == "input":
            seconds[current[0]].append(time.monotonic() - sent[client])
        return [reply]

    current = [0]

    def deliver(client: int, message: Message) -> bool:
        if stage_of(message) == "shares":
            _, encoded, _ = unpack(packet_in(message), stage="shares", num_parts=3)
            current[0] = Session.decoded(encoded).round_number
        if stage_of(message) == "input":
            sent[client] = time.monotonic()
        if stage_of(message) == "agree":
            home = federation.node_path(client)
            sizes[current[0]] = {
                path.relative_to(home).parts[0]: path.stat().st_size
                for path in home.rglob("*")
                if path.is_file() and "spend" not in path.name
            }
        return True

    app = client_app(model=MODEL, data=number_in, train=counting)
    federation.serve(federation.grid(deliver=deliver, disturb=disturb, apps=dict.fromkeys(federation.numbers, app)))
    assert trained == [0] * 6
    # In the second round it is everybody's last ask, too.
    for stage in ("shares", "input", "agree", "reveal"):
        assert lengths[0, stage] == lengths[1, stage]
        assert len(lengths[0, stage]) == 1
    assert sizes[0] == sizes[1]
    assert all(0.25 <= each < 0.9 for each in seconds[0] + seconds[1])
    for number in federation.numbers:
        assert federation.node_log(number) == ""
        with OwnLedger(federation.node(number)) as ledger:
            rows = [(row.kind, {**row.content, "round": 0, "key": ""}) for row in ledger._store.rows[1:]]
            assert rows[: len(rows) // 2] == rows[len(rows) // 2 :]
            assert [kind for kind, _ in rows] == ["round", "sent", "revealed"] * 2


def messages_to(federation: Federation, client: int) -> dict[str, bytes]:
    """What the server sent to one client in its last round, by stage."""
    found: dict[str, bytes] = {}

    def deliver(number: int, message: Message) -> bool:
        if number == client:
            found[stage_of(message)] = packet_in(message)
        return True

    federation.serve(federation.grid(deliver=deliver))
    return found


def test_nothing_is_answered_twice(tmp_path: Path) -> None:
    """All messages of a round again, to the node that answered them: silence, and nothing is charged."""
    federation = federation_of(tmp_path)
    sent = messages_to(federation, VICTIM)
    assert set(sent) == set(STAGES)
    node = Node(federation.node(VICTIM), node_id=1, num_params=NUM_PARAMS, train=lambda vector, _: vector)
    with OwnLedger(federation.node(VICTIM)) as ledger:
        rows = ledger.num_rows
    for stage in STAGES[2:]:
        assert node.answer(stage, sent[stage]) == b""
    # Its last word, which it gave before.
    advertised, _ = unpack(node.answer("keys", sent["keys"]), stage="keys", num_parts=2)
    assert Advertisement.decode(advertised).is_last_word
    with OwnLedger(federation.node(VICTIM)) as ledger:
        assert ledger.num_rows == rows
    assert all(f"refused {stage}" in federation.node_log(VICTIM) for stage in STAGES[2:])


@pytest.fixture(scope="module")
def quiet_federation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Federation, dict[str, bytes]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDPFED_FLOWER_TEST_MODE", "1")
        federation = federation_of(tmp_path_factory.mktemp("fuzz"))
        return federation, messages_to(federation, VICTIM)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_node_never_raises(quiet_federation: tuple[Federation, dict[str, bytes]], data: st.DataObject) -> None:
    """Mutated messages of every stage: an empty answer, whatever they are; if its terms are right a node that is done
    says so again."""
    federation, sent = quiet_federation
    stage = data.draw(st.sampled_from(STAGES[1:]))
    packet = bytearray(sent[stage])
    for _ in range(data.draw(st.integers(0, 4))):
        packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(packet)))
    packet = packet[:cut] if data.draw(st.booleans()) else packet + bytes(data.draw(st.binary(max_size=8)))
    node = Node(federation.node(VICTIM), node_id=1, num_params=NUM_PARAMS, train=lambda vector, _: vector)
    answer = node.answer(stage, bytes(packet))
    if answer and stage == "keys":
        assert Advertisement.decode(unpack(answer, stage="keys", num_parts=2)[0]).is_last_word
    else:
        assert answer == b""


def test_no_secret_travels_or_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, seeds and updates are in no message, log, record, ledger or file that outlives the round."""
    federation = federation_of(tmp_path, test_seed=None)
    secrets: set[bytes] = {federation.node(number).identity for number in federation.numbers}
    secrets.add(federation.home.identity)
    kept = SavedSessions.keep

    def spied(self: SavedSessions, digest: bytes, stage: str, saved: Saved) -> None:
        secrets.update(bytes.fromhex(part) for part in json.loads(saved.client).get("secrets", ()))
        kept(self, digest, stage, saved)

    monkeypatch.setattr(SavedSessions, "keep", spied)
    grid = federation.grid()
    grid.recorded = []
    federation.serve(grid)
    assert len(secrets) > 30
    own = {federation.node_path(number) / "identity.key" for number in federation.numbers}
    own.add(federation.home.path / "server.key")
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path not in own]
    everything = b"\x00".join([*grid.recorded, *files])
    for secret in secrets:
        assert secret not in everything
        assert secret.hex().encode() not in everything
