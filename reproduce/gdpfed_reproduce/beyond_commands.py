"""`gdpfed reproduce beyond`: ours against the paper's method and against no privacy, at the paper's budgets.

Place: tables of `gdpfed_reproduce/beyond.py` -> jobs -> batch -> records. The same command goes on where it was.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gdpfed.cli import options
from gdpfed.cli.show import console, print_json, table
from gdpfed.errors import InputError, expect_word
from gdpfed.runs.stamp import STAMP
from gdpfed_reproduce.batch import Job
from gdpfed_reproduce.beyond import TABLES, Table, cells_of_table, table_of
from gdpfed_reproduce.beyond_rows import rows_with_records
from gdpfed_reproduce.experiments import Cell, Scale
from gdpfed_reproduce.options_commands import (
    OUT,
    Asked,
    Background,
    DataDir,
    Missing,
    Out,
    Records,
    Workers,
    asked_of,
    recorded_runs,
    records_folder,
    settled,
)
from gdpfed_reproduce.records import CellRecord, load_records
from gdpfed_reproduce.training_commands import make_runs

__all__ = ["beyond"]


def _wanted(tables: Sequence[Table], seeds: int | None) -> list[tuple[Cell, Job]]:
    """A whole table with its first seed before its next seed."""
    wanted = []
    for table_ in tables:
        for seed in table_.seeds[:seeds]:
            for dataset in table_.datasets:
                for cell in cells_of_table(table_, dataset):
                    name = f"{dataset}-{cell.task.settings.method}-s{seed}"
                    purpose = f"{table_.name}: {cell.column}"
                    wanted.append((cell, Job(name=name, task=cell.task, seed=seed, purpose=purpose)))
    return wanted


def _with_rows(whole: Table, rows: str) -> Table:
    """The table with these rows alone."""
    names = [name.strip() for name in rows.split(";") if name.strip()]
    for name in names:
        expect_word(f"a row of {whole.name} among", name, whole.rows)
    return dataclasses.replace(whole, rows={name: whole.rows[name] for name in names}) if names else whole


def _asked(
    out: Path, records: Path | None, workers: int | None, background: bool, data_dir: Path | None, as_json: bool
) -> Asked:
    return asked_of(
        (),
        datasets="fmnist",
        seeds=None,
        scale=Scale(),
        out=out,
        records=records or records_folder(None, out=out) / "beyond",
        workers=workers,
        in_background=background,
        data_dir=data_dir,
        as_json=as_json,
    )


def beyond(
    tables: Annotated[str, typer.Option("--tables", help="Tables, separated by commas.")] = ",".join(TABLES),
    rows: Annotated[str, typer.Option("--rows", help="Rows of the tables, separated by ';'. Default: all.")] = "",
    seeds: Annotated[int | None, typer.Option("--seeds", help="Only so many of each table's seeds.")] = None,
    missing: Missing = False,
    out: Out = OUT,
    records: Records = None,
    workers: Workers = None,
    background: Background = False,
    data_dir: DataDir = None,
    as_json: options.Json = False,
) -> None:
    """Better than the paper at its budgets: each ingredient alone, paired seeds (docs/beyond.md). Trains; interrupted,
    the same command goes on."""
    if seeds is not None and seeds < 1:
        raise InputError(f"expected --seeds >= 1, got --seeds {seeds}")
    chosen = [_with_rows(table_of(name.strip()), rows) for name in tables.split(",")]
    asked = _asked(out, records, workers, background, data_dir, as_json)
    recorded = recorded_runs(asked.records) if missing else set()
    wanted = [(cell, job) for cell, job in _wanted(chosen, seeds) if settled(job.task, job.seed) not in recorded]
    make_runs(asked, wanted)
    kept = load_records(asked.records)
    found = {(each, dataset): rows_with_records(each, dataset, kept) for each in chosen for dataset in each.datasets}
    if as_json:
        rows_found = [_row(each, row, record) for (each, _), there in found.items() for row, record in there.items()]
        print_json({"stamp": STAMP, "rows": rows_found})
        return
    shown = console()
    for (each, dataset), there in found.items():
        lines = [_cells(row, record) for row, record in there.items()]
        shown.print(table(f"{each.title}, {dataset} (%)", ["row", "accuracy", "seeds"], lines))
    shown.print(f"{STAMP}\nrecords: {asked.records}", soft_wrap=True)


def _row(whole: Table, row: str, record: CellRecord) -> dict[str, object]:
    return {
        "table": whole.name,
        "dataset": record.dataset,
        "row": row,
        "accuracies": {str(run.seed): run.accuracy for run in record.runs},
    }


def _cells(row: str, record: CellRecord) -> list[str]:
    accuracies = [run.accuracy for run in record.runs]
    return [row, f"{statistics.fmean(accuracies):.2f}", str(len(accuracies))]
