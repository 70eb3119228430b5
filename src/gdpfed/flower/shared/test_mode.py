"""Predictable keys, noise and samples: for tests that compare a deployment with the simulator, and for nothing else.

Place: asked by server and nodes before anything predictable is used. It takes the environment variable, the server's
setting, and, on a node, the owner's own permission.

Guarantees (tests of the same name):
  test_mode_is_refused_outside_tests   without the variable, the setting or the owner's permission.
"""

import os
import signal
from pathlib import Path

from gdpfed.errors import PrivacyError
from gdpfed.secure.randomness import Randomness, SimulatedRandomness, SystemRandomness
from gdpfed.secure.session import Session

__all__ = ["STOP_VARIABLE", "VARIABLE", "check_test_mode", "randomness_for", "stop_here"]

VARIABLE = "GDPFED_FLOWER_TEST_MODE"
STOP_VARIABLE = "GDPFED_FLOWER_STOP_AT"


def check_test_mode(test_seed: int | None, *, is_allowed: bool) -> None:
    """Raises PrivacyError if a seed is given where no test is."""
    if test_seed is None:
        return
    if os.environ.get(VARIABLE) != "1":
        raise PrivacyError(f"expected no test seed outside tests ({VARIABLE}=1): noise from a seed hides nothing")
    if not is_allowed:
        raise PrivacyError("expected no test seed: the owner of this node did not allow test mode in budget.toml")


def randomness_for(session: Session, *, client: int, test_seed: int | None) -> Randomness:
    """The operating system's, or in a test that of the simulator."""
    if test_seed is None:
        return SystemRandomness()
    return SimulatedRandomness(
        seed=test_seed, round_number=session.round_number, client=client, place=session.place, attempt=session.attempt
    )


def stop_here(point: str, round_number: int | None = None) -> None:
    """Ends this process as SIGKILL does, if a test asks for it.

    ``STOP_VARIABLE`` names a file of words, ``point`` or ``point:round``; each is used once.
    """
    path = Path(os.environ.get(STOP_VARIABLE, ""))
    if os.environ.get(VARIABLE) != "1" or not path.is_file():
        return
    words = path.read_text(encoding="utf-8").split()
    wanted = next((word for word in words if word in (point, f"{point}:{round_number}")), None)
    if wanted is not None:
        words.remove(wanted)
        path.write_text(" ".join(words), encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)
