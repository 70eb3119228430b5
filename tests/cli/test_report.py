"""`gdpfed report` and `gdpfed plot` as a user meets them."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from gdpfed.runs.folder import STAMP
from tests.cli.test_cli import call
from tests.report.synthetic import QUICK_SIX, records_of, task_of, write_records, write_run, write_runs


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    write_runs(tmp_path / "runs", methods=("fedavg", "gdpfed"), seeds=2)
    return "runs"


@pytest.mark.training
def test_the_ending_selects_the_format(runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "report", runs)
    assert code == 0, err
    assert out.startswith("report.html: Made up, methods: 2, runs: 4, ")
    assert STAMP in out
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    for name, start in (("a.HTM", "<!doctype html>"), ("a.md", "# Made up: gdpfed reaches"), ("a.json", "{")):
        code, _, err = call(capsys, "report", runs, "-o", name)
        assert code == 0, err
        assert (tmp_path / name).read_text().startswith(start)
        assert STAMP.removeprefix("simulation: ") in (tmp_path / name).read_text()
    code, out, _ = call(capsys, "report", runs, "--md")
    assert out == (tmp_path / "a.md").read_text()
    code, out, _ = call(capsys, "report", runs, "--json")
    assert json.loads(out) == json.loads((tmp_path / "a.json").read_text())
    code, _, err = call(capsys, "report", runs, "--json", "-o", "plain")
    assert code == 0, err
    assert (tmp_path / "plain").read_text() == out
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-o", "report.txt"), "ends in .html, .md or .json, got 'report.txt'"),
        (("--md", "--json"), "expected --md or --json, got both"),
        (("--md", "-o", "report.html"), "got --md and 'report.html'"),
        (("-o", "no/such/report.html"), "'no/such' is not a folder; make it first"),
        (("-o", "folder.html"), "which is a folder"),
    ],
)
def test_bad_options(
    runs: str, arguments: tuple[str, ...], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder.html").mkdir()
    before = sorted(tmp_path.iterdir())
    code, out, err = call(capsys, "report", runs, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_bad_input_is_one_line_and_no_file(runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(words: str, *folders: str) -> None:
        for command in (("report",), ("plot", "-o", "pictures")):
            code, out, err = call(capsys, *command, *folders)
            assert (code, out) == (2, "")
            assert words in err
            assert err.count("\n") == 1
        assert not (tmp_path / "report.html").exists()
        assert not (tmp_path / "pictures").exists()

    refused("expected a run folder", "nothing")
    refused("twice", "runs", "runs/gdpfed-seed1")
    write_run(tmp_path / "half", task_of("gdpfed"), seed=9, rounds=4)
    refused("'half', which has done 4 rounds", "runs", "half")
    write_run(tmp_path / "svhn", task_of("gdpfed", dataset="svhn"), seed=9)
    refused("different data set: 'fmnist-mini' and 'svhn'", "runs", "svhn")
    broken = write_run(tmp_path / "broken", task_of("gdpfed"), seed=9)
    records = records_of(broken.plan, seed=1, level=80, rounds=10)
    del records[4]["cohort"]
    write_records(broken, records)
    refused("expected a field 'cohort' in line 5", "runs", "broken")
    code, _, _ = call(capsys, "report", "runs", "half", "--partial")
    assert code == 0
    assert "Unfinished: half" in (tmp_path / "report.html").read_text()


def test_a_plan_is_reported_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    budgets = ("60@1,90@2", "--method", "gdpfed", "--rounds", "5", "--participation", "0.2")
    assert call(capsys, "plan", *budgets, "--out", "plan.toml")[0] == 0
    code, out, err = call(capsys, "report", "plan.toml")
    assert code == 0, err
    assert out.startswith("report.html: plan.toml, methods: 1, runs: 0, ")
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    assert "gdpfed would promise 150 clients" in call(capsys, "report", "plan.toml", "--md")[1]
    assert json.loads(call(capsys, "report", "60@1", "--json")[1])["title"] == "60@1"
    (tmp_path / "plan.toml").write_text(
        (tmp_path / "plan.toml").read_text().replace("num_rounds = 5", "num_rounds = 9")
    )
    code, _, err = call(capsys, "report", "plan.toml")
    assert code == 2
    assert "more than its budget" in err
    code, _, err = call(capsys, "report", "plan.toml", "60@1")
    assert code == 2
    assert "expected a run folder" in err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_folder(runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    code, _, err = call(capsys, "report", runs, "-o", "locked/report.html")
    assert code == 2
    assert "no permission to write" in err


def test_a_failed_write_leaves_the_old_report(
    runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.html").write_text("the old one")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = call(capsys, "report", runs)
    assert code == 2
    assert "No space left on device; nothing was changed" in err
    assert (tmp_path / "report.html").read_text() == "the old one"
    assert not list(tmp_path.glob("*.part"))


@pytest.mark.training
def test_plot_writes_the_figures(runs: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "plot", runs, "-o", "pictures")
    assert code == 0, err
    names = [f"{name}.svg" for name in ("convergence", "accuracy", "mechanism", "participation")]
    assert out.split() == [f"pictures/{name}" for name in names]
    assert json.loads(call(capsys, "plot", runs, "-o", "pictures", "--json")[1]) == out.split()
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == sorted(names)
    code, _, err = call(capsys, "plot", runs, "-o", "pictures", "--format", "gif")
    assert code == 2
    assert "got 'gif'" in err


def test_finished_runs_need_no_torch() -> None:
    code = (
        "import sys\nfrom gdpfed.report import load, page, report_pictures, texts\n"
        "assert not {'torch', 'matplotlib'} & set(sys.modules), 'imported too much'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)


@pytest.mark.training
def test_small_and_quick(tmp_path: Path) -> None:
    """Six methods, three seeds, a record for each of 100 rounds: under 2 MB, and under 5 s of processor time."""
    folder = write_runs(tmp_path / "runs", methods=QUICK_SIX, num_rounds=100)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", "from gdpfed.cli import main; main()", "report", str(folder), "-o", "report.html"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "GDPFED_CACHE": "off", "OMP_NUM_THREADS": "1"},
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size < 2_000_000
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
