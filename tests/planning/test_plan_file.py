import dataclasses
import json
import re
from pathlib import Path

import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning.methods import METHODS, make_plan
from gdpfed.planning.plan_file import load_plan, plan_as_json, plan_from_toml, plan_hash, plan_to_toml, save_plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets, parse_compact

Small = tuple[Budgets, PlanSettings]


@pytest.mark.training
@pytest.mark.parametrize("method", METHODS)
def test_round_trip_is_exact(small: Small, method: str, tmp_path: Path) -> None:
    settings = dataclasses.replace(small[1], method=method, max_participations=4)
    plan = make_plan(small[0], settings)
    save_plan(plan, tmp_path / "plan.toml")
    loaded = load_plan(tmp_path / "plan.toml")
    assert loaded == plan
    assert plan_hash(loaded) == plan_hash(plan)
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]


@pytest.mark.training
def test_round_trip_of_an_overlap(small: Small) -> None:
    plan = make_plan(small[0], dataclasses.replace(small[1], method="gdpfed", clients_per_person=2))
    assert plan_from_toml(plan_to_toml(plan)) == plan


def edited(text: str, key: str, factor: float) -> str:
    """Multiplies the first value of ``key``, as someone with an editor would."""
    return re.sub(rf"^{key} = (.*)$", lambda match: f"{key} = {float(match[1]) * factor!r}", text, count=1, flags=re.M)


@pytest.mark.training
@pytest.mark.parametrize(("key", "factor"), [("noise_multiplier", 0.9), ("sampling_rate", 1.1), ("delta", 0.01)])
def test_overspending_file_is_refused(small: Small, key: str, factor: float) -> None:
    text = plan_to_toml(make_plan(*small))
    assert edited(text, key, factor) != text
    with pytest.raises(PrivacyError, match="more than its budget"):
        plan_from_toml(edited(text, key, factor))
    with pytest.raises(PrivacyError, match="more than its budget"):
        plan_from_toml(text.replace("num_rounds = 10", "num_rounds = 20"))
    with pytest.raises(PrivacyError, match="claims epsilon_release"):
        plan_from_toml(edited(text, "epsilon_release", 0.5))
    with pytest.raises(PrivacyError, match="claims epsilon_release"):
        plan_from_toml(edited(text, "noise_multiplier", 1.5))


def test_a_plan_of_another_version_says_so(small: Small) -> None:
    plan = dataclasses.replace(make_plan(*small), accountant_version="dp-accounting 0.1")
    text = edited(plan_to_toml(plan), "epsilon_release", 0.5)
    with pytest.raises(PrivacyError, match=r"made with dp-accounting 0\.1"):
        plan_from_toml(text)


def test_unknown_key_is_refused(small: Small) -> None:
    text = plan_to_toml(make_plan(*small))
    with pytest.raises(InputError, match=r"unknown key 'num_round' in .*did you mean 'num_rounds'"):
        plan_from_toml(text.replace("num_rounds", "num_round"))
    with pytest.raises(InputError, match=r"unknown key 'wieght' in .*group 1 .*did you mean 'weight'"):
        plan_from_toml(text.replace("\nweight", "\nwieght"))
    with pytest.raises(InputError, match="missing key 'delta'"):
        plan_from_toml(re.sub(r"\ndelta = .*", "", text))
    with pytest.raises(InputError, match="expected num_rounds to be a whole number"):
        plan_from_toml(text.replace("num_rounds = 10", "num_rounds = 10.5"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "format = 1"),
        ("format = 2", "format = 1"),
        ("format = 1", r"\[\[groups\]\]"),
        ("format = 1\ngroups = 3", r"\[\[groups\]\]"),
        ("format = ", "TOML"),
    ],
)
def test_other_files_are_refused(text: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        plan_from_toml(text)


def test_absent_binary_and_unwritable_files(small: Small, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not there"):
        load_plan(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="binary"):
        load_plan(tmp_path / "binary.toml")
    with pytest.raises(InputError, match="cannot write"):
        save_plan(make_plan(*small), tmp_path / "no" / "such" / "folder.toml")


@pytest.mark.parametrize("method", ["fedavg", "gdpfed+", "pooled"])
def test_json_has_what_is_promised(small: Small, method: str) -> None:
    plan = make_plan(small[0], dataclasses.replace(small[1], method=method))
    content = json.loads(json.dumps(plan_as_json(plan), allow_nan=False))
    wanted = {
        "epsilon",
        "num_clients",
        "sampling_rate",
        "expected_cohort",
        "noise_multiplier",
        "weight",
        "keep_fraction",
        "epsilon_release",
        "epsilon_server",
    }
    for group in content["groups"]:
        assert wanted <= set(group)
        assert (group["epsilon_release"] is None) == (method == "fedavg")
    assert content["hash"] == plan_hash(plan)


def test_averaging_leaves_other_hashes_alone() -> None:
    plan = make_plan(parse_compact("100@1,100@3"), PlanSettings(method="gdpfed", num_rounds=5))
    assert "averaging" not in plan_to_toml(plan)
    served = dataclasses.replace(plan, averaging=0.9)
    assert plan_from_toml(plan_to_toml(served)) == served
    assert plan_hash(served) != plan_hash(plan)
    with pytest.raises(InputError, match="averaging"):
        dataclasses.replace(plan, averaging=1.0)
