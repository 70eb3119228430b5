"""A malicious server as a program: random strategies against real clients, and what they teach it.

    python -m tests.attacks.malicious_server --strategies 10000 --cohorts 2-60
    python -m tests.attacks.malicious_server --strategies 1000 --cohorts 150,300

The clients are `SecureClient`s, with all their keys and signatures; the server is this program. It signs what it likes,
and its colluders sign whatever it likes: two sets of survivors, shares for two rosters. A strategy is drawn at random:

    rosters       one, or two that overlap in the colluders; clients that do not share
    deliveries    the same for all; or some clients, the victim among them, are not told of all who shared; or told of
                  some who did not
    inputs        all, or some that come and are called lost all the same
    survivors     up to three sets, for the same sharers or for the victim's; losses anywhere, near the victim, side by
                  side on the circle, or just those that the victim masked with; within what is tolerated, one more, or
                  many more
    who is asked  for which set: at random, in two parts, all for one; some are asked twice
    confirmations as they came, or left out, or another's
    replays       messages of another session, of another roster, of another client, out of order

What the server knows is linear algebra. An input that it holds is update + noise share + own mask + one mask for each
neighbour that the client believes to have shared. A mask is known if a threshold of shares of its seed or key came out,
or if it is a colluder's. A combination of inputs is worth something if no unknown mask is left in it. Own masks are in
one input each, so whatever has an unknown one is out; a pair's unknown mask is in two inputs at most, so that both
have the same coefficient, or none. What is left are the connected components of the inputs: the server can form the sum
of each, and nothing in between. The honest noise shares in a component are its honest members. `Learnt.fewest` is the
smallest number of them that hides anybody; every component is really unmasked, and compared with what its clients put
in (`opened`), so that what counts as learnt is learnt.

`malicious_cohort` makes the cohorts, `malicious_strategy` plays one strategy, `malicious_knowledge` is the algebra.

The invariant: never fewer than the plan counts on, which is cohort - tolerated dropouts - colluders.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gdpfed.secure.noise_shares import Tolerance
from tests.attacks.malicious_cohort import prepared
from tests.attacks.malicious_knowledge import Learnt
from tests.attacks.malicious_strategy import Attack
from tests.secure.cohorts import World

# Strategies from one set of keys and shares; making these is the dearest part.
_FROM_ONE_WORLD = 10
# What a cohort is told to stand, and up to which size everyone is everyone's neighbour.
_TOLERANCES = tuple(
    Tolerance(dropout_rate=dropout, colluding_fraction=colluders, complete_up_to=complete)
    for dropout in (0.05, 0.1, 0.2, 0.4)
    for colluders in (0.0, 0.1, 0.2)
    for complete in (100, 12)
)


@dataclass(kw_only=True)
class Tally:
    """What many strategies came to."""

    strategies: int = 0
    came_out: int = 0
    circles: int = 0
    refused: int = 0
    margin: int | None = None
    broken: list[str] = field(default_factory=list)

    def add(self, world: World, learnt: Learnt, *, is_circle: bool, seed: str) -> None:
        """One more."""
        self.strategies += 1
        self.circles += is_circle
        self.refused += learnt.refused
        if learnt.fewest is not None:
            self.came_out += 1
            over = learnt.fewest - learnt.counted_on
            self.margin = over if self.margin is None else min(self.margin, over)
        if learnt.is_broken:
            self.broken.append(
                f"{seed}: cohort {world.size}, {world.tolerance}: {learnt.fewest} honest shares, "
                f"{learnt.counted_on} counted on, {learnt.wrong_answers} wrong answers"
            )


def play(
    *,
    strategies: int,
    cohorts: Sequence[int],
    seed: int,
    tolerances: Sequence[Tolerance] = _TOLERANCES,
    stop_when_broken: bool = False,
    say: Callable[[Tally], None] = lambda _: None,
) -> Tally:
    """So many strategies, each against a cohort of one of these sizes."""
    tally = Tally()
    number = 0
    while tally.strategies < strategies:
        rng = np.random.default_rng([seed, number])
        number += 1
        size = int(rng.choice(cohorts))
        tolerance = tolerances[int(rng.integers(len(tolerances)))]
        world = World(size=size, num_params=1, tolerance=tolerance, seed=seed * 2**20 + number)
        at = prepared(world, rng)
        for repeat in range(_FROM_ONE_WORLD):
            for rostered in at.rosters:
                learnt = Attack(at, rostered, rng).run()
                is_circle = rostered.roster.topology.degree < rostered.roster.topology.cohort - 1
                tally.add(
                    world, learnt, is_circle=is_circle, seed=f"seed {seed}, world {number - 1}, strategy {repeat}"
                )
            if tally.strategies >= strategies or (stop_when_broken and tally.broken):
                break
        say(tally)
        if stop_when_broken and tally.broken:
            break
    return tally


def _sizes(text: str) -> list[int]:
    sizes: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        sizes += range(int(first), int(last or first) + 1)
    return sizes


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--strategies", type=int, default=1000)
    parser.add_argument("--cohorts", default="150,300", help="sizes, such as 2-60 or 150,300")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    began = time.monotonic()

    def say(tally: Tally) -> None:
        sys.stderr.write(
            f"\r{tally.strategies} strategies, {len(tally.broken)} broken, {time.monotonic() - began:.0f} s"
        )
        sys.stderr.flush()

    tally = play(strategies=options.strategies, cohorts=_sizes(options.cohorts), seed=options.seed, say=say)
    sys.stderr.write("\n")
    sys.stdout.write(
        f"{tally.strategies} strategies ({tally.circles} on circles), {tally.refused} messages refused; in "
        f"{tally.came_out} of them something came out, hidden by at least {tally.margin} more honest noise shares than "
        f"are counted on\n"
    )
    for line in tally.broken:
        sys.stdout.write(f"BROKEN {line}\n")
    sys.exit(1 if tally.broken else 0)


if __name__ == "__main__":
    main()
