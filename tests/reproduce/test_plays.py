import torch

from gdpfed.tasks.losses import LOSSES
from gdpfed.tasks.text import NUM_ROLES, PLAYS_ALPHABET
from gdpfed_reproduce.plays import (
    PADDING,
    VOCABULARY,
    lstm_on_8,
    lstm_on_256,
    of_text,
    padded,
    parts,
    sequences,
    small_lstm,
    two_layers_on_8,
    without_learning,
)

START, END, FIRST = 1, 2, 3


def test_speeches_are_whole() -> None:
    speeches = ["To be, or not to be", "x" * 78, "x" * 79, "y" * 80, "z" * 200]
    inputs, targets = sequences(speeches)
    assert inputs.shape == targets.shape == (1 + 1 + 1 + 2 + 3, 80)
    read, current = [], ""
    for row, answers in zip(inputs.tolist(), targets.tolist(), strict=True):
        # What is asked for is what comes next.
        assert row[1:] == answers[:-1]
        assert (row[0] == START) == (current == "")
        for code in answers:
            if code == END:
                read.append(current)
                current = ""
            elif code != PADDING:
                current += PLAYS_ALPHABET[code - FIRST]
    assert read == speeches


def test_parts_do_not_meet() -> None:
    train, held = parts()
    assert len(train) == NUM_ROLES
    given = padded()
    assert [len(client[0]) for client in given["clients"]] == [len(sequences(speeches)[0]) for speeches in train]
    assert len(given["test"][0]) == -(-len(sequences(held)[0]) // 4)
    assert all(train)
    # The last fifth of those who speak often.
    shares = len(held) / (len(held) + sum(map(len, train)))
    assert 0.17 < shares < 0.23


def test_judged_with_and_without() -> None:
    _, targets = sequences(["abc"])
    outputs = torch.zeros(1, 80, VOCABULARY)
    # Padding known, nothing else right.
    outputs[..., PADDING] = 1
    right = LOSSES["next-token"].right(outputs, targets)
    assert right is not None
    assert float(right) == 76 / 80
    assert of_text(outputs, targets) == 0
    outputs[0, 0, targets[0, 0]] = 2
    assert of_text(outputs, targets) == 25


def test_the_model_is_asked_at_every_position() -> None:
    inputs, targets = sequences(["abc", "d" * 100])
    sizes = {}
    for make in (small_lstm, lstm_on_256, lstm_on_8, two_layers_on_8):
        model = make()
        assert model(inputs).shape == (*targets.shape, VOCABULARY)
        sizes[make.__name__] = sum(parameter.numel() for parameter in model.parameters())
    assert sizes["small_lstm"] == 114_961
    assert sizes["two_layers_on_8"] == 819_390 + 3 * (256 + 1 + 8) == 820_185
    assert sizes["lstm_on_256"] > 1.9 * sizes["small_lstm"] > 1.9 * sizes["lstm_on_8"]


def test_what_guessing_gives() -> None:
    padding, guessing = without_learning()
    assert 20 < padding < 30
    assert padding < guessing < 40
