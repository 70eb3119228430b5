"""The server's home, a model and a Grid become a run.

Place: called by the ServerApp, and by tests with an in-process Grid.
"""

from typing import Any

import numpy as np

from gdpfed.flower.server.deployment import Deployment, Evaluate, Fault
from gdpfed.flower.server.events import EVENTS, events_into
from gdpfed.flower.server.server_home import ServerHome
from gdpfed.flower.server.standings import Standings
from gdpfed.flower.server.transport import GridTransport
from gdpfed.flower.shared.test_mode import stop_here
from gdpfed.flower.shared.vectors import shape_of, to_vector
from gdpfed.training.rounds import TrainingState

__all__ = ["serve"]


def serve(
    home: ServerHome, model: Any, grid: Any, *, evaluate: Evaluate | None = None, fault: Fault = stop_here
) -> TrainingState:
    """Runs, or goes on with, the run of a home; returns the last state."""
    enrolment = home.enrolment
    events = events_into(home.path / EVENTS, run=home.run_name)
    standings = Standings(home.path / "standings.json", enrolment, log=home.log)
    transport = GridTransport(
        grid,
        enrolment=enrolment,
        settings=home.settings,
        take_standing=standings.take,
        log=home.log,
        events=events,
    )
    return Deployment(
        home,
        initial=to_vector(model).astype(np.float32),
        shape=shape_of(model),
        transport=transport,
        standings=standings,
        evaluate=evaluate,
        fault=fault,
        events=events,
    ).run()
