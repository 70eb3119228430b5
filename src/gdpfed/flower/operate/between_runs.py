"""What an operator does with a server's home between runs: enrol clients, set a plan, give a run up.

Place: operations, over `server.server_home` and the ledger. Nothing here needs Flower.

Guarantees (tests of the same name):
  a_plan_is_set_or_it_is_not       killed anywhere in between, no run starts until the plan is set again.
  a_plan_that_does_not_fit_is_not_set   the ledger's refusal comes when the plan is set, and nothing is changed.
  a_run_is_given_up_in_the_ledger  and what it did not use is free for others.
"""

import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from gdpfed.errors import InputError
from gdpfed.files import sync_folder, write_whole
from gdpfed.flower.server.server_home import POPULATION, ServerHome
from gdpfed.flower.shared.enrolment import Announcement, Enrolment, signed_enrolment
from gdpfed.flower.shared.home_files import read_content
from gdpfed.ledger.book import Ledger
from gdpfed.planning.people import assign, check_budgets
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import save_plan
from gdpfed.runs.folder import is_finished
from gdpfed.runs.ledgered import check_link
from gdpfed.runs.link import LedgerLink, read_link

__all__ = ["enrol", "give_up", "set_plan"]


def enrol(server_home: str | Path, announcements: Sequence[str | Path]) -> Enrolment:
    """Adds clients (their announcements, as text or files) to the list, signs it, and makes them known to the ledger.

    Clients keep their numbers. Returns the list that every node must pin, again if it was pinned before.
    """
    home = ServerHome(server_home)
    listed = list(home.enrolment.clients) if home.enrolment_path.is_file() else []
    before = len(listed)
    for given in announcements:
        text = read_content(given, "an announcement") if isinstance(given, Path) else given
        announcement = Announcement.from_json(text)
        if announcement not in listed:
            listed.append(announcement)
    if len(listed) > before and home.run_path.exists() and not is_finished(home.run_path):
        # Its terms name the enrolment as it is.
        raise InputError(f"{str(home.run_path)!r} is not finished: let it end, or give it up (gdpfed flower give-up)")
    enrolment = signed_enrolment(listed, identity=home.identity)
    # The ledger first: whoever is enrolled can be charged.
    if not home.ledger_path.exists():
        Ledger.create(home.ledger_path).close()
    with Ledger.open(home.ledger_path) as ledger:
        _into_ledger(ledger, enrolment)
    if len(listed) > before:
        write_whole(home.enrolment_path, enrolment.as_json().encode(), private=True, durable=True)
    return enrolment


def _into_ledger(ledger: Ledger, enrolment: Enrolment) -> None:
    if POPULATION not in ledger.state.populations:
        ledger.add_population(POPULATION, enrolment.budgets)
        return
    known = set(ledger.state.population(POPULATION).index_by_label)
    missing = [client for client in enrolment.clients if client.name not in known]
    if missing:
        added = Enrolment(server=enrolment.server, clients=tuple(missing))
        ledger.join(POPULATION, added.budgets)


def set_plan(
    server_home: str | Path, plan: Plan, *, name: str = "run", fault: Callable[[str], None] = lambda _: None
) -> str:
    """Puts a plan for the enrolled clients into the server's home, and names a new run; returns the name.

    A finished run is moved aside, an unfinished one is in the way. ``fault`` is for tests.
    """
    home = ServerHome(server_home)
    budgets = home.enrolment.budgets
    check_budgets(plan, budgets, default_delta=budgets.default_delta)
    if home.run_path.exists() and not is_finished(home.run_path):
        raise InputError(f"{str(home.run_path)!r} is not finished: let it end, or give it up (gdpfed flower give-up)")
    run = f"{name}-{secrets.token_hex(6)}"
    # What the ledger would refuse when the run starts is refused now.
    link = LedgerLink(path=home.ledger_path, population=POPULATION, run=run)
    check_link(link, plan, budgets, order=np.arange(len(budgets)), assignment=assign(plan, budgets))
    save_plan(plan, home.plan_path)
    fault("plan")
    content = json.dumps({"run": run, "plan": home.plan_mark}).encode() + b"\n"
    write_whole(home.run_name_path, content, private=True, durable=True)
    fault("run")
    # Last: a server that finds the folder of another run refuses it, and the plan can be set again.
    if home.run_path.exists():
        _move_aside(home, "")
    return run


def give_up(server_home: str | Path) -> str:
    """Ends a run that will not go on: closes it in the ledger, and moves its folder aside; returns its name.

    What it charged stays spent. Nodes that joined it keep its whole plan charged in their own ledgers.
    """
    home = ServerHome(server_home)
    if is_finished(home.run_path):
        raise InputError(f"{str(home.run_path)!r} is finished: there is nothing to give up; set the next plan")
    run = _run_in(home.run_path) or home.run_name
    with Ledger.open(home.ledger_path) as ledger:
        if run in ledger.state.runs:
            ledger.close_run(run)
    home.run_name_path.unlink(missing_ok=True)
    if home.run_path.exists():
        _move_aside(home, "-given-up")
    return run


def _move_aside(home: ServerHome, suffix: str) -> None:
    """A run's folder gets the run's own name."""
    home.run_path.rename(home.path / f"{_run_in(home.run_path) or f'run-{secrets.token_hex(6)}'}{suffix}")
    sync_folder(home.path)


def _run_in(path: Path) -> str | None:
    """The name in the ledger of a run's folder; None if it was left before it had one."""
    link = read_link(path / "ledger.json")
    return None if link is None else link.run
