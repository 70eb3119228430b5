"""A link, a command and settings are one state."""

import math
from pathlib import Path
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpfed.errors import InputError
from gdpfed.planning.methods import METHODS
from gdpfed.serve.states import PlannerState, read_state

FRACTIONS = st.floats(min_value=1e-6, max_value=1, allow_nan=False)
STATED = st.fixed_dictionaries(
    {},
    optional={
        "method": st.sampled_from(list(METHODS)),
        "num_rounds": st.integers(1, 5000),
        "participation": FRACTIONS,
        "delta": st.floats(min_value=1e-12, max_value=0.5),
        "groups": st.one_of(st.just("auto"), st.integers(1, 9), st.tuples(FRACTIONS, st.floats(1.5, 9))),
        "clip_norm": FRACTIONS,
        "accountant": st.sampled_from(["pld", "rdp"]),
    },
)


@settings(deadline=None, max_examples=60)
@given(stated=STATED, source=st.sampled_from(["fmnist", "60@1,90@2.5", "a b.csv", "x&y=1.toml"]))
def test_a_link_is_a_state(stated: dict[str, object], source: str) -> None:
    state = PlannerState(source=source, stated=tuple(stated.items()))
    again = read_state(dict(parse_qsl(state.query)))
    assert dict(again.stated) == dict(state.stated)
    assert again.source == source
    assert read_state(dict(parse_qsl(again.query))) == again


def test_the_command_is_quoted(tmp_path: Path) -> None:
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "my file.csv").write_text("client,epsilon\na,1\nb,2\n")
    state = read_state({"source": "my file.csv", "rounds": "7", "groups": "1,2"})
    assert state.command(folder) == f"gdpfed plan '{folder}/my file.csv' --rounds 7 --groups 1.0,2.0"
    assert len(state.task(folder).budgets) == 2
    assert read_state({}).command(folder) == "gdpfed plan fmnist"
    assert read_state({"source": "60@1"}).task(folder).settings.num_rounds == 50


@pytest.mark.parametrize("method", ["os:system", "shutil:rmtree", "GDPFED", ""])
def test_no_code_is_named_by_a_link(method: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected a method among"):
        read_state({"source": "60@1", "method": method})
    (tmp_path / "own.toml").write_text('budgets = "60@1"\nmethod = "os:getcwd"\n')
    with pytest.raises(InputError, match="code of your own"):
        read_state({"source": "own.toml"}).task(tmp_path)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"source": "../x.csv"}, "inside the folder"),
        ({"source": "/etc/hosts.csv"}, "inside the folder"),
        ({"source": "/etc/hosts"}, "expected a preset"),
        ({"source": "absent.csv"}, "not there"),
        ({"source": "a@b/../../x.csv"}, "whole number of clients"),
        ({"source": "1@1/../own.toml"}, "expected a number"),
        ({"source": "60@1", "rounds": "many"}, "expected rounds to be a number"),
        ({"source": "60@1", "rounds": "0"}, "num_rounds"),
        ({"source": "60@1", "participation": "nan"}, "participation"),
        ({"source": "60@1", "participation": "inf"}, "participation"),
        ({"source": "60@1", "rounds": "9" * 5000}, "rounds"),
        ({"source": "60@1", "round": "3"}, "did you mean 'rounds'"),
        ({"source": "60@1", "groups": "a,b"}, "groups"),
        ({"source": "60@1", "against": "nobody"}, "against"),
        ({"source": "60@1", "data_dir": "/"}, "unknown setting"),
    ],
)
def test_what_a_link_cannot_say_is_refused(query: dict[str, str], words: str, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text('budgets = "60@1"\n')
    with pytest.raises(InputError, match=words):
        read_state(query).task(tmp_path)


def test_numbers_keep_their_bits() -> None:
    value = math.nextafter(0.1, 1)
    assert dict(read_state({"participation": repr(value)}).stated)["participation"] == value
