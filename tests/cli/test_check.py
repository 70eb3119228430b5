"""`gdpfed check` from the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdpfed.planning.plan_file import save_plan
from tests.cli.test_cli import call, run
from tests.ledger.books import TWO, book, plan_for


def test_sound_or_not(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    book(tmp_path, text=TWO).close()
    code, out, err = call(capsys, "check", str(tmp_path))
    assert code == 0, err
    assert f"{tmp_path}/book (ledger): sound" in out
    assert "1 checked, 0 not sound" in out
    (tmp_path / "plan.toml").write_text("format = 2\n")
    code, out, _ = call(capsys, "check", str(tmp_path))
    assert code == 2
    assert "plan.toml (plan): NOT SOUND" in out
    assert "problem: expected a gdpfed plan with format = 1" in out
    code, out, _ = call(capsys, "check", str(tmp_path), "--json")
    assert code == 2
    told = json.loads(out)
    assert told["sound"] is False
    assert [(one["kind"], one["sound"]) for one in told["findings"]] == [("ledger", True), ("plan", False)]


def test_nothing_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "check", str(tmp_path))
    assert code == 0
    assert "no ledgers, plans, runs or homes there" in out
    code, _, err = call(capsys, "check", str(tmp_path / "nothing"))
    assert code == 2
    assert "not there" in err


def test_names_do_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a name that is no text, nor one that would talk to the terminal."""
    for name in (b"\xff\xfe.toml", b"\x1b[2Jx.toml"):
        with open(os.path.join(os.fsencode(tmp_path), name), "w") as file:
            file.write("# A gdpfed plan\n\x1b[2J")
    code, out, _ = call(capsys, "check", str(tmp_path))
    assert code == 2
    assert "\x1b" not in out
    assert "2 checked, 2 not sound" in out
    assert call(capsys, "check", str(tmp_path), "--json")[0] == 2


@pytest.mark.processes
def test_torch_is_not_needed(tmp_path: Path) -> None:
    save_plan(plan_for(TWO), tmp_path / "plan.toml")
    code = (
        "import sys; from gdpfed.runs.check import check_paths; "
        "found = list(check_paths(sys.argv[1:])); assert found[0].is_sound; "
        "assert not {'torch', 'flwr'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "check" in run("--help").stdout
