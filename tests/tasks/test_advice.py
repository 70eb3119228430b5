"""What is advised where nobody chooses."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gdpfed.cli import app
from gdpfed.errors import InputError
from gdpfed.tasks.advice import advice_for
from gdpfed.tasks.catalogue import DATA_SETS
from gdpfed.tasks.models import MODELS


def test_every_data_set_has_advice_that_exists() -> None:
    for dataset in DATA_SETS:
        assert advice_for(dataset)["model"] in MODELS
    # Of data of one's own nothing is known: its file says how clients train.
    assert advice_for("package.module:function") == {"method": "auto"}
    assert advice_for("fmnist", stated={"model": "cnn2"}) == {"method": "auto", "model": "cnn2", "learning_rate": 0.2}
    # A model's learning rate is its own, stated or not.
    assert advice_for("fmnist", stated={"model": "scattering-linear"}) == advice_for("fmnist")
    assert advice_for("cifar10", stated={"model": "public-image"})["learning_rate"] == 10
    with pytest.raises(InputError, match="expected --auto, which is a method, or --method, got both"):
        advice_for("fmnist", stated={"method": "pooled"})


@pytest.mark.training
def test_auto_trains_with_nothing_chosen(tmp_path: Path) -> None:
    asked = ["train", "--auto", "--rounds", "2", "--model", "small-cnn", "--out", str(tmp_path / "run"), "--json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["folder"] == str(tmp_path / "run")
    assert 'method = "auto"' in (tmp_path / "run" / "plan.toml").read_text()


WITHOUT = """
import sys
sys.modules["cryptography"] = None
from gdpfed.cli import main
main(["train", "--auto", "--rounds", "1", "--model", "small-cnn", "--out", sys.argv[1]])
"""


@pytest.mark.training
def test_training_needs_no_cryptography(tmp_path: Path) -> None:
    """`make run` installs none: what a newcomer sees first."""
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT, str(tmp_path / "run")], capture_output=True, text=True, timeout=300
    )
    assert run.returncode == 0, run.stderr
