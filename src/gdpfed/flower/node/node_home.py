"""A node's home: its key, its owner's budget, and the pinned server and enrolment.

Place: on a client's machine. The ClientApp is told where it is, by the owner; everything that decides comes from here.

    identity.key     0600
    budget.toml      epsilon, delta, against: what the owner allows
    server.pub       pinned, as is the enrolment: another one needs the owner's word
    enrolment.json   and enrolment.sha256
    spend.db         the node's own ledger, in the files of gdpfed.ledger
    sessions/        0700, secrets between two stages
    node.log         why it refused

Guarantees (tests of the same name):
  keys_are_private                 files with keys have mode 0600, and an existing home is never overwritten.
  another_enrolment_needs_the_owner   a pinned enrolment or server key changes only by ``renew=True``.
"""

import contextlib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from gdpfed.errors import InputError, PrivacyError
from gdpfed.files import is_text, write_whole
from gdpfed.flower.node.coin import alone
from gdpfed.flower.shared.enrolment import Announcement, Enrolment, announce, enrolment_from_json
from gdpfed.flower.shared.home_files import Home, read_content, read_settings
from gdpfed.planning.settings import Against
from gdpfed.privacy.accountant import check_delta
from gdpfed.privacy.calibrate import check_epsilon
from gdpfed.secure.defaults import COLLUDING_FRACTION, COMPLETE_UP_TO
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.secure.primitives import KEY_BYTES, signing_public

__all__ = ["NodeBudget", "NodeHome", "make_node_home", "pin", "server_allowance"]


def server_allowance(epsilon: float) -> float:
    """What the server may learn of a node whose owner said nothing about it: ten times ``epsilon``, 10 at least.

    About what a client of the paper's plans spends that takes part four times as often as expected.
    """
    return max(10.0, 10.0 * epsilon)


@dataclass(frozen=True, kw_only=True)
class NodeBudget:
    """What the node's owner allows.

    ``epsilon`` and ``delta`` bound what whoever sees the released models learns. ``epsilon_server`` bounds what the
    server learns from all that this node ever sends it, at the same delta; without it, `server_allowance` does: the
    server writes the plan, so the plan alone is no bound. ``colluding_fraction``: at least so much of each cohort must
    be able to tell the server its noise without harm. ``complete_up_to``: in cohorts of up to so many clients everyone
    must be everyone's neighbour. ``against`` "server": only rotations are joined, whose promise holds against the
    server. ``answer_seconds``: a rotation must give at least so long for training and waiting. ``allow_test_mode``:
    predictable noise, for tests, never with real data.
    """

    name: str
    epsilon: float
    delta: float
    epsilon_server: float | None = None
    colluding_fraction: float = COLLUDING_FRACTION
    complete_up_to: int = COMPLETE_UP_TO
    against: Against = "models"
    answer_seconds: float = 0.0
    allow_test_mode: bool = False

    def __post_init__(self) -> None:
        if not is_text(self.name):
            raise InputError(f"expected a name that is text, got {self.name!r}: choose another")
        if self.against not in get_args(Against):
            raise InputError(f"expected against 'models' or 'server', got {self.against!r}")
        if not 0 <= self.answer_seconds < math.inf:
            raise InputError(f"expected answer_seconds of at least 0 in budget.toml, got {self.answer_seconds:g}")
        Tolerance(colluding_fraction=self.colluding_fraction, complete_up_to=self.complete_up_to)
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        if self.epsilon_server is not None:
            check_epsilon(self.epsilon_server, field="epsilon_server")

    @property
    def server_limit(self) -> float:
        """The most that the server may ever learn: always finite."""
        return server_allowance(self.epsilon) if self.epsilon_server is None else self.epsilon_server


class NodeHome(Home):
    """An existing node home."""

    whose, key_name, settings_name = "node", "identity.key", "budget.toml"

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.sessions = self.path / "sessions"
        self.ledger_path = self.path / "spend.db"

    @property
    def budget(self) -> NodeBudget:
        """What the owner allows."""
        return read_settings(NodeBudget, self.path / self.settings_name)

    @property
    def announcement(self) -> Announcement:
        """What the operator gets."""
        budget = self.budget
        return announce(name=budget.name, identity=self.identity, epsilon=budget.epsilon, delta=budget.delta)

    @property
    def server(self) -> bytes | None:
        """The pinned public key of the server."""
        key = self._pinned("server.pub")
        if key is not None and len(key) != KEY_BYTES:
            raise InputError(f"expected a public key in server.pub of {str(self.path)!r}: pin the enrolment again")
        return key

    @property
    def enrolment(self) -> Enrolment | None:
        """The pinned one, verified when it was pinned."""
        path, pinned = self.path / "enrolment.json", self._pinned("enrolment.sha256")
        if not path.is_file() or pinned is None:
            return None
        enrolment = enrolment_from_json(read_content(path, "an enrolment"), pinned=pinned)
        if enrolment.digest != pinned:
            raise PrivacyError(f"{str(path)!r} is not the enrolment that was pinned: restore it, or pin it with renew")
        return enrolment

    def _pinned(self, name: str) -> bytes | None:
        """Bytes in hexadecimal: None without the file, and none at all if it is damaged."""
        path = self.path / name
        if not path.is_file():
            return None
        try:
            return bytes.fromhex(path.read_text(encoding="ascii", errors="replace").strip())
        except ValueError:
            return b""

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Whoever answers for this node waits until nobody else does."""
        return alone(self.path / self.key_name)

    def log(self, text: str, **facts: object) -> None:
        """Never about data or keys."""
        # A full disk must not turn a refusal into an error message to the server.
        with contextlib.suppress(OSError):
            super().log(text, **facts)


def make_node_home(
    path: str | Path,
    *,
    epsilon: float,
    delta: float,
    name: str | None = None,
    epsilon_server: float | None = None,
    colluding_fraction: float = COLLUDING_FRACTION,
    complete_up_to: int = COMPLETE_UP_TO,
    against: Against = "models",
    allow_test_mode: bool = False,
) -> str:
    """A new node home; returns its announcement, JSON text to send to the operator."""
    budget = NodeBudget(
        name=name or Path(os.path.realpath(path)).name,
        epsilon=epsilon,
        delta=delta,
        # Written down, so that the owner sees it.
        epsilon_server=server_allowance(epsilon) if epsilon_server is None else epsilon_server,
        colluding_fraction=colluding_fraction,
        complete_up_to=complete_up_to,
        against=against,
        allow_test_mode=allow_test_mode,
    )
    home = NodeHome.made(path, budget)
    home.sessions.mkdir(mode=0o700, exist_ok=True)
    return home.announcement.as_json()


def pin(node_home: str | Path, enrolment: str | bytes | Path, *, renew: bool = False) -> Enrolment:
    """Pins the server's key and the list of clients; ``enrolment`` is its text, or the path of the file.

    ``renew`` is the owner's word that another list, or another server, is right.
    """
    home = NodeHome(node_home)
    content = read_content(enrolment, "an enrolment") if isinstance(enrolment, Path) else enrolment
    offered = enrolment_from_json(content)
    # With the owner's word it does not matter what was pinned: a pin that was cut off in the middle is made whole.
    if not renew:
        known, server = home.enrolment, home.server
        if server is not None and server != offered.server:
            raise PrivacyError("the enrolment is of another server: if it is right, pin it with renew")
        if known is not None and known.digest != offered.digest:
            raise PrivacyError("the enrolment differs from the pinned one: if it is right, pin it with renew")
    number = offered.number_of(signing_public(home.identity))
    if number is None:
        raise PrivacyError("the enrolment does not list this node: send its announcement to the operator")
    if offered.clients[number] != home.announcement:
        raise PrivacyError("the enrolment lists this node with another budget or name: send a new announcement")
    for file_name, text in (
        ("server.pub", offered.server.hex() + "\n"),
        ("enrolment.json", offered.as_json()),
        ("enrolment.sha256", offered.digest.hex() + "\n"),
    ):
        write_whole(home.path / file_name, text.encode(), private=True, durable=True)
    return offered
