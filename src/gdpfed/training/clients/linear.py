"""Gradients of many dense layers on fixed features, by hand.

Place: the fast way of `batched.py` for an nn.Sequential of a part without parameters (`tasks/features.py`) and one
dense layer. Features are computed once for a batch that stays.

Guarantees (tests of the same name):
  linear_equals_autograd        each client's gradients equal those of the module itself.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gdpfed.tasks.features import KeptFeatures, LastCharacters, Scattering

__all__ = ["LinearModel"]


class LinearModel:
    """A dense layer on fixed features, for all clients of a block at once."""

    block_clients = 30

    def __init__(self, model: nn.Sequential) -> None:
        self._fixed = model[0]

    @staticmethod
    def supports(model: nn.Module) -> bool:
        """Whether it is features, then a dense layer with a bias, and nothing else."""
        if type(model) is not nn.Sequential or len(model) != 2:
            return False
        fixed, dense = model
        is_fixed = type(fixed) in (KeptFeatures, LastCharacters, Scattering)
        return is_fixed and type(dense) is nn.Linear and dense.bias is not None

    def prepare(self, inputs: Tensor) -> Tensor:
        """Features (clients, batch, features) of inputs (clients, batch, ...), or of kept features."""
        features: Tensor = self._fixed(inputs.flatten(0, 1))
        return features.view(*inputs.shape[:2], -1)

    def gradients(
        self, parameters: Sequence[Tensor], prepared: Tensor, labels: Tensor, weights: Tensor
    ) -> list[Tensor]:
        """Of the cross-entropies (clients, batch) times ``weights``, by parameter."""
        matrix, bias = parameters
        logits = torch.baddbmm(bias.unsqueeze(1), prepared, matrix.transpose(1, 2))
        gradient = torch.softmax(logits, dim=2)
        gradient -= nn.functional.one_hot(labels, gradient.shape[2])
        gradient *= weights.unsqueeze(2)
        return [torch.bmm(gradient.transpose(1, 2), prepared), gradient.sum(1)]
