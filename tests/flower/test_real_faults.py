"""Real processes that are killed: one fault here for CI, all of them by `make faults` (pytest -m slow)."""

from pathlib import Path
from typing import Literal

import pytest

from tests.flower.real import settle
from tests.flower.storm import FAULTS, Outcome, Storm

pytestmark = pytest.mark.processes

pytest.importorskip("flwr")


def test_server_killed_between_charge_and_release(tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "ServerApp, charged")
    outcomes: list[Outcome] = []
    Storm(tmp_path / "storm", (fault,)).run(print, outcomes, is_calm_at_the_end=False)
    assert outcomes[0].failures == []
    # What was charged before the kill stays charged: one of the two sums, and then both.
    assert outcomes[0].charges == 3
    assert settle(tmp_path / "storm") == {}


@pytest.mark.slow
@pytest.mark.parametrize("against", ["models", "server"])
def test_all_faults(tmp_path: Path, against: Literal["models", "server"]) -> None:
    outcomes: list[Outcome] = []
    Storm(tmp_path / "storm", FAULTS, against=against).run(print, outcomes)
    assert len(outcomes) == len(FAULTS) + 1
    assert {outcome.fault.name: outcome.failures for outcome in outcomes if outcome.failures} == {}
    assert settle(tmp_path / "storm") == {}
