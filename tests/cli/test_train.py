"""Training from the command line: in this process for speed, a real one where the process matters."""

import json
import os
import signal
import subprocess
import sys
import time
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


def test_train_resume_and_show(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = call(capsys, "train", tiny, "--method", "pooled", "--rounds", "4", "--seed", "3")
    assert code == 0, err
    assert "simulation: not a private release" in out
    assert "clients/s" in out
    folder = tmp_path / "runs" / "Tiny-pooled-seed3"
    assert (folder / "model.safetensors").is_file()
    code, out, _ = call(capsys, "resume", str(folder))
    assert "is finished" in out
    code, _, err = call(capsys, "train", tiny, "--method", "pooled", "--rounds", "4", "--seed", "3")
    assert code == 2
    assert "gdpfed resume" in err
    _, out, _ = call(capsys, "show", "runs")
    assert "pooled" in out
    assert (tmp_path / "runs" / "curves.png").read_bytes().startswith(b"\x89PNG")
    shown = json.loads(call(capsys, "show", str(folder), "--json")[1])
    assert shown["runs"][0]["rounds"] == [2, 4]
    assert "not a private release" in shown["stamp"]


def test_what_is_recommended_can_be_trained(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The options that `plan --objective` prints give `train` the plan that it recommends."""
    asked = ("plan", tiny, "--rounds", "2", "--objective", "--model-size", "21840")
    _, out, _ = call(capsys, *asked)
    (line,) = (line for line in out.splitlines() if line.startswith("the same plan by name: "))
    recommended = json.loads(call(capsys, *asked, "--json")[1])["hash"]
    code, _, err = call(capsys, "train", tiny, "--rounds", "2", *line.partition(": ")[2].split(), "--out", "best")
    assert code == 0, err
    assert json.loads(call(capsys, "verify", str(tmp_path / "best" / "plan.toml"), "--json")[1])["hash"] == recommended


def test_compare(tiny: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("compare", tiny, "--methods", "fedavg,gdpfed", "--seeds", "2", "--rounds", "2", "--out", "both")
    code, out, err = call(capsys, *arguments)
    assert code == 0, err
    assert "Test accuracy" in out
    assert {path.name for path in (tmp_path / "both").iterdir()} >= {"fedavg-seed1", "gdpfed-seed2", "curves.png"}
    started = time.perf_counter()
    content = json.loads(call(capsys, *arguments, "--json")[1])
    assert time.perf_counter() - started < 10
    assert {result["method"]: len(result["accuracies"]) for result in content["results"]} == {"fedavg": 2, "gdpfed": 2}
    # One document also where something is trained.
    fresh = ("compare", tiny, "--methods", "fedavg", "--seeds", "2", "--rounds", "1", "--out", "fresh", "--json")
    assert len(json.loads(call(capsys, *fresh)[1])["runs"]) == 2
    code, _, err = call(capsys, "compare", tiny, "--methods", "fedavg", "--rounds", "3", "--out", "both")
    assert code == 2
    assert "other settings" in err


def test_unfinished_runs_are_named(tiny: str, capsys: pytest.CaptureFixture[str]) -> None:
    from gdpfed.planning.methods import make_plan
    from gdpfed.runs.folder import create_run
    from gdpfed.tasks.task import load_task

    task = load_task(tiny)
    create_run(Path("started"), task=task, plan=make_plan(task.budgets, task.settings), seed=1)
    _, out, _ = call(capsys, "show", "started")
    assert "not finished: Tiny, gdpfed+, seed 1: 0 of 6 rounds" in out


def test_ctrl_c_leaves_a_run_that_resumes(tiny: str, tmp_path: Path) -> None:
    """A real process, a real signal."""
    command = [sys.executable, "-c", "from gdpfed.cli import main; main()"]
    environment = {**os.environ, "GDPFED_CACHE": "off", "OMP_NUM_THREADS": "1"}
    arguments = ["train", tiny, "--rounds", "300", "--out", "run"]
    running = subprocess.Popen([*command, *arguments], env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    deadline = time.time() + 60
    while not (tmp_path / "run" / "checkpoint.safetensors").exists() and time.time() < deadline:
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 130
    assert err.decode().strip() == "interrupted: a run goes on with gdpfed resume"
    from gdpfed.runs.folder import open_run

    run = open_run(tmp_path / "run")
    assert not run.is_finished
    state = run.load_checkpoint()
    assert state is not None
    assert 0 < state.round_number < 300


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("train", "nothing"), "expected a preset"),
        (("train", "tiny.toml", "--participation", "1.5"), "participation"),
        (("train", "tiny.toml", "--workers", "0"), "--workers"),
        (("train", "tiny.toml", "--evaluate-every", "0"), "evaluate_every"),
        (("train", "tiny.toml", "--method", "best"), "method"),
        (("train", "wrong.toml"), "did you mean 'batch_size'"),
        (("train", "absent.toml"), "not there"),
        (("train", "data.toml"), "train_32x32.mat"),
        (("resume", "nowhere"), "run folder"),
        (("show", "nowhere"), "run folder"),
        (("compare", "tiny.toml", "--seeds", "0"), "--seeds"),
        (("compare", "tiny.toml", "--methods", "gdpfed,x"), "'x'"),
    ],
)
def test_bad_input(
    tiny: str, arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "wrong.toml").write_text(TINY.replace("batch_size", "batchsize"))
    text = TINY.replace('dataset = "fmnist-mini"', 'dataset = "svhn"')
    (tmp_path / "data.toml").write_text(text)
    if arguments[1] == "data.toml":
        arguments = (*arguments, "--data-dir", str(tmp_path))
        (tmp_path / "train_32x32.mat").write_bytes(b"not a matrix")
        (tmp_path / "test_32x32.mat").write_bytes(b"not a matrix")
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert named in err


TEXTS = """
import numpy as np

def data(num_clients):
    draw = np.random.default_rng(1)
    labels = draw.integers(0, 78, 3 * num_clients)
    labels[:78] = np.arange(78)
    texts = draw.integers(0, 78, (len(labels), 80))
    return {"train": (texts, labels), "test": (texts[:80], labels[:80])}
"""


@pytest.mark.parametrize("model", ["public-text", "char-linear"])
def test_public_data_is_told(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the summary, the record, the table of runs and the report; of a model that rests on none, by nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"texts_{model[:4]}"
    (tmp_path / f"{name}.py").write_text(TEXTS)
    given = ("--budgets", "40@1", "--method", "pooled", "--rounds", "1", "--participation", "0.5", "--local-steps", "1")
    code, out, err = call(
        capsys, "train", "fmnist-mini", "--dataset", f"{name}:data", "--model", model, *given, "--out", "run"
    )
    assert code == 0, err
    record = json.loads((tmp_path / "run" / "records.jsonl").read_text())
    shown = json.loads(call(capsys, "show", "run", "--json")[1])
    _, table, _ = call(capsys, "show", "run")
    assert call(capsys, "report", "run", "-o", "report.html")[0] == 0
    page = (tmp_path / "report.html").read_text()
    if model == "char-linear":
        assert "public_data" not in record
        assert shown["public_data"] == []
        assert not any("public data" in text for text in (out, table, page))
        return
    assert "King James Bible" in record["public_data"]
    assert shown["public_data"] == [record["public_data"]]
    remark = "rests on public data, for which no budget pays: the King James Bible"
    assert all(remark in " ".join(text.split()) for text in (out, table, page))


def test_another_model_has_another_width() -> None:
    """The preset's width is for its own model: one without a width could not be built with it."""
    from gdpfed.cli.options import Asked

    assert Asked(stated={}).task("cifar10").training.model_width == 8
    assert Asked(stated={"model": "resnet18-batch"}).task("cifar10").training.model_width == 8
    assert Asked(stated={"model": "resnet18"}).task("cifar10").training.model_width is None
    assert Asked(stated={"model": "public-image"}).task("cifar10").training.model_width is None
    assert Asked(stated={"model": "resnet18", "model_width": 8}).task("cifar10").training.model_width == 8
