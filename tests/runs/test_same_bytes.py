"""A run of every kind has the bytes that it had before the round, the loop and the folders were rebuilt."""

import json
from pathlib import Path

import pytest

from tests.runs.golden import CASES, KEPT, arithmetic, made

pytestmark = pytest.mark.training


@pytest.mark.parametrize("case", list(CASES))
def test_same_bytes(case: str, tmp_path: Path) -> None:
    kept = json.loads(KEPT.read_text())
    if arithmetic() != kept["arithmetic"]:
        pytest.skip("this processor, or OMP_NUM_THREADS, rounds otherwise than the one that made the hashes")
    assert made(case, tmp_path) == kept["runs"][case]
