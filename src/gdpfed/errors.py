"""What can go wrong, as one small tree.

Place: imported by everything, imports nothing.

    GdpfedError
    ├── InputError        what was handed in cannot be used: a file, a field, an option
    │   └── MissingExtraError   an optional package is needed for this, and not installed
    └── PrivacyError      going on would make a stated guarantee false

Every message says what was expected, what came, and what to do. The command line prints it as one line and exits with
code 2; nothing in the library prints or exits.
"""

import difflib
import os
from collections.abc import Collection, Iterable

__all__ = [
    "GdpfedError", "InputError", "MissingExtraError", "PrivacyError", "expect", "expect_word", "suggestion", "unusable",
]  # fmt: skip


class GdpfedError(Exception):
    """The root of every error that gdpfed raises on purpose."""


class InputError(GdpfedError, ValueError):
    """Something that was handed in cannot be used as it is: also a `ValueError`, for those who catch that."""


class MissingExtraError(InputError):
    """An optional package is needed for what was asked, and is not installed."""

    def __init__(self, *, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs {package}, which is not installed: pip install 'gdpfed[{extra}]'")


class PrivacyError(GdpfedError):
    """Going on would make a stated privacy guarantee false."""


def unusable(error: OSError) -> InputError:
    """What the operating system says about a file, as an error of ours; one that names no file is raised again."""
    if error.filename is None:
        raise error
    return InputError(f"cannot use {os.fsdecode(error.filename)!r}: {error.strerror}; choose another place")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Returns `` (did you mean ...?)`` for the known word nearest to ``word``, or an empty string."""
    near = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""


def expect(is_right: bool, expected: str, **got: object) -> None:
    """Raises InputError, with what came, by name, unless ``is_right``."""
    if not is_right:
        raise InputError(f"expected {expected}, got {', '.join(f'{name}={value}' for name, value in got.items())}")


def expect_word(what: str, word: str, known: Collection[str]) -> None:
    """Raises InputError unless ``word`` is among the ``known`` ones."""
    if word not in known:
        raise InputError(f"expected {what} {', '.join(known)}, got {word!r}{suggestion(word, known)}")
