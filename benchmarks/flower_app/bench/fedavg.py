"""Flower's own FedAvg: no privacy at all."""

import time

_BEFORE = (time.time(), time.process_time())

import numpy as np  # noqa: E402 - what is imported from here on is measured
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp import Grid, ServerApp  # noqa: E402

__all__ = ["client", "server"]

server = ServerApp()
_client = ClientApp()


@server.main()
def main(grid: Grid, context: Context) -> None:
    """All six nodes in every round."""
    from flwr.serverapp.strategy import FedAvg

    from bench.measured import MeasuredGrid

    config = context.run_config
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_train_nodes=6, min_available_nodes=6)
    start = ArrayRecord([np.zeros(int(config["num-params"]), np.float32)])
    measured = MeasuredGrid(grid, str(config["result"]))
    strategy.start(grid=measured, initial_arrays=start, num_rounds=int(config["rounds"]))
    measured.finish()


@_client.train()
def train(message: Message, context: Context) -> Message:
    """Sends back what came."""
    del context
    arrays = next(iter(message.content.array_records.values()))
    content = RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)


from bench.measured import MeasuredClientApp  # noqa: E402 - after what is measured

client = MeasuredClientApp(_client, before_imports=_BEFORE)
