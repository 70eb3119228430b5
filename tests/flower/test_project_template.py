"""What `gdpfed flower new` writes; tests/flower/test_real_up.py runs it."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from gdpfed.errors import InputError
from gdpfed.flower.operate.project import check_project, write_project

pytest.importorskip("flwr")


def test_a_new_project_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from flwr.cli.config_utils import load_and_validate

    written = write_project(tmp_path / "My Federation")
    config, warnings = load_and_validate(tmp_path / "My Federation" / "pyproject.toml")
    assert warnings == []
    assert config["project"]["name"] == "my-federation"
    assert check_project(tmp_path / "My Federation").is_absolute()
    assert all("$" not in path.read_text() for path in written)
    monkeypatch.syspath_prepend(str(tmp_path / "My Federation"))
    from my_federation import task  # type: ignore[import-not-found] # it was written just now

    generator = np.random.default_rng(1)
    labels = generator.integers(0, 10, 200)
    pictures = generator.random((200, 49), dtype=np.float32)
    pictures[np.arange(200), labels * 4] = 4.0  # easy to learn
    np.savez(tmp_path / "data.npz", pictures=pictures, labels=labels)
    context = SimpleNamespace(
        node_config={"data": str(tmp_path / "data.npz")}, run_config={"test-data": str(tmp_path / "data.npz")}
    )
    before = task.make_model(context)
    after = task.train(before, task.load_data(context), context)
    assert [array.shape for array in before] == [array.shape for array in after]
    assert task.evaluate(after, context)["accuracy"] > 50 > 2 * task.evaluate(before, context)["accuracy"]
    for name in [name for name in sys.modules if name.startswith("my_federation")]:
        del sys.modules[name]


def test_a_project_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(InputError, match="empty folder"):
        write_project(tmp_path)
    with pytest.raises(InputError, match="Python package"):
        write_project(tmp_path / "class")
    with pytest.raises(InputError, match="gdpfed flower new"):
        check_project(tmp_path)
