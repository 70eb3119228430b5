"""Flower's own SecAgg+: masks without noise, over its older API."""

import time

_BEFORE = (time.time(), time.process_time())

from typing import Any  # noqa: E402 - what is imported from here on is measured

import numpy as np  # noqa: E402
from flwr.app import Context  # noqa: E402
from flwr.client import Client, NumPyClient  # noqa: E402
from flwr.client.mod import secaggplus_mod  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

__all__ = ["client", "server"]

server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All six nodes in every round, everyone a holder of everyone's shares, as in gdpfed."""
    from flwr.common import ndarrays_to_parameters
    from flwr.server import LegacyContext, ServerConfig
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

    from bench.measured import MeasuredGrid

    config = context.run_config
    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_fit_clients=6,
        min_available_clients=6,
        initial_parameters=ndarrays_to_parameters([np.zeros(int(config["num-params"]), np.float32)]),
    )
    legacy = LegacyContext(context=context, config=ServerConfig(num_rounds=int(config["rounds"])), strategy=strategy)
    workflow = DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=6, reconstruction_threshold=4))
    measured = MeasuredGrid(grid, str(config["result"]))
    workflow(measured, legacy)
    measured.finish()


class _Same(NumPyClient):
    def fit(self, parameters: Any, config: Any) -> Any:
        """Sends back what came."""
        del config
        return parameters, 1, {}


def _make(context: Context) -> Client:
    del context
    return _Same().to_client()


_client = ClientApp(client_fn=_make, mods=[secaggplus_mod])

from bench.measured import MeasuredClientApp  # noqa: E402 - after what is measured

client = MeasuredClientApp(_client, before_imports=_BEFORE)
