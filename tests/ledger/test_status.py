import csv
import json
import stat
from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import InputError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.export import export
from gdpfed.ledger.spend import fits
from gdpfed.ledger.status import client_statuses, run_history, run_status, spent_most
from gdpfed.privacy.accountant import SampledGaussian, epsilon_of
from gdpfed.privacy.adversaries import server_epsilon
from gdpfed.privacy.budgets import parse_compact
from gdpfed.privacy.calibrate import noise_multiplier_for
from tests.ledger.books import DELTA, TWO, book, play, start


def played(shelf: Path) -> Ledger:
    """Six rounds, of which the first was lost once by group 1; client 0 took part in all."""
    ledger = book(shelf, text=TWO, factor=1.5)
    start(ledger, text=TWO)
    ledger.reserve("run", 0, "group 1").commit(np.array([0]))
    play(ledger, "run", range(6))
    return ledger


def test_status_states_both_adversaries(shelf: Path) -> None:
    with played(shelf) as ledger:
        run = ledger.state.run("run")
        strict, lax = run_status(ledger.state, run)
        group = run.plan.groups[0]
        costs = {
            count: epsilon_of(
                SampledGaussian(
                    noise_multiplier=group.noise_multiplier, sampling_rate=group.sampling_rate, num_rounds=count
                ),
                delta=DELTA,
            )
            for count in (7, 10)
        }
        assert (strict.epsilon, strict.delta, strict.num_clients) == (1.5, DELTA, 100)
        assert strict.spent_release == costs[7]
        # One round was lost, so that three of ten are held, not four.
        assert strict.promised == costs[10]
        assert strict.spent_server_max == pytest.approx(
            server_epsilon(noise_multiplier=group.noise_multiplier, num_participations=7, delta=DELTA), rel=1e-9
        )
        assert 0 < strict.spent_server_mean < strict.spent_server_p99 <= strict.spent_server_max
        assert (strict.charged, strict.published, strict.lost, strict.rounds_left) == (7, 6, 1, 3)
        assert (lax.charged, lax.published, lax.lost, lax.rounds_left) == (6, 6, 0, 4)
        assert (strict.most_participations, lax.most_participations) == (7, 6)


def test_by_round_ends_at_now(shelf: Path) -> None:
    with played(shelf) as ledger:
        run = ledger.state.run("run")
        listed = run_history(ledger.state, run, ledger.store.rows, points=3)
        for status in run_status(ledger.state, run):
            own = [part for part in listed if part.group == status.group]
            assert len(own) == status.charged
            for name, now in (("release", status.spent_release), ("server", status.spent_server_max)):
                costs = [cost for part in own if (cost := getattr(part, f"epsilon_{name}")) is not None]
                assert len(costs) == 3
                assert costs == sorted(costs)
                assert costs[-1] == pytest.approx(now, rel=1e-9)
            assert own[-1].epsilon_release == status.spent_release
        assert [(part.round_number, part.attempt, part.state) for part in listed[:3]] == [
            (0, 0, "charged"),
            (0, 1, "published"),
            (1, 0, "published"),
        ]


def test_history_counts_what_was_charged_by_then(shelf: Path) -> None:
    """The first run's history is the same before and after a second one, whose own history has both."""
    with book(shelf, text=TWO, factor=3.0) as ledger:
        start(ledger, "one", text=TWO)
        play(ledger, "one", range(3))
        start(ledger, "two", text=TWO)
        first = ledger.state.run("one")
        before = run_history(ledger.state, first, ledger.store.rows, points=3)
        play(ledger, "two", range(4))
        assert run_history(ledger.state, first, ledger.store.rows, points=3) == before
        # The same plan: its rounds count together.
        second = run_history(ledger.state, ledger.state.run("two"), ledger.store.rows, points=4)
        strict = [one for one in second if one.group == "group 1"]
        for rounds, charged in ((3 + 1, strict[0]), (3 + 4, strict[-1])):
            (event,) = first.event(0, rounds)
            assert charged.epsilon_release == epsilon_of(event, delta=DELTA)
            assert charged.epsilon_server == pytest.approx(
                server_epsilon(noise_multiplier=event.noise_multiplier, num_participations=rounds, delta=DELTA)
            )
        # Charged in turns: by then, and not by the end.
        play(ledger, "one", range(3, 5))
        later = run_history(ledger.state, first, ledger.store.rows, points=5)
        assert later[:3] == before[:3]
        assert later[3].epsilon_release == epsilon_of(first.event(0, 3 + 4 + 1)[0], delta=DELTA)


def test_left_is_what_a_further_run_may_cost(shelf: Path) -> None:
    with played(shelf) as ledger:
        ledger.close_run("run")
        run = ledger.state.run("run")
        for number, status in enumerate(run_status(ledger.state, run)):
            shape = {"sampling_rate": run.plan.groups[number].sampling_rate, "num_rounds": run.num_rounds}
            history = ledger.state.history(run.population, int(run.population.class_of[100 * number]))
            for factor, is_let_in in ((1.0, True), (1.02, False)):
                noise = noise_multiplier_for(epsilon=factor * status.left, delta=DELTA, **shape)
                further = SampledGaussian(noise_multiplier=noise, **shape)
                assert fits([*history, further], ((status.epsilon, status.delta),)) == is_let_in
            assert status.left > status.epsilon - status.spent_release
            (client,) = client_statuses(ledger.state, run.population, np.array([100 * number]))
            assert client.left == status.left
        ledger.join("people", parse_compact("1@0.7"), default_delta=DELTA)
        ledger.leave("people", ["3"])
        fresh, gone = client_statuses(ledger.state, run.population, np.array([200, 3]))
        assert (fresh.left, gone.left) == (0.7, 0.0)
        assert spent_most(ledger.state, run.population, 5).tolist() == [0, 1, 2, 3, 4]


def test_every_client_is_listed(shelf: Path) -> None:
    with played(shelf) as ledger:
        ledger.leave("people", ["1"])
        ledger.tighten("people", ["2"], delta=1e-5)
        people = ledger.state.population("people")
        listed = list(client_statuses(ledger.state, people))
        assert len(listed) == 200
        strict, lax = run_status(ledger.state, ledger.state.run("run"))
        assert listed[5].spent_release < listed[2].spent_release == strict.spent_release
        assert (listed[0].participations, listed[1].participations, listed[50].participations) == (7, 6, 0)
        assert listed[0].spent_server > listed[1].spent_server > listed[50].spent_server == 0
        assert listed[150].spent_release == lax.spent_release
        assert [one.client for one in listed if one.has_left] == ["1"]
        assert list(client_statuses(ledger.state, people, np.array([2]))) == [listed[2]]


def test_exports_are_private(shelf: Path) -> None:
    with played(shelf) as ledger:
        for name in ("all.json", "all.csv"):
            (shelf / name).touch(mode=0o644)
            export(ledger, "rows", shelf / name)
    written = {file.name: stat.S_IMODE(file.stat().st_mode) for file in shelf.iterdir()}
    assert set(written.values()) == {0o600}, written
    assert {"book", "book.journal", "book.key", "book.lock", "all.json", "all.csv"} <= set(written)


def test_exports_agree(shelf: Path) -> None:
    with played(shelf) as ledger:
        for what, count in (("clients", 200), ("charges", 13), ("status", 2), ("rows", len(ledger.store.rows))):
            assert export(ledger, what, shelf / "all.json") == count
            assert export(ledger, what, shelf / "all.csv") == count
            content = json.loads((shelf / "all.json").read_text())
            with (shelf / "all.csv").open(newline="") as file:
                lines = list(csv.DictReader(file))
            assert content["head"] == [len(ledger.store.rows), ledger.store.last_hash]
            assert [
                {name: "" if value is None else str(value) for name, value in one.items()} for one in content[what]
            ] == lines
        with pytest.raises(InputError, match=r"\.json or \.csv"):
            export(ledger, "clients", shelf / "all.txt")
        with pytest.raises(InputError, match="did you mean 'clients'"):
            export(ledger, "client", shelf / "all.json")
