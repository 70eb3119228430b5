"""Results that are worth little say so: in what `train` returns, in the log, in the folder."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gdpfed
from gdpfed.runs.folder import open_run

pytestmark = pytest.mark.training


def trained(clients: list[Any], **changes: Any) -> gdpfed.Trained:
    settings = {"method": "gdpfed", "num_rounds": 8, "participation": 0.5, "delta": 1e-3}
    settings |= changes.pop("settings", {})
    torch.manual_seed(0)
    how = {
        "model": nn.Linear(5, 2), "budgets": "40@8,40@16", "seed": 3, "num_workers": 1, "test": clients[0],
        "local": gdpfed.LocalTraining(learning_rate=0.5),
    }  # fmt: skip
    return gdpfed.train(clients=clients[1:], settings=gdpfed.PlanSettings(**settings), **how | changes)  # type: ignore[arg-type]


def sound() -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(81, 40, 5, generator=generator)
    return [(rows, (rows[:, 0] > 0).long()) for rows in inputs]


def test_a_sound_result_has_no_remarks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = trained(sound(), out=tmp_path / "run")
    assert found.accuracies[-1] > 80
    assert found.remarks == open_run(tmp_path / "run").remarks() == ()
    assert not (tmp_path / "run" / "remarks.json").exists()
    assert not [record for record in caplog.records if record.name == "gdpfed"]


def test_worthless_results_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clients = sound()
    for number in (3, 4, 5):
        clients[number] = (clients[number][0] * float("nan"), clients[number][1])
    with caplog.at_level(logging.WARNING, logger="gdpfed"):
        found = trained(clients, out=tmp_path / "run")
    said = " | ".join(found.remarks)
    assert "3 of 80 clients have inputs that are not finite" in said
    dropped = sum(record.dropped or 0 for record in found.records)
    assert dropped > 0
    assert f"{dropped} updates were not finite" in said
    assert open_run(tmp_path / "run").remarks() == found.remarks
    assert [record.getMessage() for record in caplog.records if record.name == "gdpfed"] == list(found.remarks)
    # Called again, the finished run says the same.
    assert trained(clients, out=tmp_path / "run").remarks == found.remarks


def test_divergence_chance_and_absence_are_said() -> None:
    wild = trained(sound(), settings={"method": "fedavg", "server_learning_rate": 1e9, "clip_norm": 1e9})
    assert "of the untrained model: lower learning_rate" in " ".join(wild.remarks)
    guessed = trained([(inputs, torch.randint(0, 2, (40,))) for inputs, _ in sound()])
    assert "no better than always the most frequent answer" in " ".join(guessed.remarks)
    alone = trained(sound(), settings={"num_rounds": 1, "rates": (1e-4, 0.9), "delta": 1e-6})
    assert "nobody of" in " ".join(alone.remarks)
    assert "clients a round: raise participation" in " ".join(alone.remarks)
    nobody = trained(sound(), settings={"num_rounds": 1, "participation": 1e-4, "delta": 1e-6})
    assert "nobody took part in any round" in " ".join(nobody.remarks)


def test_the_plans_notes_are_said() -> None:
    found = trained(sound(), settings={"delta": 0.01})
    assert "delta times clients is" in " ".join(found.remarks)
