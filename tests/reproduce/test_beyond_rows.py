"""Rows of our tables, from whatever table their runs were made for."""

import dataclasses

import pytest

from gdpfed.errors import InputError
from gdpfed_reproduce.beyond import TABLES, cells_of_table
from gdpfed_reproduce.beyond_rows import rows_with_records
from gdpfed_reproduce.records import CellRecord, config_of
from tests.reproduce.test_verdicts import record

TABLE = TABLES["features-half"]


def recorded(row: str, *accuracies: float, experiment: str) -> CellRecord:
    (cell,) = (cell for cell in cells_of_table(TABLE, "fmnist") if cell.column == row)
    return dataclasses.replace(
        record("gdpfed", *accuracies), experiment=experiment, column="elsewhere", config=config_of(cell.task)
    )


def test_rows_are_known_by_configuration() -> None:
    fedavg = recorded("fedavg, same server", 70.0, 71.0, experiment="features")
    more = dataclasses.replace(fedavg, experiment="features-half", runs=fedavg.runs[1:])
    found = rows_with_records(TABLE, "fmnist", [fedavg, more, record("gdpfed", 1.0)])
    assert {row: [run.accuracy for run in each.runs] for row, each in found.items()} == {
        "fedavg, same server": [70.0, 71.0]
    }


def test_disagreeing_records_are_refused() -> None:
    two = [recorded("ours", accuracy, experiment=name) for name, accuracy in (("features", 70.0), ("more", 70.1))]
    with pytest.raises(InputError, match="features-half, ours, seed 1 disagree"):
        rows_with_records(TABLE, "fmnist", two)
