"""What we lean on of Flower: the assumption that fails says what is different now."""

import importlib
from importlib import metadata
from types import SimpleNamespace

import pytest

from gdpfed.flower.shared import leaning
from gdpfed.flower.shared.leaning import ASSUMPTIONS, Assumption, broken_assumptions

pytest.importorskip("flwr")


@pytest.mark.parametrize("assumption", ASSUMPTIONS, ids=lambda assumption: assumption.text)
def test_every_assumption_holds(assumption: Assumption) -> None:
    assert assumption.holds(), f"expected that {assumption.text} ({assumption.needed_by} needs it)"


def test_a_broken_assumption_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Flower in which everything is different: each is named, with the module of ours that needs it."""
    assert broken_assumptions() == []
    monkeypatch.setattr(leaning, "_module", lambda _: SimpleNamespace(__file__=None, time=object()))
    monkeypatch.setattr(metadata, "version", lambda _: "1.42.0")
    monkeypatch.setattr(metadata, "distribution", lambda _: SimpleNamespace(entry_points=()))
    said = broken_assumptions()
    assert len(said) == len(ASSUMPTIONS)
    for assumption, line in zip(ASSUMPTIONS, said, strict=True):
        assert assumption.text in line
        assert assumption.needed_by in line


def test_who_needs_an_assumption_is_there() -> None:
    for assumption in ASSUMPTIONS:
        importlib.import_module("gdpfed.flower." + assumption.needed_by.removesuffix(".py").replace("/", "."))
