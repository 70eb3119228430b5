"""gdpfed: groups, secure sums, noise, ledgers."""

import time

_BEFORE = (time.time(), time.process_time())

from typing import Any  # noqa: E402 - what is imported from here on is measured

import numpy as np  # noqa: E402
from flwr.app import Context  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

from gdpfed.flower import client_app, server_app  # noqa: E402

__all__ = ["client", "server"]


def _model(context: Context) -> list[Any]:
    return [np.zeros(int(context.run_config["num-params"]), np.float32)]


def _train(model: list[Any], data: object, context: Context) -> list[Any]:
    del data, context
    return model


_inner = server_app(model=_model)
server = ServerApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """With a grid that measures."""
    from bench.measured import MeasuredGrid

    measured = MeasuredGrid(grid, str(context.run_config["result"]))
    _inner(measured, context)
    measured.finish()


_client = client_app(model=_model, data=lambda _: None, train=_train)

from bench.measured import MeasuredClientApp  # noqa: E402 - after what is measured

client = MeasuredClientApp(_client, before_imports=_BEFORE)
