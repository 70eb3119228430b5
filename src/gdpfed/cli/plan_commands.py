"""`gdpfed plan`, `gdpfed plan compare` and `gdpfed plan frontier`."""

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer import Argument, Option
from typer.core import TyperGroup

from gdpfed.cli import options
from gdpfed.cli.show import (
    console,
    doing,
    print_comparison,
    print_json,
    print_plan,
    print_table,
    rounded_up,
    say,
    table,
)
from gdpfed.errors import InputError
from gdpfed.files import write_whole
from gdpfed.planning.asks import Frontier
from gdpfed.planning.methods import COMPARED, check_method, for_method, make_plan, plan_frontier
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_as_json, save_plan
from gdpfed.planning.recommend import Candidate, Recommendation, Watch, recommend
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets
from gdpfed.privacy.cache import without_cache

__all__ = ["plan_app"]

_DEFAULT_COMPARED = ",".join(COMPARED)


class _PlanGroup(TyperGroup):
    """`gdpfed plan SOURCE` is `gdpfed plan of SOURCE`: one may leave out the word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_completed = ctx.resilient_parsing and not args
        if not is_completed and (not args or args[0] not in self.commands):
            args = ["of", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        return [*super().shell_complete(ctx, incomplete), *self.commands["of"].shell_complete(ctx, incomplete)]


plan_app = typer.Typer(cls=_PlanGroup, help="Plan the privacy of a federated training.", add_completion=False)


@plan_app.command("of", epilog="See also: gdpfed plan compare --help, gdpfed plan frontier --help")
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
        Option("--objective", help="Recommend the method and settings of most predicted signal-to-noise, and why."),
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
        print_json(plan_as_json(plan) | ({"recommendation": _recommendation_as_json(advice)} if advice else {}))
        return
    if advice is not None:
        _print_recommendation(advice, title=task.title)
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


_PREDICTED = ("signal_to_noise", "of_a_round", "of_all_rounds", "smallest_rate")
_CANDIDATES: dict[str, Callable[[Candidate], str]] = {
    "plan": lambda one: one.label,
    "rounds": lambda one: f"{one.plan.num_rounds}",
    "participation": lambda one: f"{100 * one.plan.participation:.3g} %",
    "signal/noise": lambda one: f"{one.signal_to_noise:.1f}",
    "of a round": lambda one: f"{one.of_a_round:.3f}",
    "of all rounds": lambda one: f"{one.of_all_rounds:.2f}",
    "smallest rate": lambda one: f"{one.smallest_rate:.2f}",
}


def _print_recommendation(advice: Recommendation, *, title: str) -> None:
    """The candidates, best first, the reasons, and how to ask for the plan by name."""
    heading = f"{title}: predicted for {advice.best.num_params:,} parameters, recommended first"
    print_table(heading, _CANDIDATES, (advice.best, *advice.others))
    if advice.elsewhere:
        print_table("The recommended plan under other limits", _CANDIDATES, advice.elsewhere)
    say(*(f"- {reason}" for reason in advice.reasons), f"the same plan by name: {_options(advice)}\n")


def _options(advice: Recommendation) -> str:
    settings = advice.settings
    changed = [name for name in ("fairness_floor", "server_learning_rate", "averaging") if name in settings.changed()]
    words = [f"--{name.replace('_', '-')} {getattr(settings, name):g}" for name in changed]
    return " ".join([f"--method {settings.method}", *words])


def _recommendation_as_json(advice: Recommendation) -> dict[str, Any]:
    def plain(one: Candidate) -> dict[str, Any]:
        asked = {"plan": one.label, "num_rounds": one.plan.num_rounds, "participation": one.plan.participation}
        return asked | {name: getattr(one, name) for name in _PREDICTED}

    return {
        "model_size": advice.best.num_params,
        "options": _options(advice),
        "recommended": plain(advice.best),
        "others": list(map(plain, advice.others)),
        "elsewhere": list(map(plain, advice.elsewhere)),
        "reasons": list(advice.reasons),
    }


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
        if not plans:
            raise InputError(f"expected a method that applies to {source}, got none: {skipped[0]}")
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


@plan_app.command()
@options.with_settings(PlanSettings, without=["against", "asks", "trainings", "max_participations"])
def frontier(
    asked: options.Asked,
    source: Annotated[str, Argument(help="A preset, file or text, as for gdpfed plan.")],
    plot: Annotated[Path | None, Option(help="Draw asks against trainings (.png, .svg, .pdf).")] = None,
    as_json: options.Json = False,
) -> None:
    """What a promise costs that holds against the server: asks against trainings, at equal signal-to-noise.

    Each row is a plan that gdpfed plan --against server --asks K --trainings M makes.
    """
    task = asked.task(source)
    doing(f"{task.title}: the plan against models")
    found = plan_frontier(
        task.budgets,
        task.settings,
        watch=lambda point: doing(f"{task.title}: {point.asks} asks, {point.trainings:.2f} trainings"),
    )
    doing("")
    if plot is not None:
        from gdpfed.report.pictures import plot_frontier, save_figure

        save_figure(plot_frontier(found, title=task.title), plot)
    if as_json:
        print_json(_frontier_as_json(found))
        return
    _print_frontier(found, title=task.title, ask_cost=task.settings.ask_cost)
    if plot is not None:
        say(f"picture: {plot}")


def _coins(plan: Plan) -> tuple[float, float]:
    rates = [group.sampling_rate for group in plan.groups]
    return min(rates), max(rates)


_FRONTIER = ("against", "asks", "trains", "cost", "coins %", "signal/noise", "eps server")


def _print_frontier(found: Frontier, *, title: str, ask_cost: float) -> None:
    today, cheapest = found.against_models, found.cheapest

    def row(against: str, asks: str, cost: float, plan: Plan) -> list[str]:
        coins = "-".join(dict.fromkeys(f"{100 * coin:.1f}" for coin in _coins(plan)))
        epsilons = " ".join(rounded_up(group.epsilon_server, 1) for group in plan.groups)
        figures = (f"{plan.trainings:.2f}", f"{cost:.2f}", coins, f"{plan.signal_to_noise:.2f}", epsilons)
        return [against, asks, *figures]

    # Against models whoever is asked trains.
    rows = [row("models", "", today.trainings * (1 + ask_cost), today)]
    rows += [
        row("server *" if point is cheapest else "server", str(point.asks), point.cost, point.plan)
        for point in found.points
    ]
    heading = f"{title}: {today.method}, {today.num_rounds} rounds, {today.num_clients:,} clients"
    console().print(table(heading, _FRONTIER, rows, folded=["eps server"]))
    say(
        f"of one client in the whole run; cost: a training is 1, an ask {ask_cost:g} (--ask-cost)",
        "eps server: against the server, for who takes part most often; by group",
        f"* the cheapest: gdpfed plan ... --against server --asks {cheapest.asks} --trainings {cheapest.trainings:.4g}",
    )


def _frontier_as_json(found: Frontier) -> dict[str, Any]:
    def plain(plan: Plan) -> dict[str, Any]:
        coins = dict(zip(("smallest_coin", "largest_coin"), _coins(plan), strict=True))
        epsilons = [group.epsilon_server for group in plan.groups]
        return {
            "trainings": plan.trainings,
            "signal_to_noise": plan.signal_to_noise,
            **coins,
            "epsilon_server": epsilons,
        }

    return {
        "against_models": plain(found.against_models),
        "frontier": [
            {"asks": point.asks, "cost": point.cost, "cheapest": point is found.cheapest, **plain(point.plan)}
            for point in found.points
        ],
    }
