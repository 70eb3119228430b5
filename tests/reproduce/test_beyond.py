"""The tables of docs/beyond.md, and the page."""

import importlib.util
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from gdpfed.errors import InputError
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.recommend import server_settings
from gdpfed.tasks.task import load_task
from gdpfed_reproduce.beyond import (
    NO_BUDGET,
    PAPER,
    SAME_CLIP,
    SEEDS,
    TABLES,
    TUNING,
    TUNING_SEED,
    VALIDATION,
    cells_of_table,
    table_of,
)
from gdpfed_reproduce.recipes import CNN, FEATURES, FEDAVG, GDPFED, OTHERS
from gdpfed_reproduce.records import CellRecord, RunRecord, config_of, differences, load_records, save_records

ROOT = Path(__file__).parents[2]


def test_every_row_is_the_papers_configuration() -> None:
    for table in TABLES.values():
        for dataset in table.datasets:
            paper = load_task(dataset)
            cells = cells_of_table(table, dataset)
            for cell in cells:
                asked, training = cell.task.settings, cell.task.training
                for name in ("num_rounds", "participation", "delta", "local_steps"):
                    assert getattr(asked, name) == getattr(paper.settings, name)
                for name in ("batch_size", "momentum", "learning_rate_decay"):
                    assert getattr(training, name) == getattr(paper.training, name)
                epsilons = cell.task.budgets.epsilons
                if cell.column == SAME_CLIP:
                    assert set(epsilons) == {NO_BUDGET}
                elif table.population in ("paper", "dirichlet", "tied"):
                    assert np.array_equal(epsilons, paper.budgets.epsilons)
                    assert training.partition == paper.training.partition or table.population in ("dirichlet", "tied")
                elif table.population == "half" and asked.method != "fedavg":
                    assert np.array_equal(2 * epsilons, paper.budgets.epsilons)
                # Roles that are held out cannot be clients.
                assert len(epsilons) == (687 if table.population == "fewer" else len(paper.budgets))


def test_tuning_never_sees_the_test_set() -> None:
    assert set(TUNING) < set(TABLES)
    for table in TABLES.values():
        is_tuning = table.name in TUNING
        assert (TUNING_SEED in table.seeds) is is_tuning
        for dataset in table.datasets:
            for cell in cells_of_table(table, dataset):
                assert cell.task.training.validation == (VALIDATION if is_tuning else 0)


CHOSEN = {
    "tuning-cnn": CNN,
    "tuning-features": FEATURES,
    **{f"tuning-{dataset}": recipe for dataset, recipe in OTHERS.items()},
    **{f"tuning-{name}-fedavg": recipe for name, recipe in FEDAVG.items()},
    **{f"tuning-{name}-gdpfed+": recipe for name, recipe in GDPFED.items()},
}


@pytest.mark.parametrize("name", TUNING)
def test_what_was_chosen_was_tried(name: str) -> None:
    table = TABLES[name]
    (tried,) = (cell for cell in cells_of_table(table, table.datasets[0]) if cell.column == table.chosen)
    method = next((method for method in ("fedavg", "gdpfed+") if name.endswith(method)), "pooled")
    same = {name: getattr(tried.task.settings, name) for name in ("accountant", "num_rounds", "participation")}
    chosen = CHOSEN[name].on(load_task(table.datasets[0]), method, **same)
    assert chosen.settings == tried.task.settings
    assert chosen.training.model_width == tried.task.training.model_width


@pytest.mark.parametrize("name", TUNING)
def test_what_was_chosen_was_best(name: str) -> None:
    """Or, of what is within a tenth of a point of the best, the smallest server step, then learning rate."""
    table = TABLES[name]
    wanted = {cell.column: config_of(cell.task) for cell in cells_of_table(table, table.datasets[0])}
    records = [
        record for record in load_records(ROOT / "reproduce" / "results" / "beyond")
        if record.experiment == name and not differences(record.config, wanted.get(record.column, {}))
    ]  # fmt: skip
    assert {record.column for record in records} == set(table.rows)
    assert {run.seed for record in records for run in record.runs} == {TUNING_SEED}
    best = max(record.runs[0].accuracy for record in records)
    near = [record for record in records if record.runs[0].accuracy >= best - 0.1 - 1e-9]
    steps = ("server_learning_rate", "learning_rate")
    gentlest = min(near, key=lambda record: (*(record.config[name] for name in steps), -record.runs[0].accuracy))
    assert gentlest.column == table.chosen


# As the committed records were planned: the last digits of an optimum depend on which of its kernels OpenBLAS takes.
AS_RECORDED = {"OPENBLAS_CORETYPE": "SkylakeX", "OMP_NUM_THREADS": "1", "GDPFED_CACHE": "off"}
PLANNED = """
import sys
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan_file import plan_hash
from gdpfed_reproduce.batch import run_key
from gdpfed_reproduce.beyond import TABLES, cells_of_table
name, row = sys.argv[1:3]
(cell,) = (each for each in cells_of_table(TABLES[name], "fmnist") if each.column == row)
plan = plan_hash(make_plan(cell.task.budgets, cell.task.settings))
print(plan, *(run_key(cell.task, plan=plan, seed=int(seed)) for seed in sys.argv[3:]))
"""


def has_avx512() -> bool:
    info = Path("/proc/cpuinfo")
    return info.is_file() and "avx512f" in info.read_text()


@pytest.mark.training
@pytest.mark.skipif(not has_avx512(), reason="the kernels that the records were planned with need AVX-512")
@pytest.mark.parametrize(("name", "row"), [("features", "ours"), ("cnn", "ours"), ("features-half", PAPER)])
def test_runs_keep_their_names(name: str, row: str) -> None:
    """What is committed was made by the plans and tasks of today: neither a plan's hash nor a run's key has moved."""
    (record,) = (
        each for each in load_records(ROOT / "reproduce" / "results" / "beyond")
        if (each.experiment, each.dataset, each.column) == (name, "fmnist", row)
    )  # fmt: skip
    seeds = [str(run.seed) for run in record.runs]
    planned = subprocess.run(
        [sys.executable, "-c", PLANNED, name, row, *seeds],
        env={**os.environ, **AS_RECORDED},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )
    assert planned.stdout.split() == [record.plan, *(run.key for run in record.runs)]


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


def plan_and_size(name: str, dataset: str, row: str) -> tuple[Plan, int]:
    """Of a table's row: its plan, and the parameters of its model, from a record."""
    (cell,) = (each for each in cells_of_table(TABLES[name], dataset) if each.column == row)
    sizes = {
        record.parameters for record in load_records(ROOT / "reproduce" / "results")
        if record.config["training"]["model"] == cell.task.training.model and record.dataset == dataset
    } | {
        record.parameters for record in load_records(ROOT / "reproduce" / "results" / "beyond")
        if (record.experiment, record.column) == (name, row)
    }  # fmt: skip
    return make_plan(cell.task.budgets, cell.task.settings), min(sizes)


@pytest.mark.training
@pytest.mark.parametrize("name", ["features", "cnn", *OTHERS])
def test_the_step_is_what_did_best(name: str) -> None:
    plan, size = plan_and_size(name, "fmnist" if name in ("features", "cnn") else name, "ours")
    step, _ = server_settings(plan.signal_to_noise / math.sqrt(size), num_rounds=plan.num_rounds)
    assert 1 / 1.5 < step / plan.server_learning_rate < 1.5


def test_page_pairs_by_seed(page: ModuleType, tmp_path: Path) -> None:
    """Means 84 and 80: differences 3, 4 and 5 have a standard error of 0.577, and t at 95 % with 2 degrees is 4.303."""
    ours, theirs = [83.0, 84.0, 85.0], [80.0, 80.0, 80.0]
    rows = {"ours": ours, "gdpfed+ (the paper: RDP)": theirs, "fedavg, same server": [84.0, 85.0, 86.0]}
    folder = tmp_path / "beyond"
    save_records(made_up("features", rows), folder)
    save_records(made_up("features-tied", rows), folder)
    text = page.beyond_page(folder, tmp_path / "none")
    assert text == page.beyond_page(folder, tmp_path / "none")
    table = page.beyond_tables(folder, tmp_path / "none")["beyond"]
    assert table == page.beyond_tables(folder, tmp_path / "none")["beyond"]
    assert "ours less gdpfed+ as in the paper: **+4.00 (+1.52 to +6.48)**" in table
    assert "less fedavg with the same server: **-1.00 (-1.00 to -1.00)**" in table
    assert "3 points ahead of gdpfed+ | +4.00 (+1.52 to +6.48): holds for the mean only |" in table
    assert "within 1 point of fedavg with the same server | -1.00 (-1.00 to -1.00): holds, with its interval |" in table
    assert "within 1 point of itself with next to no noise | not run |" in table
    accuracies = "**84.00 ± 1.00** | 80.00 ± 0.00 | not run | 85.00 ± 1.00 | not run"
    assert f"| FMNIST, scattering features | {accuracies} | 75.83 | 78.96 |" in text
    assert "| **ours** |" in table
    assert "| 84.00 ± 1.00 | 3 |" in table
    assert "83.0 / 84.0 / 85.0" in table
    assert "Not run." in table


def test_picture_shows_what_was_run(page: ModuleType, tmp_path: Path) -> None:
    folder = tmp_path / "beyond"
    assert page.draw_beyond(folder, tmp_path) is None
    save_records(made_up("features", {"ours": [84.0], PAPER: [80.0, 81.0]}), folder)
    drawn = page.draw_beyond(folder, tmp_path)
    assert drawn.name == "beyond.png"
    assert drawn.stat().st_size > 10_000


def test_an_opponent_that_diverges_shows_nothing(page: ModuleType, tmp_path: Path) -> None:
    rows = {"ours": [83.0, 84.0, 85.0], "fedavg, same server": [80.0, 10.0, 82.0], PAPER: [80.0, 80.0]}
    save_records(made_up("features", rows), tmp_path / "beyond")
    text = page.beyond_tables(tmp_path / "beyond", tmp_path / "none")["beyond"]
    assert "no verdict, the opponent diverges (its seeds lie between 10.0 and 82.0)" in text
    assert "3 points ahead of gdpfed+ | +3.50: too few seeds |" in text
    assert "at least 82 %, private | 84.00 (81.52 to 86.48): holds for the mean only |" in text


@pytest.mark.parametrize("name", ["cnn", "features", "cnn-half", "features-half"])
def test_readme_says_what_was_measured(name: str) -> None:
    (record,) = (
        each for each in load_records(ROOT / "reproduce" / "results" / "beyond")
        if (each.experiment, each.column) == (name, "ours")
    )  # fmt: skip
    mean = statistics.fmean(run.accuracy for run in record.runs)
    (line,) = (part for part in (ROOT / "README.md").read_text().split("\n- ") if "Better at the same" in part[:25])
    assert len(record.runs) == SEEDS
    assert f"{mean:.1f}" in line


def test_page_has_the_committed_ideas(page: ModuleType) -> None:
    pages = page.beyond_tables(ROOT / "reproduce" / "results" / "beyond", ROOT / "reproduce" / "notes" / "beyond")
    assert "## Ideas that did not help" in pages["beyond"]


def test_a_note_for_nothing_is_refused(page: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "futures.md").write_text("a slip\n")
    with pytest.raises(SystemExit, match="explains nothing"):
        page.beyond_page(tmp_path / "results" / "beyond", tmp_path)
