"""The server's home: its key, the enrolled clients, the plan, the ledger and the run.

Place: on the operator's machine, who tells the ServerApp where; `operate.between_runs` puts clients and plans into it.

    server.key       0600, its identity
    enrolment.json   all clients, signed
    plan.toml        the verified plan
    run.json         the run's name, and a hash of its plan
    settings.toml    tolerances, timeouts
    ledger           and .journal, .key, .lock
    run/             a run folder
    server.log       for the operator only
"""

import hashlib
import json
from pathlib import Path

from gdpfed.errors import InputError, PrivacyError
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.flower.shared.enrolment import Enrolment, enrolment_from_json
from gdpfed.flower.shared.home_files import Home, read_content, read_settings
from gdpfed.planning.plan import Plan
from gdpfed.planning.plan_file import load_plan
from gdpfed.secure.primitives import signing_public

__all__ = ["POPULATION", "ServerHome", "make_server_home"]

# What the ledger calls the enrolled clients.
POPULATION = "clients"


class ServerHome(Home):
    """An existing server home. Its log names clients that were waited for or lost, and so some of a sample."""

    whose, key_name, settings_name = "server", "server.key", "settings.toml"

    def __init__(self, path: str | Path) -> None:
        super().__init__(path)
        self.enrolment_path = self.path / "enrolment.json"
        self.plan_path = self.path / "plan.toml"
        self.run_name_path = self.path / "run.json"
        self.ledger_path = self.path / "ledger"
        self.run_path = self.path / "run"

    @property
    def enrolment(self) -> Enrolment:
        """Verified."""
        enrolment = enrolment_from_json(read_content(self.enrolment_path, "an enrolment (enrol clients first)"))
        if enrolment.server != signing_public(self.identity):
            raise PrivacyError("the enrolment is of another server key: restore server.key, or enrol again")
        return enrolment

    @property
    def plan(self) -> Plan:
        """Verified."""
        return load_plan(self.plan_path)

    @property
    def plan_mark(self) -> str:
        """Of the file as it is: which plan a run's name was made for."""
        return hashlib.sha256(read_content(self.plan_path, "a plan (set one first)")).hexdigest()

    @property
    def run_name(self) -> str:
        """Never used for two runs: nodes charge a run by it."""
        content = read_content(self.run_name_path, "a run's name (set a plan first)")
        try:
            named = json.loads(content)
            name, mark = named["run"], named["plan"]
        except (ValueError, KeyError, TypeError):
            name = mark = None
        if not isinstance(name, str) or not name:
            raise InputError(f"expected a run's name in {str(self.run_name_path)!r}: set the plan again")
        if mark != self.plan_mark:
            raise InputError(f"expected the plan of run {name!r} in {str(self.plan_path)!r}: set the plan again")
        return name

    @property
    def settings(self) -> DeploymentSettings:
        """As the operator wrote them."""
        path = self.path / self.settings_name
        return read_settings(DeploymentSettings, path) if path.is_file() else DeploymentSettings()


def make_server_home(path: str | Path, *, settings: DeploymentSettings | None = None) -> ServerHome:
    """A new server home, with a key of its own."""
    return ServerHome.made(path, settings or DeploymentSettings())
