"""The checkers of the kill tests, pointed at what they must catch."""

from pathlib import Path

import pytest

from tests.ledger import killer
from tests.ledger.test_store import pristine


def release(folder: Path, *lines: str) -> None:
    with (folder / "releases").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


def test_a_release_without_a_charge_is_caught(shelf: Path) -> None:
    folder = pristine(shelf / "pristine", rounds=20)
    killer.play(folder, rounds=3)
    assert killer.compare(folder, 0) == 0
    release(folder, "3 0 aa")
    with pytest.raises(AssertionError, match="without a charge"):
        killer.compare(folder, 0)


def test_a_second_release_of_an_attempt_is_caught(shelf: Path) -> None:
    folder = pristine(shelf / "pristine", rounds=20)
    killer.play(folder, rounds=3)
    release(folder, "2 0 aa")
    with pytest.raises(AssertionError, match="released twice"):
        killer.compare(folder, 0)


def test_two_lost_charges_after_one_kill_are_caught(shelf: Path) -> None:
    folder = pristine(shelf / "pristine", rounds=20)
    killer.play(folder, rounds=3)
    lines = (folder / "releases").read_text().splitlines(keepends=True)
    (folder / "releases").write_text(lines[0])
    with pytest.raises((AssertionError, KeyError)):
        killer.compare(folder, 0)
