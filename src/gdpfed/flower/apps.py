"""`client_app` and `server_app`: a user's ordinary training function as a private federation over Flower.

    app = client_app(model=make_model, data=load, train=train)       # client_app.py
    app = server_app(model=make_model, evaluate=evaluate)            # server_app.py

Place: the front door of a deployment. ``model`` is a `torch.nn.Module`, a list of numpy arrays, or a function of the
run's context that makes one; ``data(context)`` is anything; ``train(model, data, context)`` returns the trained model.
The round is in ``context.run_config["gdpfed-round"]``. Where the homes are: the run config's `gdpfed-home` for the
server, the node config's `gdpfed-home` for a node; in Flower's simulation, where nobody sets node configs, the folder
in the environment variable GDPFED_FLOWER_NODE_HOMES and the number of the partition. A node takes nothing from the run
config, which is the server's.

Guarantees (tests of the same name):
  arrays_and_modules_train       scikit-learn's or JAX's arrays as well as PyTorch's modules.
  a_node_says_nothing_of_errors  what goes wrong on a node stands in its own log.
  the_server_cannot_choose_a_home   a node's home is its owner's choice alone; without one it answers nothing.
  whatever_comes_waits           for an input that waits for its moment: without a packet, or of an unknown type, too.
"""

import contextlib
import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import GdpfedError, InputError
from gdpfed.flower.node.answers import Node
from gdpfed.flower.node.node_home import NodeHome
from gdpfed.flower.node.warm import tell_imports
from gdpfed.flower.shared.carrier import ClientApp, Context, Grid, Message, ServerApp, message_type, packet_in, reply
from gdpfed.flower.shared.leaning import ask_again_soon
from gdpfed.flower.shared.test_mode import stop_here
from gdpfed.flower.shared.vectors import sizes_of, to_vector, with_vector
from gdpfed.flower.shared.wire import STAGES

__all__ = ["client_app", "server_app"]

_HOME, _PARTITION = "gdpfed-home", "partition-id"
_NODE_HOMES = "GDPFED_FLOWER_NODE_HOMES"
_LOGGER = logging.getLogger("gdpfed.flower")


def _built(model: Any, context: Context) -> Any:
    """The model itself, or what a function of the context makes."""
    return model(context) if callable(model) and not hasattr(model, "named_parameters") else model


def _node_home(context: Context) -> NodeHome:
    """From the node's own configuration; in Flower's simulation, by the number of the partition.

    The run config is not asked: the server writes it, and could point a node at another's identity and budget.
    """
    home = context.node_config.get(_HOME)
    simulated = os.environ.get(_NODE_HOMES)
    if home is None and simulated and isinstance(number := context.node_config.get(_PARTITION), int):
        home = str(Path(simulated) / str(number))
    if home is None:
        raise InputError(f"expected {_HOME} in the node's configuration, got none: name its home when you start it")
    return NodeHome(str(home))


def client_app(*, model: Any, data: Callable[[Context], Any], train: Callable[[Any, Any, Context], Any]) -> ClientApp:
    """A ClientApp that takes part in secure, private rounds with a user's training function."""
    app = ClientApp()

    @app.lifespan()
    def alone(context: Context) -> Iterator[None]:
        """Around all that Flower calls, also what it refuses by itself: see `answers`."""
        with contextlib.ExitStack() as held:
            with contextlib.suppress(GdpfedError, OSError):
                held.enter_context(_node_home(context).alone())
            yield

    def asked(home: NodeHome, stage: str, message: Message, context: Context) -> bytes:
        built = _built(model, context)

        def trained(vector: NDArray[np.float32], round_number: int) -> NDArray[np.float64]:
            run_config = {**context.run_config, "gdpfed-round": round_number}
            in_round = dataclasses.replace(context, run_config=run_config)
            return to_vector(train(with_vector(built, vector), data(in_round), in_round))

        node = Node(home, node_id=context.node_id, num_params=sum(sizes_of(built).values()), train=trained)
        return node.answer(stage, packet_in(message))

    def handler(stage: str) -> Callable[[Message, Context], Message]:
        def answer(message: Message, context: Context) -> Message:
            tell_imports()
            stop_here(f"node-{stage}")
            try:
                home = _node_home(context)
            except GdpfedError as error:
                # There is no log to write to: Flower's own has it, on the node. The server gets a refusal, and no path.
                _LOGGER.error("refused %s: %s", stage, error)
                return reply(message, b"")
            try:
                packet = asked(home, stage, message, context)
            except Exception as error:  # what a user's functions raise would be sent to the server
                home.log(f"failed at {stage}: {error if isinstance(error, GdpfedError) else type(error).__name__}")
                packet = b""
            stop_here(f"node-{stage}-answered")
            return reply(message, packet)

        return answer

    for stage in STAGES:
        register = app.query if message_type(stage).startswith("query.") else app.train
        register(stage)(handler(stage))
    return app


def server_app(*, model: Any, evaluate: Callable[[Any, Context], Mapping[str, float]] | None = None) -> ServerApp:
    """A ServerApp that runs the plan of its home; ``evaluate(model, context)``: accuracy (%) and loss on open data."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        # Not needed on a node, which starts a process for each message.
        from gdpfed.flower.server.deployment import serve
        from gdpfed.flower.server.server_home import ServerHome

        home = context.run_config.get(_HOME)
        if home is None:
            raise InputError(f"expected {_HOME} in the run's configuration, got none: name the server's home")
        ask_again_soon()
        built = _built(model, context)
        judge = None if evaluate is None else lambda vector: evaluate(with_vector(built, vector), context)
        serve(ServerHome(str(home)), built, grid, evaluate=judge)

    return app
