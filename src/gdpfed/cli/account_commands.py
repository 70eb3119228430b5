"""`gdpfed account`: of rate, noise, rounds and epsilon, any three give the fourth."""

from typing import Annotated

from typer import Option

from gdpfed.cli import options
from gdpfed.cli.show import console, finite, print_json, table
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.account import account
from gdpfed.privacy.accountant import ADJACENCY, accountant_version
from gdpfed.privacy.rounding import delta_up, rounded_up

__all__ = ["account_command"]

# As the options call them.
_NAMES = {"sampling_rate": "rate", "num_rounds": "rounds"}


def account_command(
    delta: Annotated[float, Option(help="Failure probability.")],
    rate: Annotated[float | None, Option(help="Probability that a client takes part in a round.")] = None,
    noise_multiplier: Annotated[float | None, Option(help="Noise std on the sum, divided by the clip norm.")] = None,
    rounds: Annotated[int | None, options.option(PlanSettings, "num_rounds")] = None,
    epsilon: Annotated[float | None, Option(help="Budget.")] = None,
    max_participations: Annotated[int | None, options.option(PlanSettings, "max_participations")] = None,
    accountant: Annotated[str, options.option(PlanSettings, "accountant")] = "pld",
    as_json: options.Json = False,
) -> None:
    """What a mechanism costs, or what a budget allows.

    State three of --rate, --noise-multiplier, --rounds and --epsilon: the fourth is computed. With rate, noise and
    rounds, epsilon is what they cost; else it is the budget that the missing one is fitted to.
    """
    result = account(
        delta=delta,
        sampling_rate=rate,
        noise_multiplier=noise_multiplier,
        num_rounds=rounds,
        epsilon=epsilon,
        max_participations=max_participations,
        accountant=accountant,
    )
    computed = _NAMES.get(result.computed, result.computed)
    mechanism, server = result.mechanism, result.server
    if as_json:
        print_json(
            {
                "computed": computed,
                "sampling_rate": mechanism.sampling_rate,
                "noise_multiplier": mechanism.noise_multiplier,
                "num_rounds": mechanism.num_rounds,
                "delta": delta,
                "accountant": accountant,
                "accountant_version": accountant_version(),
                "adjacency": ADJACENCY,
                "epsilon": epsilon,
                "epsilon_release": finite(result.epsilon_release),
                "epsilon_server": finite(server.epsilon_max),
                "epsilon_server_mean": finite(server.epsilon_mean),
                "epsilon_server_p99": finite(server.epsilon_p99),
                "mean_participations": server.mean_participations,
                "p99_participations": server.p99_participations,
                "max_participations": server.max_participations,
                "participations_within_epsilon_against_server": result.participations_within,
            }
        )
        return
    noise = mechanism.noise_multiplier
    released = f"{rounded_up(result.epsilon_release, 6)}  against whoever sees only the released models"
    rows = [
        ["sampling rate", f"{mechanism.sampling_rate:.6g}"],
        ["noise multiplier", f"{noise:.6f} (squared {noise**2:.6f})"],
        ["rounds", f"{mechanism.num_rounds:,}"],
        ["epsilon release", released],
        [
            "epsilon server, mean",
            f"{rounded_up(server.epsilon_mean)}  after {server.mean_participations} participations",
        ],
        ["epsilon server, p99", f"{rounded_up(server.epsilon_p99)}  after {server.p99_participations}"],
        ["epsilon server, most", f"{rounded_up(server.epsilon_max)}  after {server.max_participations}"],
    ]
    if result.participations_within is not None:
        rows.append(["within the budget against the server", f"{result.participations_within} participations"])
    heading = f"{computed.replace('_', '-')} computed; delta = {delta_up(delta)}, {ADJACENCY.replace('-', ' ')}, "
    console().print(table(f"{heading}Poisson sampling, {accountant}", ["", "value"], rows, folded=["value"]))
