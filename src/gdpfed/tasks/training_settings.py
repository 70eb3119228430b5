"""What is trained, on which data, and how: everything about a run that its plan does not need to know.

Place: part of a `task.Task`, beside `planning/settings.py`, which has what the plan is made from.
"""

from dataclasses import dataclass
from typing import Literal

from gdpfed.config import documented, fit_fields, is_reference, setting
from gdpfed.errors import InputError, expect, expect_word

__all__ = ["LOSS_NAMES", "TrainingSettings"]

# Those of `losses.py`, which needs torch.
LOSS_NAMES = ("cross-entropy", "mse", "bce-with-logits", "next-token")


@documented
@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What is trained on which data, and how, apart from what the plan needs to know."""

    dataset: str = setting(
        "fmnist-mini",
        "A data set of `gdpfed data list`, or your own as package.module:function, which is imported, hence run.",
    )
    model: str = setting(
        "small-cnn", "A model of `gdpfed.tasks.models`, by name, or your own as package.module:function."
    )
    loss: str = setting(
        "cross-entropy", f"What clients minimise: {', '.join(LOSS_NAMES)}, or your own as package.module:function."
    )
    metrics: tuple[str, ...] = setting(
        (), "Functions of (outputs, targets) of the test set, as package.module:function, separated by commas."
    )
    model_width: int | None = setting(
        None, "Channels, or characters looked at, of a model that has a width. Default: the model's."
    )
    partition: Literal["iid", "dirichlet", "natural"] = setting(
        "iid", "Who holds which data: 'iid', 'dirichlet' (labels differ) or 'natural' (as it was collected)."
    )
    concentration: float = setting(
        0.5, "With partition 'dirichlet': the smaller, the more the clients' labels differ.", allowed="Above 0."
    )
    min_examples: int = setting(
        1, "With partition 'dirichlet': every client has at least so many examples.", allowed="At least 1."
    )
    batch_size: int = setting(10, "Examples of a local step.", allowed="At least 1.")
    momentum: float = setting(0.0, "Momentum of a client's local steps.", allowed="At least 0, below 1.")
    learning_rate_decay: float = setting(
        0.99, "Factor on the learning rate after each round.", allowed="Above 0, at most 1."
    )
    evaluate_every: int = setting(1, "Rounds between evaluations.", allowed="At least 1.")
    secure: bool = setting(False, "Sums by the secure aggregation protocol, with integer noise.")
    dropout: float = setting(
        0.0, "With secure: fraction of clients that vanish during a sum.", allowed="At least 0, below 0.5."
    )
    colluders: float = setting(
        0.0,
        "With secure: fraction of a cohort that may tell the server their noise.",
        allowed="At least 0, below 0.5.",
    )
    validation: int = setting(
        0,
        "So many training examples, the last, are taken from the clients and stand for the test set: settings can be "
        "chosen without looking at it.",
        allowed="At least 0.",
    )
    group_skew: float = setting(
        0.0,
        "From 0 (budgets have nothing to do with data) to 1 (clients with small labels have the strict ones).",
        allowed="At least 0, at most 1.",
    )

    def __post_init__(self) -> None:
        fit_fields(self)
        if not is_reference(self.loss) and self.loss != "own":
            expect_word("a loss among", self.loss, LOSS_NAMES)
        expect_word("partition", self.partition, ("iid", "dirichlet", "natural"))
        for name, is_right, expected in (
            ("batch_size", self.batch_size >= 1, "batch_size >= 1"),
            ("min_examples", self.min_examples >= 1, "min_examples >= 1"),
            ("evaluate_every", self.evaluate_every >= 1, "evaluate_every >= 1"),
            ("concentration", 0 < self.concentration < float("inf"), "a finite concentration > 0"),
            ("momentum", 0 <= self.momentum < 1, "0 <= momentum < 1"),
            ("validation", self.validation >= 0, "validation >= 0"),
            ("group_skew", 0 <= self.group_skew <= 1, "0 <= group_skew <= 1"),
            ("dropout", 0 <= self.dropout < 0.5, "0 <= dropout < 0.5"),
            ("colluders", 0 <= self.colluders < 0.5, "0 <= colluders < 0.5"),
            ("learning_rate_decay", 0 < self.learning_rate_decay <= 1, "0 < learning_rate_decay <= 1"),
        ):
            expect(is_right, expected, **{name: getattr(self, name)})
        for name in ("dropout", "colluders"):
            if getattr(self, name) and not self.secure:
                raise InputError(f"expected {name} with secure = true only: other sums lose nobody")
