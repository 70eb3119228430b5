"""Shared by all tests: the disk cache is off, so that every number is computed here."""

import signal

import pytest

from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets, parse_compact

# A shell's background jobs ignore ^C, and so would all processes that tests start there and interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_disk_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GDPFED_CACHE", "off")
    # Tables are as wide as they like, whatever started the tests.
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def fmnist() -> Budgets:
    return parse_compact("2000@0.5,2000@1.5,2000@3")


@pytest.fixture
def small() -> tuple[Budgets, PlanSettings]:
    """A population that plans in a moment."""
    return parse_compact("60@1,90@2,50@6"), PlanSettings(num_rounds=10, participation=0.2)
