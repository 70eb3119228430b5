"""What to train with where nobody wants to choose: `gdpfed train --auto`.

Place: over a task's settings, under what the caller states. The method is `auto`. For the data sets of the catalogue a
model whose features are fixed and learnt from no data, and its local learning rate, are advised, too; of data of one's
own the model is the owner's.

The learning rate for scattering features was chosen on FMNIST's held-out images, and is the same for all images; that
for text is the paper's.
"""

from collections.abc import Collection, Mapping
from typing import Any

from gdpfed.errors import InputError

__all__ = ["advice_for"]

_IMAGES: Mapping[str, Any] = {"model": "scattering-linear", "learning_rate": 0.02}
_TEXT: Mapping[str, Any] = {"model": "word-linear", "learning_rate": 0.1}
_ADVICE = {"fmnist-mini": _IMAGES, "fmnist": _IMAGES, "svhn": _IMAGES, "cifar10": _IMAGES, "shakespeare": _TEXT}


def advice_for(dataset: str, *, stated: Collection[str] = ()) -> dict[str, Any]:
    """Settings by name. Who states a model has the learning rate of the task for it; another method is refused."""
    if "method" in stated:
        raise InputError("expected --auto, which is a method, or --method, got both: leave one out")
    model = {} if "model" in stated else _ADVICE.get(dataset, {})
    return {"method": "auto", **model}
