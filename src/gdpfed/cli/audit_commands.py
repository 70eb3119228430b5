"""`gdpfed audit`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from gdpfed.cli import options
from gdpfed.cli.show import console, doing, rounded_up, say, table, tell
from gdpfed.config import parse_toml, read_toml
from gdpfed.errors import InputError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.rounding import delta_up
from gdpfed.tasks.task import DEMONSTRATION, Task

if TYPE_CHECKING:
    from gdpfed.audit.auditor import AuditReport
    from gdpfed.audit.bounds import CanaryFinding
    from gdpfed.audit.in_training import TrainingAudit
    from gdpfed.audit.one_run import OneRunFinding

__all__ = ["audit"]

_CONTRADICTED = 1
_CANARIES, _TRAINED_CANARIES = 10_000, 1_000


@options.with_settings(PlanSettings)
def audit(
    asked: options.Asked,
    source: Annotated[
        str,
        Argument(
            help="A plan saved by gdpfed plan --out, a preset (fmnist-mini, fmnist, svhn, cifar10, shakespeare), a "
            ".toml file, or a text such as 2000@0.5,2000@3."
        ),
    ] = DEMONSTRATION,
    train: Annotated[bool, Option("--train", help="Train the task once, with canaries among its clients.")] = False,
    canaries: Annotated[
        int | None, Option(help=f"For each group. Default: {_CANARIES}, with --train {_TRAINED_CANARIES}.")
    ] = None,
    seed: options.Seed = 1,
    alpha: Annotated[float, Option(help="Probability that a plan that keeps its word is contradicted.")] = 1e-3,
    group: Annotated[str | None, Option(help="This group only ('group 1'). Default: all; --train: the laxest.")] = None,
    mechanism: Annotated[str, Option(help="'float' (the simulator's), 'integer' (secure sums') or 'both'.")] = "both",
    dropout: Annotated[float, Option(help="Integer sums: the probability that a client vanishes in a round.")] = 0.1,
    colluders: Annotated[float, Option(help="Integer sums: the part of each cohort that tells the server all.")] = 0.1,
    controls: Annotated[bool, Option(help="Also audit known mistakes, which have to be flagged.")] = True,
    plot: Annotated[Path | None, Option(help="Draw claims and lower bounds (.png, .svg, .pdf).")] = None,
    workers: Annotated[int | None, options.option(options.Workforce, "workers")] = None,
    data_dir: Annotated[Path | None, options.option(options.Workforce, "data_dir")] = None,
    as_json: options.Json = False,
) -> None:
    """Try to break a plan's promises, with canary clients on the real path.

    Every claim is held against what two adversaries can tell of clients that were there or not: whoever sees the
    released sums, and the server, which also knows who took part, or in a plan against the server who was asked. Exit
    code 1 if one is false.
    """
    for package, extra in (("torch", "torch"), ("cryptography", "secure")):
        options.need(package, extra=extra, purpose="an audit")
    from gdpfed.audit.auditor import audit_plan, index_of_group
    from gdpfed.audit.canaries import MECHANISMS
    from gdpfed.audit.in_training import audit_training

    workforce = options.Workforce(workers=workers, data_dir=data_dir)
    task, plan, title = _planned(source, asked)
    audited = None if group is None else index_of_group(plan, group)
    report: AuditReport | TrainingAudit
    if train:
        if task is None:
            raise InputError("expected a task with --train (a preset, or a .toml file with budgets), got a saved plan")
        if mechanism != "both":
            raise InputError("expected no --mechanism with --train: sums are integers if the task has secure = true")
        if plot is not None:
            raise InputError("expected --plot without --train: one training has no picture")
        laxest = max(range(len(plan.groups)), key=lambda index: plan.groups[index].epsilon)
        report = audit_training(
            task,
            plan,
            place=laxest if audited is None else audited,
            seed=seed,
            num_canaries=_TRAINED_CANARIES if canaries is None else canaries,
            alpha=alpha,
            num_workers=workforce.workers or os.cpu_count() or 1,
            data_dir=workforce.data_dir,
            watch=lambda done: doing(f"round {done} of {plan.num_rounds}"),
        )
        content = report.as_json()
        if not as_json:
            _show_training(report)
    else:
        report = audit_plan(
            plan,
            seed=seed,
            num_canaries=_CANARIES if canaries is None else canaries,
            alpha=alpha,
            mechanisms=MECHANISMS if mechanism == "both" else (mechanism,),
            group_indices=None if audited is None else [audited],
            dropout=dropout,
            colluders=colluders,
            with_controls=controls,
            say=doing,
        )
        picture = None
        if plot is not None:
            from gdpfed.report.pictures import plot_audit, save_figure

            picture = str(save_figure(plot_audit(report), plot))
        content = {**report.as_json(), "picture": picture}
        if not as_json:
            _show(report, title, picture)
    verdict = "nothing contradicts the claims; an audit can refute a promise, never prove it"
    if report.contradicted:
        confidence = f"(confidence {100 * (1 - report.alpha):g} %)"
        verdict = f"CONTRADICTED: a lower bound exceeds its claim, the plan is not kept {confidence}"
    tell(as_json, content, verdict)
    if report.contradicted:
        raise typer.Exit(_CONTRADICTED)


def _planned(source: str, asked: options.Asked) -> tuple[Task | None, Plan, str]:
    """The task if there is one, its plan, and what to call it."""
    path = Path(source)
    if path.suffix.lower() == ".toml" and "format" in parse_toml(read_toml(path), source=repr(source)):
        if asked.stated:
            name = next(iter(asked.stated))
            raise InputError(f"expected no {name} beside a saved plan, which says it all: leave the option out")
        return None, load_plan(path), source
    task = asked.task(source)
    return task, make_plan(task.budgets, task.settings), task.title


def _down(value: float) -> str:
    """A lower bound, never overstated."""
    return f"{int(value * 100) / 100:.2f}"


def _noise(fraction: float | None) -> str:
    return "any" if fraction is None else f"{100 * fraction:.0f} %"


_VERDICT = {True: "FALSE", False: "stands"}
_FOUND = ["claim", "at least", "curve", "at least", "noise at most"]
_VIEWS = {
    "release": "sees the sums",
    "server": "also who took part",
    "others": "all others collude",
    "losses": "sees lost sums",
    "lies": "server and a colluder lie",
}
# In a rotation it knows who was asked, as everybody does, and not the coins.
_ROTATION_VIEWS = _VIEWS | {"server": "the server"}
# They say nothing about noise.
_WITHOUT_NOISE = ("others", "losses")


def _cells(finding: "CanaryFinding | OneRunFinding", view: str) -> list[str]:
    """Claim and lower bound; by the curve again, and the noise that is left."""
    cells = [rounded_up(finding.claim, 2), _down(finding.epsilon_lower)]
    if view in _WITHOUT_NOISE:
        return [*cells, "", "", ""]
    return [*cells, f"{finding.curve_claim:.2f}", _down(finding.curve_lower), _noise(finding.noise_at_most)]


def _bounds(finding: "CanaryFinding | OneRunFinding | None") -> str:
    return "" if finding is None else f"{_down(finding.epsilon_lower)} {_down(finding.curve_lower)}"


def _show(report: "AuditReport", title: str, picture: str | None) -> None:
    doing("")
    views = _ROTATION_VIEWS if report.sampling == "rotation" else _VIEWS
    rows = []
    for row in report.rows:
        shows = "" if row.visible_noise is None else _noise(row.visible_noise)
        found = [*_cells(row.finding, row.view), _bounds(row.tight), shows, _VERDICT[row.finding.contradicts]]
        rows.append([row.group, row.mechanism, views[row.view], *found])
    heading = (
        f"{title}: {report.method}, {report.num_rounds} rounds, {report.num_canaries:,} canaries a group; integer "
        f"sums with dropout {report.dropout:g}, colluders {report.colluders:g}"
    )
    console().print(table(heading, ["group", "sums", "adversary", *_FOUND, "tight", "shows", ""], rows))
    say(
        "claim: epsilon of the plan at its delta; at least: the lower bound, for any mechanism (Clopper-Pearson)",
        "curve: epsilon by the whole curve of noise, coin and asks, against both;"
        if report.sampling == "rotation"
        else "curve: epsilon by the whole curve of noise, rate and rounds, for the server at as many participations as "
        "the coins give;",
        "at least, noise at most: what the outcome leaves of it, in epsilon and in planned noise",
        "tight: both lower bounds of a faultless mechanism at this size; shows: noise as low as this would be flagged",
        f"alpha = {report.alpha:g} for the whole report ({report.alpha_each:.1e} a claim); seed {report.seed}; "
        f"{report.seconds:.0f} s",
    )
    if report.controls:
        rows = []
        for control in report.controls:
            seen = "flagged" if control.flagged else "NOT SEEN"
            rows.append([control.name, views[control.view], *_cells(control.finding, control.view), seen])
        heading = f"Known mistakes, in {report.controls[0].group}"
        console().print(table(heading, ["mistake", "seen by", *_FOUND, ""], rows))
        if not report.is_sighted:
            say("a known mistake was not seen: use more canaries before trusting this audit")
    if picture is not None:
        say(f"picture: {picture}")


def _show_training(report: "TrainingAudit") -> None:
    doing("")
    views = _ROTATION_VIEWS if report.sampling == "rotation" else _VIEWS
    rows = []
    for view, finding in report.findings.items():
        guesses = f"{finding.num_right} of {finding.num_guesses}"
        found = [*_cells(finding, view), guesses, _bounds(report.tight[view]), _VERDICT[finding.contradicts]]
        rows.append([views[view], *found])
    heading = (
        f"{report.title}: {report.method}, one training of {report.num_rounds} rounds, {report.num_canaries:,} "
        f"canaries ({report.num_inside} inside) in {report.group}"
    )
    console().print(table(heading, ["adversary", *_FOUND, "right guesses", "tight", ""], rows))
    say(
        f"claim: epsilon of the plan at delta = {delta_up(report.delta)}; curve: by noise, "
        f"{'coin and asks' if report.sampling == 'rotation' else 'rate and rounds'}; "
        f"tight: of a faultless mechanism",
        f"alpha = {report.alpha:g} for the whole report; seed {report.seed}; accuracy with canaries "
        f"{report.accuracy:.2f} %; {report.seconds:.0f} s",
    )
