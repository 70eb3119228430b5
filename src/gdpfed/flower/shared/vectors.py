"""A user's model as one flat vector, and back.

Place: between the apps and the user's functions; the only module here that knows what a model is. A `torch.nn.Module`,
or a list of numpy arrays (scikit-learn, JAX and all others): both become one float32 vector, which is what travels.

Guarantees (tests of the same name):
  vectors_round_trip          a model, its vector, and the model again: the same numbers, shapes and types.
  what_cannot_travel_is_refused   buffers, whole numbers, complex numbers, no parameters at all.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError

__all__ = ["sizes_of", "to_vector", "with_vector"]


def _is_module(model: Any) -> bool:
    """Without importing PyTorch for those who do not use it."""
    module = ("torch.nn.modules.module", "Module")
    return any((kind.__module__, kind.__name__) == module for kind in type(model).__mro__)


def _arrays(model: Any) -> list[NDArray[Any]]:
    if not isinstance(model, Sequence) or isinstance(model, str | bytes):
        raise InputError(f"expected a torch.nn.Module or a list of numpy arrays as model, got {type(model).__name__}")
    arrays = [np.asarray(part) for part in model]
    for index, array in enumerate(arrays):
        if array.dtype.kind != "f":
            raise InputError(f"expected arrays of real numbers in the model, got {array.dtype} at index {index}")
    return arrays


def sizes_of(model: Any) -> dict[str, int]:
    """The size of each parameter of a model, by name; refuses a model that cannot travel as parameters alone."""
    if _is_module(model):
        from gdpfed.tasks.models import refuse_running_statistics

        refuse_running_statistics(model)
        sizes = {name: int(parameter.numel()) for name, parameter in model.named_parameters()}
    else:
        sizes = {f"array{index}": int(array.size) for index, array in enumerate(_arrays(model))}
    if sum(sizes.values()) == 0:
        raise InputError("expected a model with parameters, got none")
    return sizes


def to_vector(model: Any) -> NDArray[np.float64]:
    """All parameters, one after the other."""
    if _is_module(model):
        parts = [parameter.detach().cpu().double().numpy().ravel() for parameter in model.parameters()]
    else:
        parts = [array.astype(np.float64).ravel() for array in _arrays(model)]
    return np.concatenate(parts) if parts else np.empty(0)


def with_vector(model: Any, vector: NDArray[Any]) -> Any:
    """A copy of the model with these parameters."""
    parts = np.split(vector, np.cumsum(list(sizes_of(model).values()))[:-1])
    if not _is_module(model):
        arrays = zip(_arrays(model), parts, strict=True)
        return [np.array(part, dtype=array.dtype).reshape(array.shape) for array, part in arrays]
    import torch

    changed = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, part in zip(changed.parameters(), parts, strict=True):
            parameter.copy_(torch.from_numpy(np.array(part)).view_as(parameter))
    return changed
