"""What people have, as tensors: arrays, data sets, tables.

Place: at the entrance of one's own data, for `gdpfed.train` and for a task whose data set is a function of one's own.
The examples of a client, or of a test set, may be

    (inputs, targets)           tensors, numpy arrays or lists
    {"image": ..., "label": ...}    arrays by name; a pandas frame's dict is one
    a torch Dataset             map-style, of pairs or of dicts; so are lists of them
    a Hugging Face Dataset      anything with column_names; `datasets` is not needed here
    tokens alone                with the loss next-token: (examples, length), each the target of those before it

Which column is the target is known where it has one of the usual names; else ``columns`` says so. Numbers become
float32, whole numbers int64.

Guarantees (tests of the same name):
  every_kind_gives_the_same_examples   the same numbers in any of these ways are the same tensors.
  tokens_are_shifted_once              tokens alone, or with themselves as labels, are predicted from those before.
  examples_of_one_shape                a client that differs from the first is named.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gdpfed.config import called
from gdpfed.errors import InputError
from gdpfed.privacy.budgets import Budgets
from gdpfed.tasks.losses import Loss

__all__ = ["Examples", "client_examples", "examples_of", "joined", "load_own_data"]

_TARGETS = ("label", "labels", "target", "targets", "y")
_INPUTS = ("input_ids", "inputs", "input", "x", "image", "images", "pixel_values", "features", "img", "tokens")


@dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """Inputs and targets, one row for each example."""

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)


def examples_of(given: Any, *, loss: Loss, where: str, columns: tuple[str, str] | None = None) -> Examples:
    """The examples of one client, or of a test set; ``where`` is for messages."""
    inputs, targets = _pair(given, loss, where, columns)
    held = _tensor(inputs, f"the inputs of {where}")
    if held.is_complex():
        raise InputError(f"expected real numbers as the inputs of {where}, got {held.dtype}")
    held = held.float() if held.is_floating_point() or held.dtype == torch.bool else held.long()
    if targets is None:
        held, wanted = _shifted(held, where)
    else:
        wanted = loss.targets(_tensor(targets, f"the targets of {where}"), where=f"in {where}")
        if loss.kind == "tokens" and held.shape == wanted.shape and bool((held == wanted)[wanted >= 0].all()):
            # As Hugging Face has it: the labels are the inputs, and the model is to be shifted.
            held, wanted = held[:, :-1], wanted[:, 1:]
    if held.ndim < 1 or len(held) != len(wanted):
        raise InputError(f"expected a target for each of {len(held)} inputs of {where}, got {len(wanted)}")
    return Examples(inputs=held, targets=wanted)


def _shifted(tokens: Tensor, where: str) -> tuple[Tensor, Tensor]:
    if tokens.is_floating_point() or tokens.ndim != 2 or tokens.shape[1] < 2:
        raise InputError(
            f"expected whole numbers (examples, length) as the tokens of {where}, got {tokens.dtype} "
            f"{tuple(tokens.shape)}"
        )
    return tokens[:, :-1], tokens[:, 1:]


def _pair(given: Any, loss: Loss, where: str, columns: tuple[str, str] | None) -> tuple[Any, Any]:
    if isinstance(given, Tensor | np.ndarray):
        if loss.kind == "tokens":
            return given, None
        raise InputError(f"expected inputs and targets for {where}, got one array of shape {tuple(given.shape)}")
    if isinstance(given, Mapping):
        return _columns(given, loss, where, columns)
    if hasattr(given, "column_names"):
        table = given.with_format("numpy")[:] if hasattr(given, "with_format") else given
        names = list(given.column_names)
        return _columns({name: table[name] for name in names}, loss, where, columns)
    is_pair = isinstance(given, tuple) or (
        isinstance(given, list) and all(isinstance(part, Tensor | np.ndarray) for part in given)
    )
    if is_pair and len(given) == 2:
        return given[0], given[1]
    if hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        return _rows([given[number] for number in range(len(given))], loss, where, columns)
    raise InputError(
        f"expected the examples of {where} as (inputs, targets), a dict of arrays or a data set with a length, got "
        f"{type(given).__name__}"
    )


def _rows(rows: list[Any], loss: Loss, where: str, columns: tuple[str, str] | None) -> tuple[Any, Any]:
    if not rows:
        raise InputError(f"expected at least one example in {where}, got none")
    if isinstance(rows[0], Mapping):
        return _columns({name: [row[name] for row in rows] for name in rows[0]}, loss, where, columns)
    if all(isinstance(row, tuple | list) and len(row) == 2 for row in rows):
        return [row[0] for row in rows], [row[1] for row in rows]
    if loss.kind == "tokens" and isinstance(rows[0], Tensor | np.ndarray | list):
        return rows, None
    raise InputError(f"expected pairs (input, target), or dicts, as the examples of {where}, got {rows[0]!r:.80}")


def _columns(table: Mapping[str, Any], loss: Loss, where: str, columns: tuple[str, str] | None) -> tuple[Any, Any]:
    names = list(table)
    if columns is not None:
        for name in columns:
            if name not in table:
                raise InputError(f"expected a column {name!r} in {where}, got {', '.join(map(str, names))}")
        return table[columns[0]], table[columns[1]]
    targets = [name for name in names if name in _TARGETS]
    others = [name for name in names if name not in targets]
    inputs = others if len(others) == 1 else [name for name in others if name in _INPUTS]
    if len(inputs) == 1 and len(targets) == 1:
        return table[inputs[0]], table[targets[0]]
    if len(inputs) == 1 and not targets and loss.kind == "tokens":
        return table[inputs[0]], None
    raise InputError(
        f"expected one column of inputs and one of targets in {where}, got {', '.join(map(str, names))}: say which, as "
        f'columns=("image", "label")'
    )


def _tensor(values: Any, where: str) -> Tensor:
    try:
        if isinstance(values, Tensor):
            return values.detach().cpu()
        if not isinstance(values, np.ndarray):
            values = list(values)
            if values and isinstance(values[0], Tensor):
                return torch.stack([value.detach().cpu() for value in values])
        array: NDArray[Any] = np.asarray(values)
        if array.dtype.kind == "u":
            array = array.astype(np.int64)
        if array.dtype.kind not in "biuf":
            raise TypeError
        # A copy where PyTorch could not write to it, of which it would warn.
        return torch.from_numpy(np.require(array, requirements=["C", "W"]))
    except (ValueError, TypeError, RuntimeError):
        raise InputError(
            f"expected numbers of one shape as {where}, got {_kind(values)}: turn texts into numbers, and pad what has "
            f"different lengths"
        ) from None


def _kind(values: Any) -> str:
    if isinstance(values, np.ndarray):
        return f"an array of {values.dtype}"
    return f"a list of {type(values[0]).__name__}" if isinstance(values, list) and values else type(values).__name__


def client_examples(
    clients: Any, budgets: Budgets, *, loss: Loss, columns: tuple[str, str] | None = None
) -> list[Examples]:
    """Of every client, in the order of the budgets: by name where both have names."""
    named = clients
    if isinstance(clients, Mapping):
        if budgets.clients is not None:
            names = [budgets.label(number) for number in range(len(budgets))]
            missing = [name for name in names if name not in clients]
            if missing or len(clients) != len(names):
                which = f"none for {missing[0]!r}" if missing else f"{len(clients)}"
                raise InputError(f"expected examples for each of the {len(names)} clients with a budget, got {which}")
            named = [clients[name] for name in names]
        else:
            named = list(clients.values())
    if not hasattr(named, "__len__") or isinstance(named, str):
        raise InputError(f"expected a list of clients, each with its examples, got {type(named).__name__}")
    if len(named) != len(budgets):
        raise InputError(f"expected a budget for each of {len(named)} clients, got {len(budgets)}")
    return [
        examples_of(given, loss=loss, where=f"client {number}", columns=columns) for number, given in enumerate(named)
    ]


def joined(clients: Sequence[Examples]) -> tuple[Examples, list[NDArray[np.int64]]]:
    """All examples one after the other, and which of them each client has."""
    first = clients[0]
    for number, client in enumerate(clients):
        for what, mine, theirs in (
            ("inputs", client.inputs, first.inputs),
            ("targets", client.targets, first.targets),
        ):
            if (mine.shape[1:], mine.dtype) != (theirs.shape[1:], theirs.dtype):
                raise InputError(
                    f"expected {what} of {theirs.dtype} {tuple(theirs.shape[1:])}, as of client 0, got {mine.dtype} "
                    f"{tuple(mine.shape[1:])} for client {number}"
                )
    ends = np.cumsum([len(client) for client in clients])
    members = [np.arange(end - len(client), end, dtype=np.int64) for client, end in zip(clients, ends, strict=True)]
    together = Examples(
        inputs=torch.cat([client.inputs for client in clients]),
        targets=torch.cat([client.targets for client in clients]),
    )
    return together, members


def load_own_data(
    function: Callable[..., Any], *, name: str, budgets: Budgets, loss: Loss, seed: int
) -> tuple[list[Examples] | Examples, Examples]:
    """What a function of one's own returns: {"clients": ..., "test": ...}, or {"train": ..., "test": ...}: each
    client's examples, or some to be dealt out; and a test set."""
    offered = {"seed": seed, "num_clients": len(budgets)}
    given = called(function, what=f"the data set {name!r}", offered=offered)
    ways = 'a dict with "test" and "clients" (a list, or by name), or "test" and "train" (to be dealt out)'
    if not isinstance(given, Mapping) or "test" not in given or ("clients" in given) == ("train" in given):
        got = ", ".join(map(str, given)) if isinstance(given, Mapping) else type(given).__name__
        raise InputError(f"expected {ways} of the data set {name!r}, got {got}")
    test = examples_of(given["test"], loss=loss, where=f"the test set of {name!r}")
    if not len(test):
        raise InputError(f"expected at least one example in the test set of {name!r}, got none")
    if "clients" in given:
        return client_examples(given["clients"], budgets, loss=loss), test
    return examples_of(given["train"], loss=loss, where=f"{name!r}"), test
