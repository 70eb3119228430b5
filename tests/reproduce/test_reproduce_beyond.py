"""`gdpfed reproduce beyond` on a table that trains in seconds."""

import dataclasses
import json
from pathlib import Path
from typing import cast

import pytest

from gdpfed.cli import main
from gdpfed.privacy.budgets import parse_compact
from gdpfed.tasks.task import Task
from gdpfed_reproduce import beyond
from gdpfed_reproduce.beyond import Table
from gdpfed_reproduce.recipes import CNN

pytestmark = pytest.mark.training


def tiny(method: str) -> beyond.Change:
    def change(task: Task) -> Task:
        settings = dataclasses.replace(task.settings, num_rounds=2, participation=0.05)
        few = dataclasses.replace(
            task, settings=settings, budgets=parse_compact("60@1,60@4"), budgets_source="60@1,60@4"
        )
        training = dataclasses.replace(few.training, partition="dirichlet", concentration=0.3, group_skew=0.7)
        return CNN.on(dataclasses.replace(few, training=training), method)

    return change


def test_tables_are_trained_recorded_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = {"ours": tiny("pooled"), "fedavg, same server": tiny("fedavg")}
    made = Table(name="tiny", title="Tiny", population="paper", rows=rows, seeds=(1, 2), datasets=("fmnist-mini",))
    monkeypatch.setitem(cast(dict[str, Table], beyond.TABLES), "tiny", made)
    monkeypatch.setenv("GDPFED_CACHE", str(tmp_path / "cache"))
    asked = ["reproduce", "beyond", "--tables", "tiny", "--out", str(tmp_path), "--records", str(tmp_path / "records")]
    assert run(*asked, "--seeds", "1", "--workers", "1") == 0
    assert "fedavg, same server" in capsys.readouterr().out
    assert run(*asked, "--workers", "1", "--json") == 0
    content = json.loads(capsys.readouterr().out)
    assert {row["row"] for row in content["rows"]} == set(rows)
    assert all(set(row["accuracies"]) == {"1", "2"} for row in content["rows"])
    recorded = json.loads((tmp_path / "records" / "fmnist-mini" / "tiny.json").read_text())
    assert all(len(run["by_budget"]) == 2 for cell in recorded["cells"] for run in cell["runs"])


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(cast(int, ended.value.code) or 0)


def test_unknown_table_and_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("reproduce", "beyond", "--tables", "featurs") == 2
    assert "features" in capsys.readouterr().err
    assert run("reproduce", "beyond", "--seeds", "0") == 2
