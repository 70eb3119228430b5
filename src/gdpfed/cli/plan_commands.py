"""`gdpfed plan`, `gdpfed plan compare` and `gdpfed verify`."""

import csv
import dataclasses
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gdpfed.cli import options
from gdpfed.cli.recommendation import print_recommendation, recommendation_as_json
from gdpfed.cli.show import console, print_comparison, print_json, print_plan
from gdpfed.errors import InputError
from gdpfed.planning.methods import check_method, make_plan
from gdpfed.planning.people import assign, check_budgets
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan, plan_as_json, plan_hash, save_plan
from gdpfed.planning.recommend import recommend
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
def of(
    source: Annotated[
        str,
        typer.Argument(
            help="A preset (fmnist, svhn, cifar10, shakespeare), a budgets file (.csv, .json, .parquet with "
            "client,epsilon[,delta]), a .toml file, or a text such as 2000@0.5,2000@1.5,2000@3."
        ),
    ],
    method: options.Method = None,
    rounds: options.Rounds = None,
    participation: options.Participation = None,
    clip_norm: options.ClipNorm = None,
    delta: options.Delta = None,
    accountant: options.Accountant = None,
    groups: options.Groups = None,
    min_group_size: options.MinGroupSize = None,
    rates: options.Rates = None,
    fairness_floor: options.FairnessFloor = None,
    noise_multipliers: options.NoiseMultipliers = None,
    keep: options.Keep = None,
    weights: options.Weights = None,
    release: options.Release = None,
    server_learning_rate: options.ServerLearningRate = None,
    averaging: options.Averaging = None,
    max_participations: options.MaxParticipations = None,
    clients_per_person: options.ClientsPerPerson = None,
    linked: options.Linked = None,
    out: Annotated[Path | None, typer.Option("--out", help="Save the plan as TOML.")] = None,
    assignment: Annotated[
        Path | None, typer.Option("--assignment", help="Save each client's group as CSV (client,group).")
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Compute everything anew.")] = False,
    objective: Annotated[
        bool,
        typer.Option(
            "--objective",
            help="Recommend: the method and settings with the largest predicted signal-to-noise, and why.",
        ),
    ] = False,
    model_size: Annotated[
        int, typer.Option("--model-size", help="With --objective: how many parameters the model has.")
    ] = 20_000,
    as_json: options.Json = False,
) -> None:
    """A budget for each client in; groups, rates, noise, weights and honest epsilons out."""
    task = load_task(source)
    settings = options.applied(
        task.settings,
        {
            "method": method,
            "num_rounds": rounds,
            "participation": participation,
            "clip_norm": clip_norm,
            "delta": delta,
            "accountant": accountant,
            "groups": groups,
            "min_group_size": min_group_size,
            "rates": rates,
            "fairness_floor": fairness_floor,
            "noise_multipliers": noise_multipliers,
            "keep": keep,
            "weights": weights,
            "release": release,
            "server_learning_rate": server_learning_rate,
            "averaging": averaging,
            "max_participations": max_participations,
            "clients_per_person": clients_per_person,
            "linked": linked,
        },
    )
    if objective and method is not None:
        raise InputError("--objective chooses the method: leave --method out")
    with without_cache() if no_cache else nullcontext():
        given = {"server_learning_rate": server_learning_rate, "averaging": averaging}
        stated = task.stated.union(name for name, value in given.items() if value is not None)
        found = recommend(task.budgets, settings, num_params=model_size, stated=stated) if objective else None
        plan = make_plan(task.budgets, settings) if found is None else found.best.plan
    if out is not None:
        save_plan(plan, out)
    if assignment is not None:
        _save_assignment(plan, task.budgets, assignment)
    if as_json:
        advice = {} if found is None else {"recommendation": recommendation_as_json(found)}
        print_json({**plan_as_json(plan), **advice})
    else:
        if found is not None:
            print_recommendation(found, title=task.title)
        print_plan(plan, title=task.title)
        if out is not None:
            console().print(f"saved to {out}; check it with: gdpfed verify {out}", soft_wrap=True)


def _save_assignment(plan: Plan, budgets: Budgets, path: Path) -> None:
    try:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["client", "group"])
            writer.writerows(
                [budgets.label(index), plan.groups[group].name] for index, group in enumerate(assign(plan, budgets))
            )
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from None


@plan_app.command()
def compare(
    sources: Annotated[list[str], typer.Argument(help="Presets, files or texts, as for gdpfed plan.")],
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods", help=f"Methods, separated by commas. Default: {_DEFAULT_COMPARED}, those that apply."
        ),
    ] = None,
    rounds: options.Rounds = None,
    participation: options.Participation = None,
    clip_norm: options.ClipNorm = None,
    delta: options.Delta = None,
    accountant: options.Accountant = None,
    fairness_floor: options.FairnessFloor = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw the signal-to-noise (.png, .svg, .pdf).")] = None,
    as_json: options.Json = False,
) -> None:
    """Several methods for the same budgets: signal-to-noise, noise, rates and epsilons side by side."""
    names = [check_method(name.strip()) for name in (methods or _DEFAULT_COMPARED).split(",")]
    stated: dict[str, Any] = {
        "num_rounds": rounds,
        "participation": participation,
        "clip_norm": clip_norm,
        "delta": delta,
        "accountant": accountant,
        "fairness_floor": fairness_floor,
    }
    compared: dict[str, list[Plan]] = {}
    skipped: list[str] = []
    titles: dict[str, str] = {}
    for source in sources:
        task = load_task(source)
        settings = options.stated(task.settings, stated)
        plans = []
        for name in names:
            try:
                plans.append(make_plan(task.budgets, dataclasses.replace(settings, method=name)))
            except InputError as error:
                # A method that was asked for must work; one of the default list may not apply to these budgets.
                if methods is not None:
                    raise
                skipped.append(f"{name}: {error}")
        compared[source] = plans
        if not as_json:
            print_comparison(task.title, plans)
            for reason in skipped:
                console().print(f"left out: {reason}", soft_wrap=True)
        skipped.clear()
        titles[source] = task.title
    if plot is not None:
        from gdpfed.report.pictures import plot_methods, save_figure

        save_figure(plot_methods({titles[source]: plans for source, plans in compared.items()}), plot)
        if not as_json:
            console().print(f"picture: {plot}", soft_wrap=True)
    if as_json:
        print_json({source: [plan_as_json(plan) for plan in plans] for source, plans in compared.items()})


def verify(
    plan_file: Annotated[Path, typer.Argument(help="A plan saved by gdpfed plan --out.")],
    budgets: Annotated[
        str | None, typer.Option("--budgets", help="Also check that the plan keeps each of these clients' budgets.")
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option("--delta", help="With --budgets: for clients that state none. Default: clients ** -1.1."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Recompute every epsilon of a plan from its mechanism; exit code 2 if a promise does not hold."""
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
    console().print(f"verified: every epsilon was computed anew{suffix}; plan {plan_hash(plan)[:16]}", soft_wrap=True)
