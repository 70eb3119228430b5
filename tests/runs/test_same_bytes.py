"""A run of every kind has the bytes that it had before the round, the loop and the folders were rebuilt."""

import json
from pathlib import Path

import pytest

from tests.runs.golden import CASES, KEPT, arithmetic, made

pytestmark = pytest.mark.training
# Ray's sockets and pipes end with the process.
RAY = (
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
)


@pytest.mark.parametrize("case", [pytest.param(case, marks=RAY if case == "ray" else ()) for case in CASES])
def test_same_bytes(case: str, tmp_path: Path) -> None:
    kept = json.loads(KEPT.read_text()).get(arithmetic(), {})
    if case not in kept:
        pytest.skip("no hash was kept by a processor and an OMP_NUM_THREADS that round as these do")
    assert made(case, tmp_path) == kept[case]
