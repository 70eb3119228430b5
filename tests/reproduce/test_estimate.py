import dataclasses

import pytest

from gdpfed.tasks.task import Task, load_task
from gdpfed_reproduce.estimate import cost_of, estimate, in_words, work_of


def changed(task: Task, **settings: object) -> Task:
    return dataclasses.replace(task, settings=dataclasses.replace(task.settings, **settings))  # type: ignore[arg-type]


def test_estimate_is_the_median_rate() -> None:
    task = load_task("fmnist")
    assert work_of(task) == pytest.approx(50 * 120 * 5 * 10)
    costs = [cost_of(task, seconds) for seconds in (30.0, 40.0, 500.0)]
    made = estimate([(task, 1.0), (task, 0.5), (changed(task, num_rounds=100), 1.0)], costs, num_cores=2)
    assert made.seconds == pytest.approx((40 + 20 + 80) / 2)
    assert (made.num_known, made.num_unknown, made.num_finished) == (3, 0, 3)


def test_unknown_is_not_guessed() -> None:
    made = estimate([(load_task("svhn"), 1.0)], [cost_of(load_task("fmnist"), 10.0)], num_cores=1)
    assert (made.seconds, made.num_known, made.num_unknown, made.num_finished) == (0.0, 0, 1, 0)


def test_no_more_precise_than_it_is() -> None:
    assert [in_words(seconds) for seconds in (12.34, 99, 150, 4000, 40_000)] == [
        "12 s",
        "99 s",
        "2 min",
        "67 min",
        "11.1 h",
    ]
