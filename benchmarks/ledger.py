"""How long a ledger takes: a round's charge, and its status, at a million clients.

    python benchmarks/ledger.py [--clients 1000000] [--rounds 20] [--folder DIR] [--names]

The clients have budgets spread evenly (in the logarithm) over 0.5 to 3, each its own; three groups, two per cent of the
clients in a round, Poisson. A charge is one durable step for all groups (reserved and charged, who took part included),
synced twice; so is publishing. Status is measured from opening the file: rows read and their hashes checked, replayed,
and every group's epsilons computed by the accountant without its cache. Targets: 50 ms and 2 s.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from gdpfed.ledger.book import Ledger, publish
from gdpfed.ledger.status import run_status
from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import assign
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets
from gdpfed.privacy.cache import without_cache
from gdpfed.privacy.pld import composed_distribution


def charged_rounds(ledger: Ledger, plan: Plan, groups: np.ndarray[tuple[int], np.dtype[np.int64]], rounds: int) -> None:
    """Charges and publishes rounds with real samples; prints how long each took."""
    generator = np.random.default_rng(1)
    rates = np.array([group.sampling_rate for group in plan.groups])[groups]
    charging, publishing = [], []
    for number in range(rounds):
        sampled = np.flatnonzero(generator.random(len(groups)) < rates)
        taking_part = {group.name: sampled[groups[sampled] == place] for place, group in enumerate(plan.groups)}
        started = time.perf_counter()
        charges, refused = ledger.charge_round("run", number, taking_part)
        charging.append(time.perf_counter() - started)
        if refused:
            raise SystemExit(f"refused: {refused}")
        started = time.perf_counter()
        publish(list(charges.values()), f"{number:064x}")
        publishing.append(time.perf_counter() - started)
    for name, seconds in (("charge", charging), ("publish", publishing)):
        print(
            f"{name:8} median {1000 * statistics.median(seconds):6.1f} ms, largest {1000 * max(seconds):6.1f} ms "
            f"({rounds} rounds)"
        )


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--clients", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--folder", type=Path, help="where the ledger's files are written; default: a temporary one")
    parser.add_argument("--names", action="store_true", help="clients with names instead of places")
    asked = parser.parse_args()
    epsilons = np.exp(np.random.default_rng(0).uniform(np.log(0.5), np.log(3.0), asked.clients))
    names = tuple(f"client-{place}" for place in range(asked.clients)) if asked.names else None
    budgets = Budgets(epsilons=epsilons, deltas=np.full(asked.clients, np.nan), clients=names)
    settings = PlanSettings(
        num_rounds=max(50, asked.rounds), participation=0.02, method="gdpfed", groups=(0.5, 1.0, 2.0)
    )
    plan = make_plan(budgets, settings)
    groups = assign(plan, budgets)
    with tempfile.TemporaryDirectory(dir=asked.folder) as folder:
        path = Path(folder) / "ledger"
        started = time.perf_counter()
        with Ledger.create(path) as ledger:
            ledger.add_population("people", budgets)
            made = time.perf_counter()
            ledger.start_run("run", "people", plan, groups)
            print(f"{asked.clients:,} clients: population in {made - started:.2f} s, run let in in ", end="")
            print(f"{time.perf_counter() - made:.2f} s, cohort {plan.expected_cohort:,.0f}")
            charged_rounds(ledger, plan, groups, asked.rounds)
        size = sum(file.stat().st_size for file in path.parent.iterdir())
        composed_distribution.cache_clear()
        with without_cache():
            started = time.perf_counter()
            ledger = Ledger.read(path)
            opened = time.perf_counter()
            statuses = run_status(ledger.state, ledger.state.run("run"))
            done = time.perf_counter()
        print(f"status   {done - started:.2f} s: opened and replayed in {opened - started:.2f} s; ", end="")
        print(f"{size / 1e6:.0f} MB on disk")
        for status in statuses:
            print(
                f"  {status.group}: {status.num_clients:,} clients, budget {status.epsilon:.3f}, promised "
                f"{status.promised:.3f}, release {status.spent_release:.3f}, server {status.spent_server_max:.3f}"
            )


if __name__ == "__main__":
    main()
