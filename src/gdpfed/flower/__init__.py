"""A federation of machines that do not trust each other, over Flower.

    from gdpfed.flower import client_app, server_app

Place: above runs, below the command line. Flower carries messages; what is in them, who may see what, and what it costs
are decided here, by the functions that the simulator uses. The names are imported when they are first used: homes and
enrolments are made without Flower, on any machine.

    node/      what a client runs and trusts. `answers` decides, clips, adds noise and masks; `own_ledger` charges
    server/    what the operator runs. `deployment` charges before it unmasks; `sums` and `transport` ask the nodes
    shared/    what both must agree on: enrolment, terms, packets
    operate/   around the runs: clients and plans, certificates, the gate, Flower's processes, a project to start from
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
