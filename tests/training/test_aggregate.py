"""From sums to the update."""

import dataclasses

import numpy as np
import pytest
import torch

from gdpfed.errors import InputError
from gdpfed.planning.methods import METHODS
from gdpfed.training.aggregate import averaged, combine, project
from tests.training.worlds import plan_of

LAYERS = [4, 1, 30, 7]


def sums(number: int, seed: int = 0) -> list[torch.Tensor]:
    return list(torch.from_numpy(np.random.default_rng(seed).standard_normal((number, sum(LAYERS)))))


@pytest.mark.parametrize("method", [method for method in METHODS if method != "pfa"])
def test_weighted_sum_is_the_papers(method: str) -> None:
    plan = dataclasses.replace(plan_of(method), server_learning_rate=0.5)
    parts = sums(1 if plan.release == "pooled" else len(plan.groups))
    expected = 0.5 * sum(group.weight * part.numpy() for group, part in zip(plan.groups, parts, strict=False))
    np.testing.assert_allclose(combine(plan, parts, LAYERS).numpy(), expected, rtol=1e-12)


def test_projection_is_rank_one() -> None:
    """Against the outer product p p^T / ||p||^2, written out as a matrix, layer by layer."""
    plan = dataclasses.replace(plan_of("pfa"), server_learning_rate=0.5)
    parts = [part.numpy() for part in sums(3)]
    strict = sum(group.weight * part for group, part in zip(plan.groups, parts, strict=True) if group.projected)
    lax = sum(group.weight * part for group, part in zip(plan.groups, parts, strict=True) if not group.projected)
    assert [group.projected for group in plan.groups] == [True, True, False]
    expected = []
    for start, end in zip(np.cumsum([0, *LAYERS[:-1]]), np.cumsum(LAYERS), strict=True):
        direction = lax[start:end]
        matrix = np.outer(direction, direction) / np.dot(direction, direction)
        assert np.linalg.matrix_rank(matrix) == 1
        expected.append(0.5 * (direction + matrix @ strict[start:end]))
    found = combine(plan, [torch.from_numpy(part) for part in parts], LAYERS).numpy()
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=1e-10, atol=1e-15)


def test_projection_of_what_is_parallel_changes_nothing() -> None:
    (direction,) = sums(1)
    factors = torch.repeat_interleave(torch.tensor([2.0, -3.0, 0.0, 1e-3], dtype=torch.float64), torch.tensor(LAYERS))
    torch.testing.assert_close(project(direction * factors, direction, LAYERS), direction * factors, rtol=1e-12, atol=0)
    assert torch.equal(project(direction, torch.zeros_like(direction), LAYERS), torch.zeros_like(direction))


def test_projection_does_not_depend_on_threads() -> None:
    """A dot product of PyTorch's does, in its last bits."""
    strict, lax = torch.from_numpy(np.random.default_rng(0).standard_normal((2, 1_000_001)))
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            found.append(project(strict, lax, [1_000_001]))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_average_forgets_at_its_rate() -> None:
    plan = dataclasses.replace(plan_of("pooled"), averaging=0.7)
    models, average = [model.float() for model in sums(5)], None
    for number, model in enumerate(models):
        average = averaged(plan, average, model, num_before=number)
        weights = 0.7 ** np.arange(number, -1, -1)
        expected = np.average([past.double().numpy() for past in models[: number + 1]], axis=0, weights=weights)
        assert average is not None
        np.testing.assert_allclose(average.numpy(), expected, rtol=1e-10)
    assert averaged(plan_of("pooled"), None, models[0], num_before=0) is None


def test_a_lost_average_is_refused() -> None:
    plan = dataclasses.replace(plan_of("pooled"), averaging=0.7)
    model = sums(1)[0].float()
    assert averaged(plan, None, model, num_before=0) is not None
    with pytest.raises(InputError, match="average of the models of 3 rounds"):
        averaged(plan, None, model, num_before=3)
