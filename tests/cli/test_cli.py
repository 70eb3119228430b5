"""The command line as a user meets it: real processes, real files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdpfed.cli import main
from gdpfed.planning.plan_file import load_plan

SMALL = ("60@1,90@2,50@6", "--rounds", "10", "--participation", "0.2")


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from gdpfed.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "GDPFED_CACHE": "off"},
        timeout=120,
    )


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """In this process, for speed."""
    with pytest.raises(SystemExit) as stopped:
        main(list(arguments))
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def test_version_help_and_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(capsys, "--version")[1].startswith("gdpfed 0.")
    for arguments in ((), ("--help",)):
        code, out, _ = call(capsys, *arguments)
        assert code == 0
        assert "reproduce" in out


@pytest.mark.training
def test_plan_keeps_what_a_file_states(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that says what is the default says it: `--objective` keeps it."""
    path = tmp_path / "task.toml"
    text = 'budgets = "300@0.5,300@3"\nnum_rounds = 20\nparticipation = 0.05\n'
    path.write_text(text)
    asked = ("plan", str(path), "--objective", "--model-size", "100", "--json")
    _, out, _ = call(capsys, *asked)
    assert json.loads(out)["server_learning_rate"] == 4.5
    path.write_text(f"{text}server_learning_rate = 1.0\n")
    _, out, _ = call(capsys, *asked)
    content = json.loads(out)
    assert content["server_learning_rate"] == 1
    assert content["averaging"] > 0


@pytest.mark.training
def test_plan_recommends(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ("plan", "300@0.5,300@3", "--rounds", "10", "--participation", "0.05", "--objective")
    code, out, _ = call(capsys, *asked, "--model-size", "5000")
    assert code == 0
    assert "5,000 parameters" in out
    assert "the same plan by name: --method pooled" in out
    asked += ("--model-size", "100")
    code, out, _ = call(capsys, *asked, "--json")
    content = json.loads(out)
    advice = content["recommendation"]
    assert content["method"] == "pooled"
    assert advice["recommended"]["signal_to_noise"] == content["signal_to_noise"]
    assert content["server_learning_rate"] == 4.5
    code, out, _ = call(capsys, *asked, "--server-learning-rate", "1", "--json")
    assert json.loads(out)["server_learning_rate"] == 1
    code, _, err = call(capsys, *asked, "--method", "gdpfed")
    assert code == 2
    assert "leave --method out" in err


def test_plan_as_table_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "plan", *SMALL)
    assert code == 0
    for words in ("group 3", "eps release", "add or remove one client", "against the server", "plan "):
        assert words in out
    code, out, _ = call(capsys, "plan", *SMALL, "--json")
    content = json.loads(out)
    assert [group["num_clients"] for group in content["groups"]] == [60, 90, 50]
    assert all(group["epsilon_release"] <= group["epsilon"] for group in content["groups"])


def test_narrow_terminals_get_two_tables(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from rich.console import Console

    from gdpfed.cli import show

    monkeypatch.setattr(show, "console", lambda: Console(highlight=False, markup=False, width=80))
    _, out, _ = call(capsys, "plan", *SMALL)
    assert "what it costs" in out
    assert "…" not in out


AGAINST_SERVER = ("60@1,90@2,50@6", "--method", "gdpfed", "--rounds", "10", "--participation", "0.2")


def terminal_of(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As wide as this. Commands are imported when they are called for, so it is the console itself that is changed."""
    from rich.console import Console

    from gdpfed.cli import show

    monkeypatch.setattr(show, "Console", lambda **given: Console(**{**given, "width": width}))


@pytest.mark.parametrize("width", [80, 160])
def test_a_rotation_has_one_epsilon(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, width: int
) -> None:
    """In plan and verify: kept against both, and what is not hidden."""
    terminal_of(width, monkeypatch)
    plan_file = str(tmp_path / "plan.toml")
    stated = ("--against", "server", "--asks", "5", "--trainings", "1.5")
    _, planned, _ = call(capsys, "plan", *AGAINST_SERVER, *stated, "--out", plan_file)
    _, verified, _ = call(capsys, "verify", plan_file)
    for out in (planned, verified):
        for words in (
            "eps, both", "coin %", "asked", "30.000", "promised against whoever sees the released models, and the "
            "server", "one client's updates replaced by zero", "not hidden: being enrolled, and when one is asked",
            "asked 5 times in 10 rounds", "trains 1.5 times",
        ):  # fmt: skip
            assert words in out
        for words in ("eps release", "p99", "Poisson", "add or remove", "…"):
            assert words not in out
    assert "and the server" in Path(plan_file).read_text().split("format =")[0]


@pytest.mark.parametrize("width", [80, 160])
def test_rotations_are_compared(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    terminal_of(width, monkeypatch)
    source, _, _, *common = AGAINST_SERVER
    stated = ("--methods", "dp-fedavg,gdpfed", "--against", "server", "--asks", "5", "--trainings", "1.5")
    _, out, _ = call(capsys, "plan", "compare", source, *common, *stated)
    assert "eps, both" in out
    assert "coins %" in out
    assert "1.000 2.000 6.000" in out
    assert "eps server p99" not in out
    assert "not hidden: being enrolled" in out
    assert "…" not in out


@pytest.mark.training
@pytest.mark.parametrize("width", [80, 160])
def test_frontier_as_table_json_and_picture(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, width: int
) -> None:
    terminal_of(width, monkeypatch)
    picture = tmp_path / "frontier.svg"
    code, out, _ = call(capsys, "plan", "frontier", *AGAINST_SERVER, "--ask-cost", "0.5", "--plot", str(picture))
    assert code == 0
    assert "…" not in out
    assert out.count("server *") == 1
    assert "--against server --asks 8 --trainings" in out
    assert "an ask 0.5" in out
    assert "cheapest" in picture.read_text()
    content = json.loads(call(capsys, "plan", "frontier", *AGAINST_SERVER, "--ask-cost", "0.5", "--json")[1])
    assert [point["asks"] for point in content["frontier"]] == [10, 8, 6]
    assert [point["cheapest"] for point in content["frontier"]] == [False, True, False]
    wanted = content["against_models"]["signal_to_noise"]
    for point in content["frontier"]:
        assert point["signal_to_noise"] == pytest.approx(wanted, rel=0.01)
        assert point["cost"] == pytest.approx(point["trainings"] + 0.5 * point["asks"])
        assert all(spent <= promised for spent, promised in zip(point["epsilon_server"], (1, 2, 6), strict=True))
    assert content["against_models"]["epsilon_server"][0] > 5


def test_frontier_refuses_what_has_nothing_to_hide(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "plan", "frontier", "60@1", "--method", "fedavg")
    assert code == 2
    assert "nothing to hide" in err


def test_account_against_the_server(capsys: pytest.CaptureFixture[str]) -> None:
    """The coin in place of the rate, asks in place of rounds: the published 1.42."""
    stated = ("--delta", str(6000**-1.1), "--rate", "0.1", "--rounds", "10", "--noise-multiplier", "1.2758")
    _, out, _ = call(capsys, "account", *stated, "--against", "server")
    for words in ("epsilon, both", "coin", "asks", "zero out one client", "being enrolled"):
        assert words in out
    assert "epsilon server" not in out
    content = json.loads(call(capsys, "account", *stated, "--against", "server", "--json")[1])
    assert content["epsilon_release"] == pytest.approx(1.42, abs=0.01)
    assert {content[f"epsilon_server{of}"] for of in ("", "_mean", "_p99")} == {content["epsilon_release"]}
    assert content["max_participations"] == 10
    for wrong in (("--against", "serve"), ("--against", "server", "--max-participations", "3")):
        assert call(capsys, "account", *stated, *wrong)[0] == 2


def test_options_override_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = call(
        capsys, "plan", "cifar10", "--method", "gdpfed", "--rounds", "3", "--participation", "0.5", "--clip-norm", "2",
        "--delta", "1e-4", "--max-participations", "2", "--json",
    )  # fmt: skip
    content = json.loads(out)
    assert (content["num_rounds"], content["clip_norm"], content["method"]) == (3, 2.0, "gdpfed")
    assert content["participation"] == pytest.approx(0.5)
    assert {group["delta"] for group in content["groups"]} == {1e-4}
    assert {group["server_view"]["max_participations"] for group in content["groups"]} == {2}


def test_save_verify_and_assignment(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    budgets = tmp_path / "clients.csv"
    budgets.write_text("client,epsilon\n" + "".join(f"c{index},{1 + index % 3}\n" for index in range(90)))
    plan_file, assignment = tmp_path / "plan.toml", tmp_path / "groups.csv"
    common = ("--rounds", "5", "--participation", "0.3")
    code, out, _ = call(capsys, "plan", str(budgets), *common, "--out", str(plan_file), "--assignment", str(assignment))
    assert code == 0
    assert "gdpfed verify" in out
    assert assignment.read_text().splitlines()[:3] == ["client,group", "c0,group 1", "c1,group 2"]
    code, out, _ = call(capsys, "verify", str(plan_file), "--budgets", str(budgets))
    assert code == 0
    assert "90 clients' budgets are kept" in out
    content = json.loads(call(capsys, "verify", str(plan_file), "--json")[1])
    assert content["verified"] is True
    budgets.write_text(budgets.read_text().replace("c0,1", "c0,0.5"))
    code, _, err = call(capsys, "verify", str(plan_file), "--budgets", str(budgets))
    assert code == 2
    assert "allows epsilon=0.5" in err
    assert load_plan(plan_file).num_clients == 90


def test_own_deltas_are_shown_with_their_groups(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = "".join(f"a{index},0.5,1e-7\nb{index},3,1e-2\n" for index in range(40))
    (tmp_path / "deltas.csv").write_text("client,epsilon,delta\n" + rows)
    arguments = (str(tmp_path / "deltas.csv"), "--rounds", "3", "--participation", "0.3")
    for command in (("plan", *arguments), ("plan", "compare", *arguments, "--methods", "dp-fedavg,gdpfed")):
        _, out, _ = call(capsys, *command)
        assert "1e-07 (group 1), 1e-02 (group 2)" in out


def test_compare_leaves_out_what_does_not_apply(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = call(capsys, "plan", "compare", "100@1", "--rounds", "3", "--participation", "0.3")
    assert code == 0
    assert "left out: pfa" in out


def test_an_infinite_epsilon_is_called_so(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("account", "--rate", "0.1", "--noise-multiplier", "0", "--rounds", "5", "--delta", "1e-5")
    assert "infinite" in call(capsys, *arguments)[1]
    assert json.loads(call(capsys, *arguments, "--json")[1])["epsilon_release"] is None


@pytest.mark.training
def test_linked_clients(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "clients.json").write_text(json.dumps({f"c{index}": 2.0 for index in range(30)}))
    (tmp_path / "linked.csv").write_text("c1, c2\nc3,c4,c5\n")
    arguments = ("plan", str(tmp_path / "clients.json"), "--rounds", "3", "--participation", "0.3", "--delta", "1e-3")
    _, out, _ = call(capsys, *arguments, "--linked", str(tmp_path / "linked.csv"))
    assert "person: (" in out
    assert "up to 3 clients" in out
    (tmp_path / "linked.json").write_text('[["c1", "c9"]]')
    content = json.loads(call(capsys, *arguments, "--linked", str(tmp_path / "linked.json"), "--json")[1])
    assert content["person_guarantee"]["epsilon"] > content["system_guarantee"]["epsilon"]


@pytest.mark.training
def test_compare(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "deep" / "plans.png"
    methods = "fedavg,dp-fedavg,gdpfed,pooled"
    code, out, _ = call(capsys, "plan", "compare", *SMALL, "--methods", methods, "--plot", str(picture))
    assert code == 0
    assert all(name in out for name in methods.split(","))
    assert picture.read_bytes().startswith(b"\x89PNG")
    content = json.loads(call(capsys, "plan", "compare", *SMALL, "--methods", methods, "--json")[1])
    (plans,) = content.values()
    by_name = {plan["method"]: plan["signal_to_noise"] for plan in plans}
    assert by_name["pooled"] > by_name["dp-fedavg"]
    assert by_name["fedavg"] is None


def test_brackets_in_names_are_shown(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    budgets = tmp_path / "[bold]x.csv"
    budgets.write_text("client,epsilon,group\na,1,[red]\nb,2,[/red]\n")
    arguments = (
        "--groups",
        "given",
        "--method",
        "gdpfed",
        "--rounds",
        "2",
        "--participation",
        "0.5",
        "--delta",
        "1e-3",
    )
    code, out, _ = call(capsys, "plan", str(budgets), *arguments)
    assert code == 0
    assert "[bold]x.csv" in out
    assert "[/red]" in out


def test_account_gives_the_missing_one(capsys: pytest.CaptureFixture[str]) -> None:
    def account(*arguments: str) -> dict[str, float]:
        code, out, err = call(capsys, "account", "--delta", "1e-5", *arguments, "--json")
        assert code == 0, err
        return json.loads(out)  # type: ignore[no-any-return]

    noise = account("--rate", "0.1", "--rounds", "20", "--epsilon", "2")["noise_multiplier"]
    forward = account("--rate", "0.1", "--rounds", "20", "--noise-multiplier", repr(noise))
    assert 1.999 < forward["epsilon_release"] <= 2
    assert forward["computed"] == "epsilon"
    assert account("--rate", "0.1", "--noise-multiplier", repr(noise), "--epsilon", "2")["num_rounds"] == 20
    rate = account("--rounds", "20", "--noise-multiplier", repr(noise), "--epsilon", "2")["sampling_rate"]
    assert rate == pytest.approx(0.1, rel=1e-4)
    code, out, _ = call(capsys, "account", "--delta", "1e-5", "--rate", "0.1", "--rounds", "20", "--epsilon", "2")
    assert code == 0
    assert "against whoever sees only the released models" in out


@pytest.mark.training
def test_reproduce(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = tmp_path / "ratios.svg"
    code, out, _ = call(capsys, "reproduce", "sampling", "--picture", str(picture))
    assert code == 0
    assert "0.69 1.89 3.42" in out
    assert "0.63 1.83 3.54" in out
    assert "<svg" in picture.read_text()
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "matplotlib", None)
        assert "pip install 'gdpfed[plots]'" in call(capsys, "reproduce", "sampling")[1]
    _, out, _ = call(capsys, "reproduce", "noise", "--datasets", "cifar10", "--json")
    rows = json.loads(out)["rows"]
    assert len(rows) == 8
    assert all(abs(row["largest_difference"]) < 0.01 for row in rows if row["accountant"] == "rdp")


def bad_files(folder: Path) -> dict[str, str]:
    contents = {
        "empty.csv": "",
        "headers.csv": "client,epsilon\n",
        "twice.csv": "client,epsilon\na,1\na,2\n",
        "column.csv": "client,epsilo\na,1\n",
        "negative.csv": "client,epsilon\na,-1\nb,1\n",
        "zero.csv": "client,epsilon\na,0\nb,1\n",
        "nan.csv": "client,epsilon\na,nan\nb,1\n",
        "infinite.csv": "client,epsilon\na,inf\nb,1\n",
        "key.toml": 'budgets = "50@1"\nnum_round = 3\n',
        "word.csv": "client,epsilon\na,lots\n",
    }
    for name, text in contents.items():
        (folder / name).write_text(text)
    (folder / "binary.csv").write_bytes(bytes(range(256)))
    (folder / "binary.parquet").write_bytes(bytes(range(256)))
    return contents


BAD = [
    (("plan", "negative.csv"), "epsilon=-1"),
    (("plan", "zero.csv"), "epsilon=0"),
    (("plan", "nan.csv"), "epsilon=nan"),
    (("plan", "infinite.csv"), "epsilon=inf"),
    (("plan", "50@-1"), "epsilon=-1"),
    (("plan", "50@0"), "epsilon=0"),
    (("plan", "50@nan"), "epsilon=nan"),
    (("plan", "50@inf"), "epsilon=inf"),
    (("plan", "50@1", "--delta", "0"), "delta=0"),
    (("plan", "50@1", "--delta", "1"), "delta=1"),
    (("plan", "50@1", "--delta", "nan"), "delta=nan"),
    (("plan", "50@1", "--participation", "1.5"), "participation=1.5"),
    (("plan", "50@1,50@2", "--rates", "0.5,1.5"), "rates=1.5"),
    (("plan", "50@1", "--rounds", "0"), "num_rounds=0"),
    (("plan", "50@1", "--rounds", "many"), "--rounds"),
    (("plan", "50@1", "--clip-norm", "-1"), "clip_norm=-1"),
    (("plan", "50@1", "--method", "gdpfed++"), "did you mean 'gdpfed+'"),
    (("plan", "50@1", "--accountant", "gdp"), "accountant"),
    (("plan", "50@1", "--groups", "distict"), "did you mean 'distinct'"),
    (("plan", "50@1", "--groups", "0.5,x1"), "--groups"),
    (("plan", "50@1", "--keep", "2"), "keep fraction"),
    (("plan", "50@1", "--no-such-option"), "--no-such-option"),
    (("plan", "50@1", "--out", "no/such/folder/plan.toml"), "cannot write"),
    (("plan", "50@1", "--linked", "none.csv"), "not there"),
    (("plan", "empty.csv"), "empty"),
    (("plan", "headers.csv"), "no rows"),
    (("plan", "twice.csv"), "client='a' 2 times"),
    (("plan", "column.csv"), "rename 'epsilo' to 'epsilon'"),
    (("plan", "word.csv"), "'lots'"),
    (("plan", "key.toml"), "did you mean 'num_rounds'"),
    (("plan", "absent.csv"), "not there"),
    (("plan", "binary.csv"), "binary"),
    (("plan", "binary.parquet"), "Parquet"),
    (("plan", "fashion"), "expected a preset"),
    (("plan", "50@1", "--rounds", "100", "--participation", "0.2", "--noise-multipliers", "3"), "rounds are allowed"),
    (("plan", "50@0.5", "--method", "gdpfed", "--delta", "1e-16"), "cannot meet its budget"),
    (("plan", "compare", "50@1", "--methods", "gdpfed,best"), "'best'"),
    (("plan", "compare", "50@1,50@2", "--methods", "gdpfed", "--plot", "picture.bmp"), ".png, .svg or .pdf"),
    (("verify", "absent.toml"), "not there"),
    (("verify", "key.toml"), "format = 1"),
    (("account", "--delta", "1e-5", "--rate", "0.1"), "expected three of"),
    (("account", "--delta", "2", "--rate", "0.1", "--rounds", "5", "--epsilon", "1"), "delta=2"),
    (("account", "--delta", "1e-5", "--rate", "1.1", "--rounds", "5", "--epsilon", "1"), "sampling_rate=1.1"),
    (
        ("account", "--delta", "1e-5", "--rate", "0.5", "--noise-multiplier", "0.3", "--epsilon", "1"),
        "not even one round",
    ),
    (("reproduce", "noise", "--datasets", "mnist"), "did you mean 'fmnist'"),
    (("plann",), "plann"),
    (("plan", "50@1", "--out", "."), "is a folder"),
    (("plan", "50@1", "--groups", "²"), "--groups"),
    (("plan", "50@1", "--clip-norm", "1e308"), "clip_norm"),
    (("plan", "50@1", "--rounds", "100000000"), "num_rounds"),
    (("plan", "50@1", "--clients-per-person", "1000000"), "clients_per_person"),
    (("account", "--delta", "1e-5", "--rate", "0.5", "--rounds", "1", "--epsilon", "1e300"), "epsilon"),
    (("account", "--delta", "1e-5", "--rate", "1", "--rounds", "1", "--noise-multiplier", "1e-12"), "noise_multiplier"),
    (("account", "--delta", "1e-5", "--rate", "0.1", "--rounds", "100000000", "--epsilon", "1"), "num_rounds"),
]


@pytest.mark.parametrize(("arguments", "named"), BAD, ids=[" ".join(arguments) for arguments, _ in BAD])
def test_bad_input_is_one_line_and_exit_code_two(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    named: str,
) -> None:
    bad_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    code, _, err = call(capsys, *arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert named in err


@pytest.mark.processes
def test_an_edited_plan_is_refused_by_a_real_process(tmp_path: Path) -> None:
    assert run("plan", *SMALL, "--out", "plan.toml", cwd=tmp_path).returncode == 0
    assert run("verify", "plan.toml", cwd=tmp_path).returncode == 0
    text = (tmp_path / "plan.toml").read_text()
    (tmp_path / "plan.toml").write_text(text.replace("num_rounds = 10", "num_rounds = 12"))
    refused = run("verify", "plan.toml", cwd=tmp_path)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: 'group 1' would spend epsilon=")
    assert refused.stderr.count("\n") == 1
    assert not refused.stdout


@pytest.mark.processes
def test_a_closed_pipe_is_no_error() -> None:
    sources = " ".join(f"{count}@1,50@2" for count in range(50, 90))
    gdpfed = f"{sys.executable} -c 'from gdpfed.cli import main; main()'"
    command = f"{gdpfed} plan compare {sources} --methods gdpfed --rounds 1 --participation 0.5 --json | head -n 1"
    piped = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, timeout=60)
    assert piped.returncode == 0
    assert "Traceback" not in piped.stderr
