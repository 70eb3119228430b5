"""Secure sums from the command line."""

import json
from pathlib import Path

import pytest

from tests.cli.test_cli import call
from tests.runs.conftest import TINY

pytestmark = pytest.mark.training


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.toml").write_text(TINY)
    return "tiny.toml"


def test_train_with_secure_sums(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--secure", "--dropout", "0.1", "--colluders", "0.1", "--rounds", "2", "--workers", "1")
    code, out, err = call(capsys, "train", tiny, *arguments)
    assert code == 0, err
    assert "secure sums" in out
    run = tmp_path / "runs" / "Tiny-gdpfed+-secure-seed1"
    told = (run / "run.toml").read_text()
    assert "secure = true\ndropout = 0.1\ncolluders = 0.1\n" in told
    # The folder's own file starts the same run again.
    code, out, err = call(capsys, "train", str(run / "run.toml"), "--workers", "2", "--out", "again", "--json")
    assert code == 0, err
    for name in ("records.jsonl", "model.safetensors"):
        assert (run / name).read_bytes() == (tmp_path / "again" / name).read_bytes()
    assert json.loads(out)["accuracy"] > 0


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--dropout", "0.1"), "secure = true"),
        (("--secure", "--dropout", "0.7"), "dropout < 0.5"),
        (("--secure", "--method", "fedavg"), "clip norm and noise"),
    ],
)
def test_bad_input(tiny: str, arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "train", tiny, *arguments, "--out", "run")
    assert code == 2
    assert err.startswith("error: ")
    assert named in err
    assert not Path("run").exists()
