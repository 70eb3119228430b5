import csv
import json
import stat
from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import InputError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.export import export
from gdpfed.ledger.status import client_statuses, run_history, run_status
from gdpfed.privacy.accountant import SampledGaussian, epsilon_of
from gdpfed.privacy.adversaries import server_epsilon
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
