"""What to train with where nobody wants to choose: `gdpfed train --auto`.

Place: over a task's settings, under what the caller states. The method is `auto`. For the data sets of the catalogue a
model whose features are fixed and learnt from no data, and a model's local learning rate, are advised, too; of data of
one's own both are the owner's. Which features: on CIFAR-10 things look either way (`mirrored-linear`), SVHN's digits
stand between others (`centred-linear`).

Local learning rates: 0.02 with scattering features, chosen on FMNIST's held-out images and the same for all images; 10
with the public network's features, which have length 1, chosen on CIFAR-10's; 0.2 with every other model, chosen on
held-out examples of FMNIST and Shakespeare, where twice the paper's was as good or better. All updates have one length
in the end, so a long local way costs nothing.
"""

from collections.abc import Mapping
from typing import Any

from gdpfed.errors import InputError

__all__ = ["LEARNING_RATE", "advice_for"]

LEARNING_RATE = 0.2
_LEARNING_RATES = {"scattering-linear": 0.02, "mirrored-linear": 0.02, "centred-linear": 0.02, "public-image": 10.0}
_MODELS = {
    "fmnist-mini": "scattering-linear",
    "fmnist": "scattering-linear",
    "svhn": "centred-linear",
    "cifar10": "mirrored-linear",
    "shakespeare": "word-linear",
}


def advice_for(dataset: str, *, stated: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Settings by name, under those that are ``stated``; another method is refused."""
    stated = stated or {}
    if "method" in stated:
        raise InputError("expected --auto, which is a method, or --method, got both: leave one out")
    if dataset not in _MODELS:
        return {"method": "auto"}
    model = stated.get("model", _MODELS[dataset])
    return {"method": "auto", "model": model, "learning_rate": _LEARNING_RATES.get(model, LEARNING_RATE)}
