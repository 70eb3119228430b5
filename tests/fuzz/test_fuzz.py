"""Three hundred bad inputs (`make fuzz` has more), and one of each kind that once ended in a traceback or a mess."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gdpfed
from gdpfed.errors import InputError
from tests.cli.test_cli import call
from tests.fuzz.bad_inputs import built, commands, fuzz
from tests.fuzz.calls import NOT_CALLED, RIGHT
from tests.fuzz.sandbox import Sandbox

pytestmark = pytest.mark.training


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sandbox]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GDPFED_CACHE", "off")
        began = os.getcwd()
        yield built(tmp_path_factory.mktemp("fuzz"))
        os.chdir(began)


def test_every_public_name_is_tried() -> None:
    """By construction: a new name has to be listed, and commands and parameters are read from the program."""
    assert {name.partition(".")[0] for name in RIGHT} | NOT_CALLED == set(gdpfed.__all__)
    assert len(commands()) > 50


def test_bad_inputs(sandbox: Sandbox) -> None:
    """No traceback, no hang beyond 10 s, exit code 2 with a message of one line, every file as it was."""
    problems: list[str] = []
    counted = fuzz(range(300), seed=7, sandbox=sandbox, say=problems.append)
    assert not problems, "\n".join(problems)
    assert counted["refused"] > 150
    assert counted["accepted"] > 20


LONG = "x" * 300


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("ledger leave report.html c1", "cannot read the ledger's key"),
        ("ledger init report.html clients.csv --key book.db.key", "which is none, or damaged"),
        ("ledger init new.db clients.csv --delta inf", "0 < delta < 1"),
        ("ledger init new/er/new.db clients.csv --key clients.csv", "bytes in the key file"),
        ("ledger init new.db clients.csv --key loop/x", "cannot"),
        ("ledger status book.db --key fifo", "which is a pipe"),
        ("ledger receipt fifo --check", "expected a receipt"),
        (f"ledger status {LONG}", "which is not there"),
        ("ledger init . clients.csv", "name a file"),
        (f"plan {LONG}.csv", "File name too long"),
        ("plan compare clients.csv --linked plan.toml", "expected a method that applies"),
        ("plan clients.csv --rounds 5 --delta 5e-324", "at least 1e-300"),
        ("plan \x1b[31m.csv", "\\x1b[31m.csv"),
        ("flower up --method nothing", "nothing"),
        ("flower up --participation nan", "participation"),
        ("flower up --nodes 1000000007", "at most 1000"),
        ("flower up --dir new --method nothing", "nothing"),
        ("flower new /proc/x", "/proc/x"),
        ("flower enrol home fifo", "got a pipe"),
        ("flower node new --epsilon 2 --delta 1e-5 --name \udcff", "that is text"),
        (f"flower node new --epsilon 2 --delta 1e-5 --name {'a' * 201}", "printable name"),
        ("flower node loop --epsilon 2 --delta 1e-5", "loop"),
        ("plan empty", "which is a folder"),
        ("flower node new --epsilon 0 --delta 1e-5", "epsilon"),
        ("compare tiny.toml --seeds 1000000007", "--seeds from 1 to 1000"),
        ("reproduce status --seeds 1000000007", "--seeds as how many, from 1 to 1000"),
        ("train tiny.toml --workers 1000000007", "--workers from 1 to 1000"),
        (f"train tiny.toml --workers 1 --seed {'1' * 400}", "below 2**63"),
        ("train tiny.toml --workers 1 --local-steps 1000000007", "at most 100000"),
        ("plan 30@1,30@4 --clients-per-person 2 --person-epsilon 5e-324", "person_epsilon > 0"),
        ("audit plan.toml --canaries 0", "200 canaries"),
        ("audit plan.toml --canaries 1000000000", "at most 10000000"),
    ],
)
def test_found_on_the_command_line(
    sandbox: Sandbox, words: str, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    sandbox.restore()
    os.chdir(sandbox.here)
    outcome = sandbox.try_words(words.split())
    assert (outcome.kind, outcome.problem) == ("refused", "")
    _, _, err = call(capsys, *words.split())
    assert named in err


def test_an_empty_host_leaves_nothing(sandbox: Sandbox) -> None:
    os.chdir(sandbox.here)
    for home in ("new", "empty"):
        assert sandbox.try_words(["flower", "init", home, "--host", ""]).kind == "refused"


def test_damaged_files_are_refused(sandbox: Sandbox) -> None:
    """A certificate, a checkpoint: no traceback, and no events of a round that never was."""
    for path, words in (
        ("home/certificates/ca.crt", "flower gate home --listen 127.0.0.1:9"),
        ("home/certificates/server.crt", "flower certificate home"),
        ("home/certificates/ca.key", "flower certificate home --host people"),
        ("unfinished/checkpoint.safetensors", "resume unfinished --workers 1"),
    ):
        sandbox.restore()
        os.chdir(sandbox.here)
        Path(path).write_bytes(b"damaged")
        assert sandbox.try_words(words.split()).kind == "refused"


def test_names_that_are_no_text_are_shown(sandbox: Sandbox) -> None:
    sandbox.restore()
    os.chdir(sandbox.here)
    assert sandbox.try_words(["ledger", "init", "\udcff.db", "clients.csv"]).kind == "accepted"


# One quick call of each command; those of the paper's experiments train for hours.
QUICK = {
    "plan of": "clients.csv --rounds 5 --participation 0.2",
    "plan compare": "30@1,30@4 --rounds 2 --participation 0.2 --methods gdpfed",
    "plan frontier": "30@1,30@4 --rounds 2 --participation 0.5 --method gdpfed",
    "train": "tiny.toml --workers 1 --rounds 1 --out new",
    "compare": "tiny.toml --workers 1 --rounds 1 --methods fedavg --seeds 1 --out news",
    "resume": "run --workers 1",
    "show": "run",
    "report": "run",
    "plot": "run -o figures",
    "data list": "",
    "data get": "fmnist-mini",
    "data check": "fmnist-mini",
    "ledger init": "other.db 10@1",
    "ledger status": "book.db",
    "ledger clients": "book.db",
    "ledger history": "book.db",
    "ledger verify": "book.db",
    "ledger export": "book.db clients-spent.csv",
    "ledger receipt": "book.db c1",
    "ledger plan": "book.db --rounds 2 --participation 0.2 --method gdpfed",
    "ledger join": "other.db 5@2",
    "ledger leave": "book.db c1",
    "ledger tighten": "book.db c2 --epsilon 0.5",
    "verify": "plan.toml",
    "check": "plan.toml book.db",
    "account": "--delta 1e-5 --rate 0.1 --rounds 5 --epsilon 2",
    "audit": "plan.toml --canaries 200 --mechanism float --no-controls",
    "flower new": "project",
    "flower init": "server --host localhost",
    "flower certificate": "home",
    "flower node": "client --epsilon 2 --delta 1e-5",
    "flower enrol": "home node3/announcement.json",
    "flower plan": "home --rounds 2 --participation 0.5 --method gdpfed",
    "flower give-up": "home",
    "flower status": "home",
    "flower pin": "node home/enrolment.json",
    "reproduce noise": "--datasets fmnist",
    "reproduce sampling": "--datasets fmnist --picture ratios.png",
    "reproduce status": "--datasets fmnist",
}
# They need a run in a ledger (tests/cli/test_ledger.py), start processes or serve (tests/flower, tests/serve), or train
# for hours. What the doctor says of a home that nobody serves is bad (tests/flower/test_doctor.py).
ELSEWHERE = {"ledger close", "flower up", "flower gate", "flower doctor", "flower metrics", "serve"}


def test_every_command_prints_one_document(sandbox: Sandbox) -> None:
    """With --json, and nothing else."""
    left = commands().keys() - QUICK.keys() - ELSEWHERE
    assert {words.split()[0] for words in left} == {"reproduce"}
    sandbox.restore()
    os.chdir(sandbox.here)
    for command, words in QUICK.items():
        outcome = sandbox.try_words([*command.split(), *words.split(), "--json"])
        assert (command, outcome.kind, outcome.problem) == (command, "accepted", "")


def test_a_run_without_evaluations_is_shown(sandbox: Sandbox, capsys: pytest.CaptureFixture[str]) -> None:
    """As `gdpfed.train` without a test set leaves it."""
    sandbox.restore()
    os.chdir(sandbox.here)
    Path("run/records.jsonl").unlink()
    code, out, err = call(capsys, "show", "run")
    assert code == 0, err
    assert "not evaluated: Tiny" in out


def test_json_with_a_file_is_one_document(sandbox: Sandbox) -> None:
    sandbox.restore()
    os.chdir(sandbox.here)
    assert sandbox.try_words(["report", "run", "--json", "-o", "new.json"]).kind == "accepted"
    assert sandbox.try_words(["plot", "run", "-o", "new", "--json"]).kind == "accepted"


@pytest.mark.parametrize(
    "call",
    [
        lambda: gdpfed.server_epsilon(noise_multiplier=1e-308, num_participations=2, delta=1e-5),
        lambda: gdpfed.parse_compact(2.5),  # type: ignore[arg-type]
        lambda: gdpfed.make_plan(None, gdpfed.PlanSettings()),  # type: ignore[arg-type]
        lambda: gdpfed.assign("plan.toml", None),  # type: ignore[arg-type]
        lambda: gdpfed.load_plan("x" * 300),
        lambda: gdpfed.load_plan("a\0b"),
        lambda: gdpfed.load_report([]),
        lambda: gdpfed.PlanSettings(num_rounds="5"),  # type: ignore[arg-type]
        lambda: gdpfed.TrainingSettings(batch_size=None),  # type: ignore[arg-type]
        lambda: gdpfed.LocalTraining(learning_rate="x"),  # type: ignore[arg-type]
        lambda: gdpfed.SampledGaussian(noise_multiplier=1.0, sampling_rate="5", num_rounds=1),  # type: ignore[arg-type]
        lambda: gdpfed.Budgets(epsilons=np.array([1.0]), deltas=None),  # type: ignore[arg-type]
        lambda: gdpfed.Budgets(epsilons=np.array([[1.0]]), deltas=np.array([1e-5])),
        lambda: gdpfed.Budgets(epsilons=np.array([1.0]), deltas=np.array([1e-5]), groups=0.5),  # type: ignore[arg-type]
        lambda: gdpfed.start_run(gdpfed.load_task("30@1,30@4"), seed=10**30),
        lambda: dataclasses.replace(
            gdpfed.make_plan(gdpfed.parse_compact("30@1,30@4"), gdpfed.PlanSettings(num_rounds=2, participation=0.5)),
            linked=(("a", "a"),),
        ),
        lambda: dataclasses.replace(
            gdpfed.make_plan(gdpfed.parse_compact("30@1,30@4"), gdpfed.PlanSettings(num_rounds=2, participation=0.5)),
            linked=(1,),  # type: ignore[arg-type]
        ),
    ],
)
def test_found_in_calls(call: Callable[[], Any]) -> None:
    with pytest.raises(InputError, match=r"expected|cannot"):
        call()


@pytest.mark.parametrize(
    "wrong",
    [
        {"metrics": {"a": lambda *_: None}},
        {"test": (np.zeros((2, 3)), np.array([0, -1]))},
        {"out": "\udcff"},
        {"loss": lambda outputs, _: outputs.detach().sum(1)},
    ],
)
def test_a_training_that_cannot_be_leaves_nothing(
    wrong: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    examples = (np.zeros((2, 3), dtype=np.float32), np.array([0, 1]))
    right = {"model": torch.nn.Linear(3, 2), "clients": [examples] * 30, "test": examples, "budgets": "30@4"}
    settings = gdpfed.PlanSettings(num_rounds=1, participation=0.5, delta=1e-4, method="gdpfed")
    with pytest.raises(InputError, match=r"expected|fails"):
        gdpfed.train(**{"seed": 1, "settings": settings, "num_workers": 1, "out": "run", **right, **wrong})
    assert not list(tmp_path.iterdir())


def test_texts_are_paths_and_whole_numbers_floats(sandbox: Sandbox) -> None:
    """What people give is taken where it is plain what they mean."""
    sandbox.restore()
    os.chdir(sandbox.here)
    assert gdpfed.open_run("run").is_finished  # type: ignore[arg-type]
    assert gdpfed.load_report(["run"]).runs  # type: ignore[list-item]
    settings = gdpfed.PlanSettings(clip_norm=2, num_rounds=np.int64(3))  # type: ignore[arg-type]
    assert (settings.clip_norm, type(settings.clip_norm), type(settings.num_rounds)) == (2.0, float, int)


def test_a_ledger_refuses_a_default_delta_that_is_none(tmp_path: Path) -> None:
    """Budgets with a delta of -1 would hold for nobody."""
    with gdpfed.Ledger.create(tmp_path / "book.db") as ledger:
        for delta in (-1.0, 0.0, 1.0, float("-inf"), float("nan")):
            with pytest.raises(InputError, match="delta"):
                ledger.add_population("people", gdpfed.parse_compact("5@1"), default_delta=delta)
        assert not ledger.state.populations
