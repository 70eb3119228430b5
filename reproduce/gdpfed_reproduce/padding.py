"""Does the paper count padding on Shakespeare? python -m gdpfed_reproduce.padding [--rounds 50] [--record FILE]

Common code for this data set pads every speech to whole sequences of 80 characters and judges a model at every
position, those after the end of a speech included, where the answer is always "padding". The paper does not say how it
counts. Here the preset's LSTM is trained in that way, by `gdpfed.train`, on the embedded plays: the same
clients, budgets, rounds and local steps, a loss over all positions. Printed is the share of right answers at all
positions, without padding, and of the one who knows the end of a speech and else always guesses a space.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import gdpfed
from gdpfed.cli.show import console
from gdpfed.runs.api import RoundDone
from gdpfed.tasks.catalogue import source_of
from gdpfed.tasks.models import CharLSTM, build_model
from gdpfed.tasks.sources import obtain
from gdpfed.tasks.task import load_task
from gdpfed.tasks.text import NUM_ROLES, PLAYS_ALPHABET, TEST_FRACTION, WINDOW_LENGTH

__all__ = ["EveryPosition", "sequences"]

PADDING, _START, _END = 0, 1, 2
_FIRST = 3
_SPACE = _FIRST + PLAYS_ALPHABET.index(" ")
_VOCABULARY = _FIRST + len(PLAYS_ALPHABET)
# Sequences of the test set that are judged: one in so many.
_EVERY = 4


class EveryPosition(nn.Module):
    """The preset's LSTM, asked at every position."""

    def __init__(self) -> None:
        super().__init__()
        model = build_model("char-lstm", seed=1, num_classes=_VOCABULARY)
        assert isinstance(model, CharLSTM)  # noqa: S101 - for the type checker
        self.embed, self.cells, self.output = model.embed, model.cells, model.output

    def forward(self, characters: Tensor) -> Tensor:
        """(batch, length) characters -> (batch, length, vocabulary) logits of the next ones."""
        states, _ = self.cells(self.embed(characters))
        logits: Tensor = self.output(states)
        return logits


def sequences(speeches: Sequence[str]) -> tuple[Tensor, Tensor]:
    """Inputs and what follows each of them (number, 80): every speech with a start, an end, and padding after it."""
    rows: list[NDArray[np.int64]] = []
    for speech in speeches:
        text = [_START, *(_FIRST + PLAYS_ALPHABET.index(one) for one in speech), _END]
        length = -(-(len(text) - 1) // WINDOW_LENGTH) * WINDOW_LENGTH + 1
        padded = np.full(length, PADDING, dtype=np.int64)
        padded[: len(text)] = text
        rows += [padded[at : at + WINDOW_LENGTH + 1] for at in range(0, length - 1, WINDOW_LENGTH)]
    stacked = torch.from_numpy(np.stack(rows))
    return stacked[:, :-1], stacked[:, 1:]


def _roles() -> list[list[str]]:
    """The speeches of those who say most."""
    ((_, content),) = obtain(source_of("shakespeare")).contents.items()
    roles: list[list[str]] = [row["lines"] for row in json.loads(content)]
    return sorted(roles, key=lambda speeches: -sum(map(len, speeches)))[:NUM_ROLES]


def _right(outputs: Tensor, targets: Tensor) -> float:
    return 100 * float((outputs.argmax(-1) == targets).double().mean())


def _right_of_text(outputs: Tensor, targets: Tensor) -> float:
    is_text = targets != PADDING
    return 100 * float((outputs.argmax(-1) == targets)[is_text].double().mean())


def main() -> None:
    """Trains, prints and keeps."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--participation", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("gdpfed-results") / "padding")
    parser.add_argument("--record", type=Path)
    asked = parser.parse_args()
    preset = load_task("shakespeare")
    clients, held = [], []
    for speeches in _roles():
        cut = max(1, round((1 - TEST_FRACTION) * len(speeches)))
        clients.append(sequences(speeches[:cut]))
        held += speeches[cut:]
    test = tuple(each[::_EVERY] for each in sequences(held))
    counted = test[1] != PADDING
    plateau = 100 * float((~counted | (test[1] == _SPACE)).double().mean())
    padding = 100 * float((~counted).double().mean())
    shown = console()
    shown.print(f"{len(clients)} clients, {padding:.1f} % padding; knowing it and guessing spaces: {plateau:.2f} %")
    rows: list[dict[str, float]] = []

    def watch(done: RoundDone) -> None:
        if done.metrics:
            row = {"round": done.round_number + 1, **{name: round(value, 2) for name, value in done.metrics.items()}}
            rows.append(row)
            shown.print(row)

    settings = gdpfed.PlanSettings(
        method=asked.method, num_rounds=asked.rounds, participation=asked.participation, accountant="rdp",
        clip_norm=preset.settings.clip_norm, learning_rate=preset.settings.learning_rate,
        local_steps=preset.settings.local_steps,
    )  # fmt: skip
    local = gdpfed.LocalTraining(
        learning_rate=settings.learning_rate, local_steps=settings.local_steps, batch_size=preset.training.batch_size,
        momentum=preset.training.momentum, learning_rate_decay=preset.training.learning_rate_decay,
    )  # fmt: skip
    gdpfed.train(
        model=EveryPosition(), clients=clients, budgets=preset.budgets, seed=1, settings=settings, local=local,
        loss="next-token", metrics={"with padding": _right, "without": _right_of_text}, test=test,
        evaluate_every=5, num_workers=asked.workers, watch=watch, out=asked.out,
    )  # fmt: skip
    if asked.record is not None:
        kept = {
            "method": asked.method, "rounds": asked.rounds, "participation": asked.participation,
            "padding": round(padding, 2), "plateau": round(plateau, 2), "rows": rows,
        }  # fmt: skip
        asked.record.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
