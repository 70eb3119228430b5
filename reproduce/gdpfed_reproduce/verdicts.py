"""Ours beside the paper's, with a verdict by a rule that can be checked by hand.

Place: records -> rows of tables.

The rule: a difference is *within the spread* when it is at most two standard errors, |ours - paper| <= 2 sqrt(s^2 / n +
p^2 / 3), with s our sample std over n seeds and p the paper's std over three; else it *differs*. With one seed the
paper's std stands in for ours. Three seeds on either side tell little: if both sides measured the same thing, about one
row in nine would differ by chance (Student's t with four degrees of freedom).

Guarantees (tests of the same name):
  verdict_follows_the_rule        on both sides of its border, for one seed and for several.
  reduced_scale_is_not_judged     fewer rounds or clients than the paper's: shown, stated, and not compared.
  shared_runs_are_no_experiment   a table that has no more than runs of the main one counts as not run.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from gdpfed_reproduce.experiments import EXPERIMENTS, Cell, Experiment, PaperFigure, Scale, cells_of
from gdpfed_reproduce.records import CellRecord, config_of, differences

__all__ = ["PAPER_SEEDS", "ComparedRow", "is_run", "rows_of"]

PAPER_SEEDS = 3
Verdict = Literal["within the spread", "differs", "not run", "not in the paper", "not comparable"]


@dataclass(frozen=True, kw_only=True)
class ComparedRow:
    """An entry of a table; ``reduced`` says in words how it falls short of the paper's configuration."""

    experiment: str
    dataset: str
    column: str
    label: str
    paper: PaperFigure | None
    accuracies: tuple[float, ...]
    reduced: tuple[str, ...] = ()
    record: CellRecord | None = None

    @property
    def mean(self) -> float | None:
        """Over seeds."""
        return statistics.fmean(self.accuracies) if self.accuracies else None

    @property
    def std(self) -> float | None:
        """Sample std over seeds; None for fewer than two."""
        return statistics.stdev(self.accuracies) if len(self.accuracies) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours less the paper's."""
        if self.mean is None or self.paper is None or self.reduced:
            return None
        return self.mean - self.paper.mean

    @property
    def allowed(self) -> float | None:
        """The largest difference that is within the spread."""
        if self.paper is None or not self.accuracies:
            return None
        spread = self.paper.std if self.std is None else self.std
        return 2 * math.sqrt(spread**2 / len(self.accuracies) + self.paper.std**2 / PAPER_SEEDS)

    @property
    def verdict(self) -> Verdict:
        """By the rule of this module."""
        if not self.accuracies:
            return "not run"
        if self.paper is None:
            return "not in the paper"
        if self.reduced or self.difference is None or self.allowed is None:
            return "not comparable"
        # Accuracies are printed to 0.01: a difference of less than half of it is none.
        return "within the spread" if abs(self.difference) <= self.allowed + 0.005 else "differs"


def is_run(rows: Sequence[ComparedRow]) -> bool:
    """Whether a data set's table has runs; with several columns, others than those of the main table."""
    records = [row.record for row in rows if row.record is not None]
    if len({row.column for row in rows}) < 2:
        return bool(records)
    return any(all(differences(record.config, shared) for shared in _of_main(record.dataset)) for record in records)


@cache
def _of_main(dataset: str) -> tuple[dict[str, Any], ...]:
    """The configurations of a data set's main table."""
    return tuple(config_of(cell.task) for cell in cells_of(EXPERIMENTS["main"], dataset))


def _best(found: Sequence[CellRecord], config: Mapping[str, object]) -> CellRecord | None:
    """The record of this configuration; else the one nearest to it in rounds and clients. More seeds, if several."""

    def worth(record: CellRecord) -> tuple[bool, float, int, int]:
        effort = record.config["num_rounds"] * record.config["participation"]
        return (not differences(record.config, config), effort, record.results_version, len(record.runs))

    return max(found, key=worth, default=None)


def rows_of(
    experiment: Experiment, dataset: str, records: Sequence[CellRecord], *, scale: Scale | None = None
) -> list[ComparedRow]:
    """A row for each cell, run or not, from the records of full scale; or of exactly ``scale``."""
    name = "full" if scale is None else scale.name
    here = [record for record in records if record.dataset == dataset and record.scale == name]
    # The same entries as the paper has them.
    full = {(cell.column, cell.method): config_of(cell.task) for cell in cells_of(experiment, dataset)}
    rows = []
    for cell in cells_of(experiment, dataset, scale or Scale()):
        found = _matching(cell, experiment, here, exactly=scale is not None)
        reduced = tuple(differences(found.config, full[cell.column, cell.method])) if found else ()
        rows.append(
            ComparedRow(
                experiment=experiment.name,
                dataset=dataset,
                column=cell.column,
                label=cell.method.label,
                paper=cell.paper,
                accuracies=tuple(run.accuracy for run in found.runs) if found else (),
                reduced=reduced,
                record=found,
            )
        )
    return rows


def _matching(cell: Cell, experiment: Experiment, records: Sequence[CellRecord], *, exactly: bool) -> CellRecord | None:
    """The cell's record: of its own experiment, or of another that shares its runs."""
    config = config_of(cell.task)
    same = [record for record in records if not differences(record.config, config)]
    if same or exactly:
        return _best(same, config)
    labelled = [
        record
        for record in records
        if (record.experiment, record.column, record.method, record.weights)
        == (experiment.name, cell.column, cell.method.name, cell.method.weights)
    ]
    return _best(labelled, config)
