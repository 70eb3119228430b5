"""Methods of one's own: by a decorator, by a reference, by an entry point of an installed package."""

import dataclasses
from importlib import metadata
from pathlib import Path

import pytest

import gdpfed
from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning import own_methods
from gdpfed.planning.own_methods import ENTRY_POINTS

BUDGETS = gdpfed.parse_compact("60@1,90@2,50@6")
SETTINGS = gdpfed.PlanSettings(num_rounds=10, participation=0.2)


@pytest.fixture(autouse=True)
def _forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_methods, "_REGISTERED", {})


def uniform(budgets: gdpfed.Budgets, settings: gdpfed.PlanSettings) -> gdpfed.Plan:
    return gdpfed.make_plan(budgets, dataclasses.replace(settings, method="gdpfed"))


def test_a_decorated_method_is_known() -> None:
    gdpfed.method("mine")(uniform)
    plan = gdpfed.make_plan(BUDGETS, dataclasses.replace(SETTINGS, method="mine"))
    assert plan.method == "mine"
    expected = gdpfed.make_plan(BUDGETS, dataclasses.replace(SETTINGS, method="gdpfed"))
    assert dataclasses.replace(plan, method="gdpfed") == expected
    with pytest.raises(InputError, match=r"among fedavg, .*pooled, auto, mine, got 'mime' \(did you mean 'mine'\?\)"):
        gdpfed.make_plan(BUDGETS, dataclasses.replace(SETTINGS, method="mime"))


def test_a_name_is_taken_once() -> None:
    gdpfed.method("mine")(uniform)
    gdpfed.method("mine")(uniform)
    with pytest.raises(InputError, match=r"a method 'mine' already, .*:uniform"):
        gdpfed.method("mine")(lambda budgets, settings: uniform(budgets, settings))
    with pytest.raises(InputError, match="the library has a method 'pooled'"):
        gdpfed.method("pooled")
    with pytest.raises(InputError, match="letters"):
        gdpfed.method("a/b")


def test_an_own_method_is_verified() -> None:
    @gdpfed.method("loud")
    def loud(budgets: gdpfed.Budgets, settings: gdpfed.PlanSettings) -> gdpfed.Plan:
        plan = uniform(budgets, settings)
        quieter = [dataclasses.replace(group, noise_multiplier=0.9 * group.noise_multiplier) for group in plan.groups]
        return dataclasses.replace(plan, groups=tuple(quieter))

    @gdpfed.method("others")
    def others(budgets: gdpfed.Budgets, settings: gdpfed.PlanSettings) -> gdpfed.Plan:
        return uniform(gdpfed.parse_compact("200@6"), settings)

    @gdpfed.method("nothing")
    def nothing(budgets: gdpfed.Budgets, settings: gdpfed.PlanSettings) -> gdpfed.Plan:
        return None  # type: ignore[return-value]

    for name, error, named in (
        ("loud", PrivacyError, "the plan of 'loud' is refused: .* more than its budget"),
        ("others", PrivacyError, "the plan of 'others' is refused"),
        ("nothing", InputError, "a gdpfed.Plan of the method 'nothing', got NoneType"),
    ):
        with pytest.raises(error, match=named):
            gdpfed.make_plan(BUDGETS, dataclasses.replace(SETTINGS, method=name))


def test_an_own_method_keeps_its_adversary() -> None:
    """One that ignores `against` is refused; one that follows it is not, nor one without privacy."""

    @gdpfed.method("deaf")
    def deaf(budgets: gdpfed.Budgets, settings: gdpfed.PlanSettings) -> gdpfed.Plan:
        return uniform(budgets, dataclasses.replace(settings, against="models", asks=None, trainings=None))

    @gdpfed.method("follows")
    def follows(budgets: gdpfed.Budgets, settings: gdpfed.PlanSettings) -> gdpfed.Plan:
        return gdpfed.make_plan(budgets, dataclasses.replace(settings, method="gdpfed"))

    hidden = dataclasses.replace(SETTINGS, against="server", asks=4, trainings=2.0)
    with pytest.raises(PrivacyError, match="the plan of 'deaf' is refused: expected a rotation"):
        gdpfed.make_plan(BUDGETS, dataclasses.replace(hidden, method="deaf"))
    assert gdpfed.make_plan(BUDGETS, dataclasses.replace(hidden, method="follows")).is_rotation


def test_a_reference_is_imported_when_a_plan_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_methods_17.py").write_text(
        "import dataclasses, gdpfed\n"
        "def calm(budgets, settings):\n"
        "    return gdpfed.make_plan(budgets, dataclasses.replace(settings, method='gdpfed'))\n"
    )
    settings = dataclasses.replace(SETTINGS, method="my_methods_17:calm")
    with pytest.raises(InputError, match="cannot import the method 'my_methods_17:calm'"):
        gdpfed.make_plan(BUDGETS, settings)
    monkeypatch.chdir(tmp_path)
    assert gdpfed.make_plan(BUDGETS, settings).method == "my_methods_17:calm"


def test_an_installed_package_offers_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the files that pip writes."""
    (tmp_path / "offered_17.py").write_text(
        "import dataclasses, gdpfed\n"
        "def calm(budgets, settings):\n"
        "    return gdpfed.make_plan(budgets, dataclasses.replace(settings, method='gdpfed'))\n"
    )
    info = tmp_path / "offered_17-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: offered-17\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\ncalm = offered_17:calm\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert [point.name for point in metadata.entry_points(group=ENTRY_POINTS)] == ["calm"]
    plan = gdpfed.make_plan(BUDGETS, dataclasses.replace(SETTINGS, method="calm"))
    assert plan.method == "calm"
    with pytest.raises(InputError, match="pooled, auto, calm, got"):
        gdpfed.make_plan(BUDGETS, dataclasses.replace(SETTINGS, method="x"))
