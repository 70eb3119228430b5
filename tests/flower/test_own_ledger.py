"""A node's ledger, its saved sessions, and what the server keeps of both."""

import contextlib
import dataclasses
import itertools
import math
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.flower.node.node_home import NodeBudget, NodeHome, make_node_home
from gdpfed.flower.node.own_ledger import JoinedRun, OwnLedger
from gdpfed.flower.node.saved_session import Saved, SavedSessions
from gdpfed.flower.server.recovery import KeptSum, KeptSums, Standings
from gdpfed.flower.shared.enrolment import announce, signed_enrolment
from gdpfed.flower.shared.terms import Terms
from gdpfed.flower.shared.test_mode import VARIABLE, check_test_mode
from gdpfed.flower.shared.wire import Standing
from gdpfed.ledger.spend import spent
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_to_toml
from gdpfed.privacy.accountant import gaussian_epsilon
from tests.flower.federations import DELTA, plan_for

PLAN: Plan = plan_for((2, 2), (1.0, 4.0), "gdpfed+", 2, 0.7, None)
SAVED = Saved(terms=b"terms", session=b"session", client=b"secret")


def terms_of(name: str, plan: Plan = PLAN) -> Terms:
    return Terms(
        run=name,
        plan=plan_to_toml(plan),
        dropout_rate=0.1,
        colluding_fraction=0.0,
        complete_up_to=100,
        enrolment=bytes(32),
        num_params=3,
    )


def home_of(path: Path, *, epsilon: float = 1.0, epsilon_server: float | None = None) -> NodeHome:
    make_node_home(path / "node", epsilon=epsilon, delta=DELTA, epsilon_server=epsilon_server)
    return NodeHome(path / "node")


def test_joining_charges_the_whole_plan(tmp_path: Path) -> None:
    home = home_of(tmp_path, epsilon=1.3)
    with OwnLedger(home) as ledger:
        ledger.join(terms_of("one"), PLAN, 0, home.budget)
    # Read again: it is on the disk, with all rounds, though none was run.
    with OwnLedger(home) as ledger:
        assert ledger.events() == [PLAN.mechanism(PLAN.groups[0])]
        assert spent(ledger.events(), delta=DELTA) == pytest.approx(1.0, abs=1e-3)
        with pytest.raises(PrivacyError, match="rounds do not fit"):
            ledger.join(terms_of("two"), PLAN, 0, home.budget)
        with pytest.raises(PrivacyError, match="on other terms"):
            ledger.run(Terms(**{**vars(terms_of("one")), "num_params": 4}))
        assert len(ledger.runs) == 1
    with OwnLedger(home) as ledger:
        # Two runs compose: 1.0 and 1.0 are less than 2.
        ledger.join(terms_of("two"), PLAN, 0, NodeBudget(name="x", epsilon=1.7, delta=DELTA))
        assert 1.0 < spent(ledger.events(), delta=DELTA) < 1.7


def test_a_group_above_the_budget_is_refused(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    with OwnLedger(home) as ledger:
        with pytest.raises(PrivacyError, match="this node allows 1 at delta"):
            ledger.join(terms_of("one"), PLAN, 1, home.budget)
        with pytest.raises(PrivacyError, match="this node allows"):
            ledger.join(terms_of("one"), PLAN, 0, NodeBudget(name="x", epsilon=1.0, delta=DELTA / 2))
        assert not ledger.runs


def joined(ledger: OwnLedger, home: NodeHome) -> JoinedRun:
    return ledger.join(terms_of("one"), PLAN, 0, home.budget)


def test_sessions_only_go_up(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    with OwnLedger(home) as ledger:
        run = joined(ledger, home)
        ledger.begin(run, (0, 1), key=os.urandom(32))
        for round_number, attempt in ((0, 1), (0, 0)):
            with pytest.raises(PrivacyError, match="none is answered twice"):
                ledger.begin(run, (round_number, attempt), key=os.urandom(32))
    with OwnLedger(home) as ledger:
        run = ledger.runs[terms_of("one").digest.hex()]
        with pytest.raises(PrivacyError, match="none is answered twice"):
            ledger.begin(run, (0, 1), key=os.urandom(32))
        with pytest.raises(PrivacyError, match="fewer than 1000 attempts"):
            ledger.begin(run, (1, 1000), key=os.urandom(32))
        with pytest.raises(PrivacyError, match="beyond them"):
            ledger.begin(run, (2, 0), key=os.urandom(32))
        ledger.begin(run, (1, 0), key=os.urandom(32))


def test_no_key_has_two_sessions(tmp_path: Path) -> None:
    """Of no run, also after the ledger was opened again; a row of before, without a key, is read."""
    home, key = home_of(tmp_path), os.urandom(32)
    with OwnLedger(home) as ledger:
        run = joined(ledger, home)
        assert not ledger.has_used(key)
        ledger.begin(run, (0, 0), key=key)
        ledger._write("round", {"terms": run.terms, "round": 0, "attempt": 1})
    with OwnLedger(home) as ledger:
        run = ledger.runs[terms_of("one").digest.hex()]
        rows = ledger.num_rows
        assert ledger.has_used(key)
        assert not ledger.has_used(b"")
        with pytest.raises(PrivacyError, match="had no session yet"):
            ledger.begin(run, (1, 0), key=key)
        assert ledger.num_rows == rows
        ledger.begin(run, (1, 0), key=os.urandom(32))


def test_a_round_released_twice_takes_the_place_of_the_last(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    with OwnLedger(home) as ledger:
        run = joined(ledger, home)
        ledger.begin(run, (0, 0), key=os.urandom(32))
        ledger.reveal(run, (0, 0))
        ledger.begin(run, (0, 1), key=os.urandom(32))
        with pytest.raises(PrivacyError, match="1 of them twice"):
            ledger.begin(run, (1, 0), key=os.urandom(32))


def test_no_key_is_given_where_no_round_is_left(tmp_path: Path) -> None:
    """What `check_later` refuses, `begin` would refuse at every round and attempt; and the other way round."""
    home = home_of(tmp_path)
    with OwnLedger(home) as ledger:
        run = joined(ledger, home)

        def is_any_left() -> bool:
            for position in itertools.product(range(4), range(4)):
                copy = dataclasses.replace(run)
                with contextlib.suppress(PrivacyError), pytest.MonkeyPatch.context() as patch:
                    patch.setattr(ledger, "_write_position", lambda *_, **__: None)
                    ledger.begin(copy, position, key=os.urandom(32))
                    return True
            return False

        def is_said() -> bool:
            try:
                ledger.check_later(run)
            except PrivacyError:
                return False
            return True

        seen = [(is_any_left(), is_said())]
        for position in ((0, 0), (0, 1)):
            ledger.begin(run, position, key=os.urandom(32))
            seen.append((is_any_left(), is_said()))
            ledger.reveal(run, position)
            seen.append((is_any_left(), is_said()))
    assert [left for left, _ in seen] == [True, True, True, False, False]
    assert all(left == said for left, said in seen)


def test_sent_inputs_are_capped(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    with OwnLedger(home) as ledger:
        run = joined(ledger, home)
        for attempt in range(2):
            ledger.begin(run, (0, attempt), key=os.urandom(32))
            ledger.send(run, (0, attempt), home.budget)
            with pytest.raises(PrivacyError, match=r"sent already|as many as"):
                ledger.send(run, (0, attempt), home.budget)
        assert run.sent == run.cap == 2
        with pytest.raises(PrivacyError, match="as many as its plan allows"):
            ledger.check_input(run, home.budget)
        assert ledger.precision == pytest.approx(2 / run.event.noise_multiplier**2)
    strict = home_of(tmp_path / "strict", epsilon_server=0.01)
    with OwnLedger(strict) as ledger:
        with pytest.raises(PrivacyError, match=r"more than the 0\.01 that its owner allows"):
            joined(ledger, strict)
        run = joined(ledger, home)
        with pytest.raises(PrivacyError, match=r"more than the 0\.01 that its owner allows"):
            ledger.check_input(run, strict.budget)


ROTATION: Plan = plan_for((2, 2), (1.0, 4.0), "gdpfed+", 6, 0.5, None, 3)


def test_asks_are_counted(tmp_path: Path) -> None:
    """Three asks of six rounds, charged when the run is joined; one that comes to nothing is one of them."""
    home = home_of(tmp_path, epsilon=1.0)
    with OwnLedger(home) as ledger:
        run = ledger.join(terms_of("one", ROTATION), ROTATION, 0, home.budget)
        assert run.is_rotation
        assert run.event == ROTATION.mechanism(ROTATION.groups[0])
        assert run.event.num_rounds == run.cap == 3
        ledger.begin(run, (0, 0), key=os.urandom(32))
        # Aborted, and asked again.
        ledger.begin(run, (0, 1), key=os.urandom(32))
        ledger.send(run, (0, 1), home.budget)
        ledger.reveal(run, (0, 1))
        ledger.begin(run, (5, 0), key=os.urandom(32))
        ledger.send(run, (5, 0), home.budget)
    with OwnLedger(home) as ledger:
        (run,) = ledger.runs.values()
        assert (run.asked, run.sent, ledger.precision) == (3, 2, 0.0)
        with pytest.raises(PrivacyError, match="has asked this node 3 times"):
            ledger.begin(run, (5, 1), key=os.urandom(32))
        with pytest.raises(PrivacyError, match="3 asks do not fit"):
            ledger.join(terms_of("two", ROTATION), ROTATION, 0, home.budget)


def test_a_lowered_limit_of_the_server_stops_a_rotation(tmp_path: Path) -> None:
    home = home_of(tmp_path, epsilon=1.0)
    with OwnLedger(home) as ledger:
        run = ledger.join(terms_of("one", ROTATION), ROTATION, 0, home.budget)
        ledger.check_input(run, home.budget)
        lowered = dataclasses.replace(home.budget, epsilon_server=0.01)
        with pytest.raises(PrivacyError, match="one more input would show the server"):
            ledger.check_input(run, lowered)


def test_asks_count_against_the_server_too(tmp_path: Path) -> None:
    """Beside the inputs of runs in which the server sees who takes part."""
    group = ROTATION.groups[0]
    allowed = group.epsilon_server + 0.01
    home = home_of(tmp_path, epsilon=5.0, epsilon_server=allowed)
    with OwnLedger(home) as ledger:
        ledger.join(terms_of("hidden", ROTATION), ROTATION, 0, home.budget)
        promised = len(ledger.runs)
        with pytest.raises(PrivacyError, match="one more input would show the server epsilon"):
            ledger.join(terms_of("seen"), PLAN, 0, home.budget)
        # What may have no input at all was not charged either.
        assert len(ledger.runs) == promised == 1
        seen = ledger.join(terms_of("seen"), PLAN, 0, dataclasses.replace(home.budget, epsilon_server=100.0))
        with pytest.raises(PrivacyError, match="one more input would show the server epsilon"):
            ledger.check_input(seen, home.budget)
        with pytest.raises(PrivacyError, match="this run would show the server epsilon"):
            ledger.join(terms_of("again", ROTATION), ROTATION, 0, home.budget)


def test_a_lowered_budget_counts_at_once(tmp_path: Path) -> None:
    home = home_of(tmp_path)
    with OwnLedger(home) as ledger:
        joined(ledger, home)
        ledger.check_budget(home.budget)
        with pytest.raises(PrivacyError, match="that its owner now allows"):
            ledger.check_budget(NodeBudget(name="x", epsilon=0.9, delta=DELTA))
        with pytest.raises(PrivacyError, match="that its owner now allows"):
            ledger.check_budget(NodeBudget(name="x", epsilon=1.0, delta=DELTA / 10))


def test_refusals_do_not_flatter(tmp_path: Path) -> None:
    """Costs a little above a budget that would be rounded up to them: the texts must not say that they are equal."""
    event = PLAN.mechanism(PLAN.groups[0])
    cost = spent([event], delta=DELTA)
    tight = NodeBudget(name="x", epsilon=math.nextafter(cost, 0), delta=math.nextafter(DELTA, 1), epsilon_server=0.01)
    home = home_of(tmp_path)
    with OwnLedger(home) as ledger:
        with pytest.raises(PrivacyError, match="of the plan costs epsilon") as refused:
            ledger.join(terms_of("one"), PLAN, 0, tight)
        shown = [
            Decimal(found) for found in re.findall(r"(?:epsilon|delta|allows) ([0-9.e-]+[0-9])", str(refused.value))
        ]
        assert len(shown) == 4, refused.value
        assert shown[0] >= Decimal(cost) > Decimal(tight.epsilon) >= shown[2]
        assert shown[1] >= Decimal(repr(PLAN.groups[0].delta))
        assert shown[3] <= Decimal(tight.delta)
        run = joined(ledger, home)
        with pytest.raises(PrivacyError, match="that its owner now allows") as refused:
            ledger.check_budget(dataclasses.replace(tight, delta=DELTA))
        cost_shown, allowed = re.findall(r"cost ([0-9.]+), more than the epsilon ([0-9.]+)", str(refused.value))[0]
        assert Decimal(cost_shown) >= Decimal(cost) > Decimal(allowed)
        with pytest.raises(PrivacyError, match="show the server epsilon") as refused:
            ledger.check_input(run, tight)
        server = gaussian_epsilon(noise_multiplier=event.noise_multiplier, num_releases=1, delta=DELTA)
        assert Decimal(re.findall(r"epsilon ([0-9.]+)", str(refused.value))[0]) >= Decimal(server * (1 - 1e-9))


# Saved sessions.


def test_a_state_is_not_given_back_beside_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk fails just after the next state was kept: there must not be two that could be answered."""
    sessions = SavedSessions(tmp_path)
    sessions.keep(bytes(32), "agree", Saved(terms=b"", session=b"", client=b""))

    def failing(_: Path) -> None:
        raise OSError(5, "Input/output error")

    def agree() -> None:
        with sessions.claimed(bytes(32), "agree") as saved:
            monkeypatch.setattr("gdpfed.files.sync_folder", failing)
            sessions.keep(bytes(32), "reveal", saved)

    with pytest.raises(InputError, match="cannot write"):
        agree()
    assert [path.suffix for path in tmp_path.iterdir()] == [".reveal"]


def test_a_state_is_loaded_once(tmp_path: Path) -> None:
    sessions = SavedSessions(tmp_path)
    sessions.keep(bytes(32), "input", SAVED)
    assert (tmp_path / f"{bytes(32).hex()}.input").stat().st_mode & 0o777 == 0o600
    together = threading.Barrier(8)

    def claim(_: int) -> str:
        together.wait(timeout=60)
        try:
            with SavedSessions(tmp_path).claimed(bytes(32), "input"):
                return "claimed"
        except PrivacyError:
            return "refused"

    # A rename does not care whether threads or processes race for it.
    with ThreadPoolExecutor(8) as pool:
        found = sorted(pool.map(claim, range(8)))
    assert found == ["claimed"] + ["refused"] * 7
    # A process that dies with the state takes it along.
    sessions.keep(bytes(32), "input", SAVED)
    with pytest.raises(KeyboardInterrupt), sessions.claimed(bytes(32), "input"):
        raise KeyboardInterrupt
    with pytest.raises(PrivacyError, match="answered already"), sessions.claimed(bytes(32), "input"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_refusal_gives_the_state_back(tmp_path: Path) -> None:
    sessions = SavedSessions(tmp_path)
    sessions.keep(bytes(32), "agree", SAVED)
    for error in (PrivacyError, InputError):
        with pytest.raises(error, match="refused"), sessions.claimed(bytes(32), "agree"):
            raise error("refused")
    with sessions.claimed(bytes(32), "agree") as saved:
        assert saved == SAVED
    assert not list(tmp_path.iterdir())
    assert "secret" not in repr(SAVED)
    with pytest.raises(InputError, match="saved state"):
        Saved.decode(b"{}" + b"x")


def test_old_sessions_are_forgotten(tmp_path: Path) -> None:
    sessions = SavedSessions(tmp_path)
    sessions.keep(bytes(32), "agree", SAVED)
    (tmp_path / "left.input.claimed").write_bytes(b"x")
    sessions.forget()
    assert not list(tmp_path.iterdir())


# The server's side.


def test_the_furthest_standing_is_kept(tmp_path: Path) -> None:
    key = bytes([3]) * 32
    enrolment = signed_enrolment([announce(name="a", identity=key, epsilon=1.0, delta=1e-5)], identity=bytes(32))
    lines: list[str] = []
    standings = Standings(tmp_path / "standings.json", enrolment, log=lines.append)
    assert standings.shown_to(0) == b""

    def standing(rows: int, *, signer: bytes = key) -> bytes:
        made = Standing(client=0, nonce=bytes(32), node=1, num_rows=rows, head=bytes(32))
        return made.signed_by(signer).encode()

    assert standings.take(0, standing(5), nonce=bytes(32)) is not None
    # As many rows that end otherwise: of a home that went on from an old copy.
    fork = Standing(client=0, nonce=bytes(32), node=1, num_rows=5, head=b"f" * 32).signed_by(key)
    assert standings.take(0, fork.encode(), nonce=bytes(32)) is not None
    assert standings.shown_to(0) == standing(5)
    assert "older ledger" in lines.pop()
    assert standings.take(0, standing(9, signer=bytes(32)), nonce=bytes(32)) is None
    assert standings.take(0, standing(9), nonce=bytes([1]) * 32) is None
    assert standings.take(1, standing(9), nonce=bytes(32)) is None
    assert standings.take(0, b"x", nonce=bytes(32)) is None
    standings.save()
    again = Standings(tmp_path / "standings.json", enrolment, log=lines.append)
    assert again.take(0, standing(4), nonce=bytes(32)) is not None
    assert Standing.decode(again.shown_to(0)).num_rows == 5
    assert "older ledger" in lines[0]


def test_a_kept_sum_comes_back(tmp_path: Path) -> None:
    total = np.arange(5, dtype=np.uint32)
    sums = KeptSums(tmp_path, 3)
    assert sums.find(0) is None
    sums.keep(0, KeptSum(total=total, attempts={"a": 2}))
    found = KeptSums(tmp_path, 3).find(0)
    assert found is not None
    assert np.array_equal(found.total, total)
    assert found.attempts == {"a": 2}
    assert KeptSums(tmp_path, 4).find(0) is None
    path = tmp_path / "released-3-0.sum"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match="damaged"):
        sums.find(0)
    sums.forget()
    assert not list(tmp_path.iterdir())


def test_test_mode_is_refused_outside_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    check_test_mode(7, is_allowed=True)
    with pytest.raises(PrivacyError, match="did not allow test mode"):
        check_test_mode(7, is_allowed=False)
    monkeypatch.delenv(VARIABLE)
    check_test_mode(None, is_allowed=False)
    with pytest.raises(PrivacyError, match="outside tests"):
        check_test_mode(7, is_allowed=True)
