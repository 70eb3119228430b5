"""A federation of machines that do not trust each other, over Flower.

    from gdpfed.flower import client_app, server_app

Place: above runs, below the command line. Flower carries messages; what is in them, who may see what, and what it costs
are decided here, by the functions that the simulator uses. The names are imported when they are first used: homes and
enrolments are made without Flower, on any machine.
"""

from typing import TYPE_CHECKING, Any

__all__ = ["client_app", "server_app"]

if TYPE_CHECKING:
    from gdpfed.flower.apps import client_app, server_app


def __getattr__(name: str) -> Any:
    if name in __all__:
        from gdpfed.flower import apps

        return getattr(apps, name)
    raise AttributeError(f"module 'gdpfed.flower' has no attribute {name!r}")
