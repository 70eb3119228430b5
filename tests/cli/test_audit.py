"""`gdpfed audit` as a user meets it."""

import dataclasses
import json
from pathlib import Path

import pytest

from gdpfed.audit import auditor as auditing
from tests.cli.test_cli import call
from tests.runs.conftest import TINY

pytestmark = pytest.mark.training

QUICK = ("60@1,90@6", "--method", "gdpfed", "--rounds", "6", "--participation", "0.2", "--canaries", "400")


def test_audit_prints_claims_bounds_and_controls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "audit.svg"
    code, out, err = call(capsys, "audit", *QUICK, "--plot", str(picture))
    assert code == 0, err
    assert out.count("stands") == 13
    assert "dropout 0.1, colluders 0.1" in out
    assert "no noise" in out
    assert "nothing contradicts the claims" in out
    assert "alpha = 0.001 for the whole report" in out
    assert "the server, which knows who took part" in picture.read_text()


def test_audit_of_a_rotation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One claim against both; the server has no coins, and the controls are those of coins."""
    picture = tmp_path / "audit.svg"
    stated = ("--against", "server", "--asks", "3", "--trainings", "1", "--group", "group 2")
    code, out, err = call(capsys, "audit", *QUICK, *stated, "--plot", str(picture))
    assert code == 0, err
    assert out.count("stands") == 5
    assert " the server " in out
    assert "also who took part" not in out
    assert "noise, coin and asks, against both" in out
    assert "one coin for a whole run" in out
    assert "a cohort of fixed size" not in out
    assert "the server, which knows who was asked" in picture.read_text()
    code, out, _ = call(capsys, "audit", *QUICK, *stated, "--no-controls", "--mechanism", "float", "--json")
    content = json.loads(out)
    assert content["sampling"] == "rotation"
    assert len({claim["claim"] for claim in content["claims"]}) == 1


def test_audit_of_a_saved_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "plan.toml"
    code, _, err = call(capsys, "plan", *QUICK[:-2], "--out", str(saved))
    assert code == 0, err
    arguments = ("--canaries", "400", "--group", "group 2", "--mechanism", "float", "--no-controls", "--json")
    code, out, err = call(capsys, "audit", str(saved), *arguments)
    assert code == 0, err
    content = json.loads(out)
    assert [claim["view"] for claim in content["claims"]] == ["release", "server", "others"]
    assert content["controls"] == []
    assert call(capsys, "audit", str(saved), "--rounds", "3")[0] == 2
    assert "saved plan" in call(capsys, "audit", str(saved), "--train")[2]


def test_audit_exits_with_1_when_a_promise_is_false(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = dataclasses.replace(auditing.PATHS["float"], noise_round=lambda _round: 0)
    monkeypatch.setitem(auditing.PATHS, "float", broken)
    arguments = (*QUICK, "--mechanism", "float", "--no-controls", "--group", "group 1")
    code, out, _ = call(capsys, "audit", *arguments)
    assert code == 1
    assert "CONTRADICTED" in out
    assert "FALSE" in out
    code, out, _ = call(capsys, "audit", *arguments, "--json")
    assert code == 1
    assert json.loads(out)["contradicted"] is True


def test_audit_of_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "tiny.toml").write_text(TINY)
    arguments = ("audit", str(tmp_path / "tiny.toml"), "--train", "--rounds", "2", "--canaries", "40", "--workers", "1")
    code, out, err = call(capsys, *arguments)
    assert code == 0, err
    assert "one training of 2 rounds, 40 canaries" in out
    code, out, _ = call(capsys, *arguments, "--json", "--group", "group 1")
    assert json.loads(out)["group"] == "group 1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--group", "nobody"), "expected a group of the plan"),
        (("--mechanism", "double"), "expected mechanism"),
        (("--alpha", "2"), "0 < alpha"),
        (("--canaries", "10"), "200 canaries"),
        (("--dropout", "0.5"), "dropout_rate < 0.5"),
        (("--colluders", "-0.1"), "0 <= colluding_fraction"),
        (("--workers", "0"), "--workers from 1"),
        (("--train", "--plot", "a.png"), "without --train"),
        (("--train", "--mechanism", "float"), "secure = true"),
    ],
)
def test_audit_refuses(arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "audit", *QUICK, *arguments)
    assert code == 2
    assert message in err
