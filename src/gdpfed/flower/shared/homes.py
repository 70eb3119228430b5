"""The folders of a deployment: the server's home and each node's.

Place: on the machines, before and between runs; what the apps are told is only where their home is.

    server home                                  node home
      server.key       0600, its identity          identity.key   0600
      enrolment.json   all clients, signed         budget.toml    epsilon, delta: what the owner allows
      plan.toml        the verified plan           server.pub     pinned
      run.json         the run's name, its plan    enrolment.json pinned; another one needs the owner's word
      settings.toml    tolerances, timeouts        spend.db       its own ledger (gdpfed.ledger's files)
      ledger           and .journal, .key, .lock   sessions/      0700, secrets between two stages
      run/             a run folder                node.log       why it refused
      server.log

Guarantees (tests of the same name):
  keys_are_private                 files with keys have mode 0600, and an existing home is never overwritten.
  another_enrolment_needs_the_owner   a pinned enrolment or server key changes only by ``renew=True``.
  a_plan_is_set_or_it_is_not       killed anywhere in between, no run starts until the plan is set again.
  a_run_is_given_up_in_the_ledger  and what it did not use is free for others.
"""

import datetime
import hashlib
import json
import logging
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import tomli_w

from gdpfed.config import from_mapping, parse_toml, read_toml
from gdpfed.errors import InputError, PrivacyError
from gdpfed.files import private_opener, sync_folder
from gdpfed.flower.shared.deployment_settings import DeploymentSettings, settings_from_toml, settings_to_toml
from gdpfed.flower.shared.enrolment import Announcement, Enrolment, announce, enrolment_from_json, signed_enrolment
from gdpfed.ledger.book import Ledger
from gdpfed.planning.people import check_budgets
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan, save_plan
from gdpfed.privacy.accountant import check_delta
from gdpfed.privacy.calibrate import check_epsilon
from gdpfed.secure.defaults import COLLUDING_FRACTION, COMPLETE_UP_TO
from gdpfed.secure.primitives import KEY_BYTES, signing_public

__all__ = [
    "POPULATION",
    "NodeBudget",
    "NodeHome",
    "ServerHome",
    "enrol",
    "give_up",
    "make_node_home",
    "make_server_home",
    "pin",
    "server_allowance",
    "set_plan",
    "write_durably",
]

POPULATION = "clients"
_LARGEST_LOG = 4 << 20
_LOGGER = logging.getLogger("gdpfed.flower")


def write_durably(path: Path, content: bytes) -> None:
    """A private file, written whole or not at all, and on the disk when this returns."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb", opener=private_opener) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        sync_folder(path.parent)
    except OSError as error:
        raise InputError(f"cannot write {str(path)!r}: {error.strerror or error}") from None


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"expected {what} at {str(path)!r}: {error.strerror or error}") from None


def _read_key(path: Path) -> bytes:
    key = _read(path, "a private key")
    if len(key) != KEY_BYTES:
        raise InputError(f"expected {KEY_BYTES} bytes in {str(path)!r}, got {len(key)}: restore its copy")
    if path.stat().st_mode & 0o077:
        raise PrivacyError(f"{str(path)!r} can be read by others: chmod 600 {path}")
    return key


def _new_folder(path: Path, marker: str) -> None:
    if (path / marker).exists():
        raise InputError(f"{str(path)!r} is a home already: it is never overwritten; choose another folder")
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(f"cannot make {str(path)!r}: {error.strerror or error}") from None


def _log(path: Path, text: str) -> None:
    """A line with the time; what came from others is made harmless."""
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    line = "".join(letter if letter.isprintable() else "?" for letter in text)[:2000]
    _LOGGER.info("%s", line)
    # Whoever sends nonsense all day must not fill the disk.
    if path.is_file() and path.stat().st_size > _LARGEST_LOG:
        path.replace(path.with_name(path.name + ".1"))
    with open(path, "a", encoding="utf-8", opener=private_opener) as file:
        file.write(f"{now} {line}\n")


# The node.


@dataclass(frozen=True, kw_only=True)
class NodeBudget:
    """What the node's owner allows.

    ``epsilon`` and ``delta`` bound what whoever sees the released models learns. ``epsilon_server`` bounds what the
    server learns from all that this node ever sends it, at the same delta; without it, `server_allowance` does: the
    server writes the plan, so the plan alone is no bound. ``colluding_fraction``: at least so much of each cohort must
    be able to tell the server its noise without harm. ``complete_up_to``: in cohorts of up to so many clients everyone
    must be everyone's neighbour. ``allow_test_mode``: predictable noise, for tests, never with real data.
    """

    name: str
    epsilon: float
    delta: float
    epsilon_server: float | None = None
    colluding_fraction: float = COLLUDING_FRACTION
    complete_up_to: int = COMPLETE_UP_TO
    allow_test_mode: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.colluding_fraction < 0.5:
            raise InputError(f"expected 0 <= colluding_fraction < 0.5, got {self.colluding_fraction}")
        if self.complete_up_to < 1:
            raise InputError(f"expected complete_up_to >= 1, got complete_up_to={self.complete_up_to}")
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        if self.epsilon_server is not None:
            check_epsilon(self.epsilon_server, field="epsilon_server")

    @property
    def server_limit(self) -> float:
        """The most that the server may ever learn: always finite."""
        return server_allowance(self.epsilon) if self.epsilon_server is None else self.epsilon_server


def server_allowance(epsilon: float) -> float:
    """What the server may learn of a node whose owner said nothing about it: ten times ``epsilon``, 10 at least.

    About what a client of the paper's plans spends that takes part four times as often as expected.
    """
    return max(10.0, 10.0 * epsilon)


@dataclass(frozen=True)
class NodeHome:
    """An existing node home."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not (self.path / "identity.key").is_file():
            raise InputError(f"expected a node's home (with identity.key), got {str(self.path)!r}: make one first")

    @property
    def budget(self) -> NodeBudget:
        """Read each time: the owner may lower it at any moment."""
        path = self.path / "budget.toml"
        return from_mapping(NodeBudget, parse_toml(read_toml(path), source=str(path)), source=str(path))

    @property
    def identity(self) -> bytes:
        """The private key."""
        return _read_key(self.path / "identity.key")

    @property
    def announcement(self) -> Announcement:
        """What the operator gets."""
        budget = self.budget
        return announce(name=budget.name, identity=self.identity, epsilon=budget.epsilon, delta=budget.delta)

    @property
    def server(self) -> bytes | None:
        """The pinned public key of the server."""
        path = self.path / "server.pub"
        if not path.is_file():
            return None
        try:
            key = bytes.fromhex(path.read_text(encoding="ascii").strip())
        except ValueError:
            key = b""
        if len(key) != KEY_BYTES:
            raise InputError(f"expected a public key in hexadecimal in {str(path)!r}: pin the enrolment again")
        return key

    @property
    def enrolment(self) -> Enrolment | None:
        """The pinned one, verified when it was pinned."""
        path, mark = self.path / "enrolment.json", self.path / "enrolment.sha256"
        if not path.is_file() or not mark.is_file():
            return None
        try:
            pinned = bytes.fromhex(_read(mark, "a hash").decode("ascii", "replace").strip())
        except ValueError:
            raise PrivacyError(f"{str(mark)!r} is damaged: restore it, or pin the enrolment with renew") from None
        made = enrolment_from_json(_read(path, "an enrolment"), pinned=pinned)
        if made.digest != pinned:
            raise PrivacyError(f"{str(path)!r} is not the enrolment that was pinned: restore it, or pin it with renew")
        return made

    @property
    def sessions(self) -> Path:
        """Secrets between two stages."""
        return self.path / "sessions"

    @property
    def spend_path(self) -> Path:
        """The node's own ledger."""
        return self.path / "spend.db"

    def log(self, text: str) -> None:
        """For the owner; never about data or keys."""
        _log(self.path / "node.log", text)


def make_node_home(
    path: str | Path,
    *,
    epsilon: float,
    delta: float,
    name: str | None = None,
    epsilon_server: float | None = None,
    colluding_fraction: float = COLLUDING_FRACTION,
    complete_up_to: int = COMPLETE_UP_TO,
    allow_test_mode: bool = False,
) -> str:
    """A new node home; returns its announcement, JSON text to send to the operator."""
    path = Path(path)
    budget = NodeBudget(
        name=name or path.resolve().name,
        epsilon=epsilon,
        delta=delta,
        # Written down, so that the owner sees it.
        epsilon_server=server_allowance(epsilon) if epsilon_server is None else epsilon_server,
        colluding_fraction=colluding_fraction,
        complete_up_to=complete_up_to,
        allow_test_mode=allow_test_mode,
    )
    _new_folder(path, "identity.key")
    (path / "sessions").mkdir(mode=0o700, exist_ok=True)
    content = {key: value for key, value in vars(budget).items() if value is not None}
    write_durably(path / "budget.toml", tomli_w.dumps(content).encode())
    write_durably(path / "identity.key", secrets.token_bytes(KEY_BYTES))
    return NodeHome(path).announcement.as_json()


def pin(node_home: str | Path, enrolment: str | bytes | Path, *, renew: bool = False) -> Enrolment:
    """Pins the server's key and the list of clients; ``enrolment`` is its text, or the path of the file.

    ``renew`` is the owner's word that another list, or another server, is right.
    """
    home = NodeHome(Path(node_home))
    made = enrolment_from_json(_read(enrolment, "an enrolment") if isinstance(enrolment, Path) else enrolment)
    # With the owner's word it does not matter what was pinned: a pin that was cut off in the middle is made whole.
    if not renew:
        known, server = home.enrolment, home.server
        if server is not None and server != made.server:
            raise PrivacyError(
                "the enrolment is of another server than the pinned one: pin it with renew if it is right"
            )
        if known is not None and known.digest != made.digest:
            raise PrivacyError(
                "the enrolment differs from the pinned one: look at it, and pin it with renew if it is right"
            )
    number = made.number_of(signing_public(home.identity))
    if number is None:
        raise PrivacyError("the enrolment does not list this node: send its announcement to the operator")
    if made.clients[number] != home.announcement:
        raise PrivacyError("the enrolment lists this node with another budget or name: send a new announcement")
    write_durably(home.path / "server.pub", made.server.hex().encode() + b"\n")
    write_durably(home.path / "enrolment.json", made.as_json().encode())
    write_durably(home.path / "enrolment.sha256", made.digest.hex().encode() + b"\n")
    return made


# The server.


@dataclass(frozen=True)
class ServerHome:
    """An existing server home."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))
        if not (self.path / "server.key").is_file():
            raise InputError(f"expected a server's home (with server.key), got {str(self.path)!r}: make one first")

    @property
    def identity(self) -> bytes:
        """The private key."""
        return _read_key(self.path / "server.key")

    @property
    def enrolment(self) -> Enrolment:
        """Verified."""
        made = enrolment_from_json(_read(self.path / "enrolment.json", "an enrolment (enrol clients first)"))
        if made.server != signing_public(self.identity):
            raise PrivacyError("the enrolment is of another server key: restore server.key, or enrol again")
        return made

    @property
    def plan(self) -> Plan:
        """Verified."""
        return load_plan(self.path / "plan.toml")

    @property
    def run_name(self) -> str:
        """Never used for two runs: nodes charge a run by it."""
        try:
            found = json.loads(_read(self.path / "run.json", "a run's name (set a plan first)"))
            name, plan = found["run"], found["plan"]
        except (ValueError, KeyError, TypeError):
            name = plan = None
        if not isinstance(name, str) or not name:
            raise InputError(f"expected a run's name in {str(self.path / 'run.json')!r}: set the plan again")
        if plan != _plan_mark(self.path):
            raise InputError(
                f"expected the plan of run {name!r} in {str(self.path / 'plan.toml')!r}: set the plan again"
            )
        return name

    @property
    def settings(self) -> DeploymentSettings:
        """As the operator wrote them."""
        path = self.path / "settings.toml"
        return settings_from_toml(read_toml(path), source=str(path)) if path.is_file() else DeploymentSettings()

    @property
    def ledger_path(self) -> Path:
        """The ledger."""
        return self.path / "ledger"

    @property
    def run_path(self) -> Path:
        """The run folder."""
        return self.path / "run"

    def log(self, text: str) -> None:
        """For the operator only (0600): it names clients whose answers were not used, and so some of a sample."""
        _log(self.path / "server.log", text)


def make_server_home(path: str | Path, *, settings: DeploymentSettings | None = None) -> ServerHome:
    """A new server home, with a key of its own."""
    path = Path(path)
    _new_folder(path, "server.key")
    write_durably(path / "settings.toml", settings_to_toml(settings or DeploymentSettings()).encode())
    write_durably(path / "server.key", secrets.token_bytes(KEY_BYTES))
    return ServerHome(path)


def enrol(server_home: str | Path, announcements: Sequence[str | Path]) -> Enrolment:
    """Adds clients (their announcements, as text or files) to the list, signs it, and makes them known to the ledger.

    Clients keep their numbers. Returns the list that every node must pin, again if it was pinned before.
    """
    home = ServerHome(Path(server_home))
    listed = list(home.enrolment.clients) if (home.path / "enrolment.json").is_file() else []
    before = len(listed)
    for given in announcements:
        text = _read(given, "an announcement") if isinstance(given, Path) else given
        made = Announcement.from_json(text)
        if made not in listed:
            listed.append(made)
    if len(listed) > before and home.run_path.exists() and not (home.run_path / "model.safetensors").is_file():
        raise InputError(
            f"{str(home.run_path)!r} is not finished, and its terms name the enrolment as it is: let it end first, or "
            f"give it up: gdpfed flower give-up {home.path}"
        )
    enrolment = signed_enrolment(listed, identity=home.identity)
    # The ledger first: whoever is enrolled can be charged.
    if not home.ledger_path.exists():
        Ledger.create(home.ledger_path).close()
    with Ledger.open(home.ledger_path) as ledger:
        _into_ledger(ledger, enrolment)
    if len(listed) > before:
        write_durably(home.path / "enrolment.json", enrolment.as_json().encode())
    return enrolment


def _into_ledger(ledger: Ledger, enrolment: Enrolment) -> None:
    if POPULATION not in ledger.state.populations:
        ledger.add_population(POPULATION, enrolment.budgets)
        return
    known = set(ledger.state.population(POPULATION).index_by_label)
    missing = [client for client in enrolment.clients if client.name not in known]
    if missing:
        added = Enrolment(server=enrolment.server, clients=tuple(missing))
        ledger.join(POPULATION, added.budgets)


def _no_fault(point: str) -> None:
    del point


def set_plan(
    server_home: str | Path, plan: Plan, *, name: str | None = None, fault: Callable[[str], None] = _no_fault
) -> str:
    """Puts a plan for the enrolled clients into the server's home, and names a new run; returns the name.

    A finished run is moved aside, an unfinished one is in the way. ``fault`` is for tests.
    """
    home = ServerHome(Path(server_home))
    budgets = home.enrolment.budgets
    check_budgets(plan, budgets, default_delta=budgets.default_delta)
    if home.run_path.exists() and not (home.run_path / "model.safetensors").is_file():
        raise InputError(
            f"{str(home.run_path)!r} is not finished: let it end, or give it up: gdpfed flower give-up {home.path}"
        )
    run = f"{name or 'run'}-{secrets.token_hex(6)}"
    save_plan(plan, home.path / "plan.toml")
    fault("plan")
    write_durably(home.path / "run.json", json.dumps({"run": run, "plan": _plan_mark(home.path)}).encode() + b"\n")
    fault("run")
    # Last: a server that finds the folder of another run refuses it, and the plan can be set again.
    if home.run_path.exists():
        _move_aside(home, "")
    return run


def _plan_mark(path: Path) -> str:
    """Of the file as it is: which plan a run's name was made for."""
    return hashlib.sha256(_read(path / "plan.toml", "a plan (set one first)")).hexdigest()


def _move_aside(home: ServerHome, suffix: str) -> None:
    """A run's folder gets the run's own name."""
    home.run_path.rename(home.path / f"{_run_in(home.run_path) or f'run-{secrets.token_hex(6)}'}{suffix}")
    sync_folder(home.path)


def _run_in(path: Path) -> str | None:
    """The name in the ledger of a run's folder; None if it was left before it had one."""
    # Not needed on a node, which starts a process for each message.
    from gdpfed.runs.ledgered import read_link

    link = read_link(path / "ledger.json")
    return None if link is None else link.run


def give_up(server_home: str | Path) -> str:
    """Ends a run that will not go on: closes it in the ledger, and moves its folder aside; returns its name.

    What it charged stays spent. Nodes that joined it keep its whole plan charged in their own ledgers.
    """
    home = ServerHome(Path(server_home))
    if (home.run_path / "model.safetensors").is_file():
        raise InputError(f"{str(home.run_path)!r} is finished: there is nothing to give up; set the next plan")
    run = _run_in(home.run_path) or home.run_name
    with Ledger.open(home.ledger_path) as ledger:
        if run in ledger.state.runs:
            ledger.close_run(run)
    (home.path / "run.json").unlink(missing_ok=True)
    if home.run_path.exists():
        _move_aside(home, "-given-up")
    return run
