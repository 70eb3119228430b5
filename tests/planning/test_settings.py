import math
from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.planning.settings import PlanSettings
from gdpfed.tasks.task import PRESETS, load_task


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_rounds", 0),
        ("num_rounds", 1.5),
        ("participation", 0.0),
        ("participation", 1.01),
        ("participation", math.nan),
        ("clip_norm", 0.0),
        ("clip_norm", math.inf),
        ("delta", 0.0),
        ("delta", 1.0),
        ("accountant", "gdp"),
        ("groups", "distnct"),
        ("groups", 0),
        ("min_group_size", 0),
        ("rates", "papr"),
        ("rates", (0.1, 1.2)),
        ("fairness_floor", 0.0),
        ("noise_multipliers", (0.0,)),
        ("noise_multipliers", (math.inf,)),
        ("keep", "all"),
        ("weights", "equal"),
        ("release", "both"),
        ("learning_rate", -1.0),
        ("local_steps", 0),
        ("server_learning_rate", math.nan),
        ("max_participations", 0),
        ("clients_per_person", 0),
    ],
)
def test_bad_settings_are_refused(field: str, value: object) -> None:
    with pytest.raises(InputError, match=field.rstrip("s")):
        PlanSettings(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", PRESETS)
def test_presets_load(name: str) -> None:
    task = load_task(name)
    assert len(task.budgets) in (6000, 714, 600)
    assert task.settings.method == "gdpfed+"


def test_own_file(tmp_path: Path) -> None:
    (tmp_path / "clients.csv").write_text("client,epsilon\na,1\nb,2\n")
    (tmp_path / "own.toml").write_text(
        'title = "Own"\nbudgets = "clients.csv"\nnum_rounds = 7\nrates = [0.5, 0.25]\ngroups = "distinct"\n'
        "delta = 1e-3\n"
    )
    task = load_task(str(tmp_path / "own.toml"))
    assert task.title == "Own"
    assert task.budgets.clients == ("a", "b")
    assert task.settings == PlanSettings(num_rounds=7, rates=(0.5, 0.25), groups="distinct", delta=1e-3)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("num_rounds = 3", "expected budgets"),
        ('budgets = "5@1"\nnum_round = 3', "did you mean 'num_rounds'"),
        ('budgets = "5@1"\nnum_rounds = "3"', "num_rounds to be a whole number"),
        ('budgets = "5@1"\nparticipation = true', "participation to be a number"),
        ('budgets = "5@1"\nrates = ["a"]', "rates to be"),
        ('budgets = "5@1"\ntitle = 3', "title"),
        ("budgets = ", "TOML"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, named: str) -> None:
    (tmp_path / "own.toml").write_text(text)
    with pytest.raises(InputError, match=named):
        load_task(str(tmp_path / "own.toml"))


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("fmnst", "did you mean 'fmnist'"),
        ("clients.csv", "not there"),
        ("plan.toml", "not there"),
        ("budgets.xls", r"\.csv"),
    ],
)
def test_unknown_sources_are_refused(source: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        load_task(source)


def test_whole_numbers_are_numbers() -> None:
    """A plan made with 2 in the place of 2.0 is the plan that its own file holds."""
    whole = PlanSettings(server_learning_rate=2, clip_norm=1, participation=1, num_rounds=4)
    assert repr(whole) == repr(PlanSettings(server_learning_rate=2.0, clip_norm=1.0, participation=1.0, num_rounds=4))
    assert type(whole.num_rounds) is int
