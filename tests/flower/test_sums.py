"""Answers that cannot be used, groups that lose too many, charges before unmasking."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from flwr.app import ConfigRecord, Error, Message, RecordDict

from gdpfed.flower.shared.carrier import packet_in, record_of
from gdpfed.flower.shared.wire import pack, unpack
from gdpfed.runs.folder import open_run
from gdpfed.secure.messages import Roster
from tests.flower.federations import Federation, stage_of
from tests.flower.in_process_grid import Late

STAGES = ["keys", "shares", "input", "agree", "reveal"]
KINDS = ["garbage", "empty", "error", "no packet", "another's", "another round's", "late", "flipped"]


def federation_of(path: Path, **more: object) -> Federation:
    """Cohorts that stand the loss of one client."""
    return Federation(path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=0.9, rounds=2, **more)  # type: ignore[arg-type]


class Disturbed:
    """Spoils the answers of the first client of group 0 that reaches a stage."""

    def __init__(self, kind: str, stage: str) -> None:
        self.kind, self.stage = kind, stage
        self.victim: int | None = None
        self.earlier: dict[int, bytes] = {}
        self.others: dict[str, bytes] = {}

    def __call__(self, client: int, reply: Message) -> Iterable[Message | Late]:
        stage = stage_of(reply)
        if stage != self.stage or client >= 5:
            return [reply]
        packet = packet_in(reply)
        if self.kind == "another's" and self.victim is None and "first" not in self.others:
            self.others["first"] = packet
            return [reply]
        if self.kind == "another round's" and client not in self.earlier:
            self.earlier[client] = packet
            return [reply]
        self.victim = client if self.victim is None else self.victim
        if client != self.victim:
            return [reply]
        made = {
            "garbage": np.random.default_rng(1).bytes(200),
            "empty": b"",
            "another's": self.others.get("first", b""),
            "another round's": self.earlier.get(client, b""),
            "flipped": packet[:-9] + bytes([packet[-9] ^ 1]) + packet[-8:],
        }
        if self.kind == "late":
            return [Late(reply, pulls=10**9)]
        if self.kind == "error":
            return [Message(Error(code=0, reason="gone"), reply_to=_asked(reply))]
        content = RecordDict({"x": ConfigRecord({"y": 1})}) if self.kind == "no packet" else record_of(made[self.kind])
        changed = Message(content, reply_to=_asked(reply))
        return [changed]


def _asked(reply: Message) -> Message:
    """A message to which another reply can be made."""
    asked = Message(RecordDict(), dst_node_id=reply.metadata.src_node_id, message_type=reply.metadata.message_type)
    asked.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return asked


@pytest.mark.training
@pytest.mark.parametrize(
    ("kind", "stage"),
    # Of stage keys there is no other round's: a client is asked for its first key only.
    [(kind, "shares" if kind == "another round's" else STAGES[place % 5]) for place, kind in enumerate(KINDS)]
    + [("flipped", "input")],
)
def test_a_bad_answer_is_its_senders_loss(kind: str, stage: str, tmp_path: Path) -> None:
    federation = federation_of(tmp_path)
    disturbed = Disturbed(kind, stage)
    state = federation.serve(federation.grid(disturb=disturbed))
    assert disturbed.victim is not None
    assert state.round_number == 2
    assert torch.isfinite(state.parameters).all()
    states = federation.states()
    # The other group never notices; this one releases each round, or gives one up after its charge.
    assert [states[number, 1] for number in range(2)] == [["published"]] * 2
    assert all(attempts[-1] in ("published", "charged") for attempts in states.values())
    # What the wire carries of a masked input is not signed: flipped bits are another update, within noise and mask.
    if (kind, stage) != ("flipped", "input"):
        assert any(word in federation.server_log for word in ("not used", "cannot answer", "did not answer"))


@pytest.mark.training
def test_an_answer_that_comes_twice_counts_once(tmp_path: Path) -> None:
    expected = federation_of(tmp_path / "one").serve()
    doubled = federation_of(tmp_path / "two")
    state = doubled.serve(doubled.grid(disturb=lambda _, reply: [reply, reply]))
    assert torch.equal(state.parameters, expected.parameters)


@pytest.mark.training
def test_a_group_that_loses_too_many_aborts_alone(tmp_path: Path) -> None:
    federation = federation_of(tmp_path, settings={"max_attempts": 2})
    expected = federation_of(tmp_path / "whole")
    reference = expected.serve()

    state = federation.serve(
        federation.grid(deliver=lambda client, message: client >= 5 or stage_of(message) != "agree")
    )
    states = federation.states()
    # After the last attempt noise alone is released, and charged.
    assert [states[number, 0] for number in range(2)] == [["aborted", "aborted", "published"]] * 2
    assert [states[number, 1] for number in range(2)] == [["published"]] * 2
    assert federation.ledger().state.run(federation.home.run_name).charged == [2, 2]
    assert not torch.equal(state.parameters, reference.parameters)
    assert "nothing was unmasked" in federation.server_log


@pytest.mark.training
def test_a_round_is_four_exchanges(tmp_path: Path) -> None:
    """Keys are asked for before the first round; each is used once, and one that cannot be used is asked for again."""
    federation = Federation(tmp_path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=0.9, rounds=4, test_seed=5)
    asked: list[tuple[int, str, int]] = []
    rosters: dict[int, set[bytes]] = {}

    def deliver(client: int, message: Message) -> bool:
        number = len(list(open_run(federation.home.run_path).records()))
        asked.append((number, stage_of(message), client))
        if stage_of(message) == "shares":
            roster = Roster.decode(unpack(packet_in(message), stage="shares", num_parts=3)[2])
            rosters.setdefault(client, set()).add(roster.entry_of(client).public)
        return True

    def disturb(client: int, reply: Message) -> list[Message]:
        if client == 7 and stage_of(reply) == "reveal":
            shares, key, standing = unpack(packet_in(reply), stage="reveal", num_parts=3)
            reply.content = record_of(pack("reveal", shares, key[:-1] + bytes([key[-1] ^ 1]), standing))
        return [reply]

    federation.serve(federation.grid(deliver=deliver, disturb=disturb))
    took_part = {client: sum(one[1:] == ("shares", client) for one in asked) for client in federation.numbers}
    for client, times in took_part.items():
        in_rounds = [one[0] for one in asked if one[1:] == ("keys", client)]
        # The last round has none after it.
        assert in_rounds == ([0, *(one[0] + 1 for one in asked if one[1:] == ("reveal", 7) and one[0] < 3)]
                             if client == 7 else [0])  # fmt: skip
        assert len(rosters.get(client, ())) == times
    assert max(took_part.values()) >= 3
    assert took_part[7] >= 2
    assert set(map(tuple, federation.states().values())) == {("published",)}
    assert not any(federation.node_log(client) for client in federation.numbers)


def test_charged_before_unmasking(tmp_path: Path) -> None:
    federation = federation_of(tmp_path)
    seen = []

    def deliver(client: int, message: Message) -> bool:
        if stage_of(message) == "reveal":
            group = int(client >= 5)
            run = federation.ledger().state.run(federation.home.run_name)
            last = max(number for number, place in run.attempts if place == group)
            seen.append(run.attempts[last, group][-1].state)
        return True

    federation.serve(federation.grid(deliver=deliver))
    assert set(seen) == {"charged"}
    assert len(seen) >= 8


@pytest.mark.training
def test_what_is_lost_is_released_as_noise(tmp_path: Path) -> None:
    """Signatures went out and nobody reveals: no second attempt, and what an empty cohort releases."""
    federation, empty = federation_of(tmp_path / "lost"), federation_of(tmp_path / "empty")
    state = federation.serve(
        federation.grid(deliver=lambda client, message: client >= 5 or stage_of(message) != "reveal")
    )
    grid = empty.grid()
    grid.offline = {100, 101, 102, 103, 104}
    other = empty.serve(grid)
    # The server's noise has an address in test mode: it is the very noise of an empty cohort.
    assert torch.equal(state.parameters, other.parameters)
    assert federation.states() == empty.states()
    assert set(map(tuple, federation.states().values())) == {("published",)}
    public = {path.name for path in empty.home.run_path.iterdir()}
    assert {path.name for path in federation.home.run_path.iterdir()} == public
    # What is the server's own business differs: times, and the chain of its ledger.
    for name in public - {"timing.jsonl", "ledger.json", "ledger_mark.json", "run.toml", "terms.json"}:
        one, same = ((made.home.run_path / name) for made in (federation, empty))
        if one.is_file():
            assert one.read_bytes() == same.read_bytes(), name


def test_a_client_that_is_offline_is_a_dropout(tmp_path: Path) -> None:
    federation = federation_of(tmp_path)
    grid = federation.grid()
    grid.offline = {100, 101, 102, 103, 104}
    federation.serve(grid)
    states = federation.states()
    # An empty cohort releases noise, charged like every release.
    assert set(map(tuple, states.values())) == {("published",)}
