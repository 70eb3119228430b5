"""Differences of two records, paired by seed: what `results_tables` and `beyond_page` say of them."""

import math
import statistics
from collections.abc import Sequence

from scipy import stats

from gdpfed_reproduce.records import CellRecord

__all__ = ["difference", "pairs", "student"]

_CONFIDENCE = 0.95
# Fewer seeds give no interval.
_FEWEST = 3


def student(values: Sequence[float]) -> tuple[float, float, float] | None:
    """The mean and the ends of its Student interval; None for fewer than three values."""
    if len(values) < _FEWEST:
        return None
    reach = stats.t.ppf((1 + _CONFIDENCE) / 2, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    middle = statistics.fmean(values)
    return middle, middle - reach, middle + reach


def pairs(record: CellRecord, other: CellRecord) -> list[float]:
    """Differences, paired by seed."""
    theirs = {run.seed: run.accuracy for run in other.runs}
    return [run.accuracy - theirs[run.seed] for run in record.runs if run.seed in theirs]


def difference(record: CellRecord, other: CellRecord | None) -> str:
    """In words."""
    both = [] if other is None or other is record else pairs(record, other)
    found = student(both)
    if found is None:
        return f"{statistics.fmean(both):+.2f}" if both else ""
    return f"{found[0]:+.2f} ({found[1]:+.2f} to {found[2]:+.2f})"
