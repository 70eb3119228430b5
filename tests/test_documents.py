"""Documents that cannot drift: generated pages, links, and every command that a page shows."""

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from gdpfed.cli import every_command

ROOT = Path(__file__).parents[1]
AT_ROOT = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CODE_OF_CONDUCT.md"]
PAGES = [*(ROOT / name for name in AT_ROOT), *sorted((ROOT / "docs").glob("*.md"))]
TABLES = sorted((ROOT / "reproduce" / "tables").glob("*.md"))
# Commands of pages that are not run here, by how they begin, and why.
NOT_RUN = {
    "make ": "what runs this test, or hours of it",
    "pip install": "the environment of this test has been installed",
    "source .venv/bin/activate": "the environment of this test is active",
    "gdpfed flower up --nodes 6 --rounds 3": "tests/flower/test_real_up.py runs it",
    "gdpfed flower": "steps of several machines: tests/flower/test_real_processes.py runs each",
    "flwr ": "steps of several machines: tests/flower/test_real_processes.py runs each",
    "ray ": "of clusters.md: tests/runs/test_ray.py runs its block on a cluster of its own",
    "export RAY": "of clusters.md: tests/runs/test_ray.py runs its block on a cluster of its own",
    "gdpfed serve": "serves until it is stopped: tests/serve/test_server.py starts and ends it",
    "gdpfed data get": "a download",
    "gdpfed train shakespeare --auto --model public-text": "the whole data set, minutes of features",
    "gdpfed train cifar10 --auto --model public-image": "the whole data set, a download, minutes of features",
    "python benchmarks/": "minutes of a quiet machine",
    "python -m tests.": "minutes of a quiet machine",
}
# Pages whose blocks run elsewhere, as a whole.
RUN_ELSEWHERE = {"clusters.md": "tests/runs/test_ray.py"}
_PROGRAMS = ("gdpfed ", "! gdpfed ", "make ", "pip ", "flwr ", "ray ", "python ", "source ", "export ", "cmp ")


@pytest.mark.training
def test_generated_documentation_is_current() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True, timeout=300
    )
    assert checked.returncode == 0, checked.stderr


def test_documents_name_only_what_exists() -> None:
    """Every `module.function` that docs/method.md names is there."""
    text = (ROOT / "docs" / "method.md").read_text()
    named = set(re.findall(r"`((?:privacy|planning|gdpfed_reproduce)\.[a-z_]+\.[A-Za-z_.]+)`", text))
    assert len(named) >= 15
    for name in named:
        package, module, *rest = name.split(".")
        root = "" if package == "gdpfed_reproduce" else "gdpfed."
        found: object = importlib.import_module(f"{root}{package}.{module}")
        for part in rest:
            assert hasattr(found, part), name
            found = getattr(found, part)


def test_links_between_documents_lead_somewhere() -> None:
    """Anchors too, and what the build of the site makes, are checked by `test_site.py`."""
    for page in [*PAGES, *TABLES]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith(("http", "reference/")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def blocks(page: Path, kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", page.read_text(), flags=re.S | re.M)


def without_fences(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)


def shell_lines(page: Path) -> list[str]:
    """Every line of the blocks that are marked as shell."""
    text = "".join(blocks(page, "sh")).replace("\\\n", " ")
    return [line for line in text.splitlines() if line.strip()]


def reason_not_to_run(command: str) -> str | None:
    return next((why for start, why in NOT_RUN.items() if command.startswith(start)), None)


PAGES_WITH_COMMANDS = [page for page in PAGES if shell_lines(page) and page.name not in RUN_ELSEWHERE]


def test_pages_that_are_run_elsewhere_are() -> None:
    for name, where in RUN_ELSEWHERE.items():
        assert name in (ROOT / where).read_text()


@pytest.mark.training
@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=lambda page: page.name)
def test_commands_in_documents_run(page: Path, tmp_path: Path) -> None:
    """Every line of the shell blocks, in order, in an empty folder, but for those that are listed with a reason."""
    commands = [line for line in shell_lines(page) if reason_not_to_run(line) is None]
    script = "\n".join(["set -eu", 'gdpfed() { "$PY" -c "from gdpfed.cli import main; main()" "$@"; }', *commands])
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        env={"PY": sys.executable, "PATH": "/usr/bin:/bin", "GDPFED_CACHE": "off", "HOME": str(tmp_path)},
    )
    assert done.returncode == 0, done.stderr


def test_commands_outside_of_shell_blocks_have_a_reason() -> None:
    """A block of another kind, or an indented one, may show a command only if it is listed."""
    for page in PAGES:
        lines = [line for kind in ("text", "") for block in blocks(page, kind) for line in block.splitlines()]
        lines += re.findall(r"^    (?:operator   |client     )?(.*)$", without_fences(page), flags=re.M)
        for line in lines:
            if line.startswith(_PROGRAMS):
                assert reason_not_to_run(line), f"{page.name}: {line}"


def test_no_reason_is_left_over() -> None:
    shown = "\n".join(page.read_text() for page in PAGES)
    for start in NOT_RUN:
        assert start in shown, start


def options_of(words: str, commands: dict[str, Any]) -> tuple[str, set[str]] | None:
    """The command that an inline text names, and the options it has."""
    parts = words.split()
    for length in (3, 2, 1):
        name = " ".join(parts[:length])
        if name in commands:
            command = commands[name]
            inner = getattr(command, "commands", {})
            flags = {
                flag
                for each in [command, *inner.values()]
                for param in each.params
                for flag in (*param.opts, *param.secondary_opts)
            }
            return name, flags
    return None


def test_inline_commands_name_what_exists() -> None:
    """`gdpfed plan --objective` in a sentence: the command and its options are there."""
    commands = dict(every_command())
    seen = 0
    for page in PAGES:
        for text in re.findall(r"(?<!`)`gdpfed ([a-z][^`]*)`(?!`)", without_fences(page)):
            words = text.replace("|", " ").replace("...", " ")
            found = options_of(words, commands)
            assert found is not None, f"{page.name}: gdpfed {text}"
            for option in re.findall(r"(?<!\S)--[a-z-]+", words):
                assert option in found[1] | {"--help", "--version"}, f"{page.name}: gdpfed {text}"
            seen += 1
    assert seen > 30
    assert options_of("plon --objective", commands) is None


@pytest.mark.training
def test_ten_lines_from_import_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = blocks(ROOT / "README.md", "python")
    assert len([line for line in block.splitlines() if line.strip()]) <= 10
    names: dict[str, Any] = {}
    torch.manual_seed(0)
    exec(compile(block, "README.md", "exec"), names)  # noqa: S102 - our own documentation
    assert names["trained"].accuracies[-1] > 75
    assert names["trained"].remarks == ()
    assert "keeps every group" in (tmp_path / "report.html").read_text()


@pytest.mark.training
def test_python_blocks_of_the_tutorial_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks(ROOT / "docs" / "tutorial.md", "python")
    assert found
    names: dict[str, object] = {}
    for block in found:
        exec(compile(block, "docs/tutorial.md", "exec"), names)  # noqa: S102 - our own documentation


def test_python_blocks_are_only_where_they_run() -> None:
    assert {page.name for page in PAGES if blocks(page, "python")} == {"README.md", "tutorial.md"}


def test_readme_says_what_peers_take() -> None:
    """Of pfl the presets, each with its own model; Flower was run on FMNIST alone."""
    records = (
        json.loads((ROOT / "benchmarks" / "results" / f"simulators{name}.json").read_text()) for name in ("", "-tasks")
    )
    one, four = (
        [{row["name"]: row.get("ratio", 1) for row in table["contestants"]} for table in record["tasks"]]
        for record in records
    )
    pfl = sorted(times["pfl, 2 workers"] for times in four)
    assert len(pfl) == 4
    (line,) = (part for part in (ROOT / "README.md").read_text().split("\n- ") if "**Fast.**" in part)
    assert f"pfl {pfl[0]:.1f} to {pfl[-1]:.1f} times as long" in line
    assert f"Flower {one[0]['Flower, 2 actors']:.1f} times on FMNIST" in line
    table = (ROOT / "reproduce" / "tables" / "secure.md").read_text()
    assert re.search(r"\| 100,000 \| 40 \| 40 \| 4 \|.*\| 0\.05 s \|.*\| 7\.3 s \|", table)
    assert "0.05 s where Flower's SecAgg+ takes 7.3" in line


def test_documents_stay_short() -> None:
    """As `wc -w` counts them, tables and their bars too: the documentation, and with it what contributors read."""
    counts = {page: len(page.read_text().split()) for page in PAGES}
    assert (
        sum(count for page, count in counts.items() if page.parent.name == "docs" or page.name == "README.md") <= 20_000
    )
    assert sum(counts.values()) <= 22_000
