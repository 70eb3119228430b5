import dataclasses
from pathlib import Path

import pytest

from gdpfed.tasks.task import Task, load_task
from gdpfed_reproduce.batch import PlannedJob
from gdpfed_reproduce.estimate import cost_of, estimate, in_words, similarity, work_of
from gdpfed_reproduce.experiments import EXPERIMENTS, FULL, cells_of
from gdpfed_reproduce.options_commands import asked_of, costs_of
from gdpfed_reproduce.records import load_timing

RESULTS = Path(__file__).parents[2] / "reproduce" / "results"


def changed(task: Task, **settings: object) -> Task:
    return dataclasses.replace(task, settings=dataclasses.replace(task.settings, **settings))  # type: ignore[arg-type]


def test_estimate_is_the_median_rate() -> None:
    task = load_task("fmnist")
    assert work_of(task) == pytest.approx(50 * 120 * 5 * 10)
    costs = [cost_of(task, seconds) for seconds in (30.0, 40.0, 500.0)]
    made = estimate(
        [(task, 1.0), (task, 0.5), (changed(task, num_rounds=100), 1.0), (changed(task, local_steps=10), 1.0)],
        costs,
        num_cores=2,
    )
    # Twice the rounds, or twice the steps in each, are twice the work.
    assert made.seconds == pytest.approx((40 + 20 + 80 + 80) / 2)
    assert (made.num_known, made.num_unknown, made.num_finished) == (4, 0, 3)


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


def test_records_and_tasks_are_of_the_same_kinds() -> None:
    """What a record's runs cost counts for the task that it is of, and for more of its steps."""
    recorded = load_timing(RESULTS)
    for dataset, method in (("svhn", "fedavg"), ("shakespeare", "gdpfed+")):
        (task,) = [cell.task for cell in cells_of(EXPERIMENTS["main"], dataset) if cell.method.label == method]
        alike = [cost.work for cost in recorded if cost.similarity == similarity(task)]
        assert any(work == pytest.approx(work_of(task)) for work in alike)
        assert similarity(changed(task, local_steps=50)) == similarity(task)


def test_costs_are_of_this_machine_where_it_has_any(tmp_path: Path) -> None:
    """Records tell of kinds that were not run here, and of no others; the words say which of the two it was."""
    svhn, other = (load_task(dataset) for dataset in ("svhn", "fmnist"))
    asked = asked_of(
        ("main",), datasets="svhn", seeds=None, out=tmp_path, records=RESULTS, workers=1, as_json=False, scale=FULL
    )
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "model.safetensors").touch()
    (folder / "cost.json").write_text('{"core_seconds": 7}')
    here = PlannedJob(name="j", task=svhn, seed=1, plan="p", key="k", folder=folder)
    costs, words = costs_of(asked, [here], [svhn])
    assert [cost.core_seconds for cost in costs] == [7.0]
    assert words == f"in {tmp_path}"
    costs, words = costs_of(asked, [here], [svhn, other])
    assert {cost.similarity for cost in costs} == {similarity(svhn), similarity(other)}
    assert [cost.core_seconds for cost in costs if cost.similarity == similarity(svhn)] == [7.0]
    assert words == f"in {tmp_path} or in {RESULTS}, perhaps of another machine"
    costs, words = costs_of(asked, [], [svhn])
    assert {cost.similarity for cost in costs} == {similarity(svhn)}
    assert 7.0 not in [cost.core_seconds for cost in costs]
    assert words == f"in {RESULTS}, perhaps of another machine"
