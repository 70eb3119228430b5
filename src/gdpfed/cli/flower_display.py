"""What `gdpfed flower up` shows while it runs: a live table on a terminal, lines elsewhere."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from gdpfed.cli.show import console, rounded_up, table
from gdpfed.flower.operate.progress import GroupProgress, RunProgress
from gdpfed.flower.operate.up import Watcher
from gdpfed.planning.plan import Plan

__all__ = ["line", "result", "watching"]


def line(progress: RunProgress, plan: Plan) -> str:
    """One line about a stage that is over, or a round."""
    where = f"round {(progress.round_number or 0) + 1}/{plan.num_rounds}"
    if progress.stage is None:
        return "starting"
    lost = f", lost {', '.join(progress.dropped)}" if progress.dropped else ""
    return f"{where}  {progress.stage:8s} {len(progress.answered)} of {progress.asked} answered{lost}"


def result(progress: RunProgress) -> str:
    """One line about the last round that is over."""
    judged = "" if progress.accuracy is None else f"  accuracy {progress.accuracy:.2f} %"
    judged += "" if progress.loss is None else f"  loss {progress.loss:.3f}"
    spent = [group.epsilon for _, group in sorted(progress.groups.items())]
    costs = " ".join("-" if epsilon is None else rounded_up(epsilon, 2) for epsilon in spent)
    missing = sum(progress.rounds_done - group.released for group in progress.groups.values())
    lost = f"  {missing} sums without a release" if missing > 0 else ""
    return f"round {progress.rounds_done} done{judged}  epsilon {costs}{lost}"


@contextmanager
def watching(plan: Plan, *, quiet: bool) -> Iterator[Watcher]:
    """Calls with the progress show what is new."""
    if quiet:
        yield lambda _: None
    elif sys.stdout.isatty():
        with _live(plan) as watch:
            yield watch
    else:
        yield _plain(plan)


def _plain(plan: Plan) -> Watcher:
    before = RunProgress()
    started = time.perf_counter()

    def watch(progress: RunProgress) -> None:
        nonlocal before
        clock = f"{time.perf_counter() - started:6.1f} s  "
        is_over = progress.asked and len(progress.answered) + len(progress.dropped) >= progress.asked
        if is_over and line(progress, plan) != line(before, plan):
            sys.stdout.write(clock + line(progress, plan) + "\n")
        if progress.rounds_done > before.rounds_done:
            sys.stdout.write(clock + result(progress) + "\n")
        sys.stdout.flush()
        before = progress

    return watch


@contextmanager
def _live(plan: Plan) -> Iterator[Watcher]:
    from rich.console import Group as Stack
    from rich.live import Live
    from rich.text import Text

    def picture(progress: RunProgress) -> Stack:
        rows = []
        for number, group in enumerate(plan.groups):
            state = progress.groups.get(number, GroupProgress())
            spent = "-" if state.epsilon is None else rounded_up(state.epsilon, 3)
            planned = [group.name, str(group.num_clients), f"{group.epsilon:g}"]
            rows.append([*planned, spent, str(state.released), str(state.aborted)])
        columns = ["group", "clients", "budget", "epsilon (release)", "released", "tried again"]
        who = "answered: " + " ".join(progress.answered) if progress.answered else ""
        lines = [line(progress, plan), who, result(progress) if progress.rounds_done else ""]
        return Stack(*map(Text, lines), table("", columns, rows))

    with Live(picture(RunProgress()), console=console(), refresh_per_second=4) as live:
        yield lambda progress: live.update(picture(progress))
