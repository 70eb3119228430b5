"""How a deployment behaves, apart from its plan.

Place: `settings.toml` in the server's home. What clients must agree to (the tolerances, test mode) is part of the terms
that the server signs; the rest is the server's own business.
"""

from dataclasses import dataclass

from gdpfed.errors import InputError
from gdpfed.flower.shared.terms import StatedTolerance
from gdpfed.secure.defaults import COLLUDING_FRACTION, COMPLETE_UP_TO

__all__ = ["DeploymentSettings"]


@dataclass(frozen=True, kw_only=True)
class DeploymentSettings(StatedTolerance):
    """Seconds are how long the server waits for the answers of a stage; who answers later is lost.

    ``dropout_rate``, ``colluding_fraction`` and ``complete_up_to`` are what every cohort must stand
    (`secure.noise_shares.Tolerance`); they are part of the terms, and a node's owner may ask for more.
    ``start_seconds``: how long to wait for all enrolled nodes before the first round, and for ``min_online`` of them
    before every other: with fewer the run stops rather than spend budgets on noise, and can be resumed.
    ``test_seed``: keys, noise and samples from addresses, for tests only; a node whose owner did not allow it refuses.
    """

    dropout_rate: float = 0.1
    colluding_fraction: float = COLLUDING_FRACTION
    complete_up_to: int = COMPLETE_UP_TO
    start_seconds: float = 60.0
    min_online: float = 0.5
    announce_seconds: float = 60.0
    keys_seconds: float = 120.0
    shares_seconds: float = 120.0
    input_seconds: float = 600.0
    agree_seconds: float = 120.0
    reveal_seconds: float = 120.0
    poll_seconds: float = 0.2
    max_attempts: int = 5
    evaluate_every: int = 1
    test_seed: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("start", "announce", "keys", "shares", "input", "agree", "reveal", "poll"):
            value = getattr(self, f"{name}_seconds")
            if not 0 < value < 1e7:
                raise InputError(f"expected {name}_seconds above 0, got {name}_seconds={value}")
        for name in ("max_attempts", "evaluate_every"):
            if getattr(self, name) < 1:
                raise InputError(f"expected {name} >= 1, got {name}={getattr(self, name)}")
        if not 0 <= self.min_online <= 1:
            raise InputError(f"expected 0 <= min_online <= 1, got min_online={self.min_online}")
        if self.test_seed is not None and self.test_seed < 0:
            raise InputError(f"expected test_seed >= 0, got test_seed={self.test_seed}")

    def seconds(self, stage: str) -> float:
        """How long the answers of a stage may take."""
        return float(getattr(self, f"{stage}_seconds"))
