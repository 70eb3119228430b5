"""A folder with something in it to show: budgets, runs, a ledger, a server's home."""

import json
import time
from pathlib import Path

from gdpfed.flower.server.events import EVENTS
from gdpfed.serve.app import Served
from tests.flower.federations import Federation
from tests.ledger.books import book, play, start
from tests.report.synthetic import task_of, write_run

# What may not come back as markup, wherever it stands.
SCRIPT = "<img src=x onerror=alert(1)>"


def make_runs(folder: Path) -> None:
    """Three runs of one task, one of them unfinished; one whose title is script; one that cannot be read."""
    write_run(folder / "runs" / "plain", task_of("gdpfed"), level=70)
    write_run(folder / "runs" / "strict", task_of("dp-fedavg"), level=62)
    write_run(folder / "runs" / "going", task_of("gdpfed+"), level=78, rounds=4)
    write_run(folder / "other" / "deep" / "er", task_of("gdpfed", title=SCRIPT), level=50)
    broken = folder / "runs" / "broken"
    broken.mkdir()
    (broken / "run.toml").write_text("nonsense = [")


def make_ledger(folder: Path) -> Path:
    """Two hundred clients, ten rounds charged."""
    ledger = book(folder, factor=2.0, name="ledger")
    start(ledger, "first")
    play(ledger, "first", range(10))
    ledger.close_run("first")
    ledger.close()
    return folder / "ledger"


def make_home(folder: Path) -> Path:
    """A server's home in the middle of its third round, with names that nobody may see."""
    names = tuple(f"secret-{number}" for number in range(12))
    federation = Federation(folder / "federation", rounds=10, names=names)
    home, plan = federation.home, federation.plan
    now = time.time() - 60
    events: list[dict[str, object]] = [{"event": "started", "run": home.run_name}]
    for number in (0, 1):
        events += [{"event": "begin", "round": number}, {"event": "stage", "stage": "keys", "asked": names[:1]}]
        events += [{"event": "answered", "stage": "keys", "client": names[0]}]
        events += [{"event": "released", "groups": list(range(len(plan.groups))), "round": number}]
        events += [{"event": "round", "round": number, "accuracy": 40.0 + number, "loss": 1.5}]
    events += [{"event": "begin", "round": 2}, {"event": "stage", "stage": "input", "asked": names[:3]}]
    events += [{"event": "answered", "stage": "input", "client": names[1]}]
    events += [{"event": "dropped", "stage": "input", "client": names[2], "why": "went away"}]
    lines = [json.dumps({"time": now + 5 * at, **event}) for at, event in enumerate(events)]
    (home.path / EVENTS).write_text("\n".join(lines) + "\n")
    return home.path


def make_everything(folder: Path) -> Served:
    """All of it."""
    make_runs(folder)
    (folder / "clients.csv").write_text("client,epsilon\n" + "".join(f"c{n},{0.5 + n % 7 / 2}\n" for n in range(70)))
    return Served(folder=folder, ledger=make_ledger(folder), deployment=make_home(folder))
