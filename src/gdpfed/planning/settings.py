"""What is asked of the planner, apart from the budgets.

Place: beside the budgets at the entrance of the flow: the command line and TOML files become one `PlanSettings`, which
validates itself. A setting left at None is the method's own choice.
"""

from dataclasses import dataclass, fields
from typing import Literal

from gdpfed.errors import InputError, suggestion
from gdpfed.planning.plan import RELEASES, ReleaseKind
from gdpfed.planning.weights import WEIGHTINGS, Weighting
from gdpfed.privacy.accountant import (
    Accountant,
    check_accountant,
    check_delta,
    check_noise_multiplier,
    check_num_rounds,
)

__all__ = ["AUTO_GROUPS", "GroupRule", "KeepRule", "PlanSettings", "RateRule"]

# "auto" makes a group for each distinct budget up to this many, and chooses at most so many beyond.
AUTO_GROUPS = 8

# Clip norms and learning rates beyond this are a mistake.
_LARGEST = 1e9

GroupRule = Literal["auto", "distinct", "given"] | int | tuple[float, ...]
RateRule = Literal["uniform", "paper", "snr", "sample"] | tuple[float, ...]
KeepRule = Literal["none", "paper", "closed-form"] | tuple[float, ...]

_WORDS: dict[str, tuple[str, ...]] = {
    "groups": ("auto", "distinct", "given"),
    "rates": ("uniform", "paper", "snr", "sample"),
    "keep": ("none", "paper", "closed-form"),
    "weights": WEIGHTINGS,
    "release": RELEASES,
}


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """How to plan. The defaults are those of the paper's FMNIST experiment, with a clip norm of 1."""

    method: str = "gdpfed+"
    num_rounds: int = 50
    participation: float = 0.02
    clip_norm: float = 1.0
    delta: float | None = None
    accountant: Accountant = "pld"
    groups: GroupRule = "auto"
    min_group_size: int = 1
    rates: RateRule | None = None
    fairness_floor: float = 0.25
    noise_multipliers: tuple[float, ...] | None = None
    keep: KeepRule | None = None
    weights: Weighting | None = None
    release: ReleaseKind | None = None
    learning_rate: float = 0.1
    local_steps: int = 5
    server_learning_rate: float = 1.0
    averaging: float = 0.0
    max_participations: int | None = None
    clients_per_person: int = 1
    linked: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        check_accountant(self.accountant)
        if self.delta is not None:
            check_delta(self.delta)
        check_num_rounds(self.num_rounds)
        for name in ("local_steps", "min_group_size", "clients_per_person", "max_participations"):
            value = getattr(self, name)
            is_off = name == "max_participations" and value is None
            self._expect(name, is_off or (isinstance(value, int) and value >= 1), "a whole number >= 1")
        self._expect("participation", 0 < self.participation <= 1, "a fraction of the clients above 0 and at most 1")
        for name in ("clip_norm", "learning_rate", "server_learning_rate"):
            value = getattr(self, name)
            self._expect(name, 0 < value <= _LARGEST, f"a number above 0 and at most {_LARGEST:g}")
        self._expect("averaging", 0 <= self.averaging < 1, "a number from 0, which is off, to below 1")
        self._expect("fairness_floor", 0 < self.fairness_floor <= 1, "a number above 0 and at most 1")
        for name, words in _WORDS.items():
            self._expect_word(name, words)
        if isinstance(self.groups, int):
            self._expect("groups", self.groups >= 1, "at least one group")
        for rate in self.rates if isinstance(self.rates, tuple) else ():
            if not 0 < rate <= 1:
                raise InputError(f"expected every rate above 0 and at most 1, got rates={rate}")
        for noise in self.noise_multipliers or ():
            if check_noise_multiplier(noise, field="noise_multipliers") == 0:
                raise InputError("expected every noise multiplier above 0, got noise_multipliers=0: use method fedavg")

    def _expect(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise InputError(f"expected {name} to be {expected}, got {name}={getattr(self, name)}")

    def _expect_word(self, name: str, words: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if isinstance(value, str) and value not in words:
            known = ", ".join(repr(word) for word in words)
            raise InputError(f"expected {name} to be one of {known}, got {name}={value!r}{suggestion(value, words)}")

    def changed(self) -> set[str]:
        """The names of the settings that differ from their defaults."""
        return {field.name for field in fields(self) if getattr(self, field.name) != field.default}
