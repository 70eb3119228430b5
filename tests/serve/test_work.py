"""The page and the command line say the same."""

import json
import random
import shlex
from pathlib import Path
from typing import Any

import pytest

from gdpfed.errors import GdpfedError
from gdpfed.serve.processes import Event
from gdpfed.serve.states import read_state
from gdpfed.serve.work import Planned, compare_job, frontier_job, plan_job
from tests.cli.test_cli import call

METHODS = ("fedavg", "dp-fedavg", "gdpfed", "gdpfed-opc", "gdpfed+", "pfa", "idp-fedavg", "idp-scale", "pooled", "auto")


def answered(job: Any, query: dict[str, str], folder: Path) -> Event:
    found: Event = {}
    job(Planned(state=read_state(query), folder=folder), found.update)
    return found


def random_query(seed: int) -> dict[str, str]:
    """A state as somebody could leave the page in."""
    chance = random.Random(seed)  # noqa: S311
    epsilons = sorted(chance.sample([0.3, 0.5, 0.8, 1, 1.5, 2, 3.3, 5, 8], chance.randint(1, 3)))
    rounds = chance.randint(2, 40)
    query = {
        "source": ",".join(f"{chance.randint(20, 900)}@{epsilon}" for epsilon in epsilons),
        "method": chance.choice(METHODS),
        "rounds": str(rounds),
        "participation": f"{chance.uniform(0.01, 0.4):.3g}",
        # RDP takes ten times as long.
        "accountant": "rdp" if seed == 0 else "pld",
    }
    if chance.random() < 0.3:
        query["delta"] = f"{10 ** chance.uniform(-7, -4):.2e}"
    if chance.random() < 0.3:
        query["clip-norm"] = f"{chance.uniform(0.1, 3):.3g}"
    if chance.random() < 0.3 and query["method"] not in ("fedavg", "dp-fedavg"):
        query["groups"] = chance.choice(["distinct", "1", "2", f"{epsilons[0]},{epsilons[-1]}"])
    if chance.random() < 0.35 and query["method"] != "fedavg":
        asks = chance.randint(1, rounds)
        query |= {"against": "server", "asks": str(asks), "trainings": f"{asks * chance.uniform(0.1, 0.6):.3g}"}
    return query


@pytest.mark.training
def test_the_page_agrees_with_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """50 random states, every digit: what the page got, and what its command prints."""
    kinds: set[tuple[str, bool]] = set()
    for seed in range(50):
        query = random_query(seed)
        page, refused = {}, ""
        try:
            page = answered(plan_job, query, tmp_path)
        except GdpfedError as error:
            refused = f"error: {error}\n"
        code, out, err = call(capsys, *shlex.split(read_state(query).command(tmp_path))[1:], "--json")
        assert (code, err) == (2 if refused else 0, refused), query
        if not refused:
            assert json.loads(out) == json.loads(json.dumps(page["plan"])), query
            kinds.add((query["method"], "against" in query))
    assert len(kinds) > 12


@pytest.mark.training
def test_comparison_and_frontier_agree_with_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = {"source": "60@1,90@2,50@6", "rounds": "10", "participation": "0.2"}
    page = answered(compare_job, query, tmp_path)
    _, out, _ = call(capsys, "plan", "compare", "60@1,90@2,50@6", "--rounds", "10", "--participation", "0.2", "--json")
    (plans,) = json.loads(out).values()
    assert plans == json.loads(json.dumps(page["plans"]))
    page = answered(frontier_job, query | {"method": "gdpfed"}, tmp_path)
    words = ["plan", "frontier", "60@1,90@2,50@6", "--rounds", "10", "--participation", "0.2", "--method", "gdpfed"]
    _, out, _ = call(capsys, *words, "--json")
    frontier = json.loads(out)["frontier"]
    assert [(one["asks"], one["trainings"], one["cost"]) for one in frontier] == page["points"]
    assert page["html"].count('scope="row"') == len(frontier) + 1
