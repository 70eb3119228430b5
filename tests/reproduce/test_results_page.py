"""docs/results.md and its tables, made of records that are made up here."""

import dataclasses
import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gdpfed_reproduce.experiment_plots import _are_numbers as are_numbers
from gdpfed_reproduce.experiments import EXPERIMENTS, Scale, cells_of
from gdpfed_reproduce.records import CellRecord, RunRecord, config_of, save_records

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        module = importlib.import_module("results_tables")
    finally:
        sys.path.pop(0)
    # These are computed, not read from records, and take their time.
    module._sampling = module._noise = lambda: ""  # type: ignore[attr-defined]
    return module


@pytest.fixture(scope="module")
def page(tables: ModuleType) -> ModuleType:
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module("results_page")
    finally:
        sys.path.pop(0)


def made_up(name: str, dataset: str, *, scale: Scale | None = None, shift: float = 0.0) -> list[CellRecord]:
    """Three seeds of every cell, as far from the paper's figure as asked."""
    records = []
    for cell in cells_of(EXPERIMENTS[name], dataset, scale or Scale()):
        middle = (cell.paper.mean if cell.paper else 60.0) + shift
        rounds = tuple(range(5, cell.task.settings.num_rounds + 1, 5))
        runs = tuple(
            RunRecord(
                seed=seed, key=f"{name}{cell.column}{cell.method.label}{seed}", rounds=rounds,
                accuracies=tuple(middle + seed - 2 - (rounds[-1] - number) / 5 for number in rounds),
                epsilons=(None,), versions="gdpfed 0.1.0",
            )
            for seed in (1, 2, 3)
        )  # fmt: skip
        records.append(
            CellRecord(
                experiment=name, dataset=dataset, column=cell.column, method=cell.method.name,
                weights=cell.method.weights, scale="full", config=config_of(cell.task), plan="p", parameters=18_378,
                results_version=1, runs=runs,
            )
        )  # fmt: skip
    return records


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "results"
    for name in EXPERIMENTS:
        dataset = "fmnist" if "fmnist" in EXPERIMENTS[name].datasets else EXPERIMENTS[name].datasets[0]
        save_records(made_up(name, dataset, shift=0.2), folder)
    save_records(made_up("main", "cifar10", scale=Scale(num_rounds=20)), folder)
    save_records([dataclasses.replace(record, scale="smoke") for record in made_up("main", "svhn")], folder)
    return folder


@pytest.mark.training
def test_tables_are_made_of_records_and_notes(tables: ModuleType, records: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "main-fmnist.md").write_text("Because it was **measured**.\n")
    pages = tables.result_tables(records, notes)
    assert pages == tables.result_tables(records, notes)
    assert set(pages) == {"sampling", "noise", "overhead", "contradictions", *EXPERIMENTS}
    main = pages["main"]
    assert "| gdpfed+ | 75.83 ± 0.47 | 76.03 ± 1.00 | 3 | +0.20 | within the spread |" in main
    assert "| pooled | not printed | 60.20 ± 1.00 | 3 |  | not in the paper |" in main
    assert "18,378 parameters; gdpfed 0.1.0." in main
    assert "Because it was **measured**." in main
    assert "**Not the paper's configuration**: 20 of 100 rounds." in main
    assert "| fedavg | 56.40 ± 0.34 | 56.40 ± 1.00 | 3 |  | not comparable |" in main
    assert "<details><summary>CIFAR-10: not run</summary>" in pages["sparsification"]
    assert "Best first, paper: fedavg > gdpfed+ > idp-fedavg > gdpfed > pfa > dp-fedavg. Ours: fedavg > gdpfed+" in main
    row = "| gdpfed+ | 0.1,0.3,0.5 | 75.52 ± 0.27 | 75.72 ± 1.00 | 3 | +0.20 | within the spread |"
    assert row in pages["sparsification"]
    assert "| fedavg | 3 | 71.16 | 73.16 | 75.16 | 77.16 | 79.16 |" in pages["convergence"]
    (notes / "man-fmnist.md").write_text("a slip\n")
    with pytest.raises(SystemExit, match=r"man-fmnist\.md explains nothing"):
        tables.result_tables(records, notes)


@pytest.mark.training
def test_page_tells_it_at_a_glance(page: ModuleType, records: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    (notes / "glance").mkdir(parents=True)
    (notes / "glance" / "clipping.md").write_text("The paper's **shape**.\n")
    text = page.results_page(records, notes, findings="| a finding |\n")
    assert "| a finding |" in text
    assert "| [main](../reproduce/tables/main.md) | main table | 6 of 6 | 3 of 3 | not run | 3 of 3 |" in text
    # Twenty rounds of a hundred are no figure beside the paper's.
    assert "| gdpfed+ | 75.83 / 76.03 | 71.10 / 71.30 | 38.78 / - | 42.00 / 42.20 |" in text
    # Shakespeare's one column there is the main table's, and tells nothing of clip norms.
    assert "Differences: FMNIST +0.20. The paper's **shape**. [Every row]" in text
    for name in EXPERIMENTS:
        assert f"../reproduce/tables/{name}.md" in text
    (notes / "glance" / "clapping.md").write_text("a slip\n")
    with pytest.raises(SystemExit, match=r"clapping\.md explains nothing"):
        page.results_page(records, notes, findings="")


def test_differences_are_bold(tables: ModuleType, page: ModuleType, tmp_path: Path) -> None:
    save_records([*made_up("clipping", "fmnist", shift=-4.0), *made_up("main", "fmnist", shift=-4.0)], tmp_path)
    text = tables.result_tables(tmp_path, tmp_path / "none")["clipping"]
    assert "| dp-fedavg | 1x | 71.88 ± 0.15 | 67.88 ± 1.00 | 3 | -4.00 | **differs** |" in text
    assert "| dp-fedavg | 71.88 / **67.88** |" in page.results_page(tmp_path, tmp_path / "none", findings="")


@pytest.mark.training
def test_pictures(page: ModuleType, records: Path, tmp_path: Path) -> None:
    drawn = page.draw_pictures(records, tmp_path / "img")
    assert [path.stem for path in drawn] == list(EXPERIMENTS)
    assert all(path.stat().st_size > 10_000 for path in drawn)


def test_metrics_are_means_of_the_runs_that_keep_them(tables: ModuleType, tmp_path: Path) -> None:
    first, *others = made_up("main", "fmnist")
    runs = [
        dataclasses.replace(run, metrics={"of_text": value}, clipped=value / 10)
        for run, value in zip(first.runs, (3, 4), strict=False)
    ]
    save_records([dataclasses.replace(first, runs=(*runs, first.runs[2])), *others], tmp_path)
    text = tables.result_tables(tmp_path, tmp_path / "none")["main"]
    assert "The metric `of_text` after the last round: fedavg 3.50 (2 seeds).\n" in text
    assert "where records keep it: fedavg 35 %.\n" in text


def test_lines_join_values_of_one_number() -> None:
    """Between kinds of models, or of preferences, there is nothing."""
    joined = {name for name, made in EXPERIMENTS.items() if are_numbers(list(made.columns))}
    assert joined == {"steps", "widths", "budgets", "clipping", "heterogeneity"}


def test_what_shares_all_runs_explains_nothing(page: ModuleType, tmp_path: Path) -> None:
    """Experiments of which no more is there than the main table's runs are no points of the page."""
    save_records(made_up("main", "svhn"), tmp_path)
    text = page.results_page(tmp_path, tmp_path / "none", findings="")
    assert "widths.md" not in text
    save_records(made_up("widths", "svhn"), tmp_path)
    assert "widths.md" in page.results_page(tmp_path, tmp_path / "none", findings="")


def test_no_records_no_pictures(page: ModuleType, tmp_path: Path) -> None:
    assert page.draw_pictures(tmp_path, tmp_path / "img") == []
    text = page.results_page(tmp_path, tmp_path / "none", findings="")
    assert "img/main.png" not in text
    assert "not run" in text


def test_the_pages_stay_short() -> None:
    """A reader takes each of them in at a glance; `wc -w` counts the bars of tables as words too."""
    for name in ("results.md", "beyond.md"):
        assert len((DOCS / name).read_text().split()) <= 1500, name
