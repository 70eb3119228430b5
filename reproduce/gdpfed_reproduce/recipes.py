"""Settings for the tables of `beyond`: what was tried on held-out training examples, and what was chosen.

Place: below the tables. `CNN`, `FEATURES` and `OTHERS` are ours; `FEDAVG` and `GDPFED` what was chosen for the
two opponents by the same rule, from fewer rows. The rule: the best row, or of those within a tenth of a point of it the
one with the smallest server step, then learning rate (`tests/results/test_beyond.py` holds the records to it).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gdpfed.tasks.task import Task

__all__ = [
    "AUTO",
    "CHARACTERS",
    "CHOSEN",
    "CNN",
    "EARLIER_CNN",
    "FEATURES",
    "FEDAVG",
    "GDPFED",
    "OTHERS",
    "PLAIN_CNN",
    "TRIED_CNN",
    "TRIED_FEATURES",
    "TRIED_FEDAVG",
    "TRIED_GDPFED",
    "TRIED_OTHERS",
    "Recipe",
    "with_settings",
    "with_training",
]


def with_settings(task: Task, **settings: Any) -> Task:
    """The task, planned with other settings."""
    return dataclasses.replace(task, settings=dataclasses.replace(task.settings, **settings))


def with_training(task: Task, **changes: Any) -> Task:
    """The task, trained otherwise."""
    return dataclasses.replace(task, training=dataclasses.replace(task.training, **changes))


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What was chosen for a model: local learning rate, clip norm, and what the server does with released sums."""

    model: str
    width: int | None = None
    learning_rate: float
    clip_norm: float
    server_learning_rate: float = 1.0
    averaging: float = 0.0

    @property
    def server(self) -> dict[str, float]:
        """The server's part, which costs no privacy."""
        return {"server_learning_rate": self.server_learning_rate, "averaging": self.averaging}

    def on(self, task: Task, method: str = "pooled", **changes: Any) -> Task:
        """The task with this model and these settings."""
        own = {"learning_rate": self.learning_rate, "clip_norm": self.clip_norm, **self.server}
        return with_settings(
            with_training(task, model=self.model, model_width=self.width, evaluate_every=task.settings.num_rounds),
            method=method,
            **{**own, **changes},
        )

    @property
    def plain(self) -> "Recipe":
        """The same with a plain server. Our models have no preset: the clip norm is ours, at others all is noise."""
        return dataclasses.replace(self, server_learning_rate=1.0, averaging=0.0)


CNN = Recipe(model="cnn2", learning_rate=0.2, clip_norm=0.35, server_learning_rate=4.5, averaging=0.85)
FEATURES = Recipe(
    model="scattering-linear", learning_rate=0.02, clip_norm=0.15, server_learning_rate=3.0, averaging=0.8
)
# What the server does without us, at the preset's clip norm.
PLAIN_CNN = Recipe(model="cnn2", learning_rate=0.1, clip_norm=1.5)
# What was chosen before smaller clip norms were tried.
EARLIER_CNN = Recipe(model="cnn2", learning_rate=0.1, clip_norm=0.7, server_learning_rate=3.0, averaging=0.85)
# Models of our choice for the other data sets.
OTHERS: Mapping[str, Recipe] = {
    "svhn": Recipe(
        model="scattering-linear", learning_rate=0.02, clip_norm=0.15, server_learning_rate=3.0, averaging=0.9
    ),
    "cifar10": Recipe(
        model="scattering-linear", learning_rate=0.02, clip_norm=0.1, server_learning_rate=1.0, averaging=0.95
    ),
    "shakespeare": Recipe(
        model="char-linear", width=3, learning_rate=0.1, clip_norm=2.0, server_learning_rate=2.0, averaging=0.9
    ),
}
# What was chosen for fedavg. It does not clip: the clip norm is the preset's, and nothing uses it.
FEDAVG: Mapping[str, Recipe] = {
    "cnn": dataclasses.replace(PLAIN_CNN, learning_rate=0.2, server_learning_rate=1.5),
    "features": dataclasses.replace(FEATURES, learning_rate=0.05, clip_norm=1.5),
    "cifar10": dataclasses.replace(OTHERS["cifar10"], learning_rate=0.05, clip_norm=1.5, server_learning_rate=2.0),
    "shakespeare": dataclasses.replace(
        OTHERS["shakespeare"], learning_rate=1.0, clip_norm=1.0, server_learning_rate=1.0
    ),
}
# And for gdpfed+, where it clips too.
GDPFED: Mapping[str, Recipe] = {
    "cnn": dataclasses.replace(CNN, server_learning_rate=9.0),
    "features": dataclasses.replace(FEATURES, server_learning_rate=6.0),
}


# Of the method `auto` nothing is chosen but the model and its local learning rate: what `gdpfed train --auto` advises
# (`tasks/advice.py`), the same on every data set. The clip norm is a unit there.
AUTO: Mapping[str, Recipe] = {
    "cnn": Recipe(model="cnn2", learning_rate=0.2, clip_norm=1.0),
    "features": Recipe(model="scattering-linear", learning_rate=0.02, clip_norm=1.0),
    "mirrored": Recipe(model="mirrored-linear", learning_rate=0.02, clip_norm=1.0),
    "centred": Recipe(model="centred-linear", learning_rate=0.02, clip_norm=1.0),
    "words": Recipe(model="word-linear", learning_rate=0.2, clip_norm=1.0),
    "public text": Recipe(model="public-text", learning_rate=0.2, clip_norm=1.0),
    "public images": Recipe(model="public-image", learning_rate=10.0, clip_norm=1.0),
}

# On text, with less than `--auto` advises.
CHARACTERS = Recipe(model="char-linear", width=3, learning_rate=0.2, clip_norm=1.0)

CHOSEN = ("learning_rate", "clip_norm", "server_learning_rate", "averaging")


def _tried(recipe: Recipe, *rows: tuple[float, float, float, float], width: int | None = None) -> list[Recipe]:
    """The recipe with other numbers, in the order of `CHOSEN`."""
    return [
        Recipe(
            model=recipe.model,
            width=width or recipe.width,
            learning_rate=rate,
            clip_norm=clip_norm,
            server_learning_rate=step,
            averaging=averaging,
        )
        for rate, clip_norm, step, averaging in rows
    ]


# The clip norm falls at about the same step times clip norm; then what is near, and other learning rates.
TRIED_CNN = _tried(
    CNN,
    (0.1, 1.5, 1, 0),
    (0.1, 1.5, 1.5, 0.85),
    (0.1, 1.0, 2, 0.85),
    (0.1, 0.7, 3, 0.85),
    (0.1, 0.5, 4, 0.85),
    (0.1, 0.35, 6, 0.85),
    (0.1, 0.25, 8, 0.85),
    (0.1, 0.15, 14, 0.85),
    (0.1, 0.7, 4, 0.85),
    (0.1, 0.5, 3, 0.85),
    (0.1, 0.5, 6, 0.85),
    (0.1, 0.35, 3, 0.85),
    (0.1, 0.35, 4.5, 0.85),
    (0.1, 0.35, 8, 0.85),
    (0.1, 0.25, 6, 0.85),
    (0.1, 0.35, 6, 0.9),
    (0.05, 0.35, 6, 0.85),
    (0.2, 0.35, 6, 0.85),
    (0.3, 0.35, 6, 0.85),
    (0.2, 0.35, 4.5, 0.85),
    (0.2, 0.25, 8, 0.85),
    (0.2, 0.5, 4, 0.85),
    (0.3, 0.5, 4, 0.85),
)
TRIED_FEATURES = _tried(
    FEATURES,
    (0.02, 0.2, 1, 0),
    (0.02, 0.2, 2, 0),
    (0.02, 0.2, 2, 0.8),
    (0.02, 0.2, 3, 0.8),
    (0.02, 0.15, 3, 0.8),
    (0.02, 0.15, 4, 0.8),
    (0.02, 0.1, 4, 0.8),
    (0.02, 0.1, 6, 0.8),
    (0.02, 0.07, 6, 0.8),
    (0.02, 0.15, 4, 0.9),
    (0.02, 0.1, 6, 0.9),
    (0.01, 0.15, 3, 0.8),
    (0.03, 0.15, 3, 0.8),
    (0.05, 0.15, 3, 0.8),
    (0.05, 0.15, 4, 0.8),
    (0.05, 0.2, 3, 0.8),
    (0.05, 0.1, 4, 0.8),
)
TRIED_FEDAVG: Mapping[str, Sequence[Recipe]] = {
    "cnn": _tried(
        FEDAVG["cnn"],
        *((rate, 1.5, step, 0.85) for rate in (0.1, 0.2) for step in (1, 1.5, 2, 3)),
        (0.3, 1.5, 1, 0.85),
        (0.3, 1.5, 1.5, 0.85),
        (0.2, 1.5, 1.5, 0),
        (0.2, 1.5, 1.5, 0.9),
    ),
    "features": _tried(
        FEDAVG["features"],
        *((rate, 1.5, step, 0.8) for rate in (0.02, 0.05) for step in (1.5, 3, 6, 12)),
        (0.1, 1.5, 1.5, 0.8),
        (0.1, 1.5, 3, 0.8),
        (0.2, 1.5, 1.5, 0.8),
        (0.2, 1.5, 3, 0.8),
        (0.05, 1.5, 3, 0),
        (0.05, 1.5, 3, 0.9),
    ),
    "cifar10": _tried(FEDAVG["cifar10"], *((rate, 1.5, step, 0.95) for rate in (0.02, 0.05) for step in (1, 2, 3))),
    "shakespeare": _tried(
        FEDAVG["shakespeare"],
        *((rate, 1, step, 0.9) for rate in (0.1, 0.3) for step in (1, 2, 3)),
        (0.5, 1, 1, 0.9),
        (1, 1, 1, 0.9),
        (0.3, 1, 0.5, 0.9),
    ),
}
TRIED_GDPFED: Mapping[str, Sequence[Recipe]] = {
    "cnn": _tried(
        CNN,
        (0.2, 0.35, 2, 0.85),
        (0.2, 0.35, 3, 0.85),
        (0.2, 0.35, 4.5, 0.85),
        (0.2, 0.35, 6, 0.85),
        (0.2, 0.35, 9, 0.85),
        (0.2, 0.35, 13, 0.85),
        (0.1, 0.7, 2, 0.85),
        (0.1, 1.5, 1, 0.85),
    ),
    "features": _tried(
        FEATURES,
        (0.02, 0.15, 1.5, 0.8),
        (0.02, 0.15, 2, 0.8),
        (0.02, 0.15, 3, 0.8),
        (0.02, 0.15, 4, 0.8),
        (0.02, 0.15, 6, 0.8),
        (0.02, 0.15, 9, 0.8),
        (0.02, 0.1, 6, 0.8),
        (0.02, 0.15, 2, 0.9),
        (0.02, 0.1, 3, 0.8),
        (0.02, 0.2, 1.5, 0.8),
    ),
}
TRIED_OTHERS: Mapping[str, Sequence[Recipe]] = {
    "svhn": _tried(
        OTHERS["svhn"],
        (0.02, 0.3, 3, 0.9),
        (0.02, 0.15, 3, 0.9),
        (0.02, 0.15, 2, 0.95),
        (0.02, 0.1, 4, 0.9),
    ),
    "cifar10": _tried(
        OTHERS["cifar10"],
        (0.02, 0.15, 3, 0.8),
        (0.02, 0.1, 2, 0.9),
        (0.02, 0.1, 2, 0.95),
        (0.02, 0.1, 1.5, 0.95),
        (0.02, 0.1, 1, 0.95),
        (0.02, 0.1, 0.7, 0.95),
        (0.02, 0.1, 1, 0.9),
        (0.02, 0.1, 1.5, 0.9),
    ),
    "shakespeare": [
        *_tried(OTHERS["shakespeare"], (0.1, 1, 2, 0.9), (0.1, 2, 2, 0.9), (0.1, 4, 2, 0.9), width=2),
        *_tried(
            OTHERS["shakespeare"],
            (0.1, 1, 2, 0.9),
            (0.1, 2, 2, 0.9),
            (0.1, 1, 4, 0.9),
            (0.1, 2, 1, 0.9),
            (0.1, 2, 3, 0.9),
            (0.1, 2, 2, 0.8),
            (0.1, 2, 2, 0.95),
            (0.1, 3, 2, 0.9),
            (0.3, 2, 2, 0.9),
            width=3,
        ),
        *_tried(OTHERS["shakespeare"], (0.1, 2, 2, 0.9), (0.1, 2, 3, 0.9), width=4),
        *_tried(OTHERS["shakespeare"], (0.1, 2, 2, 0.9), (0.1, 2, 3, 0.9), width=5),
    ],
}
