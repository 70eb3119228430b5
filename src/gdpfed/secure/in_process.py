"""A whole secure sum in one process: every message is made, sent as bytes, and read again.

Place: what the simulator and the tests drive. Clients may fall silent at any stage. In a deployment the same client and
server are driven by a transport.
"""

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.secure.client import SecureClient
from gdpfed.secure.encoding import PlannedSum
from gdpfed.secure.randomness import Randomness
from gdpfed.secure.server import SecureServer

__all__ = ["InProcessSum", "Stage"]


class Stage(IntEnum):
    """The first answer that a vanished client does not give."""

    KEYS = 1
    SHARES = 2
    INPUT = 3
    AGREEMENT = 4
    REVEAL = 5


class InProcessSum:
    """One cohort and its server. Inputs may come one by one, as they are trained."""

    def __init__(
        self, server: SecureServer, clients: Mapping[int, SecureClient], *, vanish: Mapping[int, Stage] | None = None
    ) -> None:
        self._server, self._clients = server, clients
        self._vanish = dict(vanish or {})
        for client in self._present(Stage.KEYS):
            server.receive_advertisement(clients[client].advertise())
        self._waiting: dict[int, bytes] = {}
        self.is_charged = False

    def _present(self, stage: Stage, among: Iterable[int] | None = None) -> list[int]:
        chosen = self._clients if among is None else among
        return [client for client in chosen if self._vanish.get(client, Stage.REVEAL + 1) > stage]

    def open(self) -> None:
        """Stages 1 and 2: from the roster to the deliveries."""
        roster = self._server.roster()
        for client in self._present(Stage.SHARES):
            self._server.receive_shares(self._clients[client].share(roster))
        self._waiting = self._server.deliveries()

    def contribute(self, client: int, update: Any) -> None:
        """Stage 3, for one client; nothing if it has vanished."""
        if client in self._waiting and self._present(Stage.INPUT, [client]):
            self._server.receive_input(self._clients[client].mask(self._waiting.pop(client), update))

    def contribute_zeros(self) -> None:
        """Stage 3, for all who were asked and have nothing to send: what is no update counts as zero."""
        for client in list(self._waiting):
            self.contribute(client, None)

    def close(self) -> NDArray[np.uint32]:
        """Stage 4: the sum of all inputs that arrived. Once ``is_charged`` an abort counts as a release."""
        survivors = self._server.survivors()
        arrived = [client for client in self._present(Stage.AGREEMENT) if client not in self._waiting]
        for client in arrived:
            self._server.receive_agreement(self._clients[client].agree(survivors[client]))
        agreements = self._server.agreements()
        self.is_charged = True
        for client in self._present(Stage.REVEAL, arrived):
            self._server.receive_revealed(self._clients[client].reveal(agreements))
        return self._server.total()

    def release(self, planned: PlannedSum, *, randomness: Randomness | None = None) -> NDArray[np.uint32]:
        """Stage 4, and the server's noise: what others than the server may see."""
        return self.close() + self._server.top_up(planned, randomness=randomness)
