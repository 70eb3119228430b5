"""The shape of the project: layers, exported names, promises with tests."""

import ast
import importlib
import re
from pathlib import Path

import pytest

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
