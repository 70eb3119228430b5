import dataclasses
import math

import pytest

from gdpfed_reproduce.experiments import EXPERIMENTS, PaperFigure, Scale, cells_of
from gdpfed_reproduce.records import CellRecord, RunRecord, config_of
from gdpfed_reproduce.verdicts import ComparedRow, is_run, rows_of


def row(*accuracies: float, mean: float = 70.0, std: float = 0.3) -> ComparedRow:
    figure = PaperFigure(mean=mean, std=std)
    return ComparedRow(
        experiment="main", dataset="fmnist", column="", label="gdpfed", paper=figure, accuracies=accuracies
    )


def record(
    method: str, *accuracies: float, scale: Scale | None = None, plan: str = "p", version: int = 1
) -> CellRecord:
    cells = cells_of(EXPERIMENTS["main"], "fmnist", scale or Scale())
    cell = next(cell for cell in cells if cell.method.label == method)
    runs = tuple(
        RunRecord(
            seed=seed, key=f"{method}{seed}", rounds=(5, 50), accuracies=(50.0, accuracy), epsilons=(0.5,), versions="v"
        )
        for seed, accuracy in enumerate(accuracies, start=1)
    )
    return CellRecord(
        experiment="main", dataset="fmnist", column="", method=cell.method.name, weights=cell.method.weights,
        scale="full", config=config_of(cell.task), plan=plan, parameters=10, results_version=version, runs=runs,
    )  # fmt: skip


def test_verdict_follows_the_rule() -> None:
    # s = 1 over three seeds, the paper's 0.3 over three: at most 2 sqrt((1 + 0.09) / 3) = 1.2055.
    allowed = 2 * math.sqrt((1 + 0.09) / 3)
    near, far = (row(*(70 + allowed + shift + step for step in (-1, 0, 1))) for shift in (0.0, 0.01))
    assert near.std == pytest.approx(1)
    assert near.allowed == pytest.approx(allowed)
    assert near.difference == pytest.approx(allowed)
    assert (near.verdict, far.verdict) == ("within the spread", "differs")
    # One seed: the paper's std stands in.
    assert row(70.5).allowed == pytest.approx(2 * math.sqrt(0.09 + 0.03))
    assert (row(70.69).verdict, row(70.71).verdict) == ("within the spread", "differs")
    assert row().verdict == "not run"
    assert dataclasses.replace(row(70.0), paper=None).verdict == "not in the paper"


def test_reduced_scale_is_not_judged() -> None:
    short = record("gdpfed", 40.0, scale=Scale(num_rounds=20))
    rows = {entry.label: entry for entry in rows_of(EXPERIMENTS["main"], "fmnist", [short])}
    assert rows["gdpfed"].verdict == "not comparable"
    assert rows["gdpfed"].reduced == ("20 of 50 rounds",)
    assert rows["gdpfed"].difference is None
    assert rows["gdpfed+"].verdict == "not run"
    # The full configuration, once it is there, is taken instead.
    rows = {entry.label: entry for entry in rows_of(EXPERIMENTS["main"], "fmnist", [short, record("gdpfed", 74.0)])}
    assert rows["gdpfed"].accuracies == (74.0,)
    assert rows["gdpfed"].verdict == "within the spread"


def test_rows_take_the_newest_results_then_the_most_seeds() -> None:
    records = [record("gdpfed", 74.0, 74.1, plan="old"), record("gdpfed", 74.2, plan="new")]
    assert rows_of(EXPERIMENTS["main"], "fmnist", records)[2].accuracies == (74.0, 74.1)
    records.append(record("gdpfed", 74.3, version=2))
    assert rows_of(EXPERIMENTS["main"], "fmnist", records)[2].accuracies == (74.3,)


def test_a_shared_run_counts_in_every_table() -> None:
    rows = rows_of(EXPERIMENTS["clipping"], "fmnist", [record("gdpfed+", 75.8)])
    found = {(entry.label, entry.column): entry.verdict for entry in rows if entry.accuracies}
    assert found == {("gdpfed+", "1x"): "within the spread"}


def test_shared_runs_are_no_experiment() -> None:
    """One run of dp-fedavg fills all columns of preferences; nothing was run for them."""
    main = [record("dp-fedavg", 72.8), record("gdpfed+", 74.1)]
    assert is_run(rows_of(EXPERIMENTS["main"], "fmnist", main))
    for name in ("preferences", "clipping", "steps", "heterogeneity"):
        cells = cells_of(EXPERIMENTS[name], "fmnist")
        assert not is_run(rows_of(EXPERIMENTS[name], "fmnist", main))
        own = next(cell for cell in cells if cell.method.label == "gdpfed+" and cell.column == cells[-1].column)
        more = dataclasses.replace(main[1], experiment=name, column=own.column, config=config_of(own.task))
        assert is_run(rows_of(EXPERIMENTS[name], "fmnist", [*main, more]))
