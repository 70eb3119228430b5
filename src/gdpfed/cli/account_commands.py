"""`gdpfed account`: of rate, noise, rounds and epsilon, any three give the fourth."""

from typing import Annotated

import typer

from gdpfed.cli import options
from gdpfed.cli.show import console, finite, print_json, table
from gdpfed.errors import InputError
from gdpfed.privacy.accountant import (
    ADJACENCY,
    Accountant,
    SampledGaussian,
    accountant_version,
    check_accountant,
    check_promises_something,
    epsilon_of,
)
from gdpfed.privacy.adversaries import max_participations_for, server_view
from gdpfed.privacy.calibrate import noise_multiplier_for, num_rounds_for, sampling_rate_for
from gdpfed.privacy.rounding import allowance, delta_up, rounded_up

__all__ = ["account"]


def account(
    delta: Annotated[float, typer.Option("--delta", help="Failure probability.")],
    rate: Annotated[
        float | None, typer.Option("--rate", help="Probability that a client takes part in a round.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option("--noise-multiplier", help="Noise std on the sum, divided by the clip norm.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Rounds of training.")] = None,
    epsilon: Annotated[float | None, typer.Option("--epsilon", help="Budget.")] = None,
    max_participations: options.MaxParticipations = None,
    accountant: Annotated[str, typer.Option("--accountant", help="'pld' or 'rdp'.")] = "pld",
    as_json: options.Json = False,
) -> None:
    """What a mechanism costs. State three of --rate, --noise-multiplier, --rounds and --epsilon: the fourth is
    computed.

    With all three of rate, noise and rounds, epsilon is what they cost; else it is the budget that the missing one is
    fitted to.
    """
    judge = check_accountant(accountant)
    missing = [
        name
        for name, value in (
            ("--rate", rate),
            ("--noise-multiplier", noise_multiplier),
            ("--rounds", rounds),
            ("--epsilon", epsilon),
        )
        if value is None
    ]
    if len(missing) != 1:
        listed = ", ".join(missing) or "none"
        raise InputError(
            f"expected three of --rate, --noise-multiplier, --rounds, --epsilon, so that one is asked for; missing: "
            f"{listed}"
        )
    rate, noise_multiplier, rounds = _completed(rate, noise_multiplier, rounds, epsilon, delta=delta, judge=judge)
    mechanism = SampledGaussian(noise_multiplier=noise_multiplier, sampling_rate=rate, num_rounds=rounds)
    check_promises_something(delta=delta, sampling_rates=[rate], num_rounds=rounds)
    spent = epsilon_of(mechanism, delta=delta, accountant=judge)
    view = server_view(
        noise_multiplier=noise_multiplier,
        sampling_rate=rate,
        num_rounds=rounds,
        delta=delta,
        max_participations=max_participations,
    )
    allowed = (
        max_participations_for(noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta)
        if epsilon is not None
        else None
    )
    if as_json:
        print_json(
            {
                "computed": missing[0].removeprefix("--").replace("-", "_"),
                "sampling_rate": rate,
                "noise_multiplier": noise_multiplier,
                "num_rounds": rounds,
                "delta": delta,
                "accountant": judge,
                "accountant_version": accountant_version(),
                "adjacency": ADJACENCY,
                "epsilon": epsilon,
                "epsilon_release": finite(spent),
                "epsilon_server": finite(view.epsilon_max),
                "epsilon_server_mean": finite(view.epsilon_mean),
                "epsilon_server_p99": finite(view.epsilon_p99),
                "mean_participations": view.mean_participations,
                "p99_participations": view.p99_participations,
                "max_participations": view.max_participations,
                "participations_within_epsilon_against_server": allowed,
            }
        )
        return
    rows = [
        ["sampling rate", f"{rate:.6g}"],
        ["noise multiplier", f"{noise_multiplier:.6f} (squared {noise_multiplier**2:.6f})"],
        ["rounds", f"{rounds:,}"],
        ["epsilon release", f"{rounded_up(spent, 6)}  against whoever sees only the released models"],
        ["epsilon server, mean", f"{rounded_up(view.epsilon_mean)}  after {view.mean_participations} participations"],
        ["epsilon server, p99", f"{rounded_up(view.epsilon_p99)}  after {view.p99_participations}"],
        ["epsilon server, most", f"{rounded_up(view.epsilon_max)}  after {view.max_participations}"],
    ]
    if allowed is not None:
        rows.append(["within the budget against the server", f"{allowed} participations"])
    made = table(
        f"{missing[0].removeprefix('--')} computed; delta = {delta_up(delta)}, {ADJACENCY.replace('-', ' ')}, Poisson "
        f"sampling, {judge}",
        ["", "value"],
        rows,
    )
    made.columns[1].justify = "left"
    made.columns[1].no_wrap = False
    console().print(made)


def _completed(
    rate: float | None,
    noise_multiplier: float | None,
    rounds: int | None,
    epsilon: float | None,
    *,
    delta: float,
    judge: Accountant,
) -> tuple[float, float, int]:
    """Rate, noise and rounds, the missing one fitted to ``epsilon``."""
    match rate, noise_multiplier, rounds, epsilon:
        case float(), float(), None, float():
            rounds = num_rounds_for(
                noise_multiplier=noise_multiplier, sampling_rate=rate, epsilon=epsilon, delta=delta, accountant=judge
            )
            if rounds == 0:
                raise InputError(
                    f"not even one round is allowed within epsilon={epsilon:g} at delta={allowance(delta)}: "
                    f"raise the noise or epsilon, or lower the rate"
                )
        case float(), None, int(), float():
            noise_multiplier = noise_multiplier_for(
                epsilon=epsilon, delta=delta, sampling_rate=rate, num_rounds=rounds, accountant=judge
            )
        case None, float(), int(), float():
            rate = sampling_rate_for(
                noise_multiplier=noise_multiplier, epsilon=epsilon, delta=delta, num_rounds=rounds, accountant=judge
            )
    if rate is None or noise_multiplier is None or rounds is None:
        raise AssertionError("exactly one was missing")
    return rate, noise_multiplier, rounds
