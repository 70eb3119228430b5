import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.charges import ExhaustedError
from gdpfed.ledger.spend import spent
from gdpfed.planning.methods import make_plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.accountant import SampledGaussian, epsilon_of
from gdpfed.privacy.budgets import Budgets, parse_compact
from tests.ledger.books import DELTA, book, play, start
from tests.ledger.test_store import ENVIRONMENT, ROOT, pristine


@pytest.mark.processes
def test_spend_survives_kills(shelf: Path) -> None:
    folder = pristine(shelf / "disturbed", rounds=30)
    done = subprocess.run(
        [sys.executable, "-m", "tests.ledger.killer", str(folder), "finish"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env=ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["kills"] >= 10
    assert summary["lost"] >= 1
    state = Ledger.read(folder / "book").state
    run = state.run("run")
    assert run.count("published") == 30
    lost = run.count("charged")
    # Some were released before the kill; a charge cannot know.
    assert run.charged[0] == 30 + lost
    assert lost >= summary["lost"]
    group = run.plan.groups[0]
    expected = SampledGaussian(
        noise_multiplier=group.noise_multiplier, sampling_rate=group.sampling_rate, num_rounds=30 + lost
    )
    people = state.population("people")
    assert spent(state.history(people, 0), delta=DELTA) == pytest.approx(epsilon_of(expected, delta=DELTA), rel=1e-9)


def test_twice_the_rounds_is_recomputed(shelf: Path) -> None:
    """FMNIST's strict group: 50 rounds at epsilon 0.5 are 0.683 after 100, not 1."""
    delta = 6000**-1.1
    settings = PlanSettings(method="dp-fedavg", num_rounds=50, participation=0.02, delta=delta)
    plan = make_plan(parse_compact("2000@0.5"), settings)
    groups = np.zeros(2000, dtype=int)
    for epsilon in (0.5, 0.7):
        with Ledger.create(shelf / f"book-{epsilon}") as ledger:
            ledger.add_population("people", parse_compact(f"2000@{epsilon}"), default_delta=delta)
            ledger.start_run("run", "people", plan, groups)
            for round_number in range(50):
                ledger.reserve("run", round_number, "everyone").commit(np.array([round_number]))
            if epsilon == 0.5:
                with pytest.raises(ExhaustedError, match="has budget for 50; 0 more than the 50"):
                    ledger.extend("run", 100)
                continue
            ledger.extend("run", 100)
            for round_number in range(50, 100):
                ledger.reserve("run", round_number, "everyone").commit(np.array([round_number]))
            people = ledger.state.population("people")
            assert spent(ledger.state.history(people, 0), delta=delta) == pytest.approx(0.683, abs=0.005)
            with pytest.raises(InputError, match="more than its 100"):
                ledger.extend("run", 100)


def test_joining_and_leaving(shelf: Path) -> None:
    with book(shelf, factor=2.0) as ledger:
        start(ledger)
        play(ledger, "run", range(4))
        ledger.leave("people", ["0", "1"])
        (newcomer,) = ledger.join("people", parse_compact("1@2"))
        ledger.enrol("run", [str(newcomer)], "group 1")
        play(ledger, "run", range(4, 7))
        state, people = ledger.state, ledger.state.population("people")
        rounds = {
            client: sum(event.num_rounds for event in state.history(people, int(people.class_of[client])))
            for client in (0, 2, int(newcomer))
        }
        assert rounds == {0: 4, 2: 7, int(newcomer): 3}
        with pytest.raises(InputError, match="without names"):
            ledger.join("people", Budgets(epsilons=np.ones(1), deltas=np.ones(1) / 2, clients=("eve",)))
    with Ledger.create(shelf / "named") as ledger:
        names = Budgets(epsilons=np.ones(2), deltas=np.full(2, 1e-3), clients=("ana", "ben"))
        ledger.add_population("people", names)
        with pytest.raises(InputError, match="'ben' already: tighten"):
            ledger.join("people", Budgets(epsilons=np.ones(1), deltas=np.ones(1) / 2, clients=("ben",)))
        ledger.join("people", Budgets(epsilons=np.ones(1), deltas=np.ones(1) / 2, clients=("eve",)))
        assert ledger.state.population("people").labels == ["ana", "ben", "eve"]
        with pytest.raises(InputError, match="'people' already"):
            ledger.add_population("people", names)


def test_who_has_left_is_not_enrolled(shelf: Path) -> None:
    """Refused before the row is written: a row that cannot be replayed would keep the ledger shut."""
    with book(shelf, factor=2.0) as ledger:
        plan = start(ledger)
        (newcomer,) = ledger.join("people", parse_compact("1@2"))
        ledger.leave("people", [str(newcomer)])
        rows = len(ledger.store.rows)
        with pytest.raises(PrivacyError, match="has left"):
            ledger.enrol("run", [str(newcomer)], plan.groups[0].name)
        with pytest.raises(InputError, match="from -1"):
            ledger.start_run("more", "people", plan, np.full(len(ledger.state.population("people")), -2))
        ledger.close_run("run")
        with pytest.raises(PrivacyError, match="closed"):
            ledger.enrol("run", [], plan.groups[0].name)
        assert len(ledger.store.rows) == rows + 1
    Ledger.open(shelf / "book").close()


def test_nothing_goes_on_after_a_stop_in_the_middle(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A charge that is durable but not counted (Ctrl-C between the two) would be spent twice."""

    def stop(content: object) -> None:
        raise KeyboardInterrupt

    with book(shelf) as ledger:
        start(ledger)
        charge = ledger.reserve("run", 0, "group 1")
        with monkeypatch.context() as patch:
            patch.setattr(ledger.state, "_apply_charge", stop)
            with pytest.raises(KeyboardInterrupt):
                charge.commit(np.array([0]))
        with pytest.raises(PrivacyError, match="open it again"):
            ledger.reserve("run", 0, "group 2")
    with Ledger.open(shelf / "book") as ledger:
        assert ledger.state.run("run").charged[0] == 1
        ledger.reserve("run", 0, "group 2")
