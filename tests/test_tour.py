"""The notebook `examples/tour.ipynb`, cell by cell, as Jupyter would run it: the last expression of a cell is shown."""

import ast
import json
import time
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples" / "tour.ipynb"


def cells() -> list[dict[str, Any]]:
    content = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert content["nbformat"] == 4
    found: list[dict[str, Any]] = content["cells"]
    return found


def shown(source: str, names: dict[str, Any]) -> Any:
    """Runs a cell; returns what its last expression gives."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "tour.ipynb", "exec"), names)  # noqa: S102 - our own notebook
    if last is None:
        return None
    return eval(compile(ast.Expression(last.value), "tour.ipynb", "eval"), names)  # noqa: S307 - likewise


def test_the_notebook_is_saved_without_results() -> None:
    assert all(cell["outputs"] == [] for cell in cells() if cell["cell_type"] == "code")


@pytest.mark.training
def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    started, names, last = time.process_time(), {"__name__": "__main__"}, None
    for cell in cells():
        if cell["cell_type"] == "code":
            last = shown("".join(cell["source"]), names)
    assert time.process_time() - started < 60
    trained = names["trained"]
    # Resumed: all rounds are in the folder, the second call has run the rest.
    assert len(trained.records) == trained.plan.num_rounds - 5
    assert len(trained.metrics["bits"]) == trained.plan.num_rounds
    assert trained.metrics["bits"][-1] < trained.metrics["bits"][0] - 0.1
    assert "stopped" in capsys.readouterr().out
    page = last._repr_html_()
    assert page.startswith("<iframe srcdoc=")
    assert "simulation: not a private release" in page
