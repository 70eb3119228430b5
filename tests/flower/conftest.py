"""Test mode is allowed here."""

import pytest

from gdpfed.flower.test_mode import VARIABLE


@pytest.fixture(autouse=True)
def _test_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
