"""`gdpfed audit`."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gdpfed.cli import options
from gdpfed.cli.show import console, print_json, rounded_up, table
from gdpfed.cli.train_commands import DataDir, Seed, Workers
from gdpfed.config import parse_toml, read_toml
from gdpfed.errors import InputError, MissingExtraError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan
from gdpfed.privacy.rounding import delta_up
from gdpfed.tasks.task import DEMONSTRATION, Task, load_task

if TYPE_CHECKING:
    from gdpfed.audit.auditor import AuditReport
    from gdpfed.audit.bounds import CanaryFinding
    from gdpfed.audit.in_training import TrainingAudit

__all__ = ["audit"]

_CONTRADICTED = 1
_CANARIES, _TRAINED_CANARIES = 10_000, 1_000


def audit(
    source: Annotated[
        str,
        typer.Argument(
            help="A plan saved by gdpfed plan --out, a preset (fmnist-mini, fmnist, svhn, cifar10, shakespeare), a "
            ".toml file, or a text such as 2000@0.5,2000@3."
        ),
    ] = DEMONSTRATION,
    train: Annotated[
        bool, typer.Option("--train", help="Train the task once, with canaries among its clients.")
    ] = False,
    method: options.Method = None,
    rounds: options.Rounds = None,
    participation: options.Participation = None,
    clip_norm: options.ClipNorm = None,
    delta: options.Delta = None,
    accountant: options.Accountant = None,
    max_participations: options.MaxParticipations = None,
    canaries: Annotated[
        int | None,
        typer.Option("--canaries", help=f"For each group. Default: {_CANARIES}, with --train {_TRAINED_CANARIES}."),
    ] = None,
    seed: Seed = 1,
    alpha: Annotated[
        float, typer.Option("--alpha", help="Probability that the report is wrong about a plan that keeps its word.")
    ] = 1e-3,
    group: Annotated[
        str | None,
        typer.Option("--group", help="Only this group ('group 1'). Default: all; with --train the laxest."),
    ] = None,
    mechanism: Annotated[
        str, typer.Option("--mechanism", help="'float' (the simulator's), 'integer' (the secure sum's) or 'both'.")
    ] = "both",
    dropout: Annotated[
        float, typer.Option("--dropout", help="Integer sums: the probability that a client vanishes during a round.")
    ] = 0.1,
    colluders: Annotated[
        float, typer.Option("--colluders", help="Integer sums: the part of each cohort that tells the server all.")
    ] = 0.1,
    controls: Annotated[bool, typer.Option(help="Also audit known mistakes, which have to be flagged.")] = True,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Draw claims and lower bounds (.png, .svg, .pdf).")
    ] = None,
    workers: Workers = None,
    data_dir: DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Try to break a plan's promises, with canary clients on the real path. Exit code 1 if one is false.

    Every claim is held against what two adversaries can tell of clients that were there or not: whoever sees the
    released sums, and the server, which also knows who took part.
    """
    _need_extras()
    if workers is not None and workers < 1:
        raise InputError(f"expected --workers >= 1, got --workers {workers}")
    changes = {
        "method": method,
        "num_rounds": rounds,
        "participation": participation,
        "clip_norm": clip_norm,
        "delta": delta,
        "accountant": accountant,
        "max_participations": max_participations,
    }
    task, plan, title = _planned(source, changes)
    if train:
        if task is None:
            raise InputError("expected a task with --train (a preset, or a .toml file with budgets), got a saved plan")
        if mechanism != "both":
            raise InputError("expected no --mechanism with --train: sums are integers if the task has secure = true")
        if plot is not None:
            raise InputError("expected --plot without --train: one training has no picture")
        _train(
            task,
            plan,
            group,
            seed=seed,
            canaries=_TRAINED_CANARIES if canaries is None else canaries,
            alpha=alpha,
            workers=workers,
            data_dir=data_dir,
            as_json=as_json,
        )
        return
    _audit(
        plan,
        title,
        group,
        seed=seed,
        canaries=_CANARIES if canaries is None else canaries,
        alpha=alpha,
        mechanism=mechanism,
        dropout=dropout,
        colluders=colluders,
        controls=controls,
        plot=plot,
        as_json=as_json,
    )


def _need_extras() -> None:
    for package, extra in (("torch", "torch"), ("cryptography", "secure")):
        if importlib.util.find_spec(package) is None:
            raise MissingExtraError(package=package, extra=extra, purpose="an audit")


def _planned(source: str, changes: dict[str, Any]) -> tuple[Task | None, Plan, str]:
    """The task if there is one, its plan, and what to call it."""
    path = Path(source)
    if path.suffix.lower() == ".toml" and "format" in parse_toml(read_toml(path), source=repr(source)):
        stated = [name for name, value in changes.items() if value is not None]
        if stated:
            raise InputError(f"expected no {stated[0]} beside a saved plan, which says it all: leave the option out")
        return None, load_plan(path), source
    task = load_task(source)
    return task, make_plan(task.budgets, options.stated(task.settings, changes)), task.title


def _audit(
    plan: Plan,
    title: str,
    group: str | None,
    *,
    seed: int,
    canaries: int,
    alpha: float,
    mechanism: str,
    dropout: float,
    colluders: float,
    controls: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    from gdpfed.audit.auditor import audit_plan, index_of_group
    from gdpfed.audit.canaries import MECHANISMS

    report = audit_plan(
        plan,
        seed=seed,
        num_canaries=canaries,
        alpha=alpha,
        mechanisms=MECHANISMS if mechanism == "both" else (mechanism,),
        group_indices=None if group is None else [index_of_group(plan, group)],
        dropout=dropout,
        colluders=colluders,
        with_controls=controls,
        say=_say,
    )
    picture = None
    if plot is not None:
        from gdpfed.report.pictures import plot_audit, save_figure

        picture = str(save_figure(plot_audit(report), plot))
    if as_json:
        print_json({**report.as_json(), "picture": picture})
    else:
        _show(report, title, picture)
    if report.contradicted:
        raise typer.Exit(_CONTRADICTED)


def _say(doing: str) -> None:
    """On a terminal, one line that is overwritten."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{doing}")
        sys.stderr.flush()


def _train(
    task: Task,
    plan: Plan,
    group: str | None,
    *,
    seed: int,
    canaries: int,
    alpha: float,
    workers: int | None,
    data_dir: Path | None,
    as_json: bool,
) -> None:
    from gdpfed.audit.auditor import index_of_group
    from gdpfed.audit.in_training import audit_training

    laxest = max(range(len(plan.groups)), key=lambda place: plan.groups[place].epsilon)
    report = audit_training(
        task,
        plan,
        place=laxest if group is None else index_of_group(plan, group),
        seed=seed,
        num_canaries=canaries,
        alpha=alpha,
        num_workers=workers or os.cpu_count() or 1,
        data_dir=data_dir,
        watch=lambda done: _say(f"round {done} of {plan.num_rounds}"),
    )
    if as_json:
        print_json(report.as_json())
    else:
        _show_training(report)
    if report.contradicted:
        raise typer.Exit(_CONTRADICTED)


def _down(value: float, digits: int = 2) -> str:
    """A lower bound, never overstated."""
    scale = 10**digits
    return f"{int(value * scale) / scale:.{digits}f}"


def _noise(fraction: float | None) -> str:
    return "any" if fraction is None else f"{100 * fraction:.0f} %"


_COLUMNS = (
    ["group", "sums", "adversary", "claim", "at least", "curve", "at least", "noise at most", "tight", "shows", ""]
)  # fmt: skip
_VIEWS = {
    "release": "sees the sums",
    "server": "also who took part",
    "others": "all others collude",
    "losses": "sees lost sums",
    "lies": "server and a colluder lie",
}
# They say nothing about noise.
_WITHOUT_NOISE = ("others", "losses")


def _by_curve(finding: "CanaryFinding", view: str) -> list[str]:
    """Claim, lower bound and noise."""
    if view in _WITHOUT_NOISE:
        return ["", "", ""]
    return [f"{finding.curve_claim:.2f}", _down(finding.curve_lower), _noise(finding.noise_at_most)]


def _show(report: "AuditReport", title: str, picture: str | None) -> None:
    out = console()
    _clear()
    out.print(
        table(
            f"{title}: {report.method}, {report.num_rounds} rounds, {report.num_canaries:,} canaries a group; integer "
            f"sums with dropout {report.dropout:g}, colluders {report.colluders:g}",
            _COLUMNS,
            [
                [
                    row.group,
                    row.mechanism,
                    _VIEWS[row.view],
                    rounded_up(row.finding.claim, 2),
                    _down(row.finding.epsilon_lower),
                    *_by_curve(row.finding, row.view),
                    "" if row.tight is None else f"{_down(row.tight.epsilon_lower)} {_down(row.tight.curve_lower)}",
                    "" if row.visible_noise is None else _noise(row.visible_noise),
                    "FALSE" if row.finding.contradicts else "stands",
                ]
                for row in report.rows
            ],
        )
    )
    out.print(
        f"claim: epsilon of the plan at its delta; at least: the lower bound, for any mechanism (Clopper-Pearson)\n"
        f"curve: epsilon by the whole curve of noise, rate and rounds, for the server at as many participations as the "
        f"coins give;\n"
        f"at least, noise at most: what the outcome leaves of it, in epsilon and in planned noise\n"
        f"tight: both lower bounds of a faultless mechanism at this size; shows: noise as low as this would be "
        f"flagged\n"
        f"alpha = {report.alpha:g} for the whole report ({report.alpha_each:.1e} a claim); seed {report.seed}; "
        f"{report.seconds:.0f} s",
        soft_wrap=True,
    )
    if report.controls:
        out.print(
            table(
                f"Known mistakes, in {report.controls[0].group}",
                ["mistake", "seen by", "claim", "at least", "curve", "at least", "noise at most", ""],
                [
                    [
                        control.name,
                        _VIEWS[control.view],
                        rounded_up(control.finding.claim, 2),
                        _down(control.finding.epsilon_lower),
                        *_by_curve(control.finding, control.view),
                        "flagged" if control.flagged else "NOT SEEN",
                    ]
                    for control in report.controls
                ],
            )
        )
        if not report.is_sighted:
            out.print("a known mistake was not seen: use more canaries before trusting this audit", soft_wrap=True)
    if picture is not None:
        out.print(f"picture: {picture}", soft_wrap=True)
    out.print(_verdict(report.contradicted, report.alpha), soft_wrap=True)


def _verdict(contradicted: bool, alpha: float) -> str:
    if contradicted:
        return (
            f"CONTRADICTED: a lower bound exceeds its claim, the plan is not kept (confidence {100 * (1 - alpha):g} %)"
        )
    return "nothing contradicts the claims; an audit can refute a promise, never prove it"


def _clear() -> None:
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")


def _show_training(report: "TrainingAudit") -> None:
    out = console()
    _clear()
    rows = []
    for view, finding in report.findings.items():
        tight = report.tight[view]
        rows.append(
            [
                _VIEWS[view],
                rounded_up(finding.claim, 2),
                _down(finding.epsilon_lower),
                f"{finding.curve_claim:.2f}",
                _down(finding.curve_lower),
                _noise(finding.noise_at_most),
                f"{finding.num_right} of {finding.num_guesses}",
                f"{_down(tight.epsilon_lower)} {_down(tight.curve_lower)}",
                "FALSE" if finding.contradicts else "stands",
            ]
        )
    out.print(
        table(
            f"{report.title}: {report.method}, one training of {report.num_rounds} rounds, {report.num_canaries:,} "
            f"canaries ({report.num_inside} inside) in {report.group}",
            ["adversary", "claim", "at least", "curve", "at least", "noise at most", "right guesses", "tight", ""],
            rows,
        )
    )
    out.print(
        f"claim: epsilon of the plan at delta = {delta_up(report.delta)}; curve: by noise, rate and rounds; tight: "
        f"of a faultless mechanism\n"
        f"alpha = {report.alpha:g} for the whole report; seed {report.seed}; accuracy with canaries "
        f"{report.accuracy:.2f} %; {report.seconds:.0f} s",
        soft_wrap=True,
    )
    out.print(_verdict(report.contradicted, report.alpha), soft_wrap=True)
