"""Runs as tables: final accuracies by method, mean and spread over seeds.

Place: run folders -> results.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gdpfed.privacy.rounding import finite
from gdpfed.report.contents import sample_std
from gdpfed.report.paper import paper_tables
from gdpfed.runs.folder import RunFolder

__all__ = ["Curve", "MethodResult", "curves", "method_results"]

_PAPER_METHODS = {"fedavg": "p-fedavg"}
_PAPER_TASKS = {"FMNIST": "fmnist", "SVHN": "svhn", "CIFAR-10": "cifar10", "Shakespeare": "shakespeare"}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Accuracy against rounds, of one run; ``weights`` is empty for the method's own, ``against`` "models" or "server":
    whom the epsilons hold against."""

    title: str
    method: str
    weights: str
    against: str
    seed: int
    rounds: tuple[int, ...]
    accuracies: tuple[float, ...]
    epsilons: tuple[float | None, ...]
    num_rounds: int
    is_finished: bool


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """Final accuracies of one method on one task; ``mean`` and ``std`` are over seeds."""

    title: str
    method: str
    weights: str
    against: str
    accuracies: tuple[float, ...]
    paper: float | None
    mean: float
    std: float | None


def curves(runs: Sequence[RunFolder]) -> list[Curve]:
    """What was recorded so far."""
    return list(map(_curve, runs))


def _curve(run: RunFolder) -> Curve:
    records = run.records()
    return Curve(
        title=run.task.title,
        method=run.plan.method,
        weights=run.task.settings.weights or "",
        against="server" if run.plan.is_rotation else "models",
        seed=run.seed,
        rounds=tuple(record.round_number for record in records),
        accuracies=tuple(record.accuracy for record in records),
        epsilons=tuple(map(finite, records[-1].epsilons)) if records else (),
        num_rounds=run.plan.num_rounds,
        is_finished=run.is_finished,
    )


def method_results(drawn: Sequence[Curve]) -> list[MethodResult]:
    """Finished runs, by task and method; the paper's accuracy where it has the task at this name."""
    grouped: dict[tuple[str, str, str, str], list[float]] = {}
    for curve in drawn:
        if curve.is_finished and curve.accuracies:
            key = (curve.title, curve.method, curve.weights, curve.against)
            grouped.setdefault(key, []).append(curve.accuracies[-1])
    return [
        MethodResult(
            title=title,
            method=method,
            weights=weights,
            against=against,
            accuracies=tuple(accuracies),
            paper=_printed(title, method),
            mean=statistics.fmean(accuracies),
            std=sample_std(accuracies),
        )
        for (title, method, weights, against), accuracies in grouped.items()
    ]


def _printed(title: str, method: str) -> float | None:
    by_task = paper_tables()["main_accuracy"].get(_PAPER_METHODS.get(method, method), {})
    printed = by_task.get(_PAPER_TASKS.get(title))
    return None if printed is None else float(printed["mean"])
