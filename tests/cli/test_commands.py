"""What all commands have in common: settings written once, --json, imports when they are called for."""

import dataclasses
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

import gdpfed
from gdpfed.cli import COMMANDS, every_command, options
from gdpfed.config import documented, setting, text_of
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.planning.methods import METHODS
from gdpfed.planning.plan import Group, Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.tasks.training_settings import TrainingSettings
from tests.cli.test_cli import call

EVERY = dict(every_command())
HEAVY = {"torch", "flwr", "scipy", "dp_accounting", "matplotlib", "pyarrow", "numpy", "cryptography"}


def helps(command: Any) -> dict[str, str]:
    """The options of a command, and their texts."""
    return {name: parameter.help or "" for parameter in command.params for name in parameter.opts if "--" in name}


def test_every_command_has_json() -> None:
    single = {words: command for words, command in EVERY.items() if not hasattr(command, "commands")}
    assert len(single) > 40
    assert [words for words, command in single.items() if "--json" not in helps(command)] == []


@pytest.mark.parametrize("cls", [PlanSettings, TrainingSettings, DeploymentSettings, Group, Plan])
def test_every_field_says_what_it_means(cls: type) -> None:
    document = inspect.getdoc(cls) or ""
    for field in dataclasses.fields(cls):
        assert text_of(field).endswith((".", ")")), field.name
        assert f"    {field.name}: {text_of(field)}" in document.splitlines()


@pytest.mark.parametrize(
    ("words", "classes", "without"),
    [
        ("plan of", [PlanSettings], []),
        ("plan compare", [PlanSettings], ["method"]),
        ("plan frontier", [PlanSettings], ["against", "asks", "trainings", "max_participations"]),
        ("train", [PlanSettings, TrainingSettings], []),
        ("compare", [PlanSettings, TrainingSettings], ["method"]),
        ("audit", [PlanSettings], []),
        ("flower plan", [PlanSettings], ["delta"]),
        ("flower init", [DeploymentSettings], []),
    ],
)
def test_options_are_the_settings(words: str, classes: list[type], without: list[str]) -> None:
    """Each setting is an option, with the text of its field."""
    texts = helps(EVERY[words])
    for field in (field for cls in classes for field in dataclasses.fields(cls)):
        if field.metadata["option"] is None or field.name in without:
            assert options.option_name(field) not in texts
        else:
            assert texts[options.option_name(field)] == text_of(field)


def test_a_setting_is_written_in_one_place() -> None:
    """One line in a settings class gives the option, its type, its text, and the docstring."""

    @documented
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Own:
        """Settings of my own."""

        warm_up: int = setting(3, "Rounds without noise.", allowed="At least 0.")
        tempo: Literal["slow", "fast"] | tuple[float, ...] = setting("slow", "A word, or numbers.", option="--pace")
        secret: int = setting(7, "Not for the command line.", option=None)

    told: list[Own] = []

    @options.with_settings(Own)
    def command(asked: options.Asked, source: str = "here") -> None:
        told.append(asked.applied(Own()))
        assert source == "there"

    app = typer.Typer()
    app.command()(command)
    printed = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120", "TERM": "dumb", "NO_COLOR": "1"}).output
    assert "Rounds without noise. At least 0. [default: 3]" in printed
    assert "--warm-up" in printed
    assert "--pace" in printed
    assert "--secret" not in printed
    for words in (["--warm-up", "5", "--pace", "0.5,2"], ["--pace", "fast"]):
        assert CliRunner().invoke(app, [*words, "--source", "there"]).exit_code == 0
    assert told == [Own(warm_up=5, tempo=(0.5, 2.0)), Own(tempo="fast")]
    assert "    warm_up: Rounds without noise. At least 0." in (inspect.getdoc(Own) or "")


def test_the_method_names_every_method() -> None:
    (field,) = (field for field in dataclasses.fields(PlanSettings) if field.name == "method")
    assert text_of(field).startswith(f"One of {', '.join(METHODS)}.")


@pytest.mark.parametrize("name", COMMANDS)
def test_listed_helps_are_the_commands_own(name: str) -> None:
    assert " ".join((EVERY[name].help or "").split("\n\n")[0].split()) == COMMANDS[name][1]


@pytest.mark.parametrize("statement", ["import gdpfed", "from gdpfed.cli import main; main(['--help'])"])
def test_no_heavy_import(statement: str) -> None:
    code = (
        f"import sys\ntry:\n    exec({statement!r})\nexcept SystemExit:\n    pass\n"
        f"assert not {HEAVY} & set(sys.modules), {HEAVY} & set(sys.modules)\n"
        "assert not any(name.endswith('_commands') for name in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_help_of_groups_needs_no_optional_package() -> None:
    optional = {"torch", "flwr", "matplotlib", "pyarrow", "cryptography"}
    code = (
        "import sys\nfrom gdpfed.cli import COMMANDS, every_command\nlist(every_command())\n"
        f"assert not {optional} & set(sys.modules), {optional} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_without_the_repository(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gdpfed_reproduce", None)
    for words in (("reproduce",), ("reproduce", "main", "--seeds", "3"), ("reproduce", "--help")):
        code, out, err = call(capsys, *words)
        assert (code, out) == (2, "")
        assert err.count("\n") == 1
        assert "clone the repository" in err
    assert "reproduce" not in call(capsys, "--help")[1]


def test_a_mistyped_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = call(capsys, "trian")
    assert code == 2
    assert "Did you mean 'train'" in err


def test_account_from_the_library() -> None:
    result = gdpfed.account(delta=1e-5, sampling_rate=0.1, num_rounds=20, epsilon=2.0)
    assert result.computed == "noise_multiplier"
    assert result.epsilon_release <= 2.0
    with pytest.raises(gdpfed.InputError, match="missing: num_rounds, epsilon"):
        gdpfed.account(delta=1e-5, sampling_rate=0.1, noise_multiplier=1.0)


def test_the_library_starts_runs_as_the_command_line_does(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.runs.conftest import TINY

    (tmp_path / "tiny.toml").write_text(TINY)
    task = gdpfed.load_task(str(tmp_path / "tiny.toml"))
    run = gdpfed.start_run(task, seed=1, folder=tmp_path / "run")
    assert not run.is_finished
    assert gdpfed.open_run(tmp_path / "run").plan == run.plan
    with pytest.raises(gdpfed.InputError, match="holds a run already"):
        gdpfed.start_run(task, seed=1, folder=tmp_path / "run")
