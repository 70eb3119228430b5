"""The rows of a table of `beyond` that have records, wherever those are kept.

Place: tables of `beyond.py` and `records` -> rows, for the command and for docs/beyond.md. Tables share runs: a row is
known by its configuration, not by the table that it was made for.

Guarantees (tests of the same name):
  rows_are_known_by_configuration   made for another table, a run counts in every table that has its row.
  disagreeing_records_are_refused   two accuracies of one configuration and seed are an error.
"""

import dataclasses
from collections.abc import Sequence

from gdpfed.errors import InputError
from gdpfed_reproduce.beyond import Table, cells_of_table
from gdpfed_reproduce.records import CellRecord, RunRecord, config_of, differences

__all__ = ["rows_with_records"]


def rows_with_records(table: Table, dataset: str, records: Sequence[CellRecord]) -> dict[str, CellRecord]:
    """Each row's record, with the runs of the table's seeds."""
    found = {}
    for cell in cells_of_table(table, dataset):
        wanted = config_of(cell.task)
        same = [
            record
            for record in records
            if (record.dataset, record.scale) == (dataset, "full") and not differences(record.config, wanted)
        ]
        runs: dict[int, RunRecord] = {}
        for run in (run for record in same for run in record.runs if run.seed in table.seeds):
            if runs.setdefault(run.seed, run).accuracy != run.accuracy:
                raise InputError(
                    f"two records of {table.name}, {cell.column}, seed {run.seed} disagree: make them again"
                )
        if runs:
            found[cell.column] = dataclasses.replace(same[0], runs=tuple(runs[seed] for seed in sorted(runs)))
    return found
