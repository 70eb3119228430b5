"""What is asked of the planner, apart from the budgets.

Place: beside the budgets at the entrance of the flow: the command line and TOML files become one `PlanSettings`, which
validates itself. A setting left at None is the method's own choice.
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from gdpfed.config import documented, fit_fields, setting
from gdpfed.errors import InputError, expect, suggestion
from gdpfed.planning.plan import RELEASES, Plan, ReleaseKind
from gdpfed.planning.weights import WEIGHTINGS, Weighting
from gdpfed.privacy.accountant import (
    Accountant,
    check_accountant,
    check_delta,
    check_noise_multiplier,
    check_num_rounds,
)
from gdpfed.privacy.calibrate import check_epsilon

__all__ = [
    "AUTO_GROUPS", "MAX_LOCAL_STEPS", "Against", "GroupRule", "KeepRule", "PlanSettings", "RateRule", "settings_of",
]  # fmt: skip

# "auto" makes a group for each distinct budget up to this many, and chooses at most so many beyond.
AUTO_GROUPS = 8

# More would not fit into memory: a client's batches are drawn at once.
MAX_LOCAL_STEPS = 100_000

# Clip norms and learning rates beyond this are a mistake.
_LARGEST = 1e9

GroupRule = Literal["auto", "distinct", "given"] | int | tuple[float, ...]
Against = Literal["models", "server"]
RateRule = Literal["uniform", "paper", "snr", "sample"] | tuple[float, ...]
KeepRule = Literal["none", "paper", "closed-form"] | tuple[float, ...]

_WORDS: dict[str, tuple[str, ...]] = {
    "groups": ("auto", "distinct", "given"),
    "rates": ("uniform", "paper", "snr", "sample"),
    "keep": ("none", "paper", "closed-form"),
    "weights": WEIGHTINGS,
    "release": RELEASES,
    "against": ("models", "server"),
}


@documented
@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """How to plan. The defaults are those of the paper's FMNIST experiment, with a clip norm of 1."""

    method: str = setting(
        "gdpfed+",
        "One of fedavg, dp-fedavg, gdpfed, gdpfed-opc, gdpfed+, pfa, idp-fedavg, idp-scale, pooled, auto. Default: "
        "gdpfed+. Or your own: a name that was registered, or that an installed package offers, or "
        "package.module:function, which is run.",
    )
    num_rounds: int = setting(50, "Rounds of training.", option="--rounds")
    participation: float = setting(
        0.02, "Mean fraction of all clients that take part in a round.", allowed="Above 0, at most 1."
    )
    clip_norm: float = setting(1.0, "L2 bound on one client's update.", allowed="Above 0.")
    normalised: bool | None = setting(
        None,
        "Every update is scaled to the clip norm, shorter ones too: then no clip norm has to be chosen, since only its "
        "product with the server's step counts. Default: the method's.",
    )
    delta: float | None = setting(
        None,
        "Failure probability for clients that state none. Default: 0.1 / clients; of 600 clients or more that are only "
        "counted (2000@0.5), the paper's clients ** -1.1.",
        allowed="Above 0, below 1.",
    )
    accountant: Accountant = setting("pld", "'pld' (tightest, the default) or 'rdp' (the paper's).")
    groups: GroupRule = setting(
        "auto",
        "'distinct' (one for each budget), a number (at most so many, chosen optimally), a list of lowest epsilons "
        "(0.5,1.5,3), or 'given' (the file's column group). Default: distinct up to 8 budgets, chosen beyond.",
    )
    min_group_size: int = setting(
        1, "Clients of the smallest group; smaller ones join the stricter neighbour.", allowed="At least 1."
    )
    rates: RateRule | None = setting(
        None,
        "Sampling rates: 'uniform', 'paper', 'snr', 'sample', or a list, strictest group first (0.006,0.018,0.035). "
        "Default: the method's.",
    )
    fairness_floor: float = setting(
        0.25,
        "With rates 'snr': no group is sampled below this fraction of the uniform rate.",
        allowed="Above 0, at most 1.",
    )
    noise_multipliers: tuple[float, ...] | None = setting(
        None,
        "Noise std on each group's sum, divided by the clip norm, in place of calibrated ones; refused if a budget is "
        "exceeded.",
        allowed="Above 0.",
    )
    keep: KeepRule | None = setting(
        None,
        "Fraction kept by Top-k: 'none', 'paper', 'closed-form', or a list (0.7,0.8,0.9). Default: the method's.",
        allowed="Above 0, at most 1.",
    )
    weights: Weighting | None = setting(
        None, "Weights of the groups' sums: 'paper' or 'inverse-variance'. Default: the method's."
    )
    release: ReleaseKind | None = setting(
        None, "Sums that are released: 'per-group', or 'pooled' (one sum, one noise draw). Default: the method's."
    )
    learning_rate: float = setting(0.1, "Size of a client's local steps.", allowed="Above 0.")
    local_steps: int = setting(5, "Steps of a client in a round, each on one batch.", allowed="From 1 to 100000.")
    server_learning_rate: float = setting(1.0, "Factor on the update. Default: 1.", allowed="Above 0.")
    adaptive_step: bool | None = setting(
        None,
        "The server finds its step from what it has released: longer while updates go on in the averaged model's "
        "direction, shorter when they turn back. Needs averaging. Default: the method's.",
    )
    averaging: float = setting(
        0.0,
        "Keep a moving average of the models that forgets at this rate. Default: 0, off.",
        allowed="At least 0, below 1.",
    )
    max_participations: int | None = setting(
        None,
        "A client that took part in so many rounds is not sampled again. Default: any.",
        allowed="At least 1.",
    )
    against: Against = setting(
        "models",
        "Whom the promise must hold against: 'models', whoever sees the released models, or 'server', the server too: "
        "it asks every client equally often, and clients toss secret coins whether to train.",
    )
    asks: int | None = setting(
        None,
        "Against the server: how often each client is asked. Default: what costs least at the signal-to-noise of the "
        "plan against models.",
        allowed="From 1 to the rounds.",
    )
    trainings: float | None = setting(
        None,
        "Against the server: how often a client trains in the whole run, on average. Default: as few as keep the "
        "signal-to-noise of the plan against models.",
        allowed="Above 0, at most the asks.",
    )
    ask_cost: float = setting(
        0.25, "Against the server: what an ask costs a client, where a training costs 1.", allowed="At least 0."
    )
    correlated_noise: bool = setting(
        False,
        "Against the server, in a simulation: noise that the next rounds partly take back, until a client is asked "
        "again.",
    )
    clients_per_person: int = setting(
        1, "One person's records may sit in so many clients.", allowed="From 1 to 4; list them (linked) beyond."
    )
    person_epsilon: float | None = setting(
        None,
        "With clients_per_person or linked: a person's clients together stay within this epsilon, by more noise. "
        "Default: it is computed, not limited.",
        allowed="Above 0.",
    )
    linked: tuple[tuple[str, ...], ...] = setting(
        (),
        "Names of the clients of one person, for each person in several. On the command line: a file with the clients "
        "of one person on each line (a,b,c), or a JSON list of lists.",
    )

    def __post_init__(self) -> None:
        # As a file has them: a plan with 2 in the place of 2.0 would have another hash than its own file.
        fit_fields(self)
        check_accountant(self.accountant)
        if self.delta is not None:
            check_delta(self.delta)
        if self.person_epsilon is not None:
            check_epsilon(self.person_epsilon, field="person_epsilon")
            if self.clients_per_person == 1 and not self.linked:
                raise InputError(
                    f"expected clients_per_person or linked with person_epsilon={self.person_epsilon}, got neither: a "
                    f"person in one client has that client's budget"
                )
        check_num_rounds(self.num_rounds)
        for name in ("local_steps", "min_group_size", "clients_per_person", "max_participations"):
            value = getattr(self, name)
            is_off = name == "max_participations" and value is None
            self._expect(name, is_off or (isinstance(value, int) and value >= 1), "a whole number >= 1")
        self._expect("local_steps", self.local_steps <= MAX_LOCAL_STEPS, f"at most {MAX_LOCAL_STEPS}")
        self._expect("participation", 0 < self.participation <= 1, "a fraction of the clients above 0 and at most 1")
        for name in ("clip_norm", "learning_rate", "server_learning_rate"):
            value = getattr(self, name)
            self._expect(name, 0 < value <= _LARGEST, f"a number above 0 and at most {_LARGEST:g}")
        self._expect("averaging", 0 <= self.averaging < 1, "a number from 0, which is off, to below 1")
        self._expect("fairness_floor", 0 < self.fairness_floor <= 1, "a number above 0 and at most 1")
        self._check_against()
        for name, words in _WORDS.items():
            self._expect_word(name, words)
        if isinstance(self.groups, int):
            self._expect("groups", self.groups >= 1, "at least one group")
        for rate in self.rates if isinstance(self.rates, tuple) else ():
            expect(0 < rate <= 1, "every rate above 0 and at most 1", rates=rate)
        for noise in self.noise_multipliers or ():
            if check_noise_multiplier(noise, field="noise_multipliers") == 0:
                raise InputError("expected every noise multiplier above 0, got noise_multipliers=0: use method fedavg")

    def _check_against(self) -> None:
        stated = [name for name in ("asks", "trainings") if getattr(self, name) is not None]
        if stated and self.against != "server":
            raise InputError(f"expected {stated[0]} with against='server' only: everybody is asked equally often there")
        if self.against == "server" and self.max_participations is not None:
            raise InputError("expected no max_participations with against='server': asks is the cap; leave it out")
        if self.correlated_noise and self.against != "server":
            raise InputError("expected correlated_noise with against='server' only: it needs rounds between two asks")
        asks, trainings = self.asks, self.trainings
        within = asks is None or (isinstance(asks, int) and 1 <= asks <= self.num_rounds)
        self._expect("asks", within, f"a whole number from 1 to {self.num_rounds}, the rounds")
        most = self.num_rounds if asks is None else asks
        self._expect("trainings", trainings is None or 0 < trainings <= most, f"above 0 and at most {most}, the asks")
        self._expect("ask_cost", 0 <= self.ask_cost <= _LARGEST, f"a number from 0 to {_LARGEST:g}")

    def _expect(self, name: str, holds: bool, expected: str) -> None:
        expect(holds, f"{name} to be {expected}", **{name: getattr(self, name)})

    def _expect_word(self, name: str, words: tuple[str, ...]) -> None:
        value = getattr(self, name)
        if isinstance(value, str) and value not in words:
            known = ", ".join(repr(word) for word in words)
            raise InputError(f"expected {name} to be one of {known}, got {name}={value!r}{suggestion(value, words)}")

    def changed(self) -> set[str]:
        """The names of the settings that differ from their defaults."""
        return {field.name for field in fields(self) if getattr(self, field.name) != field.default}


def settings_of(plan: Plan, settings: PlanSettings) -> PlanSettings:
    """The settings with what a plan, which was made before, says in their place; how clients train is still theirs."""
    names = ("method", "num_rounds", "accountant", "server_learning_rate", "averaging", "max_participations", "asks")
    stated: dict[str, Any] = {name: getattr(plan, name) for name in names}
    stated |= {name: getattr(plan, name) or None for name in ("normalised", "adaptive_step")}
    if math.isfinite(plan.clip_norm):
        stated["clip_norm"] = plan.clip_norm
    if not math.isclose(plan.participation, settings.participation, rel_tol=1e-9):
        stated["participation"] = plan.participation
    stated |= {"against": "server" if plan.is_rotation else "models", "trainings": None}
    return replace(settings, **stated, correlated_noise=plan.bands is not None)
