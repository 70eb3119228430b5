"""How a deployment behaves, apart from its plan.

Place: `settings.toml` in the server's home. What clients must agree to (the tolerances, test mode) is part of the terms
that the server signs; the rest is the server's own business.
"""

from dataclasses import dataclass

from gdpfed.config import documented, setting
from gdpfed.errors import InputError
from gdpfed.secure.defaults import COLLUDING_FRACTION, COMPLETE_UP_TO

__all__ = ["DeploymentSettings"]


@documented
@dataclass(frozen=True, kw_only=True)
class DeploymentSettings:
    """What every cohort must stand (part of the terms; a node's owner may ask for more), and how long the server waits.

    Who answers a stage later than its seconds is lost to the sum; `waiting` says for whom they are fewer.
    """

    dropout_rate: float = setting(
        0.1,
        "Fraction of a cohort that may vanish in the middle of a round.",
        allowed="At least 0, below 0.5.",
        option="--dropout",
    )
    colluding_fraction: float = setting(
        COLLUDING_FRACTION,
        "Fraction of every cohort that may tell the server all they know; it picks cohorts.",
        allowed="At least 0, below 0.5.",
        option="--colluders",
    )
    complete_up_to: int = setting(
        COMPLETE_UP_TO, "In cohorts of up to so many clients everyone is everyone's neighbour."
    )
    start_seconds: float = setting(
        60.0, "Wait so long for all enrolled nodes before the first round, and for min_online before every other."
    )
    min_online: float = setting(
        0.5,
        "With a smaller fraction of nodes online the run stops rather than spend budgets on noise; it can be resumed.",
        allowed="At least 0, at most 1.",
    )
    announce_seconds: float = setting(60.0, "Wait so long for nodes that announce themselves.")
    keys_seconds: float = setting(120.0, "Wait so long for the keys of those who have none on deposit.")
    shares_seconds: float = setting(120.0, "Wait so long for the shares of its secrets.")
    input_seconds: float = setting(600.0, "Wait so long for training and masked updates.")
    answer_seconds: float = setting(
        30.0,
        "Of a plan against the server: an input leaves its node so long after it was asked for, whether or not there "
        "was anything to train. Training has three quarters of it; what is not ready then is zero.",
        allowed="Above 0; input_seconds must be larger.",
    )
    agree_seconds: float = setting(120.0, "Wait so long for agreement on who is left.")
    reveal_seconds: float = setting(120.0, "Wait so long for what removes the masks.")
    poll_seconds: float = setting(0.1, "Seconds between two looks for answers.")
    max_attempts: int = setting(5, "A sum that fails is tried again so often.", allowed="At least 1.")
    evaluate_every: int = setting(1, "Rounds between evaluations on public data.", allowed="At least 1.")
    test_seed: int | None = setting(
        None,
        "For tests only: keys, noise and samples from addresses. A node whose owner did not allow it refuses.",
        option=None,
    )

    def __post_init__(self) -> None:
        # Here, since the command line reads the fields also where the packages of secure sums are missing.
        from gdpfed.secure.noise_shares import Tolerance

        Tolerance(**{name: getattr(self, name) for name in ("dropout_rate", "colluding_fraction", "complete_up_to")})
        for name in ("start", "announce", "keys", "shares", "input", "answer", "agree", "reveal", "poll"):
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
