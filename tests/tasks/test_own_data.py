"""The same examples in every way that people have them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from gdpfed.errors import InputError
from gdpfed.privacy.budgets import Budgets, parse_compact
from gdpfed.tasks.losses import CROSS_ENTROPY, LOSSES
from gdpfed.tasks.own_data import Examples, client_examples, examples_of, joined, load_own_data

INPUTS = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.tensor([0, 1, 2, 1, 0])


class Rows(Dataset[Any]):
    def __init__(self, make: Callable[[int], Any]) -> None:
        self.make = make

    def __getitem__(self, number: int) -> Any:
        return self.make(number)

    def __len__(self) -> int:
        return 5


class Table:
    """As the `datasets` package has it: rows are dicts, columns come by name, and formats by with_format."""

    column_names = ("image", "label")

    def __init__(self, as_numpy: bool = False) -> None:
        self.as_numpy = as_numpy

    def with_format(self, name: str) -> "Table":
        assert name == "numpy"
        return Table(as_numpy=True)

    def __len__(self) -> int:
        return 5

    def __getitem__(self, key: Any) -> Any:
        assert self.as_numpy
        assert key == slice(None)
        return {"image": INPUTS.numpy().astype(np.float64), "label": LABELS.numpy().astype(np.int32)}


WAYS: dict[str, Any] = {
    "tensors": (INPUTS, LABELS),
    "a list of tensors": [INPUTS, LABELS],
    "numpy": (INPUTS.numpy(), LABELS.numpy()),
    "doubles": (INPUTS.double(), LABELS.int()),
    "lists": (INPUTS.tolist(), LABELS.tolist()),
    "dict": {"x": INPUTS, "y": LABELS},
    "dict of arrays": {"pixel_values": INPUTS.numpy(), "label": LABELS.numpy(), "id": np.arange(5)},
    "TensorDataset": TensorDataset(INPUTS, LABELS),
    "Subset": Subset(TensorDataset(INPUTS, LABELS), [0, 1, 2, 3, 4]),
    "Dataset of pairs": Rows(lambda number: (INPUTS[number].numpy(), int(LABELS[number]))),
    "Dataset of dicts": Rows(lambda number: {"image": INPUTS[number], "labels": LABELS[number]}),
    "rows": [(row, int(label)) for row, label in zip(INPUTS, LABELS, strict=True)],
    "Hugging Face": Table(),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_kind_gives_the_same_examples(way: str) -> None:
    found = examples_of(WAYS[way], loss=CROSS_ENTROPY, where="client 0")
    torch.testing.assert_close(found.inputs, INPUTS, rtol=1e-6, atol=1e-7)
    assert found.inputs.dtype == torch.float32
    assert torch.equal(found.targets, LABELS)


def test_columns_may_be_named() -> None:
    given = {"age": INPUTS, "income": INPUTS + 1, "sick": LABELS}
    with pytest.raises(InputError, match=r"one column of inputs .* got age, income, sick: say which, as columns="):
        examples_of(given, loss=CROSS_ENTROPY, where="client 7")
    found = examples_of(given, loss=CROSS_ENTROPY, where="client 7", columns=("income", "sick"))
    assert torch.equal(found.inputs, INPUTS + 1)
    with pytest.raises(InputError, match="a column 'size' in client 7, got age"):
        examples_of(given, loss=CROSS_ENTROPY, where="client 7", columns=("size", "sick"))


def test_tokens_are_shifted_once() -> None:
    tokens, loss = torch.randint(0, 9, (4, 6), generator=torch.Generator().manual_seed(1)), LOSSES["next-token"]
    padded = tokens.clone()
    padded[0, 4:] = -100
    for given in (tokens, {"input_ids": tokens.numpy()}, {"input_ids": tokens, "labels": tokens}, list(tokens)):
        found = examples_of(given, loss=loss, where="client 0")
        assert torch.equal(found.inputs, tokens[:, :-1])
        assert torch.equal(found.targets, tokens[:, 1:])
    assert examples_of((tokens, padded), loss=loss, where="client 0").targets[0].tolist()[3:] == [-100, -100]
    # Labels of their own are taken as they are.
    found = examples_of((tokens[:, :-1], tokens[:, 1:]), loss=loss, where="client 0")
    assert torch.equal(found.targets, tokens[:, 1:])


def test_examples_of_one_shape() -> None:
    clients = [examples_of((INPUTS, LABELS), loss=CROSS_ENTROPY, where="client") for _ in range(3)]
    together, members = joined(clients)
    assert len(together) == 15
    assert members[2].tolist() == [10, 11, 12, 13, 14]
    odd = examples_of((INPUTS[:, :2], LABELS), loss=CROSS_ENTROPY, where="client")
    with pytest.raises(InputError, match=r"\(3,\), as of client 0, got torch.float32 \(2,\) for client 3"):
        joined([*clients, odd])


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((INPUTS, LABELS[:3]), "a target for each of 5 inputs of client 0, got 3"),
        (INPUTS, "inputs and targets for client 0, got one array"),
        ((["a", "b"], [0, 1]), "numbers of one shape"),
        (([[1.0], [1.0, 2.0]], [0, 1]), "different lengths"),
        ([], "at least one example"),
        (3, "got int"),
        ((INPUTS, LABELS.float()), "whole numbers as classes"),
        ((INPUTS.to(torch.complex64), LABELS), "real numbers"),
    ],
)
def test_what_is_no_example_is_named(given: Any, named: str) -> None:
    with pytest.raises(InputError, match=named):
        examples_of(given, loss=CROSS_ENTROPY, where="client 0")


def test_clients_by_name() -> None:
    pair = (INPUTS, LABELS)
    named = Budgets(epsilons=np.array([1.0, 2.0]), deltas=np.full(2, np.nan), clients=("ann", "bob"))
    other = (INPUTS + 1, LABELS)
    found = client_examples({"bob": other, "ann": pair}, named, loss=CROSS_ENTROPY)
    assert torch.equal(found[1].inputs, INPUTS + 1)
    with pytest.raises(InputError, match="none for 'bob'"):
        client_examples({"ann": pair, "eve": pair}, named, loss=CROSS_ENTROPY)
    with pytest.raises(InputError, match="budget for each of 1 clients, got 2"):
        client_examples([pair], parse_compact("2@1"), loss=CROSS_ENTROPY)


def test_own_data_sets() -> None:
    budgets, how = parse_compact("2@1"), {"name": "mine:data", "loss": CROSS_ENTROPY, "seed": 4}
    pair = (INPUTS, LABELS)

    def dealt(seed: int) -> dict[str, Any]:
        assert seed == 4
        return {"train": pair, "test": pair}

    train, _ = load_own_data(dealt, budgets=budgets, **how)  # type: ignore[arg-type]
    assert isinstance(train, Examples)
    by_client, _ = load_own_data(lambda: {"clients": [pair, pair], "test": pair}, budgets=budgets, **how)  # type: ignore[arg-type]
    assert isinstance(by_client, list)
    assert len(by_client) == 2
    for wrong in ({"train": pair}, {"test": pair}, pair, {"train": pair, "clients": [pair], "test": pair}):
        with pytest.raises(InputError, match='a dict with "test"'):
            load_own_data(lambda wrong=wrong: wrong, budgets=budgets, **how)  # type: ignore[misc, arg-type]
    with pytest.raises(InputError, match="at least one example in the test set"):
        load_own_data(lambda: {"train": pair, "test": (INPUTS[:0], LABELS[:0])}, budgets=budgets, **how)  # type: ignore[arg-type]
