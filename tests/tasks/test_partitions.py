"""Partitions: every property on random cases, the Dirichlet draw against its textbook variance."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpfed.errors import InputError
from gdpfed.tasks.partitions import (
    Partition,
    label_mix,
    partition_dirichlet,
    partition_iid,
    partition_natural,
    skewed_by_budget,
)


def fresh(seed: int = 11) -> np.random.Generator:
    return np.random.default_rng(seed)


def dirichlet(labels: np.ndarray, num_clients: int, **changes: object) -> Partition:
    options: dict[str, object] = {"concentration": 0.3, "min_size": 1, "generator": fresh()}
    return partition_dirichlet(labels, num_clients, **(options | changes))  # type: ignore[arg-type]


def all_of(parts: Partition) -> np.ndarray:
    assert all(part.dtype == np.int64 and part.ndim == 1 for part in parts)
    return np.concatenate(parts)


@settings(max_examples=60, deadline=None)
@given(
    num_clients=st.integers(1, 40),
    spare=st.integers(0, 60),
    min_size=st.integers(1, 3),
    concentration=st.sampled_from([1e-3, 0.1, 1.0, 1e3]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_example_at_most_once(
    num_clients: int, spare: int, min_size: int, concentration: float, seed: int
) -> None:
    num_examples = num_clients * min_size + spare
    labels = fresh(seed).integers(4, size=num_examples)
    for parts in (
        partition_iid(num_examples, num_clients, generator=fresh(seed)),
        partition_dirichlet(labels, num_clients, concentration=concentration, min_size=min_size, generator=fresh(seed)),
    ):
        assert len(parts) == num_clients
        assert sorted(all_of(parts).tolist()) == list(range(num_examples))
        assert min(len(part) for part in parts) >= 1
    assert min(len(part) for part in parts) >= min_size
    natural = partition_natural(labels, len(np.unique(labels)), generator=fresh(seed))
    assert sorted(all_of(natural).tolist()) == list(range(num_examples))


def test_no_client_is_empty() -> None:
    labels = np.zeros(10, dtype=np.int64)
    assert all(len(part) == 2 for part in dirichlet(labels, 5, min_size=2, concentration=1e-6))
    for call in (
        lambda: partition_iid(10, 11, generator=fresh()),
        lambda: dirichlet(labels, 11),
        lambda: dirichlet(labels, 6, min_size=2),
        lambda: partition_natural(np.array([3, 3, 8]), 3, generator=fresh()),
    ):
        with pytest.raises(InputError, match=r"without data|no data"):
            call()


@pytest.mark.parametrize(("num_examples", "num_clients"), [(18_000, 6_000), (100, 7), (7, 7), (5, 1)])
def test_iid_sizes_differ_by_one(num_examples: int, num_clients: int) -> None:
    sizes = [len(part) for part in partition_iid(num_examples, num_clients, generator=fresh())]
    assert max(sizes) - min(sizes) <= (1 if num_examples % num_clients else 0)


def test_iid_is_shuffled() -> None:
    """The mean place of a client's examples is near the middle; dealt in order it would be 50 for the first."""
    first = partition_iid(10_000, 100, generator=fresh())[0]
    assert abs(first.mean() - 5_000) < 6 * 10_000 / np.sqrt(12 * 100)


def test_natural_keeps_owners_whole() -> None:
    owners = fresh().integers(50, size=600)
    parts = partition_natural(owners, 30, generator=fresh())
    held = [np.unique(owners[part]).tolist() for part in parts]
    assert all(len(names) == 1 for names in held)
    assert len({names[0] for names in held}) == 30
    for part, (name,) in zip(parts, held, strict=True):
        assert len(part) == (owners == name).sum()
    assert [names[0] for names in held] != sorted(names[0] for names in held)


def test_concentration_sets_the_skew() -> None:
    labels = np.repeat(np.arange(10), 1000)

    def distance(concentration: float) -> float:
        """Mean total variation between a client's classes and the mixture of all."""
        parts = dirichlet(labels, 20, concentration=concentration)
        shares = [np.bincount(labels[part], minlength=10) / len(part) for part in parts]
        return float(np.mean([abs(share - 0.1).sum() / 2 for share in shares]))

    assert distance(0.05) > 0.6
    assert 0.2 < distance(1.0) < 0.5
    assert distance(1000.0) < 0.1


def test_shares_have_the_dirichlet_variance() -> None:
    """For a share of Dirichlet(a, ..., a) among n: (1/n)(1 - 1/n) / (n a + 1); dealing 100 adds E[p(1-p)] / 100.

    5,000 shares estimate it to about 4 %; a concentration divided by the clients would give three times as much.
    """
    labels = np.repeat(np.arange(1000), 100)
    parts = dirichlet(labels, 5, concentration=1.0)
    shares = np.stack([np.bincount(labels[part], minlength=1000) / 100 for part in parts])
    variance = 0.2 * 0.8 / 6
    expected = variance + (0.2 * 0.8 - variance) / 100
    assert shares.var() == pytest.approx(expected, rel=0.2)


def test_same_generator_same_partition() -> None:
    labels = fresh().integers(10, size=500)
    for make in (
        lambda seed: partition_iid(500, 20, generator=fresh(seed)),
        lambda seed: dirichlet(labels, 20, generator=fresh(seed)),
        lambda seed: partition_natural(labels, 10, generator=fresh(seed)),
    ):
        assert all(np.array_equal(one, other) for one, other in zip(make(1), make(1), strict=True))
        assert not all(np.array_equal(one, other) for one, other in zip(make(1), make(2), strict=True))


def test_thousands_of_clients_with_a_smallest_size() -> None:
    labels = np.repeat(np.arange(10), 1800)
    sizes = [len(part) for part in dirichlet(labels, 6_000, concentration=0.1, min_size=2)]
    assert min(sizes) == 2
    assert sum(sizes) == 18_000


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concentration": 0.0}, "concentration > 0, got concentration=0"),
        ({"concentration": float("nan")}, "finite concentration"),
        ({"concentration": float("inf")}, "finite concentration"),
        ({"min_size": 0}, "min_size >= 1, got min_size=0"),
    ],
)
def test_unusable_options_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        dirichlet(np.zeros(10, dtype=np.int64), 2, **changes)
    with pytest.raises(InputError, match="num_clients >= 1"):
        partition_iid(10, 0, generator=fresh())


def test_skew_ties_data_to_budgets() -> None:
    labels = np.repeat(np.arange(10), 60)
    epsilons = np.tile([3.0, 0.5, 1.5], 40)
    parts = partition_dirichlet(labels, 120, concentration=0.3, min_size=1, generator=np.random.default_rng(1))

    def means(skew: float) -> list[float]:
        dealt = skewed_by_budget(parts, labels, epsilons, skew=skew, generator=np.random.default_rng(2))
        assert sorted(map(tuple, dealt)) == sorted(map(tuple, parts))
        mix = label_mix(dealt, labels, epsilons, num_classes=10)
        assert mix.shape == (3, 10)
        np.testing.assert_allclose(mix.sum(axis=1), 1)
        return [float(row @ np.arange(10)) for row in mix]

    strict, medium, lax = means(1.0)
    assert strict < medium - 1 < lax - 2
    assert max(means(0.0)) - min(means(0.0)) < 1.5
    assert means(0.0) == means(0.0)
