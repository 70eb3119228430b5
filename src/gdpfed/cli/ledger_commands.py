"""`gdpfed ledger`: who allowed what, what was spent, and whether the book is true."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gdpfed.cli import options
from gdpfed.cli.show import console, finite, print_json, rounded_up, table
from gdpfed.errors import InputError
from gdpfed.privacy.rounding import allowance, delta_up

__all__ = ["ledger_app"]

ledger_app = typer.Typer(
    help="A privacy ledger: budgets and spend of clients over all runs, charged before anything is released.",
    no_args_is_help=True,
)

Path_ = Annotated[Path, typer.Argument(help="The ledger's file.")]
Key = Annotated[Path | None, typer.Option("--key", help="The ledger's key file. Default: LEDGER.key.")]
InPopulation = Annotated[str | None, typer.Option("--population", help="Default: the only one there is.")]
Clients = Annotated[list[str], typer.Argument(help="Clients, by name (or by place, if they have no names).")]


def _population(ledger: Any, name: str | None) -> Any:
    names = list(ledger.state.populations)
    if name is None and len(names) != 1:
        raise InputError(f"expected --population, one of {', '.join(names) or 'none'}: the ledger has {len(names)}")
    return ledger.state.population(name or names[0])


@ledger_app.command("init")
def init(
    path: Path_,
    source: Annotated[str, typer.Argument(help="Clients with budgets: a file, COUNT@EPSILON,..., or a preset.")],
    population: Annotated[str, typer.Option("--population", help="A name for these clients.")] = "clients",
    delta: options.Delta = None,
    other_people: Annotated[
        bool,
        typer.Option(
            "--other-people",
            help="Nobody of these clients is in another population of the ledger. Must be said where a population has "
            "no names: names are compared.",
        ),
    ] = False,
    key: Key = None,
    as_json: options.Json = False,
) -> None:
    """Make a ledger, or add a population to one: clients and the budgets that hold over all runs.

    A client is in one population: a name that another one holds is refused.
    """
    from gdpfed.ledger.book import Ledger
    from gdpfed.tasks.task import load_task

    budgets = load_task(source).budgets
    opened = Ledger.open(path, key_file=key) if path.exists() else Ledger.create(path, key_file=key)
    with opened as ledger:
        made = ledger.add_population(population, budgets, default_delta=delta, other_people=other_people)
        head = f"{len(ledger.store.rows)}:{ledger.store.last_hash}"
        public = ledger.state.about["public_key"]
    if as_json:
        content = {"ledger": str(path), "population": population, "clients": len(made), "head": head}
        print_json({**content, "public_key": public})
        return
    console().print(f"{path}: population {population!r} with {len(made):,} clients; head {head}", soft_wrap=True)
    console().print(
        f"keep a copy of {key or f'{path}.key'} elsewhere: it seals the ledger; clients check receipts with the public "
        f"key {public}",
        soft_wrap=True,
    )


@ledger_app.command("status")
def status(path: Path_, key: Key = None, as_json: options.Json = False) -> None:
    """What is promised, spent and left, for each group and adversary."""
    from gdpfed.ledger.book import Ledger
    from gdpfed.ledger.export import as_json as plain
    from gdpfed.ledger.status import run_status

    ledger = Ledger.read(path, key_file=key)
    state = ledger.state
    found = [part for run in state.runs.values() for part in run_status(state, run)]
    populations = [
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
        print_json({"populations": populations, "groups": [plain(part) for part in found], "head": head})
        return
    out = console()
    for population, one in zip(state.populations.values(), populations, strict=True):
        low, high = (allowance(float(budget)) for budget in (population.epsilons.min(), population.epsilons.max()))
        out.print(
            f"{one['population']}: {one['clients']:,} clients ({one['left']:,} left), budgets from epsilon {low} to "
            f"{high}, {one['classes']} distinct pasts",
            soft_wrap=True,
        )
    columns = ["run", "group", "clients", "budget", "delta", "promised", "release", "server mean", "p99", "most"]
    columns += ["took part", "charged", "published", "lost", "left"]
    rows = [
        [
            part.run if part.is_open else f"{part.run} (closed)",
            part.group,
            f"{part.num_clients:,}",
            allowance(part.epsilon),
            delta_up(part.delta, 2) if part.delta else "",
            rounded_up(part.promised),
            rounded_up(part.spent_release),
            rounded_up(part.spent_server_mean, 2),
            rounded_up(part.spent_server_p99, 2),
            rounded_up(part.spent_server_max, 2),
            f"{part.most_participations}/{part.max_participations or 'any'}",
            f"{part.charged}/{part.num_rounds}",
            str(part.published),
            str(part.lost),
            str(part.rounds_left),
        ]
        for part in found
    ]
    out.print(table("Epsilon of each group's worst client, over all runs", columns, rows))
    out.print(
        "release: against whoever sees only the released models; server: against the server, by participations so far; "
        "promised: release, with the rounds that open runs hold; lost: charged, never published; left: rounds",
        soft_wrap=True,
    )


@ledger_app.command("clients")
def clients(
    path: Path_,
    names: Annotated[list[str] | None, typer.Argument(help="Clients. Default: those that spent most.")] = None,
    population: InPopulation = None,
    worst: Annotated[int, typer.Option("--worst", help="Without names: so many clients.")] = 20,
    as_json: options.Json = False,
) -> None:
    """Budget and spend of single clients; of those that spent the largest part of their budget, unless named."""
    from gdpfed.ledger.book import Ledger
    from gdpfed.ledger.export import as_json as plain
    from gdpfed.ledger.status import client_statuses

    ledger = Ledger.read(path)
    found = _population(ledger, population)
    places = found.indices(names) if names else None
    listed = list(client_statuses(ledger.state, found, places))
    if not names:
        listed = sorted(listed, key=lambda one: -one.spent_release / one.epsilon)[: max(worst, 0)]
    if as_json:
        print_json([plain(one) for one in listed])
        return
    rows = [
        [
            one.client + (" (left)" if one.has_left else ""),
            allowance(one.epsilon),
            delta_up(one.delta, 2),
            rounded_up(one.spent_release),
            rounded_up(one.spent_server),
            str(one.participations),
        ]
        for one in listed
    ]
    columns = ["client", "budget", "delta", "release", "server", "participations"]
    console().print(table(f"Clients of {found.name}: epsilon over all runs", columns, rows))


@ledger_app.command("history")
def history(
    path: Path_,
    run: Annotated[str | None, typer.Option("--run", help="Only this run.")] = None,
    points: Annotated[int, typer.Option("--points", help="Epsilons are computed at so many rounds.")] = 10,
    as_json: options.Json = False,
) -> None:
    """Every attempt of every round: charged, published or lost, and what it had cost by then."""
    from gdpfed.ledger.book import Ledger
    from gdpfed.ledger.export import as_json as plain
    from gdpfed.ledger.status import run_history

    ledger = Ledger.read(path)
    state = ledger.state
    runs = [state.run(run)] if run is not None else list(state.runs.values())
    found = [part for one in runs for part in run_history(state, one, ledger.store.rows, points=max(points, 0))]
    if as_json:
        print_json([plain(part) for part in found])
        return
    rows = [
        [
            part.run,
            part.group,
            str(part.round_number),
            str(part.attempt),
            part.state,
            (part.content_hash or "")[:12],
            "" if part.epsilon_release is None else rounded_up(part.epsilon_release),
            "" if part.epsilon_server is None else rounded_up(part.epsilon_server, 2),
        ]
        for part in found
    ]
    columns = ["run", "group", "round", "attempt", "state", "content", "release", "server"]
    console().print(table("Charges, and the epsilon of each group's worst client by then", columns, rows))


@ledger_app.command("verify")
def verify(
    path: Path_,
    key: Key = None,
    head: Annotated[str | None, typer.Option("--head", help="NUMBER:HASH as noted before: finds old copies.")] = None,
    as_json: options.Json = False,
) -> None:
    """Recompute everything from the rows: the chain, the plans, every spend. Fails with the row that is wrong."""
    from gdpfed.ledger.verify import verify_ledger

    found = verify_ledger(path, key_file=key, known_head=head)
    content = {
        "rows": found.num_rows,
        "head": found.head,
        "sealed": found.is_sealed,
        "clients": found.num_clients,
        "runs": found.num_runs,
        "charges": found.num_charges,
        "published": found.num_published,
        "largest_share": finite(found.largest_share),
        "not_compared": list(found.not_compared),
    }
    if as_json:
        print_json(content)
        return
    seal = "the head's seal holds" if found.is_sealed else "the head's seal was not checked: no key"
    console().print(
        f"{path}: {found.num_rows} rows are whole and {seal}; {found.num_clients:,} clients, {found.num_runs} runs, "
        f"{found.num_charges} charges, {found.num_published} published; nobody spent more than "
        f"{rounded_up(100 * found.largest_share, 2)} % of a budget; head {found.head}",
        soft_wrap=True,
    )
    if found.not_compared:
        console().print(
            f"not known: whether clients of {', '.join(found.not_compared)} are in another population too, and so have "
            f"two budgets: there are no names to compare",
            soft_wrap=True,
        )


@ledger_app.command("export")
def export(
    path: Path_,
    out: Annotated[Path, typer.Argument(help="A .json or .csv file.")],
    what: Annotated[str, typer.Option("--what", help="'status', 'clients', 'charges' or 'rows'.")] = "clients",
) -> None:
    """Write clients, charges, groups or the rows themselves as JSON or CSV, readable by you only."""
    from gdpfed.ledger import export as exporting
    from gdpfed.ledger.book import Ledger

    count = exporting.export(Ledger.read(path), what, out)
    console().print(f"{out}: {count:,} {what}", soft_wrap=True)


@ledger_app.command("receipt")
def receipt(
    path: Annotated[Path, typer.Argument(help="The ledger's file; with --check, a receipt.")],
    client: Annotated[str | None, typer.Argument(help="The client.")] = None,
    population: InPopulation = None,
    key: Key = None,
    out: Annotated[Path | None, typer.Option("--out", help="File to write, for you only. Default: print it.")] = None,
    check: Annotated[bool, typer.Option("--check", help="Check a receipt instead; needs no ledger.")] = False,
    public_key: Annotated[
        str | None, typer.Option("--public-key", help="With --check: the key that the client knows.")
    ] = None,
) -> None:
    """A signed statement of one client's spend, for the client to keep; or, with --check, whether one holds."""
    from gdpfed.files import write_whole
    from gdpfed.ledger import receipts
    from gdpfed.ledger.book import Ledger

    if check:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise InputError(f"expected a receipt (JSON), got {str(path)!r}: check the path") from None
        found = receipts.check_receipt(content, public_key=public_key)
        spent = rounded_up(found["spent"]["release"], 6)
        whose = "" if public_key else "; with its own key: compare that with the one you were given"
        console().print(
            f"the receipt holds: client {found['client']} spent epsilon {spent} of "
            f"{allowance(found['budget']['epsilon'])} at delta {delta_up(found['budget']['delta'])}{whose}",
            soft_wrap=True,
        )
        return
    if client is None:
        raise InputError("expected the name of a client: gdpfed ledger receipt LEDGER CLIENT")
    ledger = Ledger.read(path, key_file=key)
    made = receipts.receipt(ledger, _population(ledger, population).name, client)
    if out is None:
        print_json(made)
        return
    write_whole(out, (json.dumps(made, indent=2) + "\n").encode(), private=True)
    console().print(f"{out}: receipt of client {client}", soft_wrap=True)


@ledger_app.command("join")
def join(
    path: Path_,
    source: Annotated[str, typer.Argument(help="New clients with budgets: a file, or COUNT@EPSILON,...")],
    population: InPopulation = None,
    delta: Annotated[
        float | None,
        typer.Option(
            "--delta",
            help="Failure probability for clients that state none. Default: clients ** -1.1, with those who join; the "
            "population's own default if that is less.",
        ),
    ] = None,
) -> None:
    """Let new clients join a population; none that this or another population of the ledger has, or had."""
    from gdpfed.ledger.book import Ledger
    from gdpfed.tasks.task import load_task

    with Ledger.open(path) as ledger:
        found = _population(ledger, population)
        added = ledger.join(found.name, load_task(source).budgets, default_delta=delta)
        console().print(f"{found.name}: {len(added):,} clients joined, {len(found):,} in all", soft_wrap=True)


@ledger_app.command("leave")
def leave(path: Path_, names: Clients, population: InPopulation = None) -> None:
    """Let clients leave: they take no further part, what they spent stands."""
    from gdpfed.ledger.book import Ledger

    with Ledger.open(path) as ledger:
        found = _population(ledger, population)
        ledger.leave(found.name, names)
        console().print(f"{found.name}: {len(names)} clients left", soft_wrap=True)


@ledger_app.command("tighten")
def tighten(
    path: Path_,
    names: Clients,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="The new epsilon.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="The new delta.")] = None,
    population: InPopulation = None,
) -> None:
    """Lower budgets of clients, from the next round on."""
    from gdpfed.ledger.book import Ledger

    if epsilon is None and delta is None:
        raise InputError("expected --epsilon or --delta: what the clients allow from now on")
    with Ledger.open(path) as ledger:
        found = _population(ledger, population)
        ledger.tighten(found.name, names, epsilon=epsilon, delta=delta)
        console().print(f"{found.name}: {len(names)} budgets tightened", soft_wrap=True)


@ledger_app.command("close")
def close(path: Path_, run: Annotated[str, typer.Argument(help="The run's name in the ledger.")]) -> None:
    """End a run that will not go on: the rounds that it holds are free again."""
    from gdpfed.ledger.book import Ledger

    with Ledger.open(path) as ledger:
        ledger.close_run(run)
        console().print(f"{run}: closed after {max(ledger.state.run(run).charged)} rounds", soft_wrap=True)
