"""A real Ray cluster of two nodes on loopback, one for all tests of this file; the last one ends its heart."""

import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gdpfed
from gdpfed.errors import GdpfedError
from gdpfed.runs.folder import RunFolder, open_run
from gdpfed.runs.loop import Progress
from gdpfed.runs.simulate import simulate
from gdpfed.tasks.task import Task, load_task
from gdpfed.training.clients.blocks import flat_parameters
from gdpfed.training.clients.cohort import CohortTrainer
from gdpfed.training.clients.engines import Engine
from gdpfed.training.clients.ray_workers import RayWorkers
from tests.cli.test_cli import call
from tests.runs.conftest import TINY, start
from tests.runs.test_simulate import content
from tests.training.ray_cluster import environment
from tests.training.worlds import world

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-c", "from gdpfed.cli import main; main()"]
# Before Ray is imported: else the driver looks for the cluster of 127.0.0.1 at this machine's other address.
os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
if os.environ.get("CI") != "true":
    pytest.importorskip("ray", reason="needs gdpfed[ray]")
# Ray's sockets and pipes end with the process.
pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


class Nodes:
    """The cluster's process; started when it is first needed, and again after a test has ended its heart."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self.told: dict[str, Any] = {}

    def start(self) -> dict[str, Any]:
        if self.told and Path(f"/proc/{self.told['heart']}").exists():
            return self.told
        self.stop()
        line = self._started()
        assert line, (self._folder / "errors.txt").read_text()[-2000:]
        self.told = json.loads(line)
        return self.told

    def _started(self) -> str:
        # Not under pytest's folders: a socket's name has 107 letters at most.
        self._folder = Path(tempfile.mkdtemp(prefix="gdpfed-", dir="/tmp"))
        with (self._folder / "errors.txt").open("w") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.training.ray_cluster", str(self._folder)],
                cwd=ROOT,
                env=environment(self._folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # Whatever Ray does to its process group on its way out, it is not ours.
                start_new_session=True,
            )
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def stop(self) -> None:
        if self._process is None:
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._process, self.told = None, {}
        shutil.rmtree(self._folder, ignore_errors=True)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    try:
        yield made
    finally:
        made.stop()


@pytest.fixture
def cluster(nodes: Nodes) -> dict[str, Any]:
    return nodes.start()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, bytes, bytes]:
    """What the local engine gives."""
    folder = tmp_path_factory.mktemp("local")
    (folder / "tiny.toml").write_text(TINY)
    run = start(load_task(str(folder / "tiny.toml")), folder / "run")
    simulate(run, num_workers=1)
    return content(run.path)


def on(cluster: dict[str, Any]) -> Engine:
    return Engine(name="ray", ray_address=cluster["address"])


def interrupted(run: RunFolder, after: int, **how: Any) -> None:
    """Trains so many rounds and stops."""

    def watch(progress: Progress) -> None:
        if progress.record.round_number + 1 == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(run, watch=watch, **how)


def test_ray_gives_the_bytes_of_the_local_engine(
    cluster: dict[str, Any], expected: tuple[bytes, bytes, bytes], tiny: Task, tmp_path: Path
) -> None:
    run = start(tiny, tmp_path / "whole")
    simulate(run, num_workers=None, engine=on(cluster))
    assert content(run.path) == expected
    there_and_here = start(tiny, tmp_path / "part")
    interrupted(there_and_here, 3, num_workers=1, engine=on(cluster))
    simulate(open_run(there_and_here.path), num_workers=2)
    assert content(there_and_here.path) == expected
    here_and_there = start(tiny, tmp_path / "other part")
    interrupted(here_and_there, 3, num_workers=2)
    simulate(open_run(here_and_there.path), num_workers=None, engine=on(cluster))
    assert content(here_and_there.path) == expected


def test_own_losses_and_dropout_on_a_cluster(cluster: dict[str, Any]) -> None:
    """The same bytes as here: masks follow from the client and the step, and functions travel."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(40, 6, 5, generator=generator)
    torch.manual_seed(0)
    how: dict[str, Any] = {
        "model": torch.nn.Sequential(torch.nn.Linear(5, 6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 2)),
        "clients": list(zip(inputs, (inputs[:, :, 0] > 0).long(), strict=True)),
        "budgets": "20@2,20@8",
        "loss": lambda outputs, targets: torch.nn.functional.cross_entropy(outputs, targets, label_smoothing=0.1),
        "settings": gdpfed.PlanSettings(method="gdpfed", num_rounds=2, participation=0.5, delta=1e-3),
        "seed": 3,
    }
    here = gdpfed.train(**how, num_workers=1)
    there = gdpfed.train(**how, engine="ray", ray_address=cluster["address"])
    for mine, theirs in zip(here.model.parameters(), there.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_compare_uses_the_cluster(
    cluster: dict[str, Any], tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All its runs, to the same bytes."""
    common = ["compare", str(tiny_file), "--methods", "dp-fedavg,gdpfed+", "--rounds", "2", "--json"]
    there = ["--engine", "ray", "--ray-address", cluster["address"]]
    code, _, errors = call(capsys, *common, "--out", str(tmp_path / "there"), *there)
    assert code == 0, errors
    code, _, errors = call(capsys, *common, "--out", str(tmp_path / "here"), "--workers", "1")
    assert code == 0, errors
    models = sorted(path.relative_to(tmp_path / "here") for path in (tmp_path / "here").rglob("model.safetensors"))
    assert len(models) == 2
    for model in models:
        assert (tmp_path / "there" / model).read_bytes() == (tmp_path / "here" / model).read_bytes()


class Cohort:
    """A round of 120 clients in chunks of one block, of which somebody has the first."""

    def __init__(self, engine: Engine) -> None:
        where = world("cnn")
        self._start = flat_parameters(where.model)
        self._clients = np.arange(len(where.data.members)).repeat(3)
        self.trainer = CohortTrainer(
            where.model, where.data, where.local, num_workers=2, chunk_clients=1, engine=engine
        )

    def updates(self, in_mid_round: Callable[[], None] = lambda: None) -> Tensor:
        rows = []
        for place, (_, moved) in enumerate(self.trainer.updates(self._start, self._clients, seed=3, round_number=1)):
            rows.append(moved)
            if place == 1:
                in_mid_round()
        return torch.cat(rows)


def check_refusals(there: Cohort, team: RayWorkers) -> None:
    """A worker that computes other bits than this machine is refused; what a worker raises is raised here."""
    true = team._expected
    assert true is not None
    team._expected = dataclasses.replace(true, digest="other", worker="there (torch 1.0)")
    with pytest.raises(GdpfedError, match=r"other bits than .*torch 1\.0.*install the same versions"):
        there.updates()
    team._expected = true
    with pytest.raises(RuntimeError, match="in a worker of the Ray cluster"):
        list(team.run(torch.zeros(3), [([np.arange(2)], 0, 0)]))


def test_a_killed_ray_worker_changes_nothing(cluster: dict[str, Any]) -> None:
    """First a worker's process, then the whole second node; each time others do its chunks."""
    here, there = Cohort(Engine()), Cohort(on(cluster))
    team = there.trainer._team.workers
    assert isinstance(team, RayWorkers)

    def kill_a_worker() -> None:
        working = [member for member in team._members if member.given]
        os.kill(working[0].process, signal.SIGKILL)

    try:
        wanted = here.updates()
        check_refusals(there, team)
        assert torch.equal(there.updates(), wanted)
        deaths = []
        team._replace = lambda *args: (deaths.append(args), RayWorkers._replace(team, *args))  # type: ignore[method-assign,func-returns-value]  # to count
        assert torch.equal(there.updates(kill_a_worker), wanted)
        assert len(deaths) == 1
        assert torch.equal(there.updates(lambda: os.kill(cluster["second"], signal.SIGKILL)), wanted)
        assert torch.equal(there.updates(), wanted)
    finally:
        here.trainer.close()
        there.trainer.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--engine", "ray", "--ray-address", "127.0.0.1:{free}"], "nobody answers at 127.0.0.1:.*ray start --head"),
        (["--engine", "ray", "--ray-address", "nowhere"], "expected a Ray address HOST:PORT"),
        (["--engine", "rai"], "did you mean 'ray'"),
        (["--ray-address", "127.0.0.1:1"], "expected engine ray"),
        (["--device", "gpu"], "expected device cpu, cuda, auto"),
        pytest.param(
            ["--device", "cuda"],
            "expected a CUDA device here .*device cpu",
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_engines_refuse_what_is_not_there(
    options: list[str], named: str, tiny_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        free = server.getsockname()[1]
    out = tmp_path / "run"
    asked = [option.format(free=free) for option in options]
    code, _, errors = call(capsys, "train", str(tiny_file), "--out", str(out), *asked)
    assert code == 2
    assert len(errors.strip().splitlines()) == 1, errors
    assert re.search(named, errors)
    assert not out.exists()


def test_ray_is_imported_only_when_asked_for() -> None:
    code = "import sys, gdpfed.cli.train_commands, gdpfed.runs.api, gdpfed.training.clients.ray_workers\n"
    code += "sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0


def test_commands_about_clusters_run(cluster: dict[str, Any], tmp_path: Path) -> None:
    """Of docs/clusters.md; not 'ray start' and 'ray stop', which would end every other cluster of this machine."""
    (block,) = re.findall(r"```sh\n(.*?)```", (ROOT / "docs" / "clusters.md").read_text(), flags=re.S)
    lines = [line for line in block.splitlines() if line.startswith(("gdpfed ", "cmp "))]
    assert len(lines) == 3
    script = "\n".join(["set -eu", 'gdpfed() { "$PY" -c "from gdpfed.cli import main; main()" "$@"; }', *lines])
    where = {**os.environ, "PY": sys.executable, "RAY_ADDRESS": cluster["address"]}
    # Who only names the cluster's address must find it, too.
    del where["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=where, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_cluster_that_is_gone_is_an_error(cluster: dict[str, Any], tiny_file: Path, tmp_path: Path) -> None:
    tiny_file.write_text(
        tiny_file.read_text().replace("num_rounds = 6", "num_rounds = 20").replace("every = 2", "every = 20")
    )
    ray, alone = tmp_path / "ray", tmp_path / "alone"
    command = [*COMMAND, "train", str(tiny_file), "--out", str(ray), "--engine", "ray"]
    process = subprocess.Popen(
        [*command, "--ray-address", cluster["address"]], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + 60
    while not (ray / "checkpoint.safetensors").exists():
        assert time.monotonic() < limit
        assert process.poll() is None
        time.sleep(0.02)
    os.kill(cluster["heart"], signal.SIGKILL)
    began = time.monotonic()
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 2, errors
    assert time.monotonic() - began < 45
    assert "does not answer any more: gdpfed resume" in errors
    assert len(errors.strip().splitlines()) == 1
    simulate(open_run(ray), num_workers=2)
    simulate(start(load_task(str(tiny_file)), alone), num_workers=2)
    assert content(ray) == content(alone)
