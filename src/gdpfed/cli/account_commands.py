"""`gdpfed account`, `verify` and `check`: what a mechanism costs, and whether what was promised before still holds."""

import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from gdpfed.cli import options
from gdpfed.cli.show import console, print_json, print_plan, say, table
from gdpfed.planning.people import check_budgets
from gdpfed.planning.plan import ADJACENCIES
from gdpfed.planning.plan_file import load_plan, plan_as_json, plan_hash
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.account import account
from gdpfed.privacy.accountant import accountant_version
from gdpfed.privacy.rounding import delta_up, finite, rounded_up
from gdpfed.tasks.task import load_task

__all__ = ["account_command", "check", "verify"]

# As the options call them.
_NAMES = {"sampling_rate": "rate", "num_rounds": "rounds"}
_BROKEN = 2


def account_command(
    delta: Annotated[float, Option(help="Failure probability.")],
    rate: Annotated[float | None, Option(help="Probability that a client takes part in a round.")] = None,
    noise_multiplier: Annotated[float | None, Option(help="Noise std on the sum, divided by the clip norm.")] = None,
    rounds: Annotated[int | None, options.option(PlanSettings, "num_rounds")] = None,
    epsilon: Annotated[float | None, Option(help="Budget.")] = None,
    max_participations: Annotated[int | None, options.option(PlanSettings, "max_participations")] = None,
    accountant: Annotated[str, options.option(PlanSettings, "accountant")] = "pld",
    against: Annotated[
        str,
        Option(
            help="'models', or 'server': --rate is then a client's own secret coin and --rounds how often it is asked, "
            "and one epsilon holds against whoever sees the models and the server."
        ),
    ] = "models",
    as_json: options.Json = False,
) -> None:
    """What a mechanism costs, or what a budget allows.

    State three of --rate, --noise-multiplier, --rounds and --epsilon: the fourth is computed. With rate, noise and
    rounds, epsilon is what they cost; else it is the budget that the missing one is fitted to.
    """
    result = account(
        delta=delta,
        sampling_rate=rate,
        noise_multiplier=noise_multiplier,
        num_rounds=rounds,
        epsilon=epsilon,
        max_participations=max_participations,
        accountant=accountant,
        against=against,
    )
    adjacency = ADJACENCIES["rotation" if result.is_rotation else "poisson"]
    computed = _NAMES.get(result.computed, result.computed)
    mechanism, server = result.mechanism, result.server
    if as_json:
        print_json(
            {
                "computed": computed,
                "sampling_rate": mechanism.sampling_rate,
                "noise_multiplier": mechanism.noise_multiplier,
                "num_rounds": mechanism.num_rounds,
                "delta": delta,
                "accountant": accountant,
                "accountant_version": accountant_version(),
                "adjacency": adjacency,
                "against": against,
                "epsilon": epsilon,
                "epsilon_release": finite(result.epsilon_release),
                "epsilon_server": finite(server.epsilon_max),
                "epsilon_server_mean": finite(server.epsilon_mean),
                "epsilon_server_p99": finite(server.epsilon_p99),
                "mean_participations": server.mean_participations,
                "p99_participations": server.p99_participations,
                "max_participations": server.max_participations,
                "participations_within_epsilon_against_server": result.participations_within,
            }
        )
        return
    noise, released = mechanism.noise_multiplier, rounded_up(result.epsilon_release, 6)
    rows = {
        "coin" if result.is_rotation else "sampling rate": f"{mechanism.sampling_rate:.6g}",
        "noise multiplier": f"{noise:.6f} (squared {noise**2:.6f})",
        "asks" if result.is_rotation else "rounds": f"{mechanism.num_rounds:,}",
    }
    if result.is_rotation:
        rows["epsilon, both"] = f"{released}  against whoever sees the released models, and the server"
        rows["not hidden"] = "being enrolled, and when one is asked"
    else:
        rows |= {
            "epsilon release": f"{released}  against whoever sees only the released models",
            "epsilon server, mean": f"{rounded_up(server.epsilon_mean)}  after {server.mean_participations} "
            "participations",
            "epsilon server, p99": f"{rounded_up(server.epsilon_p99)}  after {server.p99_participations}",
            "epsilon server, most": f"{rounded_up(server.epsilon_max)}  after {server.max_participations}",
        }
    if result.participations_within is not None:
        rows["within the budget against the server"] = f"{result.participations_within} participations"
    heading = f"{computed.replace('_', '-')} computed; delta = {delta_up(delta)}, {adjacency.replace('-', ' ')}, "
    sampling = "a secret coin at each ask" if result.is_rotation else "Poisson sampling"
    console().print(table(f"{heading}{sampling}, {accountant}", ["", "value"], rows.items(), folded=["value"]))


def verify(
    plan_file: Annotated[Path, Argument(help="A plan saved by gdpfed plan --out.")],
    budgets: Annotated[str | None, Option(help="Also check that the plan keeps these clients' budgets.")] = None,
    delta: Annotated[float | None, Option(help="For --budgets that state none. Default: as in a plan.")] = None,
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


def _harmless(text: str) -> str:
    """For a terminal: names of files and what stands in them are not ours."""
    return "".join(letter if letter.isprintable() else "?" for letter in os.fsencode(text).decode("utf-8", "replace"))


def check(
    paths: Annotated[list[Path], Argument(metavar="PATH...", help="Folders, looked through to the bottom, and files.")],
    as_json: options.Json = False,
) -> None:
    """After an upgrade: are ledgers, plans, runs and homes still sound?

    Says which are not, and what to do. Changes nothing, and follows no links. Exit code 0: all sound; 2: a promise is
    broken, or something is damaged.
    """
    from gdpfed.runs.check import check_paths

    findings = list(check_paths(paths))
    num_broken = sum(not finding.is_sound for finding in findings)
    if as_json:
        print_json({"sound": not num_broken, "findings": [finding.mapping() for finding in findings]})
    else:
        for finding in findings:
            say(f"{_harmless(str(finding.path))} ({finding.kind}): {'sound' if finding.is_sound else 'NOT SOUND'}")
            for kind, texts in (("problem", finding.problems), ("note", finding.notes)):
                say(*(f"  {kind}: {_harmless(' '.join(text.split()))}" for text in texts))
        checked = f"{len(findings)} checked, {num_broken} not sound"
        say(checked if findings else "no ledgers, plans, runs or homes there")
    if num_broken:
        raise typer.Exit(_BROKEN)
