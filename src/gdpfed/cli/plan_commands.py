"""`gdpfed plan`, `gdpfed plan compare` and `gdpfed verify`."""

import csv
import io
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option
from typer.core import TyperGroup

from gdpfed.cli import options
from gdpfed.cli.recommendation import print_recommendation, recommendation_as_json
from gdpfed.cli.show import print_comparison, print_json, print_plan, say
from gdpfed.errors import InputError
from gdpfed.files import write_whole
from gdpfed.planning.methods import check_method, for_method, make_plan
from gdpfed.planning.people import assign, check_budgets
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan, plan_as_json, plan_hash, save_plan
from gdpfed.planning.recommend import Watch, recommend
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets
from gdpfed.privacy.cache import without_cache
from gdpfed.tasks.task import load_task

__all__ = ["plan_app", "verify"]

_DEFAULT_COMPARED = "dp-fedavg,gdpfed,gdpfed-opc,gdpfed+,pfa,idp-fedavg,idp-scale,pooled"


class _PlanGroup(TyperGroup):
    """`gdpfed plan SOURCE` is `gdpfed plan of SOURCE`: one may leave out the word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["of", *args]
        return super().parse_args(ctx, args)


plan_app = typer.Typer(cls=_PlanGroup, help="Plan the privacy of a federated training.", add_completion=False)


@plan_app.command("of", epilog="See also: gdpfed plan compare --help")
@options.with_settings(PlanSettings)
def of(
    asked: options.Asked,
    source: Annotated[
        str,
        Argument(
            help="A preset (fmnist, svhn, cifar10, shakespeare), a budgets file (.csv, .json, .parquet with "
            "client,epsilon[,delta]), a .toml file, or a text such as 2000@0.5,2000@1.5,2000@3."
        ),
    ],
    out: Annotated[Path | None, Option(help="Save the plan as TOML.")] = None,
    assignment: Annotated[Path | None, Option(help="Save each client's group as CSV (client,group).")] = None,
    no_cache: Annotated[bool, Option("--no-cache", help="Compute everything anew.")] = False,
    objective: Annotated[
        bool,
        Option(
            "--objective",
            help="Recommend: the method and settings with the largest predicted signal-to-noise, and why.",
        ),
    ] = False,
    model_size: Annotated[int, Option(help="With --objective: how many parameters the model has.")] = 20_000,
    as_json: options.Json = False,
) -> None:
    """A budget for each client in; groups, rates, noise, weights and honest epsilons out."""
    task = asked.task(source)
    if objective and "method" in asked.stated:
        raise InputError("--objective chooses the method: leave --method out")
    advice = None
    with without_cache() if no_cache else nullcontext():
        if objective:
            with _watching() as watch:
                advice = recommend(task.budgets, task.settings, num_params=model_size, stated=task.stated, watch=watch)
        plan = make_plan(task.budgets, task.settings) if advice is None else advice.best.plan
    if out is not None:
        save_plan(plan, out)
    if assignment is not None:
        _save_assignment(plan, task.budgets, assignment)
    if as_json:
        print_json({**plan_as_json(plan), **({"recommendation": recommendation_as_json(advice)} if advice else {})})
        return
    if advice is not None:
        print_recommendation(advice, title=task.title)
    print_plan(plan, title=task.title)
    if out is not None:
        say(f"saved to {out}; check it with: gdpfed verify {out}")


@contextmanager
def _watching() -> Iterator[Watch | None]:
    """Which plan is being made, on a terminal; on standard error, so that --json stays JSON."""
    errors = Console(stderr=True)
    if not errors.is_terminal:
        yield None
        return
    with errors.status("planning") as status:
        yield lambda done, total, label: status.update(f"plan {done + 1} of {total}: {label}")


def _save_assignment(plan: Plan, budgets: Budgets, path: Path) -> None:
    text = io.StringIO(newline="")
    rows = ((budgets.label(client), plan.groups[group].name) for client, group in enumerate(assign(plan, budgets)))
    csv.writer(text).writerows([("client", "group"), *rows])
    write_whole(path, text.getvalue().encode())


@plan_app.command()
@options.with_settings(PlanSettings, without=["method"])
def compare(
    asked: options.Asked,
    sources: Annotated[list[str], Argument(help="Presets, files or texts, as for gdpfed plan.")],
    methods: Annotated[
        str | None, Option(help=f"Methods, separated by commas. Default: {_DEFAULT_COMPARED}, those that apply.")
    ] = None,
    plot: Annotated[Path | None, Option(help="Draw the signal-to-noise (.png, .svg, .pdf).")] = None,
    as_json: options.Json = False,
) -> None:
    """Several methods for the same budgets: signal-to-noise, noise, rates and epsilons side by side."""
    names = [check_method(name.strip()) for name in (methods or _DEFAULT_COMPARED).split(",")]
    compared: dict[str, list[Plan]] = {}
    titles: dict[str, str] = {}
    for source in sources:
        task = asked.task(source)
        plans, skipped = [], []
        for name in names:
            try:
                plans.append(make_plan(task.budgets, for_method(task.settings, name)))
            except InputError as error:
                # A method that was asked for must work; one of the default list may not apply to these budgets.
                if methods is not None:
                    raise
                skipped.append(f"left out: {name}: {error}")
        compared[source], titles[source] = plans, task.title
        if not as_json:
            print_comparison(task.title, plans)
            say(*skipped)
    if plot is not None:
        from gdpfed.report.pictures import plot_methods, save_figure

        save_figure(plot_methods({titles[source]: plans for source, plans in compared.items()}), plot)
    if as_json:
        print_json({source: [plan_as_json(plan) for plan in plans] for source, plans in compared.items()})
    elif plot is not None:
        say(f"picture: {plot}")


def verify(
    plan_file: Annotated[Path, Argument(help="A plan saved by gdpfed plan --out.")],
    budgets: Annotated[
        str | None, Option(help="Also check that the plan keeps each of these clients' budgets.")
    ] = None,
    delta: Annotated[
        float | None, Option(help="With --budgets: for clients that state none. Default: as in a plan.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Recompute every epsilon of a plan from its mechanism.

    Exit code 2 if a promise does not hold.
    """
    plan = load_plan(plan_file)
    checked = None
    if budgets is not None:
        task = load_task(budgets)
        stated = delta if delta is not None else task.settings.delta
        check_budgets(plan, task.budgets, default_delta=stated if stated is not None else task.budgets.default_delta)
        checked = len(task.budgets)
    if as_json:
        print_json({"verified": True, "clients_checked": checked, **plan_as_json(plan)})
        return
    print_plan(plan, title=str(plan_file))
    suffix = f", and {checked:,} clients' budgets are kept" if checked is not None else ""
    say(f"verified: every epsilon was computed anew{suffix}; plan {plan_hash(plan)[:16]}")
