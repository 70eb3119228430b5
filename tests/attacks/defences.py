"""Defences, taken out for a moment: what an attack must find then."""

import contextlib
from collections.abc import Iterator

import pytest

from gdpfed.planning import plan as planning
from gdpfed.privacy import accountant


@contextlib.contextmanager
def without_the_rule() -> Iterator[None]:
    """That a plan must promise something."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (planning, accountant):
            patch.setattr(module, "check_promises_something", lambda **_: None)
        yield
