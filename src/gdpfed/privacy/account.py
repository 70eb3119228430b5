"""Of rate, noise, rounds and epsilon, any three give the fourth.

Place: over the accountant, the calibration and both adversaries; for whoever has a mechanism and no plan.
"""

from dataclasses import dataclass
from typing import Any

from gdpfed.errors import InputError, suggestion
from gdpfed.privacy.accountant import (
    Accountant,
    SampledGaussian,
    check_accountant,
    check_promises_something,
    epsilon_of,
)
from gdpfed.privacy.adversaries import ServerView, asked_view, max_participations_for, server_view
from gdpfed.privacy.calibrate import noise_multiplier_for, num_rounds_for, sampling_rate_for
from gdpfed.privacy.rounding import allowance

__all__ = ["Account", "account"]


@dataclass(frozen=True, kw_only=True)
class Account:
    """A mechanism and what it costs. ``computed`` names what was not given.

    ``epsilon`` is the budget, if one was given; ``participations_within`` then says how often a client may take part
    before the server has learned as much. ``is_rotation``: rate and rounds are a client's own coin and its asks, and
    one epsilon holds against both.
    """

    computed: str
    mechanism: SampledGaussian
    delta: float
    accountant: Accountant
    epsilon: float | None
    epsilon_release: float
    server: ServerView
    participations_within: int | None
    is_rotation: bool = False


def account(
    *,
    delta: float,
    sampling_rate: float | None = None,
    noise_multiplier: float | None = None,
    num_rounds: int | None = None,
    epsilon: float | None = None,
    max_participations: int | None = None,
    accountant: str = "pld",
    against: str = "models",
) -> Account:
    """What a mechanism costs; of rate, noise, rounds and epsilon the one that is missing is computed.

    With rate, noise and rounds, epsilon is what they cost; else it is the budget that the missing one is fitted to.
    ``against="server"``: a client is asked ``num_rounds`` times, and tosses a secret coin of ``sampling_rate`` each
    time.
    """
    judge = check_accountant(accountant)
    if against not in ("models", "server"):
        raise InputError(
            f"expected against 'models' or 'server', got {against!r}{suggestion(against, ('models', 'server'))}"
        )
    is_rotation = against == "server"
    if is_rotation and max_participations is not None:
        raise InputError("expected no max_participations against the server: asks, in num_rounds, are the cap")
    parts = {
        "sampling_rate": sampling_rate,
        "noise_multiplier": noise_multiplier,
        "num_rounds": num_rounds,
        "epsilon": epsilon,
    }
    missing = [name for name, value in parts.items() if value is None]
    if len(missing) != 1:
        raise InputError(
            f"expected three of {', '.join(parts)}, so that one is asked for; missing: {', '.join(missing) or 'none'}"
        )
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": delta, "accountant": judge}
    match sampling_rate, noise_multiplier, num_rounds, epsilon:
        case float(), float(), None, float():
            num_rounds = num_rounds_for(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, **budget)
            if num_rounds == 0:
                raise InputError(
                    f"not even one round is allowed within epsilon={epsilon:g} at delta={allowance(delta)}: "
                    f"raise the noise or epsilon, or lower the rate"
                )
        case float(), None, int(), float():
            noise_multiplier = noise_multiplier_for(sampling_rate=sampling_rate, num_rounds=num_rounds, **budget)
        case None, float(), int(), float():
            sampling_rate = sampling_rate_for(noise_multiplier=noise_multiplier, num_rounds=num_rounds, **budget)
    if sampling_rate is None or noise_multiplier is None or num_rounds is None:
        raise InputError(f"expected numbers, got {parts}")
    mechanism = SampledGaussian(noise_multiplier=noise_multiplier, sampling_rate=sampling_rate, num_rounds=num_rounds)
    check_promises_something(delta=delta, sampling_rates=[sampling_rate], num_rounds=num_rounds)
    released = epsilon_of(mechanism, delta=delta, accountant=judge)
    within = None
    if is_rotation:
        server = asked_view(epsilon=released, num_asks=num_rounds)
    else:
        server = server_view(mechanism, delta=delta, max_participations=max_participations)
        if epsilon is not None:
            within = max_participations_for(noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta)
    return Account(
        computed=missing[0],
        mechanism=mechanism,
        delta=delta,
        accountant=judge,
        epsilon=epsilon,
        epsilon_release=released,
        server=server,
        participations_within=within,
        is_rotation=is_rotation,
    )
