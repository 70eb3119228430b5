"""What `gdpfed flower status` and `doctor` show of a server's or a node's home."""

import dataclasses
import datetime
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from gdpfed.cli.show import console, print_json, rounded_up, say, table
from gdpfed.flower.operate.doctor import Finding
from gdpfed.flower.operate.status import NodeStatus, ServerStatus, status_of
from gdpfed.privacy.rounding import allowance, delta_up

__all__ = ["node_lines", "print_findings", "server_lines", "show_status"]

_WATCH_SECONDS = 2.0
_CLEAR = "\x1b[H\x1b[2J"


def show_status(home: Path, *, watch: bool, as_json: bool) -> None:
    """Once, or with ``watch`` again and again."""
    while True:
        found = status_of(home)
        if as_json:
            print_json(found.as_json())
        else:
            if watch and sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            _print(found)
        sys.stdout.flush()
        if not watch:
            return
        time.sleep(_WATCH_SECONDS)


def _print(found: ServerStatus | NodeStatus) -> None:
    if isinstance(found, NodeStatus):
        say(*node_lines(found))
        return
    say(*server_lines(found))
    if found.groups:
        rows = [
            [
                group.name, str(group.clients), allowance(group.epsilon),
                "-" if group.spent is None else rounded_up(group.spent, 3), delta_up(group.delta),
                str(group.released), str(group.given_up), str(group.tried_again),
            ]
            for group in found.groups
        ]  # fmt: skip
        columns = ["group", "clients", "budget", "spent", "delta", "released", "given up", "tried again"]
        console().print(table("", columns, rows))
        say(f"epsilons against {found.adversary}; spent: the most of any client, over all runs, by the ledger")


def server_lines(found: ServerStatus) -> list[str]:
    """All but the table of groups."""
    lines = [f"{found.home}: {found.state}" + ("" if found.run is None else f", run {found.run}")]
    if found.run is None:
        lines.append("next: gdpfed flower enrol, then gdpfed flower plan")
        return lines
    where = f"{found.rounds_done} of {found.num_rounds} rounds done"
    if found.round_number is not None and found.round_number > found.rounds_done:
        where += f", in round {found.round_number}"
    if found.stage is not None:
        where += f", stage {found.stage}: {len(found.answered)} answered"
    lines.append(where)
    if found.waiting:
        until = "" if found.until is None else f", until {_clock(found.until)} at the latest"
        lines.append(f"waiting for {', '.join(found.waiting)}{until}")
    if found.online is not None:
        away = [name for name in found.enrolled if name not in found.online]
        lines.append(
            f"{len(found.online)} of {len(found.enrolled)} online" + (f"; away: {_some(away)}" if away else "")
        )
    lines += [f"node {node} is nobody's: {why}" for node, why in found.unbound.items()]
    if found.num_lost or found.num_refused:
        lines.append(f"{found.num_lost} answers lost, {found.num_refused} refused; the last:")
        lines += [f"  {_clock(one.time)} {one.stage}: {one.client} {one.why}" for one in found.losses[-5:]]
    if found.accuracy is not None:
        lines.append(f"accuracy {found.accuracy:.2f} % on public data")
    if found.seconds_a_round is not None:
        left = "" if found.seconds_left is None else f", about {_duration(found.seconds_left)} left"
        lines.append(f"{found.seconds_a_round:.1f} s a round{left}")
    if found.state == "stopped":
        lines.append("no ServerApp runs: flwr run goes on with it; server.log says why it stopped")
    return lines


def node_lines(found: NodeStatus) -> list[str]:
    """All there is to say."""
    pinned = "nothing is pinned: it answers nothing; next: gdpfed flower pin"
    if found.enrolment is not None:
        pinned = f"pinned: {found.clients} clients, hash {found.enrolment}"
    spent, shown = rounded_up(found.spent, 3), rounded_up(found.spent_server, 3)
    lines = [
        f"{found.home}: node {found.name!r}, {pinned}",
        f"whoever sees the models: epsilon {spent} of {allowance(found.epsilon)} is spent or promised, at delta "
        f"{allowance(found.delta)}",
        f"the server: epsilon {shown} of {allowance(found.epsilon_server)}",
    ]
    for run in found.runs:
        what = "asks" if run.is_rotation else "rounds"
        lines.append(
            f"run {run.name}: {run.rounds} {what} paid for; asked {run.asked} times, {run.sent} of {run.cap} inputs"
        )
    if found.last_refusal is not None:
        lines.append(f"last refusal, {found.refused_at}: {found.last_refusal}")
    return lines


def print_findings(found: Sequence[Finding], *, as_json: bool) -> None:
    """Problems last, where they are seen."""
    if as_json:
        problems = sum(finding.level == "problem" for finding in found)
        print_json({"problems": problems, "findings": [dataclasses.asdict(finding) for finding in found]})
        return
    order = ("fine", "note", "problem")
    for finding in sorted(found, key=lambda finding: order.index(finding.level)):
        say(f"{finding.level:8s} {finding.what}: {finding.text}")
        if finding.advice:
            say(f"{'':8s} -> {finding.advice}")


def _clock(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, datetime.UTC).strftime("%H:%M:%SZ")


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _some(names: list[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + ("" if len(names) <= most else f" and {len(names) - most} more")
