"""`gdpfed ledger`: who allowed what, what was spent, and whether the book is true."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from gdpfed.cli import options
from gdpfed.cli.show import print_json, print_plan, print_table, rounded_up, say, tell
from gdpfed.errors import InputError
from gdpfed.files import missing, nothing_left, write_whole
from gdpfed.ledger import export as exporting
from gdpfed.ledger import receipts
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.export import as_json as plain
from gdpfed.ledger.journal import companion
from gdpfed.ledger.replan import rest_of
from gdpfed.ledger.status import (
    ChargedRound,
    ClientStatus,
    GroupStatus,
    client_statuses,
    run_history,
    run_status,
    spent_most,
)
from gdpfed.ledger.verify import verify_ledger
from gdpfed.planning.plan_file import plan_as_json, save_plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import budgets_csv
from gdpfed.privacy.rounding import allowance, delta_up, finite
from gdpfed.runs.ledgered import population_of
from gdpfed.tasks.task import load_task

__all__ = ["ledger_app"]

ledger_app = typer.Typer(
    help="A privacy ledger: budgets and spend of clients over all runs.\n\nCharged before anything is released.",
    no_args_is_help=True,
    add_completion=False,
)

Path_ = Annotated[Path, Argument(help="The ledger's file.")]
Key = Annotated[Path | None, Option("--key", help="The ledger's key file. Default: LEDGER.key.")]
InPopulation = Annotated[str | None, Option("--population", help="Default: the only one there is.")]
Clients = Annotated[list[str], Argument(help="Clients, by name (or by number, if they have no names).")]


@ledger_app.command("init")
def init(
    path: Path_,
    source: Annotated[str, Argument(help="Clients with budgets: a file, COUNT@EPSILON,..., or a preset.")],
    population: Annotated[str, Option(help="A name for these clients.")] = "clients",
    delta: Annotated[float | None, options.option(PlanSettings, "delta")] = None,
    other_people: Annotated[
        bool,
        Option("--other-people", help="Nobody of these is in another population: to be said where one has no names."),
    ] = False,
    key: Key = None,
    as_json: options.Json = False,
) -> None:
    """Make a ledger, or add a population to one: clients and the budgets that hold over all runs.

    A client is in one population: a name that another one holds is refused.
    """
    task = load_task(source)
    delta = task.settings.delta if delta is None else delta
    files = [path, key or companion(path, "key"), companion(path, "lock"), companion(path, "journal")]
    new = [] if path.exists() else missing(*files)
    opened = Ledger.open(path, key_file=key) if not new else Ledger.create(path, key_file=key)
    with nothing_left(new), opened as ledger:
        added = ledger.add_population(population, task.budgets, default_delta=delta, other_people=other_people)
        head = f"{len(ledger.store.rows)}:{ledger.store.last_hash}"
        public = ledger.state.about["public_key"]
    tell(
        as_json,
        {"ledger": str(path), "population": population, "clients": len(added), "head": head, "public_key": public},
        f"{path}: population {population!r} with {len(added):,} clients; head {head}",
        f"keep a copy of {key or f'{path}.key'} elsewhere: it seals the ledger; clients check receipts with the public "
        f"key {public}",
    )


@ledger_app.command("status")
def status(path: Path_, key: Key = None, as_json: options.Json = False) -> None:
    """What is promised, spent and left, for each group and adversary."""
    ledger = Ledger.read(path, key_file=key)
    state = ledger.state
    parts = [part for run in state.runs.values() for part in run_status(state, run)]
    populations: list[dict[str, Any]] = [
        {
            "population": population.name,
            "clients": len(population),
            "left": int(population.has_left.sum()),
            "classes": len(population.classes),
            "epsilon_min": float(population.epsilons.min()),
            "epsilon_max": float(population.epsilons.max()),
        }
        for population in state.populations.values()
    ]
    if as_json:
        head = f"{len(ledger.store.rows)}:{ledger.store.last_hash}"
        print_json({"populations": populations, "groups": [plain(part) for part in parts], "head": head})
        return
    for one in populations:
        say(
            f"{one['population']}: {one['clients']:,} clients ({one['left']:,} left), budgets from epsilon "
            f"{allowance(one['epsilon_min'])} to {allowance(one['epsilon_max'])}, {one['classes']} distinct pasts"
        )
    names: dict[str, Callable[[GroupStatus], str]] = {
        "run": lambda part: part.run if part.is_open else f"{part.run} (closed)",
        "group": lambda part: part.group,
    }
    columns: dict[str, Callable[[GroupStatus], str]] = {
        "clients": lambda part: f"{part.num_clients:,}",
        "budget": lambda part: allowance(part.epsilon),
        "delta": lambda part: delta_up(part.delta, 2) if part.delta else "",
        "promised": lambda part: rounded_up(part.promised),
        "left": lambda part: allowance(part.left, 4),
        "release": lambda part: rounded_up(part.spent_release),
        "server mean": lambda part: rounded_up(part.spent_server_mean, 2),
        "p99": lambda part: rounded_up(part.spent_server_p99, 2),
        "most": lambda part: rounded_up(part.spent_server_max, 2),
    }
    rounds: dict[str, Callable[[GroupStatus], str]] = {
        "took part": lambda part: f"{part.most_participations}/{part.max_participations or 'any'}",
        "charged": lambda part: f"{part.charged}/{part.num_rounds}",
        "published": lambda part: str(part.published),
        "lost": lambda part: str(part.lost),
        "left": lambda part: str(part.rounds_left),
    }
    print_table("Epsilon of each group's worst client, over all runs", names | columns, parts)
    print_table("Rounds of each run", names | rounds, parts)
    say(
        "release: against whoever sees only the released models; server: against the server, by participations so far; "
        "promised: release, with the rounds that open runs hold; left: the epsilon that a further run at the group's "
        "rate and rounds may cost (not budget less promised: losses do not add up; gdpfed ledger plan); lost: charged, "
        "never published"
    )


@ledger_app.command("clients")
def clients(
    path: Path_,
    names: Annotated[list[str] | None, Argument(help="Clients. Default: those that spent most.")] = None,
    population: InPopulation = None,
    worst: Annotated[int, Option(help="Without names: so many clients.")] = 20,
    as_json: options.Json = False,
) -> None:
    """Budget and spend of single clients; of those that spent the largest part of their budget, unless named."""
    ledger = Ledger.read(path)
    chosen = population_of(ledger, population)
    indices = chosen.indices(names) if names else spent_most(ledger.state, chosen, worst)
    listed = list(client_statuses(ledger.state, chosen, indices))
    if as_json:
        print_json([plain(one) for one in listed])
        return
    columns: dict[str, Callable[[ClientStatus], str]] = {
        "client": lambda one: one.client + (" (left)" if one.has_left else ""),
        "budget": lambda one: allowance(one.epsilon),
        "delta": lambda one: delta_up(one.delta, 2),
        "left": lambda one: allowance(one.left, 4),
        "release": lambda one: rounded_up(one.spent_release),
        "server": lambda one: rounded_up(one.spent_server),
        "participations": lambda one: str(one.participations),
    }
    print_table(f"Clients of {chosen.name}: epsilon over all runs", columns, listed)
    say("left: the epsilon that a further run at the rate and rounds of the client's last one may cost it")


@ledger_app.command("plan")
@options.with_settings(PlanSettings, without=["delta"])
def plan(
    asked: options.Asked,
    path: Path_,
    population: InPopulation = None,
    out: Annotated[Path | None, Option(help="Save the plan as TOML.")] = None,
    budgets: Annotated[
        Path | None,
        Option(help="Save who takes part, with budgets and groups, as CSV: needed where some have nothing left."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Plan what is left of every client's budget, after all that was spent and that open runs hold.

    The ledger lets such a plan in, as long as nothing else is charged. Train it with gdpfed train TASK --plan PLAN
    --ledger LEDGER, or deploy it with gdpfed flower plan HOME --file PLAN.
    """
    ledger = Ledger.read(path)
    people = population_of(ledger, population)
    rest = rest_of(ledger.state, people, asked.applied(PlanSettings()))
    why = f"{rest.left_out} have nothing left" if rest.left_out else "clients with equal budgets have different pasts"
    is_given = rest.plan.grouping == "given"
    if is_given and out is not None and budgets is None:
        raise InputError(f"expected --budgets FILE with --out, since {why}: it says who takes part, and in which group")
    if out is not None:
        save_plan(rest.plan, out)
    if budgets is not None:
        write_whole(budgets, budgets_csv(rest.budgets).encode(), private=True)
    if as_json:
        print_json(plan_as_json(rest.plan) | {"left_out": rest.left_out})
        return
    print_plan(rest.plan, title=f"what is left in {path}")
    say(
        f"{people.name}: {rest.plan.num_clients:,} clients take part, {rest.left_out:,} have nothing left",
        *(["budget: over all runs of the ledger; eps release: of this run"] if not is_given else []),
        *([f"groups are given by name, since {why}: train it with the budgets of --budgets too"] if is_given else []),
    )
    if out is not None:
        words = ["gdpfed", "train", "TASK", "--plan", out, "--ledger", path]
        words += ["--budgets", budgets] if is_given and budgets is not None else []
        say(f"saved to {out}; train it with: {shlex.join(map(str, words))}")


@ledger_app.command("history")
def history(
    path: Path_,
    run: Annotated[str | None, Option(help="Only this run.")] = None,
    points: Annotated[int, Option(help="Epsilons are computed at so many rounds.")] = 10,
    as_json: options.Json = False,
) -> None:
    """Every attempt of every round: charged, published or lost, and what it had cost by then."""
    ledger = Ledger.read(path)
    state = ledger.state
    runs = [state.run(run)] if run is not None else list(state.runs.values())
    charges = [part for one in runs for part in run_history(state, one, ledger.store.rows, points=max(points, 0))]
    if as_json:
        print_json([plain(charge) for charge in charges])
        return
    columns: dict[str, Callable[[ChargedRound], str]] = {
        "run": lambda charge: charge.run,
        "group": lambda charge: charge.group,
        "round": lambda charge: str(charge.round_number),
        "attempt": lambda charge: str(charge.attempt),
        "state": lambda charge: charge.state,
        "content": lambda charge: (charge.content_hash or "")[:12],
        "release": lambda charge: "" if charge.epsilon_release is None else rounded_up(charge.epsilon_release),
        "server": lambda charge: "" if charge.epsilon_server is None else rounded_up(charge.epsilon_server, 2),
    }
    print_table("Charges, and the epsilon of each group's worst client by then", columns, charges)


@ledger_app.command("verify")
def verify(
    path: Path_,
    key: Key = None,
    head: Annotated[str | None, Option(help="NUMBER:HASH as noted before: finds old copies.")] = None,
    as_json: options.Json = False,
) -> None:
    """Recompute everything from the rows: the chain, the plans, every spend. Fails with the row that is wrong."""
    verified = verify_ledger(path, key_file=key, known_head=head)
    content = {
        "rows": verified.num_rows,
        "head": verified.head,
        "sealed": verified.is_sealed,
        "clients": verified.num_clients,
        "runs": verified.num_runs,
        "charges": verified.num_charges,
        "published": verified.num_published,
        "largest_share": finite(verified.largest_share),
        "not_compared": list(verified.not_compared),
    }
    seal = "the head's seal holds" if verified.is_sealed else "the head's seal was not checked: no key"
    lines = [
        f"{path}: {verified.num_rows} rows are whole and {seal}; {verified.num_clients:,} clients, {verified.num_runs} "
        f"runs, {verified.num_charges} charges, {verified.num_published} published; nobody spent more than "
        f"{rounded_up(100 * verified.largest_share, 2)} % of a budget; head {verified.head}"
    ]
    if verified.not_compared:
        lines.append(
            f"not known: whether clients of {', '.join(verified.not_compared)} are in another population too, and so "
            f"have two budgets: there are no names to compare"
        )
    tell(as_json, content, *lines)


@ledger_app.command("export")
def export(
    path: Path_,
    out: Annotated[Path, Argument(help="A .json or .csv file.")],
    what: Annotated[str, Option(help="'status', 'clients', 'charges' or 'rows'.")] = "clients",
    as_json: options.Json = False,
) -> None:
    """Write clients, charges, groups or the rows themselves as JSON or CSV, readable by you only."""
    count = exporting.export(Ledger.read(path), what, out)
    tell(as_json, {"file": str(out), "what": what, "count": count}, f"{out}: {count:,} {what}")


@ledger_app.command("receipt")
def receipt(
    path: Annotated[Path, Argument(help="The ledger's file; with --check, a receipt.")],
    client: Annotated[str | None, Argument(help="The client.")] = None,
    population: InPopulation = None,
    key: Key = None,
    out: Annotated[Path | None, Option(help="File to write, for you only. Default: print it.")] = None,
    check: Annotated[bool, Option("--check", help="Check a receipt instead; needs no ledger.")] = False,
    public_key: Annotated[str | None, Option(help="With --check: the key that the client knows.")] = None,
    as_json: options.Json = False,
) -> None:
    """A signed statement of one client's spend, for the client to keep; or, with --check, whether one holds."""
    if check:
        try:
            content = json.loads(path.read_text(encoding="utf-8") if path.is_file() else "")
        except (OSError, ValueError):
            raise InputError(f"expected a receipt (JSON), got {str(path)!r}: check the path") from None
        statement = receipts.check_receipt(content, public_key=public_key)
        spent, budget = rounded_up(statement["spent"]["release"], 6), statement["budget"]
        whose = "" if public_key else "; with its own key: compare that with the one you were given"
        tell(
            as_json,
            {"holds": True, "key_was_given": public_key is not None, **statement},
            f"the receipt holds: client {statement['client']} spent epsilon {spent} of "
            f"{allowance(budget['epsilon'])} at delta {delta_up(budget['delta'])}{whose}",
        )
        return
    if client is None:
        raise InputError("expected the name of a client: gdpfed ledger receipt LEDGER CLIENT")
    ledger = Ledger.read(path, key_file=key)
    signed = receipts.receipt(ledger, population_of(ledger, population).name, client)
    if out is not None:
        write_whole(out, (json.dumps(signed, indent=2) + "\n").encode(), private=True)
    if out is None or as_json:
        print_json(signed)
    else:
        say(f"{out}: receipt of client {client}")


@ledger_app.command("join")
def join(
    path: Path_,
    source: Annotated[str, Argument(help="New clients with budgets: a file, or COUNT@EPSILON,...")],
    population: InPopulation = None,
    delta: Annotated[
        float | None,
        Option(help="For clients that state none. Default: as in a plan for all of them, or the others' if less."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Let new clients join a population; none that this or another population of the ledger has, or had."""
    with Ledger.open(path) as ledger:
        chosen = population_of(ledger, population)
        task = load_task(source)
        delta = task.settings.delta if delta is None else delta
        joined = len(ledger.join(chosen.name, task.budgets, default_delta=delta))
        content = {"population": chosen.name, "joined": joined, "clients": len(chosen)}
    tell(as_json, content, f"{chosen.name}: {joined:,} clients joined, {content['clients']:,} in all")


@ledger_app.command("leave")
def leave(path: Path_, names: Clients, population: InPopulation = None, as_json: options.Json = False) -> None:
    """Let clients leave: they take no further part, what they spent stands."""
    with Ledger.open(path) as ledger:
        chosen = population_of(ledger, population)
        ledger.leave(chosen.name, names)
    tell(as_json, {"population": chosen.name, "left": names}, f"{chosen.name}: {len(names)} clients left")


@ledger_app.command("tighten")
def tighten(
    path: Path_,
    names: Clients,
    epsilon: Annotated[float | None, Option(help="The new epsilon.")] = None,
    delta: Annotated[float | None, Option(help="The new delta.")] = None,
    population: InPopulation = None,
    as_json: options.Json = False,
) -> None:
    """Lower budgets of clients, from the next round on."""
    if epsilon is None and delta is None:
        raise InputError("expected --epsilon or --delta: what the clients allow from now on")
    with Ledger.open(path) as ledger:
        chosen = population_of(ledger, population)
        ledger.tighten(chosen.name, names, epsilon=epsilon, delta=delta)
    content = {"population": chosen.name, "tightened": names, "epsilon": epsilon, "delta": delta}
    tell(as_json, content, f"{chosen.name}: {len(names)} budgets tightened")


@ledger_app.command("close")
def close(
    path: Path_, run: Annotated[str, Argument(help="The run's name in the ledger.")], as_json: options.Json = False
) -> None:
    """End a run that will not go on: the rounds that it holds are free again."""
    with Ledger.open(path) as ledger:
        ledger.close_run(run)
        rounds = ledger.state.run(run).rounds_charged()
    tell(as_json, {"run": run, "closed": True, "rounds": rounds}, f"{run}: closed after {rounds} rounds")
