"""Shakespeare's plays as public code by the paper's authors has them: every position is asked, padding counts.

Place: the set-up of the paper's Shakespeare experiment, named in `experiments.py`; a data set and a model of one's own.

The paper prints neither its data nor how it judges a model. Other public code by its authors (for LASA, WACV 2025) pads
every speech to whole sequences of 80 characters, minimises the loss at all 80 positions, and counts those after the end
of a speech, where the right answer is "padding". Here the embedded plays are cut that way, for the roles that say most.
Of each role's speeches the last fifth is for testing.

Guarantees (tests of the same name):
  speeches_are_whole        start, characters, end and padding: from the sequences every speech can be read again.
  parts_do_not_meet         of each role the first speeches are for training, the last for testing, none for both.
  judged_with_and_without   accuracy counts padding, the metric `of_text` does not.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdpfed.tasks.catalogue import source_of
from gdpfed.tasks.models import CharLSTM
from gdpfed.tasks.sources import obtain
from gdpfed.tasks.text import NUM_ROLES, PLAYS_ALPHABET, TEST_FRACTION, WINDOW_LENGTH

__all__ = [
    "PADDING",
    "VOCABULARY",
    "EveryPosition",
    "lstm_on_8",
    "lstm_on_256",
    "of_text",
    "padded",
    "parts",
    "sequences",
    "small_lstm",
    "two_layers_on_8",
    "without_learning",
]

PADDING, _START, _END = 0, 1, 2
_FIRST = 3
_SPACE = _FIRST + PLAYS_ALPHABET.index(" ")
VOCABULARY = _FIRST + len(PLAYS_ALPHABET)
# Sequences of the test set that are judged: one in so many.
_EVERY = 4

Pair = tuple[Tensor, Tensor]


class EveryPosition(CharLSTM):
    """An LSTM like the preset's, asked at every position."""

    def forward(self, characters: Tensor) -> Tensor:
        """(batch, length) characters -> (batch, length, classes) logits of the next ones."""
        states, _ = self.cells(self.embed(characters))
        logits: Tensor = self.output(states)
        return logits


def sequences(speeches: Sequence[str]) -> Pair:
    """Inputs and what follows each of them (number, 80): every speech with a start, an end, and padding after it."""
    rows: list[NDArray[np.int64]] = []
    for speech in speeches:
        text = [_START, *(_FIRST + PLAYS_ALPHABET.index(one) for one in speech), _END]
        length = -(-(len(text) - 1) // WINDOW_LENGTH) * WINDOW_LENGTH + 1
        filled = np.full(length, PADDING, dtype=np.int64)
        filled[: len(text)] = text
        rows += [filled[at : at + WINDOW_LENGTH + 1] for at in range(0, length - 1, WINDOW_LENGTH)]
    stacked = torch.from_numpy(np.stack(rows))
    return stacked[:, :-1].contiguous(), stacked[:, 1:].contiguous()


@cache
def _roles() -> list[list[str]]:
    """The speeches of those who say most."""
    ((_, content),) = obtain(source_of("shakespeare")).contents.items()
    roles: list[list[str]] = [row["lines"] for row in json.loads(content)]
    return sorted(roles, key=lambda speeches: -sum(map(len, speeches)))[:NUM_ROLES]


def parts() -> tuple[list[list[str]], list[str]]:
    """Each role's speeches for training, and all that are for testing."""
    train: list[list[str]] = []
    held: list[str] = []
    for speeches in _roles():
        cut = max(1, round((1 - TEST_FRACTION) * len(speeches)))
        train.append(speeches[:cut])
        held += speeches[cut:]
    return train, held


def padded() -> dict[str, Any]:
    """The data set, as `gdpfed train --dataset gdpfed_reproduce.plays:padded` takes it."""
    train, held = parts()
    inputs, targets = sequences(held)
    return {"clients": [sequences(speeches) for speeches in train], "test": (inputs[::_EVERY], targets[::_EVERY])}


def of_text(outputs: Tensor, targets: Tensor) -> float:
    """A metric: the percentage of right answers where the answer is not padding."""
    is_text = targets != PADDING
    return 100 * float((outputs.argmax(-1) == targets)[is_text].double().mean())


def without_learning() -> tuple[float, float]:
    """In percent of the test set: what is padding, and who is right by knowing it and guessing a space elsewhere."""
    _, targets = padded()["test"]
    is_padding = targets == PADDING
    return 100 * float(is_padding.double().mean()), 100 * float((is_padding | (targets == _SPACE)).double().mean())


def small_lstm() -> nn.Module:
    """One layer of 128 cells on 64 numbers for each character: 114,961 parameters.

    Chosen by its accuracy without privacy alone, before any private run; the experiment `lstms` has others.
    """
    return EveryPosition(num_classes=VOCABULARY, embedding=64, hidden=128, layers=1)


def lstm_on_256() -> nn.Module:
    """256 numbers for each character."""
    return EveryPosition(num_classes=VOCABULARY, embedding=256, hidden=128, layers=1)


def lstm_on_8() -> nn.Module:
    """Eight numbers for each character, as many as public code by the paper's authors has."""
    return EveryPosition(num_classes=VOCABULARY, hidden=128, layers=1)


def two_layers_on_8() -> nn.Module:
    """The sizes of that code: two layers of 256 cells on eight numbers, 820,185 parameters."""
    return EveryPosition(num_classes=VOCABULARY)
