"""The one type of a record."""

import dataclasses
import json
import math

import pytest

from gdpfed.errors import InputError
from gdpfed.runs.record import Record

RECORD = Record(
    round_number=3,
    accuracy=51.25,
    loss=1.5,
    epsilons=(0.5, math.inf),
    cohort=(10, 12),
    clipped=4,
    dropped=1,
    update_norm=0.1 + 0.2,
)
OLD = '{"round": 2, "accuracy": 9.0, "loss": 2.0, "epsilons": [1.0], "cohort": [3], "clipped": 0, "dropped": 0, '
OLD += '"update_norm": 0.5}'


def read(line: str) -> Record:
    return Record.from_json(json.loads(line))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clipped": None, "dropped": None},
        {"vanished": 2},
        {"by_budget": (1.0, 2.0)},
        {"device": "cuda"},
        {"public_data": "the King James Bible"},
    ],
)
def test_a_record_comes_back(changes: dict[str, object]) -> None:
    record = dataclasses.replace(RECORD, **changes)  # type: ignore[arg-type]
    assert read(record.to_line()) == record
    assert read(record.to_line()).to_line() == record.to_line()
    assert json.loads(record.to_line())["epsilons"] == [0.5, None]


def test_a_line_of_an_older_release() -> None:
    assert read(OLD).clipped == 0
    assert read(OLD).to_line() == OLD + "\n"


@pytest.mark.parametrize(
    "line",
    ["[]", "3", OLD.replace("9.0", "1" + 400 * "0"), OLD.replace("[1.0]", "[-1.0]"), OLD.replace("9.0", "NaN"),
     OLD.replace("9.0", "true"), OLD.replace("[3]", "[-3]"), OLD.replace("[3]", "3"),
     OLD.replace('"round": 2', '"round": 2.5')],
)  # fmt: skip
def test_what_is_no_record_is_refused(line: str) -> None:
    with pytest.raises(InputError, match="line 7"):
        Record.from_json(json.loads(line), where="line 7")


def test_own_metrics_come_back() -> None:
    told = dataclasses.replace(RECORD, measure="less loss than untrained", metrics={"error": 0.25})
    assert Record.from_json(json.loads(told.to_line())) == told
    with pytest.raises(InputError, match="numbers by name as metrics"):
        Record.from_json(json.loads(told.to_line()) | {"metrics": [1]})
    assert "metrics" not in RECORD.to_line()
    assert "measure" not in RECORD.to_line()
