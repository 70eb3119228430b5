"""Runs as tables: final accuracies by method, mean and spread over seeds.

Place: run folders -> results.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gdpfed.report.contents import sample_std
from gdpfed.report.paper import paper_tables
from gdpfed.runs.folder import RunFolder
from gdpfed.runs.record import Record

__all__ = ["Curve", "MethodResult", "curves", "method_results"]

_PAPER_NAMES = {"fedavg": "p-fedavg"}


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Accuracy against rounds, of one run; ``weights`` is empty for the method's own."""

    title: str
    method: str
    weights: str
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
    accuracies: tuple[float, ...]
    paper: float | None
    mean: float
    std: float | None


def curves(runs: Sequence[RunFolder]) -> list[Curve]:
    """What was recorded so far."""
    return [_curve(run, run.records()) for run in runs]


def _curve(run: RunFolder, records: Sequence[Record]) -> Curve:
    epsilons = records[-1].epsilons if records else ()
    return Curve(
        title=run.task.title,
        method=run.plan.method,
        weights=run.task.settings.weights or "",
        seed=run.seed,
        rounds=tuple(record.round_number for record in records),
        accuracies=tuple(record.accuracy for record in records),
        epsilons=tuple(None if math.isinf(epsilon) else epsilon for epsilon in epsilons),
        num_rounds=run.plan.num_rounds,
        is_finished=run.is_finished,
    )


def method_results(drawn: Sequence[Curve]) -> list[MethodResult]:
    """Finished runs, by task and method; the paper's accuracy where it has the task at this name."""
    grouped: dict[tuple[str, str, str], list[float]] = {}
    for curve in drawn:
        if curve.is_finished:
            grouped.setdefault((curve.title, curve.method, curve.weights), []).append(curve.accuracies[-1])
    names = {"FMNIST": "fmnist", "SVHN": "svhn", "CIFAR-10": "cifar10", "Shakespeare": "shakespeare"}
    results = []
    for (title, method, weights), accuracies in grouped.items():
        printed = paper_tables()["main_accuracy"].get(_PAPER_NAMES.get(method, method), {}).get(names.get(title, ""))
        results.append(
            MethodResult(
                title=title,
                method=method,
                weights=weights,
                accuracies=tuple(accuracies),
                paper=None if printed is None else float(printed["mean"]),
                mean=statistics.fmean(accuracies),
                std=sample_std(accuracies),
            )
        )
    return results
