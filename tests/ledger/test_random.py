"""Random lives of a ledger against a plain record of every client: nobody is ever charged above its budget."""

import random
from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import PrivacyError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.verify import verify_ledger
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.accountant import gaussian_epsilon
from gdpfed.privacy.budgets import parse_compact
from tests.ledger.books import DELTA

TEXT = "20@1,20@2"


def everyone_plan(text: str, rounds: int) -> Plan:
    """Without sampling, so that spends have a formula and thousands can be computed."""
    return make_plan(
        parse_compact(text), PlanSettings(num_rounds=rounds, participation=1.0, method="gdpfed", delta=DELTA)
    )


class Life:
    """A ledger, and beside it what every client has seen: sum of rounds / noise^2, by which Gaussians compose."""

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path, self.chance = path, chance
        self.ledger = Ledger.create(path)
        self.ledger.add_population("people", parse_compact("20@3,20@6"), default_delta=DELTA)
        self.epsilons = [3.0] * 20 + [6.0] * 20
        self.seen = [0.0] * 40
        self.groups: dict[str, dict[int, int]] = {}
        self.gone: set[int] = set()
        self.charged = self.refused = 0

    def start(self) -> None:
        plan = everyone_plan(TEXT, self.chance.choice([2, 5, 9]))
        name = f"run {len(self.groups)} {self.chance.random()}"
        groups = np.array([-1 if c in self.gone or c >= 40 else int(c >= 20) for c in range(len(self.epsilons))])
        # Mostly without those who could not pay, so that runs are let in.
        for client, (epsilon, first) in enumerate(zip(self.epsilons[:40], [3.0] * 20 + [6.0] * 20, strict=True)):
            if epsilon < first and self.chance.random() < 0.9:
                groups[client] = -1
        self.ledger.start_run(name, "people", plan, groups)
        self.groups[name] = {c: int(g) for c, g in enumerate(groups) if g >= 0}

    def charge(self) -> None:
        if not self.groups:
            return
        name = self.chance.choice(list(self.groups))
        run = self.ledger.state.run(name)
        group_index = self.chance.randrange(2)
        group = run.plan.groups[group_index]
        number = self.chance.randrange(run.num_rounds)
        charge = self.ledger.reserve(name, number, group.name)
        if self.chance.random() < 0.2:
            charge.abort("chance")
            return
        charge.commit(np.array([], dtype=np.int64))
        self.charged += 1
        for client, own in self.groups[name].items():
            if own == group_index and client not in self.gone:
                self.seen[client] += group.noise_multiplier**-2
                cost = gaussian_epsilon(noise_multiplier=1.0, num_releases=self.seen[client], delta=DELTA)
                assert cost <= self.epsilons[client] * (1 + 1e-9), (client, cost, self.epsilons[client])
        if self.chance.random() < 0.7:
            charge.publish("ab")

    def join(self) -> None:
        epsilon = self.chance.choice([0.5, 2.0, 6.0])
        (newcomer,) = self.ledger.join("people", parse_compact(f"1@{epsilon}"), default_delta=DELTA)
        self.epsilons.append(epsilon)
        self.seen.append(0.0)
        if self.groups:
            name, number = self.chance.choice(list(self.groups)), self.chance.randrange(2)
            group = self.ledger.state.run(name).plan.groups[number].name
            self.ledger.enrol(name, [str(newcomer)], group)
            self.groups[name][int(newcomer)] = number

    def leave(self) -> None:
        client = self.chance.randrange(len(self.epsilons))
        self.ledger.leave("people", [str(client)])
        self.gone.add(client)

    def tighten(self) -> None:
        client = self.chance.randrange(len(self.epsilons))
        epsilon = self.epsilons[client] * self.chance.choice([0.5, 0.9])
        self.ledger.tighten("people", [str(client)], epsilon=epsilon)
        self.epsilons[client] = epsilon

    def close(self) -> None:
        if self.groups:
            name = self.chance.choice(list(self.groups))
            self.ledger.close_run(name)
            del self.groups[name]

    def extend(self) -> None:
        if self.groups:
            name = self.chance.choice(list(self.groups))
            self.ledger.extend(name, self.ledger.state.run(name).num_rounds + 3)

    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = Ledger.open(self.path)

    def step(self) -> None:
        acts = [self.start, self.charge, self.join, self.leave, self.tighten, self.close, self.extend, self.reopen]
        (act,) = self.chance.choices(acts, weights=[4, 40, 2, 1, 1, 2, 2, 2])
        try:
            act()
        except PrivacyError:
            self.refused += 1


@pytest.mark.training
@pytest.mark.parametrize("seed", range(6))
def test_nobody_is_ever_overspent(shelf: Path, seed: int) -> None:
    life = Life(shelf / "book", random.Random(seed))  # noqa: S311 - a test
    for _ in range(150):
        life.step()
    life.ledger.close()
    assert life.charged > 5
    assert life.refused > 5
    verified = verify_ledger(shelf / "book")
    people = verified.state.population("people")
    for client, seen in enumerate(life.seen):
        history = verified.state.history(people, int(people.class_of[client]))
        assert sum(event.num_rounds / event.noise_multiplier**2 for event in history) == pytest.approx(seen, rel=1e-9)
