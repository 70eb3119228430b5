"""The shape of the project: layers, exported names, promises with tests, documents that cannot drift."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import gdpfed

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "gdpfed"
MODULES = sorted(SOURCE.rglob("*.py"))
# A layer may import from itself and from those before it.
LAYERS = [
    "errors", "config", "files", "streams", "privacy", "planning", "ledger", "tasks", "secure", "training", "runs",
    "audit", "report", "flower", "serve", "cli",
]  # fmt: skip


def layer(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "gdpfed"


@pytest.mark.parametrize("path", [path for path in MODULES if path.parent != SOURCE or path.stem in LAYERS])
def test_imports_point_one_way(path: Path) -> None:
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for name in names:
            if name.startswith("gdpfed."):
                assert LAYERS.index(layer(name)) <= LAYERS.index(own), f"{path.name} imports {name}"


def test_exported_names() -> None:
    assert sorted(gdpfed.__all__) == sorted(
        [
            "AuditReport", "Budgets", "GdpfedError", "Group", "InputError", "Ledger", "LocalTraining", "METHODS",
            "Plan", "PlanSettings", "PrivacyError", "RunFolder", "SampledGaussian", "Task", "Trained",
            "TrainingSettings", "__version__", "account", "assign", "audit_plan", "epsilon_of", "load_plan",
            "load_report", "load_task", "make_plan", "max_participations_for", "method", "noise_multiplier_for",
            "num_rounds_for", "open_run", "parse_compact", "plan_frontier", "plan_hash", "read_budgets", "report_html",
            "sampling_rate_for", "save_plan", "server_epsilon", "simulate", "start_run", "train", "verify_ledger",
        ]
    )  # fmt: skip
    for name in gdpfed.__all__:
        assert getattr(gdpfed, name) is not None
    assert set(dir(gdpfed)) == set(gdpfed.__all__)
    with pytest.raises(AttributeError):
        _ = gdpfed.nothing


@pytest.mark.parametrize("path", MODULES)
def test_every_module_exports_what_it_has(path: Path) -> None:
    if path.name == "__init__.py":
        return
    module = importlib.import_module(".".join(("gdpfed", *path.relative_to(SOURCE).with_suffix("").parts)))
    for name in module.__all__:
        assert hasattr(module, name)


def guarantees() -> list[str]:
    """The names in the "Guarantees" part of every module's docstring."""
    found = []
    for path in MODULES:
        document = ast.get_docstring(ast.parse(path.read_text())) or ""
        _, _, promised = document.partition("Guarantees (tests of the same name):\n")
        found += re.findall(r"^  (\w+)(?:  .*)?$", promised.split("\n\n")[0], flags=re.M)
    return found


def test_every_guarantee_has_a_test_of_its_name() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    promised = guarantees()
    assert len(promised) > 30
    for name in promised:
        assert f"def test_{name}(" in tests, name


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
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def rounded_deltas(source: str) -> list[str]:
    """Deltas that a text prints to the nearest number, which may be smaller."""
    fields = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FormattedValue))
    printed = ((ast.unparse(node.value), node.format_spec) for node in fields)
    return [value for value, spec in printed if spec is not None and re.search("delta(s?$|s?_or|']$)", value)]


@pytest.mark.parametrize("path", MODULES)
def test_printed_deltas_are_rounded_up(path: Path) -> None:
    """By `privacy.rounding`: `delta_up` for what is promised or spent, `allowance` for what somebody allows."""
    assert rounded_deltas(path.read_text()) == []


def test_a_delta_to_nearest_is_seen() -> None:
    wrong = ["{delta:g}", "{group.delta:.3g}", "{budgets.deltas_or(x)[0]:.1e}", "{found['delta']:.3g}", "{delta:.{n}e}"]
    for field in wrong:
        assert rounded_deltas(f'print(f"at {field}")'), field
    for field in (
        "{delta_up(delta)}",
        "{delta}",
        "{epsilon_of(x, delta=delta):.2f}",
        "{math.floor(1 / x.delta):,}",
    ):
        assert not rounded_deltas(f'print(f"at {field}")'), field


def shell_blocks(page: Path) -> list[str]:
    return re.findall(r"```sh\n(.*?)```", page.read_text(), flags=re.S)


@pytest.mark.training
@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_commands_in_documents_run(name: str, tmp_path: Path) -> None:
    """Every gdpfed command in a shell block, in order, in an empty folder; 'make' is what runs this test."""
    commands = [
        line
        for block in shell_blocks(ROOT / name)
        for line in block.replace("\\\n", " ").splitlines()
        if line.startswith(("gdpfed ", "cat ", "printf "))
    ]
    assert len(commands) >= 3
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


@pytest.mark.training
def test_ten_lines_from_import_to_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
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
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), flags=re.S)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, "docs/tutorial.md", "exec"), names)  # noqa: S102 - our own documentation
