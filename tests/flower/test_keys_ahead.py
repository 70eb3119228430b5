"""Keys ahead of time: who is asked for one, whose they are, and how often each is used."""

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message

from gdpfed.errors import InputError
from gdpfed.flower.server.keys_ahead import KeysAhead
from gdpfed.flower.shared.carrier import packet_in
from gdpfed.flower.shared.wire import pack, unpack
from gdpfed.secure.client_state import OneTimeKey
from gdpfed.secure.messages import Advertisement, Roster
from gdpfed.secure.primitives import sign
from tests.flower.federations import FIRST_NODE, Federation, stage_of
from tests.secure.cohorts import directory, identity

RUN = b"r" * 32


@dataclass
class Clients:
    """What they answer when they are asked for keys, and who was asked."""

    answers: dict[int, bytes] = field(default_factory=dict)
    asked: list[list[int]] = field(default_factory=list)
    offline: set[int] = field(default_factory=set)
    said: list[str] = field(default_factory=list)

    def exchange(self, stage: str, packets: Any) -> Iterator[tuple[int, bytes]]:
        assert stage == "keys"
        self.asked.append(sorted(packets))
        for client in packets:
            if client in self.answers:
                yield client, self.answers[client]

    def deposits(self) -> KeysAhead:
        return KeysAhead(
            terms=b"terms",
            plan_hash=RUN,
            directory=directory(8),
            exchange=self.exchange,
            is_here=lambda client: client not in self.offline,
            shown_to=lambda _: b"",
            standing=lambda *_: None,
            log=lambda text, **_: self.said.append(text),
            name=str,
        )


def key_of(client: int, number: int = 0, *, plan_hash: bytes = RUN, signer: int | None = None) -> bytes:
    private = bytes([client + 1, number]) * 16
    signed_by = identity(f"client {client if signer is None else signer}")
    return OneTimeKey.made(private, plan_hash=plan_hash, client=client, identity=signed_by).advertised.encode()


def last_word_of(client: int) -> bytes:
    return OneTimeKey.last_word(plan_hash=RUN, client=client, identity=identity(f"client {client}")).encode()


def test_a_key_is_its_senders_own() -> None:
    """Another's key, though really that one's; a key under another's name; of another run; one that forces secrets."""
    keys = Clients().deposits()
    keys.take(2, key_of(2))
    low = Advertisement(plan_hash=RUN, client=1, public=(1).to_bytes(32, "little"))
    low = replace(low, signature=sign(identity("client 1"), low.signed))
    for wrong in (
        key_of(2),
        key_of(2, 1),
        key_of(2, signer=1),
        key_of(1, signer=2),
        key_of(1, plan_hash=b"o" * 32),
        last_word_of(2),
        low.encode(),
        b"",
    ):
        with pytest.raises(InputError):
            keys.take(1, wrong)
    assert keys.taken_out(range(8)) == {2: key_of(2)}


def test_a_deposit_is_used_once() -> None:
    clients = Clients(answers={1: pack("keys", key_of(1), b"")})
    keys = clients.deposits()
    keys.ask([1], round_number=1)
    assert keys.taken_out([1]) == {1: key_of(1)}
    assert keys.taken_out([1]) == {}
    # The roster never reached its owner, who has it still.
    keys.ask([1], round_number=1)
    assert keys.taken_out([1]) == {1: key_of(1)}
    keys.answered(1)
    keys.ask([1], round_number=1)
    assert keys.taken_out([1]) == {}
    assert "not used before" in clients.said[-1]
    clients.answers[1] = pack("keys", key_of(1, 1), b"")
    keys.ask([1], round_number=1)
    assert keys.taken_out([1]) == {1: key_of(1, 1)}


def test_who_is_offline_keeps_its_key() -> None:
    clients = Clients(answers={1: pack("keys", key_of(1), b"")}, offline={1})
    keys = clients.deposits()
    keys.ask([1], round_number=1)
    assert clients.asked == []
    keys.take(1, key_of(1))
    assert keys.taken_out([1]) == {}
    clients.offline = set()
    assert keys.taken_out([1]) == {1: key_of(1)}


def test_a_last_word_is_not_asked_again() -> None:
    clients = Clients(answers={1: pack("keys", last_word_of(1), b"")})
    keys = clients.deposits()
    for number in range(30):
        keys.ask([1], round_number=number)
    assert clients.asked == [[1]]
    assert keys.taken_out([1]) == {}
    # After a key that it gave before, too; and when its node comes anew it may have changed its mind.
    keys.take(2, key_of(2))
    keys.take(2, last_word_of(2))
    assert keys.taken_out([2]) == {}
    keys.forget(1)
    keys.ask([1, 2], round_number=31)
    assert clients.asked == [[1], [1]]


@pytest.mark.parametrize("comes_anew", [False, True])
def test_who_gives_no_key_is_asked_seldom(comes_anew: bool) -> None:
    """Silent, or refusing: three times, then in every tenth round, so that a round is four exchanges again."""
    clients = Clients(answers={1: b""})
    keys = clients.deposits()
    rounds = []
    for number in range(1, 41):
        if comes_anew:
            keys.forget(1)
        before = len(clients.asked)
        keys.ask([1, 2], round_number=number)
        rounds += [number] * (len(clients.asked) - before)
    assert rounds == [1, 2, 3, 10, 20, 30, 40]
    clients.answers[1] = pack("keys", key_of(1), b"")
    keys.ask([1, 2], round_number=50)
    assert keys.taken_out([1, 2]) == {1: key_of(1)}
    keys.ask([1, 2], round_number=51)
    assert clients.asked[-1] == [1]


def test_who_shares_nothing_is_asked_seldom() -> None:
    """It gives a key whenever it is asked for one, is in a roster with it, and does not answer."""
    clients = Clients(answers={1: pack("keys", key_of(1), b"")})
    keys = clients.deposits()
    rounds = []
    for number in range(1, 31):
        before = len(clients.asked)
        keys.ask([1], round_number=number)
        rounds += [number] * (len(clients.asked) - before)
        keys.taken_out([1])
    # The first key was not yet a disappointment.
    assert rounds == [1, 2, 3, 4, 10, 20, 30]
    keys.answered(1)
    clients.answers[1] = pack("keys", key_of(1, 2), b"")
    keys.ask([1], round_number=31)
    assert len(keys.taken_out([1])) == 1


class Watched:
    """The stages of every round, as anybody sees them who counts messages."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, tuple[int, ...]]] = []
        self.rosters: dict[int, list[bytes]] = {}

    def deliver(self, client: int, message: Message) -> bool:
        stage = stage_of(message)
        if not self.stages or self.stages[-1][0] != stage:
            self.stages.append((stage, ()))
        self.stages[-1] = (stage, (*self.stages[-1][1], client))
        if stage == "shares":
            roster = Roster.decode(unpack(packet_in(message), stage="shares", num_parts=3)[2])
            self.rosters.setdefault(client, []).append(roster.entry_of(client).public)
        return True

    @property
    def names(self) -> list[str]:
        return [stage for stage, _ in self.stages]


FOUR = ["shares", "input", "agree", "reveal"]
LATE = 3


def run_with_a_latecomer(path: Path, *, seed: int) -> Watched:
    """One client comes after the first round."""
    federation = Federation(path, sizes=(3, 3), epsilons=(1.0, 4.0), participation=0.5, rounds=2, test_seed=seed)
    watched = Watched()
    grid = federation.grid(deliver=watched.deliver)
    grid.offline = {FIRST_NODE + LATE}

    def fault(point: str, number: int) -> None:
        if point == "checkpointed" and number == 0:
            grid.offline = set()

    federation.serve(grid, fault=fault)
    return watched


def exchanges_with_and_without(path: Path, seeds: Iterable[int]) -> dict[bool, set[tuple[str, ...]]]:
    """The stages of a run, by whether the latecomer took part in the second round."""
    found: dict[bool, set[tuple[str, ...]]] = {}
    for seed in seeds:
        watched = run_with_a_latecomer(path / str(seed), seed=seed)
        found.setdefault(LATE in watched.rosters, set()).add(tuple(watched.names))
    return found


SEEDS = range(5)


@pytest.mark.training
def test_a_sample_does_not_tell_in_exchanges(tmp_path: Path) -> None:
    """The round after a client came has an exchange for its key, whether or not it is sampled then."""
    found = exchanges_with_and_without(tmp_path, SEEDS)
    told = {("announce", "keys", *FOUR, "announce", "keys", *FOUR)}
    assert found == {True: told, False: told}


@pytest.mark.training
@pytest.mark.parametrize("asks", [None, 3])
def test_a_server_that_was_started_again_asks_everybody(asks: int | None, tmp_path: Path) -> None:
    """Nodes answer with the key that waits; no key is in two rosters, and rounds are four exchanges again."""
    hidden = {"dropout_rate": 0.0, "input_seconds": 9.0, "answer_seconds": 0.2}
    federation = Federation(
        tmp_path, sizes=(3, 3), epsilons=(1.0, 4.0), participation=1.0, rounds=3, asks=asks,
        settings=hidden if asks else {},
    )  # fmt: skip
    watched = Watched()

    def fault(point: str, number: int) -> None:
        if point == "checkpointed" and number == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        federation.serve(federation.grid(deliver=watched.deliver), fault=fault)
    waiting = {
        number: Advertisement.decode((federation.node(number).sessions / "next.key").read_bytes()[32:]).public
        for number in federation.numbers
    }
    federation.serve(federation.grid(deliver=watched.deliver))
    assert watched.names == [*(["announce", "keys", *FOUR] * 2), *FOUR]
    assert watched.stages[1][1] == watched.stages[7][1] == tuple(federation.numbers)
    for number, keys in watched.rosters.items():
        assert len(keys) == len(set(keys)) == 3
        assert keys[1] == waiting[number]
    assert not any(federation.node_log(number) for number in federation.numbers)


@pytest.mark.training
def test_a_node_that_lost_its_sessions_is_one_dropout(tmp_path: Path) -> None:
    """Its deposited key is worth nothing: it is lost in that round, asked before the next, and takes part again."""
    federation = Federation(tmp_path, sizes=(5, 5), epsilons=(1.0, 4.0), participation=1.0, rounds=3)
    watched = Watched()

    def fault(point: str, number: int) -> None:
        if point == "checkpointed" and number == 0:
            shutil.rmtree(federation.node(LATE).sessions)

    federation.serve(federation.grid(deliver=watched.deliver), fault=fault)
    assert watched.names == ["announce", "keys", *FOUR, *FOUR, "keys", *FOUR]
    assert watched.stages[10] == ("keys", (LATE,))
    inputs = [clients for stage, clients in watched.stages if stage == "input"]
    assert [LATE in clients for clients in inputs] == [True, False, True]
    assert set(map(tuple, federation.states().values())) == {("published",)}
    assert "no key is advertised for another session" in federation.node_log(LATE)
