"""The ledger's page."""

import json

import pytest

from gdpfed.planning.settings import PlanSettings
from gdpfed.serve.app import Served
from gdpfed.serve.ledgers import LedgerAsked, clients_job, ledger_job, rest_job
from gdpfed.serve.processes import Event
from tests.cli.test_cli import call


def answered(job: object, asked: LedgerAsked) -> Event:
    found: Event = {}
    job(asked, found.update)  # type: ignore[operator]
    return found


def test_names_only_when_asked(served: Served) -> None:
    assert served.ledger is not None
    page = answered(ledger_job, LedgerAsked(path=served.ledger))["html"]
    assert 'data-population="people"' in page
    assert "clients have 80 to 85 % of their budget left" in page
    assert page.count("first (closed)") == 3
    assert "participations" not in page
    named = answered(clients_job, LedgerAsked(path=served.ledger, most=3))["html"]
    assert named.count('scope="row"') == 3
    named = answered(clients_job, LedgerAsked(path=served.ledger, clients=("7", "199")))["html"]
    assert '<th scope="row">199</th>' in named


@pytest.mark.training
def test_the_next_plan_is_that_of_the_command(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert served.ledger is not None
    settings = PlanSettings(method="gdpfed", num_rounds=5, participation=0.1)
    page = answered(rest_job, LedgerAsked(path=served.ledger, settings=settings))
    words = ["--method", "gdpfed", "--rounds", "5", "--participation", "0.1"]
    _, out, _ = call(capsys, "ledger", "plan", str(served.ledger), *words, "--json")
    assert json.loads(out) == json.loads(json.dumps(page["plan"]))
    assert " --method gdpfed --rounds 5 --participation 0.1 " in page["command"]
