import dataclasses

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.planning.correlated import diagonals, noise_factors
from gdpfed.planning.methods import make_plan
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import plan_from_toml, plan_to_toml
from gdpfed.planning.rotation import is_asked
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import parse_compact
from gdpfed.secure.encoding import planned_sums
from gdpfed.secure.noise_shares import Tolerance

SETTINGS = PlanSettings(
    method="gdpfed", num_rounds=23, against="server", asks=5, trainings=2.0, correlated_noise=True, participation=0.1
)
BUDGETS = parse_compact("30@1,41@4")


def plan() -> Plan:
    return make_plan(BUDGETS, SETTINGS)


def strategy(bands: int, num_rounds: int) -> np.ndarray:
    """C, written out."""
    matrix = np.zeros((num_rounds, num_rounds))
    for step, value in enumerate(diagonals(bands)):
        matrix += value * np.eye(num_rounds, k=-step)
    return matrix


@pytest.mark.parametrize(("bands", "num_rounds"), [(2, 5), (4, 23), (5, 50), (7, 7), (3, 100)])
def test_columns_are_no_longer_than_one(bands: int, num_rounds: int) -> None:
    matrix = strategy(bands, num_rounds)
    lengths = np.sqrt((matrix**2).sum(axis=0))
    assert lengths.max() <= 1 + 1e-12
    assert np.count_nonzero(matrix[:, 0]) == bands
    inverse = np.linalg.inv(matrix)
    rows = [np.pad(noise_factors(bands, number), (0, num_rounds - number - 1)) for number in range(num_rounds)]
    np.testing.assert_allclose(np.array(rows), inverse, atol=1e-9)


def test_no_two_asks_share_a_row() -> None:
    made = plan()
    assert made.bands == 23 // 5
    matrix = strategy(made.bands, made.num_rounds)
    for group in made.groups:
        for position in range(group.num_clients):
            asked = [
                number
                for number in range(made.num_rounds)
                if is_asked(made, group.num_clients, position=position, round_number=number)
            ]
            assert len(asked) == 5
            assert (np.count_nonzero(matrix[:, asked], axis=1) <= 1).all()


def test_less_noise_is_left() -> None:
    made = plan()
    assert made.bands is not None
    rows = np.linalg.inv(strategy(made.bands, made.num_rounds))
    total = rows.sum(axis=0)
    assert (total**2).sum() < made.num_rounds
    left = (np.cumsum(rows, axis=0) ** 2).sum(axis=1).mean()
    # Independent noise leaves 1, 2, 3, ... rounds' variance in the sums: its std is 1.1 times as large, or more.
    assert (made.num_rounds + 1) / 2 > 1.1**2 * left


def test_it_costs_nothing_and_is_kept() -> None:
    made = plan()
    made.verify()
    alone = make_plan(BUDGETS, dataclasses.replace(SETTINGS, correlated_noise=False))
    assert made.groups == alone.groups
    assert plan_from_toml(plan_to_toml(made)) == made
    assert "bands" not in plan_to_toml(alone)


def test_asks_are_found_for_it_too() -> None:
    """The signal-to-noise that is kept is that of independent noise."""
    asked = PlanSettings(
        method="gdpfed", num_rounds=20, against="server", asks=10, correlated_noise=True, participation=0.1
    )
    alone = make_plan(BUDGETS, dataclasses.replace(asked, correlated_noise=False))
    assert make_plan(BUDGETS, asked).groups == alone.groups


def test_what_would_be_false_is_refused() -> None:
    made = plan()
    for bands in (1, 5, 23):
        with pytest.raises(PrivacyError, match="from one ask of a client to the next"):
            dataclasses.replace(made, bands=bands)
    poisson = make_plan(BUDGETS, PlanSettings(method="gdpfed", num_rounds=23, participation=0.1))
    with pytest.raises(PrivacyError):
        dataclasses.replace(poisson, bands=2)
    with pytest.raises(InputError, match="against='server' only"):
        PlanSettings(correlated_noise=True)
    with pytest.raises(InputError, match="two rounds for each ask"):
        make_plan(BUDGETS, dataclasses.replace(SETTINGS, asks=20, trainings=3.0))
    with pytest.raises(InputError, match="for simulations"):
        planned_sums(made, num_params=3, tolerance=Tolerance())
