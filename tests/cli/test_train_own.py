"""Functions of one's own from the command line, and what a new user does wrong in the first hour."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.runs.folder import open_run
from tests.cli.test_cli import call
from tests.runs.conftest import TINY

pytestmark = pytest.mark.training

EXAMPLES = Path(__file__).parents[2] / "examples"
COMMAND = [sys.executable, "-m", "gdpfed"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the examples' files and a small task."""
    monkeypatch.chdir(tmp_path)
    for name in ("own_data.py", "own_data.toml", "own_method.py"):
        shutil.copy(EXAMPLES / name, tmp_path / name)
    (tmp_path / "tiny.toml").write_text(TINY)
    yield tmp_path
    for name in ("own_data", "own_method"):
        sys.modules.pop(name, None)


def test_own_data_model_loss_and_metric(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "train", "own_data.toml", "--out", "run", "--rounds", "4", "--workers", "1")
    assert code == 0, err
    assert "absolute_error" in out
    assert "% less loss" in out
    assert 'dataset = "own_data:people"' in (here / "run" / "run.toml").read_text()
    code, out, err = call(capsys, "train", "own_data.toml", "--rounds", "2", "--json", "--workers", "1")
    assert code == 0, err
    content = json.loads(out)
    assert set(content["metrics"]) == {"absolute_error"}
    assert content["measure"] == "less loss than untrained"
    # Dealt out by a partition, with options in the place of the file's words; dropout with any number of workers.
    source = (here / "own_data.py").read_text()
    (here / "dealt_data.py").write_text(
        source.replace('"clients": [examples(10) for _ in range(num_clients)]', '"train": examples(10 * num_clients)')
    )
    options = ("--dataset", "dealt_data:people", "--loss", "mse", "--metrics", "own_data:absolute_error")
    for workers in ("1", "2"):
        how = ("train", "own_data.toml", *options, "--rounds", "2", "--workers", workers, "--out", f"w{workers}")
        code, _, err = call(capsys, *how)
        assert code == 0, err
    for name in ("records.jsonl", "model.safetensors"):
        assert (here / "w1" / name).read_bytes() == (here / "w2" / name).read_bytes()


def test_a_report_imports_nothing_of_a_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody else's run names functions: the report, the table, the picture and the checks do not import them."""
    code, _, err = call(
        capsys, "train", "own_data.toml", "--out", "run", "--rounds", "3", "--method", "own_method:square_root"
    )
    assert code == 0, err
    for name in ("own_data", "own_method"):
        (here / f"{name}.py").write_text("raise SystemExit('imported')")
        sys.modules.pop(name, None)
    for arguments in (
        ("report", "run", "-o", "report.html"),
        ("report", "run", "-o", "report.json"),
        ("show", "run"),
        ("plot", "run", "-o", "figures"),
        ("verify", "run/plan.toml"),
        ("check", "run"),
    ):
        code, _, err = call(capsys, *arguments)
        assert code == 0, (arguments, err)
    assert "own_data" not in sys.modules
    assert "own_method:square_root" in (here / "report.html").read_text()


def test_own_methods_in_every_command(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "plan", "compare", "tiny.toml", "--methods", "gdpfed,own_method:square_root")
    assert code == 0, err
    assert "own_method:square_root" in out
    code, out, err = call(
        capsys, "compare", "tiny.toml", "--methods", "fedavg,own_method:square_root", "--rounds", "1", "--json"
    )
    assert code == 0, err
    content = json.loads(out)
    assert {result["method"] for result in content["results"]} == {"fedavg", "own_method:square_root"}
    code, _, err = call(capsys, "report", "runs/compare", "-o", "report.html")
    assert code == 0, err
    # Imported, it is known by its short name, too.
    code, _, err = call(capsys, "train", "tiny.toml", "--method", "square-root", "--rounds", "1", "--out", "short")
    assert code == 0, err
    assert open_run(here / "short").plan.method == "square-root"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("tiny.toml", "--dataset", "nothing"), "a data set among"),
        (("tiny.toml", "--model", "nothing"), "a model among"),
        (("tiny.toml", "--model", "own_data:nothing"), "'nothing' in the module 'own_data'"),
        (("tiny.toml", "--model", "no_such:thing"), "cannot import the model"),
        (("tiny.toml", "--model", "own_data:robust"), "required positional"),
        (("tiny.toml", "--model", "broken:thing"), "ZeroDivisionError: division by zero (broken.py, line 1)"),
        (("tiny.toml", "--model", "own_data:np"), "expected a function"),
        (("tiny.toml", "--dataset", "own_data:network"), 'a dict with "test"'),
        (("tiny.toml", "--loss", "nothing"), "a loss among"),
        (("tiny.toml", "--loss", "bce-with-logits"), "labels from 0 to 1"),
        (("tiny.toml", "--seed", "-1"), "seed >= 0"),
        (("tiny.toml", "--dataset", "svhn", "--data-dir", "absent"), "the data dir"),
        (("tiny.toml", "--population", "people"), "--ledger"),
        (("own_data.toml", "--validation", "3"), "validation"),
        (("clients.csv",), "--dataset"),
        (("600@1,600@4",), "budgets alone"),
        (("plan_only.toml",), "budgets alone"),
        (("tiny.toml", "--out", "clients.csv"), "is a file"),
        (("tiny.toml", "--out", "clients.csv/run"), "is a file"),
    ],
)
def test_nothing_is_left_of_what_cannot_run(
    here: Path, arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "clients.csv").write_text("client,epsilon\n" + "".join(f"c{i},{1 + i % 2}\n" for i in range(20)))
    (here / "broken.py").write_text("1 / 0")
    (here / "plan_only.toml").write_text('budgets = "600@1,600@4"\n')
    before = sorted(path for path in here.rglob("*") if "__pycache__" not in path.parts)
    code, _, err = call(capsys, "train", *arguments, *(() if "--out" in arguments else ("--out", "run")))
    assert code == 2, err
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert named in err
    assert sorted(path for path in here.rglob("*") if "__pycache__" not in path.parts) == before
    code, _, err = call(capsys, "compare", *(word for word in arguments if word not in ("--seed", "-1")))
    if "--seed" not in arguments and "--out" not in arguments and "--population" not in arguments:
        assert code == 2
        assert not (here / "runs").exists()


def test_budgets_alone_train_where_the_data_are_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("train", "600@1,600@4", "--dataset", "fmnist-mini", "--rounds", "1", "--out", "run")
    code, _, err = call(capsys, *arguments)
    assert code == 0, err


def test_an_unfinished_run_asks_for_nothing_to_be_installed(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from gdpfed.runs.start import start_run
    from gdpfed.tasks.task import load_task

    start_run(load_task("tiny.toml"), seed=1, folder=Path("run"))
    code, out, _ = call(capsys, "show", "run")
    assert code == 0
    assert "no round was evaluated yet" in out
    assert "pip install" not in out


def test_one_process_runs_a_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A real process trains; a second that would go on is refused, and changes nothing."""
    environment = {**os.environ, "GDPFED_CACHE": "off", "OMP_NUM_THREADS": "1"}
    running = subprocess.Popen(
        [*COMMAND, "train", "tiny.toml", "--rounds", "400", "--out", "run", "--evaluate-every", "1"],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.time() + 90
        while not (here / "run" / "checkpoint.safetensors").exists() and time.time() < deadline:
            time.sleep(0.1)
        code, _, err = call(capsys, "resume", "run")
        assert code == 2
        assert "another process trains the run" in err
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(timeout=60)
    rounds = [record.round_number for record in open_run(here / "run").records()]
    assert rounds == sorted(set(rounds))
    # It has gone, and so has the lock.
    run = open_run(here / "run")
    with run.locked(), pytest.raises(InputError, match="another process"), run.locked():
        pass


@pytest.mark.parametrize("delay", [0.03, 0.06, 0.1, 0.15, 0.25])
def test_an_early_interrupt_has_no_traceback(here: Path, delay: float) -> None:
    """Within Python's own start nothing of ours runs; after it, in the midst of imports too, one line and 130."""
    started = subprocess.Popen(
        [sys.executable, "-c", "import sys; from gdpfed.__main__ import main\n"
         "sys.stdout.write('up'); sys.stdout.flush(); main()", "train", "tiny.toml"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "GDPFED_CACHE": "off"},
    )  # fmt: skip
    assert started.stdout is not None
    assert started.stdout.read(2) == b"up"
    time.sleep(delay)
    started.send_signal(signal.SIGINT)
    _, err = started.communicate(timeout=60)
    assert started.returncode == 130
    assert b"Traceback" not in err
    assert err.startswith(b"interrupted: ")
