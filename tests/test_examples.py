"""Every example runs as a script in an empty folder, and the Flower app is what `gdpfed flower new` writes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gdpfed.flower.operate.project import write_project

pytestmark = pytest.mark.training

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"

EXPECTED = {
    "whole_method": "accuracy 9",
    "own_model": "test accuracy 9",
    "own_method": "square-root  signal-to-noise",
    "own_data": "absolute error 0.",
    "ledger": "would exceed budgets before its end",
}


def test_every_example_is_tested() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(EXPECTED)
    assert len((EXAMPLES / "whole_method.py").read_text().splitlines()) <= 75, "it is to be read on one screen"


@pytest.mark.parametrize("name", EXPECTED)
def test_examples_run(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert EXPECTED[name] in done.stdout


def test_the_flower_app_is_a_new_project(tmp_path: Path) -> None:
    """After a change of the template, write it anew: `gdpfed flower new examples/own_flower_app`."""
    written = write_project(tmp_path / "own_flower_app")
    kept = EXAMPLES / "own_flower_app"
    names = [path.relative_to(tmp_path / "own_flower_app") for path in written]
    there = [path for path in kept.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sorted(names) == sorted(path.relative_to(kept) for path in there)
    for name in names:
        assert (kept / name).read_text() == (tmp_path / "own_flower_app" / name).read_text()
