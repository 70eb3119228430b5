"""Test mode is allowed here, and nothing waits for the disk: no test of this folder cuts the power."""

import os

import pytest

from gdpfed.flower.shared.test_mode import VARIABLE


@pytest.fixture(autouse=True)
def _test_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(autouse=True)
def _of_a_run() -> None:
    """Flower's messages need one; whichever test is the first."""
    identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
    identity.task_id, identity.run_id, identity.node_id = 1, 1, 1
