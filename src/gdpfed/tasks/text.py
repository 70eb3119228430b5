"""Text by role into windows of characters.

Place: within loading, for the sets that are text. The task is the next character: the input is `WINDOW_LENGTH`
characters, the label the one that follows. A role's speeches are joined by line breaks; the last `TEST_FRACTION` of
its text is for testing. Training windows begin every `TRAIN_STRIDE` characters, test windows every `TEST_STRIDE`.

Guarantees (tests of the same name):
  windows_stay_in_their_part  no window reaches from one role into another, or from training into test text.
  longest_roles_are_kept    the roles with the most text, at most `NUM_ROLES`, each with a training and a test window.
  alphabet_is_of_all_roles  the alphabet is that of the whole file, in code point order, also of roles not kept.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError

__all__ = [
    "PLAYS_ALPHABET", "TEST_STRIDE", "TRAIN_STRIDE", "WINDOW_LENGTH", "Role", "RoleWindows", "read_roles",
    "role_windows",
]  # fmt: skip

WINDOW_LENGTH = 80
# The paper's number of clients.
NUM_ROLES = 714
TEST_FRACTION = 0.2
# Every character would be a window in LEAF; at every tenth, training inputs take 0.2 GB instead of 2.
TRAIN_STRIDE = 10
TEST_STRIDE = WINDOW_LENGTH
# Of the set `shakespeare`: for models that know what is a letter.
PLAYS_ALPHABET = "\n !\"&'(),-./0124568:;?@ABCDEFGHIJKLMNOPQRSTUVWXYZ]_abcdefghijklmnopqrstuvwxyz{"


@dataclass(frozen=True, kw_only=True)
class Role:
    """All that one role says."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True, eq=False)
class RoleWindows:
    """Windows of all kept roles. Characters are indices into ``alphabet``, owners into ``roles``."""

    alphabet: str
    roles: tuple[str, ...]
    owners: NDArray[np.int64]
    train_inputs: NDArray[np.int64]
    train_labels: NDArray[np.int64]
    test_inputs: NDArray[np.int64]
    test_labels: NDArray[np.int64]


def read_roles(content: bytes, *, name: str) -> tuple[Role, ...]:
    """Reads ``[{"play": ..., "role": ..., "lines": [...]}]``."""
    try:
        rows = json.loads(content)
        return tuple(Role(name=f"{row['play']}/{row['role']}", text="\n".join(row["lines"])) for row in rows)
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"expected JSON [{{play, role, lines}}] in {name}, got something else ({error!r})") from None


def role_windows(roles: Sequence[Role], *, num_roles: int = NUM_ROLES) -> RoleWindows:
    """The windows of the ``num_roles`` roles with the most text, in the roles' own order."""
    alphabet = "".join(sorted(set().union(*(role.text for role in roles))))
    codes = {character: code for code, character in enumerate(alphabet)}
    enough = [number for number, role in enumerate(roles) if _num_test(len(role.text)) > WINDOW_LENGTH]
    longest = sorted(enough, key=lambda number: -len(roles[number].text))[:num_roles]
    kept = [roles[number] for number in sorted(longest)]
    if not kept:
        raise InputError(
            f"expected a role with more than {WINDOW_LENGTH} characters in the last {TEST_FRACTION:.0%} of its text, "
            f"got none among {len(roles)} roles"
        )
    train, test = [], []
    for role in kept:
        text = np.array([codes[character] for character in role.text], dtype=np.int64)
        cut = len(text) - _num_test(len(text))
        train.append(_windows(text[:cut], stride=TRAIN_STRIDE))
        test.append(_windows(text[cut:], stride=TEST_STRIDE))
    train_windows, test_windows = np.concatenate(train), np.concatenate(test)
    return RoleWindows(
        alphabet=alphabet,
        roles=tuple(role.name for role in kept),
        owners=np.repeat(np.arange(len(kept), dtype=np.int64), [len(rows) for rows in train]),
        train_inputs=np.ascontiguousarray(train_windows[:, :-1]),
        train_labels=train_windows[:, -1].copy(),
        test_inputs=np.ascontiguousarray(test_windows[:, :-1]),
        test_labels=test_windows[:, -1].copy(),
    )


def _num_test(num_characters: int) -> int:
    """How many of a role's characters, its last ones, are for testing."""
    return int(num_characters * TEST_FRACTION)


def _windows(text: NDArray[np.int64], *, stride: int) -> NDArray[np.int64]:
    """Every window and, as its last column, the character that follows it."""
    return np.lib.stride_tricks.sliding_window_view(text, WINDOW_LENGTH + 1)[::stride]
