"""The tables of docs/beyond.md, and the page."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gdpfed.errors import InputError
from gdpfed.results.beyond import (
    CNN,
    FEATURES,
    TABLES,
    TUNING,
    TUNING_SEED,
    VALIDATION,
    Recipe,
    cells_of_table,
    table_of,
)
from gdpfed.results.records import CellRecord, RunRecord, config_of, save_records
from gdpfed.tasks.task import load_task

ROOT = Path(__file__).parents[2]


def test_every_row_is_the_papers_configuration() -> None:
    paper = load_task("fmnist")
    for table in TABLES.values():
        cells = [cell for dataset in table.datasets if dataset == "fmnist" for cell in cells_of_table(table, dataset)]
        for cell in cells:
            asked = cell.task.settings
            assert len(cell.task.budgets) == len(paper.budgets) == 6000
            assert (asked.num_rounds, asked.participation, asked.delta) == (50, 0.02, None)
            assert asked.local_steps == paper.settings.local_steps
            assert cell.task.training.batch_size == paper.training.batch_size
            if table.population == "paper":
                assert np.array_equal(cell.task.budgets.epsilons, paper.budgets.epsilons)
            if table.population == "half" and asked.method != "fedavg":
                assert np.array_equal(2 * cell.task.budgets.epsilons, paper.budgets.epsilons)


def test_tuning_never_sees_the_test_set() -> None:
    assert set(TUNING) < set(TABLES)
    for table in TABLES.values():
        is_tuning = table.name in TUNING
        assert (TUNING_SEED in table.seeds) is is_tuning
        for cell in cells_of_table(table, "fmnist"):
            assert cell.task.training.validation == (VALIDATION if is_tuning else 0)


@pytest.mark.parametrize(("recipe", "name"), [(CNN, "tuning-cnn"), (FEATURES, "tuning-features")])
def test_what_was_chosen_was_tried(recipe: Recipe, name: str) -> None:
    tried = [cell.task.settings for cell in cells_of_table(TABLES[name], "fmnist")]
    chosen = recipe.on(load_task("fmnist")).settings
    assert chosen in tried


def test_unknown_tables_are_refused() -> None:
    with pytest.raises(InputError, match="'cnn'"):
        table_of("cnm")


@pytest.fixture(scope="module")
def page() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        spec = importlib.util.spec_from_file_location("beyond_page", ROOT / "docs" / "beyond_page.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
    return module


def made_up(name: str, accuracies: dict[str, list[float]]) -> list[CellRecord]:
    records = []
    for cell in cells_of_table(TABLES[name], "fmnist"):
        runs = tuple(
            RunRecord(
                seed=seed, key=f"{name}{cell.column}{seed}", rounds=(50,), accuracies=(accuracy,), epsilons=(None,),
                versions="v", by_budget=(accuracy - 1, accuracy, accuracy + 1) if "tied" in name else (),
            )
            for seed, accuracy in enumerate(accuracies.get(cell.column, []), start=1)
        )  # fmt: skip
        if runs:
            records.append(
                CellRecord(
                    experiment=name, dataset="fmnist", column=cell.column, method=cell.method.name, weights="",
                    scale="full", config=config_of(cell.task), plan="p", parameters=39_700, results_version=1,
                    runs=runs,
                )
            )  # fmt: skip
    return records


def test_page_pairs_by_seed(page: ModuleType, tmp_path: Path) -> None:
    """Means 84 and 80: differences 3, 4 and 5 have a standard error of 0.577, and t at 95 % with 2 degrees is 4.303."""
    ours, theirs = [83.0, 84.0, 85.0], [80.0, 80.0, 80.0]
    rows = {"ours": ours, "gdpfed+ (the paper: RDP)": theirs, "fedavg, same server": [84.0, 85.0, 86.0]}
    folder = tmp_path / "beyond"
    save_records(made_up("features", rows), folder)
    save_records(made_up("features-tied", rows), folder)
    text = page.beyond_page(folder, tmp_path / "none")
    assert text == page.beyond_page(folder, tmp_path / "none")
    assert "ours less gdpfed+ (the paper: RDP): **+4.00 (+1.52 to +6.48)**" in text
    assert "ours less fedavg with the same server: **-1.00 (-1.00 to -1.00)**" in text
    assert "| **ours** |" in text
    assert "| 84.00 ± 1.00 | 3 |" in text
    assert "83.0 / 84.0 / 85.0" in text
    assert "Not run." in text


def test_page_is_made_of_what_is_committed(page: ModuleType) -> None:
    """Everything below `reproduce/results` is a record, and the ideas that did not help are on the page."""
    text = page.beyond_page(ROOT / "reproduce" / "results" / "beyond", ROOT / "reproduce" / "notes" / "beyond")
    assert "## Ideas that did not help" in text


def test_a_note_for_nothing_is_refused(page: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "futures.md").write_text("a slip\n")
    with pytest.raises(SystemExit, match="explains nothing"):
        page.beyond_page(tmp_path / "results" / "beyond", tmp_path)
