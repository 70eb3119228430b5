"""The classifiers of `answer_times.py` see what is there, and nothing where there is nothing.

The attack itself takes minutes and a quiet machine: `python -m tests.attacks.answer_times`.
"""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.attacks.answer_times import best_guess, flower_verdict

ANSWERS = 3000


def features(generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    times = 0.4 + generator.gamma(2.0, 0.01, size=(ANSWERS, 5))
    times[:, 1] = 184
    return times, generator.random(ANSWERS) < 0.5


def test_nothing_is_seen_where_there_is_nothing() -> None:
    """The AUC of guessing on 3,000 answers has a std of 0.011: beyond 0.08 never."""
    for seed in range(3):
        _, auc = best_guess(*features(np.random.default_rng(seed)))
        assert abs(auc - 0.5) < 0.08


@pytest.mark.parametrize("column", [0, 2, 4])
def test_milliseconds_that_depend_on_the_coin_is_seen(column: int) -> None:
    """The jitter is 14 ms; 5 ms more for who trained are seen, in any of the answers."""
    times, labels = features(np.random.default_rng(7))
    times[:, column] += 0.005 * labels
    assert best_guess(times, labels)[1] > 0.56


def test_a_length_that_depends_on_the_coin_is_seen() -> None:
    times, labels = features(np.random.default_rng(8))
    times[:, 1] += labels
    assert best_guess(times, labels)[1] > 0.99


def test_times_that_vary_with_the_coin_are_seen() -> None:
    """Not later on average, but more spread out."""
    times, labels = features(np.random.default_rng(9))
    times[:, 0] += np.where(labels, np.random.default_rng(10).normal(0, 0.03, ANSWERS), 0)
    assert best_guess(times, labels)[1] > 0.6


@pytest.mark.parametrize("leak", [0.0, 0.02])
def test_what_a_node_states_is_looked_at(tmp_path: Path, leak: float) -> None:
    """Through Flower: a node's own word for how long its app ran, 20 ms more where it trained."""
    generator = np.random.default_rng(11)
    (tmp_path / "coins").mkdir()
    lines: list[list[object]] = []
    for number in range(600):
        says_yes = bool(generator.random() < 0.5)
        node, asked = number % 4, 20.0 * number
        (tmp_path / "coins" / str(number)).write_text(f"m{number}-input {int(says_yes)}")
        for offset, stage in enumerate(("input", "agree", "reveal", "keys")):
            message, pulled = f"m{number}-{stage}", asked + 4 * offset
            stated = 1 + generator.gamma(2.0, 0.005) + (leak * says_yes if stage == "input" else 0)
            came = pulled + 2 + generator.random()
            lines += [["pull", node, message, f"train.{stage}", pulled]]
            lines += [["push", node, message, pulled + 1.5 + generator.random(), stated, 433 + node, came]]
            lines += [["object", node, 2900, came + 0.1]]
    (tmp_path / "seen.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    verdict = flower_verdict([tmp_path])
    # All but each node's first.
    assert verdict.yes + verdict.no == 596
    assert verdict.lengths == (0,)
    # A std of 0.024 for guessing.
    assert verdict.auc > 0.9 if leak else abs(verdict.auc - 0.5) < 0.13
