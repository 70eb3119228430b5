"""How long runs will take, from how long similar ones took.

Place: beside `batch`. The work of a run is its number of training examples: rounds x clients in a round x local steps x
batch. Runs are similar that train the same model on the same data with the same batches, however many steps a round
has; for them time is taken to be proportional to work. That leaves out evaluation and set-up of other lengths,
and what else the machine does: core seconds of one kind of run have differed by a half, on busy days by more.

Guarantees (tests of the same name):
  estimate_is_the_median_rate     core seconds per example of similar runs, their median, times the work left.
  unknown_is_not_guessed          a task without a similar run is counted as unknown, not as nothing.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gdpfed.tasks.task import Task

__all__ = ["Cost", "Estimate", "cost_of", "estimate", "in_words", "similarity", "work_of"]

Similarity = tuple[str, str, int | None, int]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What a finished run cost."""

    similarity: Similarity
    work: float
    core_seconds: float


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """Seconds for the runs whose like is known, from how many finished ones; and how many runs nothing is known of."""

    seconds: float
    num_known: int
    num_unknown: int
    num_finished: int


def similarity(task: Task) -> Similarity:
    """What two tasks must share to be as fast as each other."""
    training = task.training
    return (training.dataset, training.model, training.model_width, training.batch_size)


def work_of(task: Task) -> float:
    """The number of examples that a run trains on, repeats counted."""
    settings = task.settings
    cohort = settings.participation * len(task.budgets)
    return settings.num_rounds * cohort * settings.local_steps * task.training.batch_size


def cost_of(task: Task, core_seconds: float) -> Cost:
    """A finished run's cost."""
    return Cost(similarity=similarity(task), work=work_of(task), core_seconds=core_seconds)


def estimate(left: Iterable[tuple[Task, float]], costs: Sequence[Cost], *, num_cores: int) -> Estimate:
    """The time for tasks of which a fraction is left, on ``num_cores`` that are all busy."""
    rates: dict[Similarity, list[float]] = {}
    for cost in costs:
        rates.setdefault(cost.similarity, []).append(cost.core_seconds / cost.work)
    seconds, known, unknown = 0.0, 0, 0
    used = set()
    for task, fraction in left:
        kind = similarity(task)
        if kind in rates:
            seconds += fraction * work_of(task) * statistics.median(rates[kind])
            known += 1
            used.add(kind)
        else:
            unknown += 1
    return Estimate(
        seconds=seconds / num_cores,
        num_known=known,
        num_unknown=unknown,
        num_finished=sum(len(rates[kind]) for kind in used),
    )


def in_words(seconds: float) -> str:
    """A time, no more precise than an estimate is."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 100 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
