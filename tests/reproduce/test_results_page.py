"""docs/results.md, made of records that are made up here."""

import dataclasses
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from gdpfed_reproduce.experiments import EXPERIMENTS, Scale, cells_of
from gdpfed_reproduce.records import CellRecord, RunRecord, config_of, save_records

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def page() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results_page", DOCS / "results_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["results_page"] = module
    spec.loader.exec_module(module)
    # These are computed, not read from records, and take their time.
    module._sampling = module._noise = lambda: ""  # type: ignore[attr-defined]
    return module


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
        save_records(made_up(name, "fmnist", shift=0.2), folder)
    save_records(made_up("main", "cifar10", scale=Scale(num_rounds=20)), folder)
    save_records([dataclasses.replace(record, scale="smoke") for record in made_up("main", "svhn")], folder)
    return folder


@pytest.mark.training
def test_page_is_made_of_records_and_notes(page: ModuleType, records: Path, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    (notes / "main-fmnist.md").write_text("Because it was **measured**.\n")
    text = page.results_page(records, notes)
    assert text == page.results_page(records, notes)
    assert "| gdpfed+ | 75.83 ± 0.47 | 76.03 ± 1.00 | 3 | +0.20 | within the spread |" in text
    assert "| pooled | not printed | 60.20 ± 1.00 | 3 |  | not in the paper |" in text
    assert "| gdpfed+ | 0.1,0.3,0.5 | 75.52 ± 0.27 | 75.72 ± 1.00 | 3 | +0.20 | within the spread |" in text
    assert "18,378 parameters; gdpfed 0.1.0." in text
    assert "Because it was **measured**." in text
    assert "**Not the paper's configuration**: 20 of 100 rounds." in text
    assert "| fedavg | 56.40 ± 0.34 | 56.40 ± 1.00 | 3 |  | not comparable |" in text
    assert "<details><summary>SVHN: not run</summary>" in text
    assert "Best first, paper: fedavg > gdpfed+ > idp-fedavg > gdpfed > pfa > dp-fedavg. Ours: fedavg > gdpfed+" in text
    assert "| fedavg | 3 | 71.16 | 73.16 | 75.16 | 77.16 | 79.16 |" in text
    assert "6 within the spread | not run | 6 not comparable | not run |" in text
    (notes / "man-fmnist.md").write_text("a slip\n")
    with pytest.raises(SystemExit, match=r"man-fmnist\.md explains nothing"):
        page.results_page(records, notes)


def test_differences_are_bold(page: ModuleType, tmp_path: Path) -> None:
    save_records(made_up("clipping", "fmnist", shift=-4.0), tmp_path)
    text = page.results_page(tmp_path, tmp_path / "none")
    assert "| dp-fedavg | 1x | 71.88 ± 0.15 | 67.88 ± 1.00 | 3 | -4.00 | **differs** |" in text


@pytest.mark.training
def test_pictures(page: ModuleType, records: Path, tmp_path: Path) -> None:
    drawn = page.draw_pictures(records, tmp_path / "img")
    assert [path.stem for path in drawn] == list(EXPERIMENTS)
    assert all(path.stat().st_size > 10_000 for path in drawn)


def test_no_records_no_pictures(page: ModuleType, tmp_path: Path) -> None:
    assert page.draw_pictures(tmp_path, tmp_path / "img") == []
    text = page.results_page(tmp_path, tmp_path / "none")
    assert "img/main.png" not in text
    assert "**differs** |" not in text
