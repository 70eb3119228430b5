"""Pages and answers, from a real server."""

import json
import os
import re
from typing import Any

import httpx
import pytest

from gdpfed.planning.plan_file import load_plan, plan_hash
from gdpfed.serve.app import Served
from tests.report.synthetic import task_of, write_run
from tests.serve.served import SCRIPT

QUICK = {"source": "60@1,90@2", "rounds": "5", "participation": "0.2", "method": "gdpfed"}


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.text.splitlines()]


def found(answer: httpx.Response) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for event in events(answer):
        merged |= event
    return merged


@pytest.fixture
def ours(address: str) -> dict[str, str]:
    return {"origin": address, "sec-fetch-site": "same-origin"}


@pytest.mark.parametrize("path", ["/", "/plan", "/runs", "/ledger", "/deployment"])
def test_every_page_has_a_heading_and_its_place_in_the_menu(client: httpx.Client, path: str) -> None:
    page = client.get(path).text
    assert page.count("<h1") == 1
    assert page.count('aria-current="page"') == 1
    assert "fmnist" in page or path != "/"
    for name in re.findall(r'(?:src|href)="(/assets/[^"]+)"', page):
        assert client.get(name).status_code == 200, name


def test_the_planner_answers_in_steps(client: httpx.Client) -> None:
    first, *_, last = [event for event in events(client.get("/api/plan", params=QUICK)) if "working" not in event]
    assert first["bars"] == [[1.0, 1.0, 60], [2.0, 2.0, 90]]
    assert first["command"].startswith("gdpfed plan 60@1,90@2 --method gdpfed --rounds 5")
    assert "plan" in last, last
    assert last["plan"]["num_clients"] == 150
    assert "Whoever sees the models" in last["html"]
    assert events(client.get("/api/plan", params=QUICK))[-1] == last, "remembered"
    compared = found(client.get("/api/compare", params={**QUICK, "source": "60@1"}))
    assert len(compared["plans"]) >= 6
    assert compared["html"].count('scope="row"') == len(compared["plans"])


def test_who_goes_away_frees_the_processor(client: httpx.Client) -> None:
    for rounds in range(70, 75):
        with client.stream("GET", "/api/compare", params={"source": "500@0.8,300@2,200@5", "rounds": rounds}) as answer:
            next(answer.iter_lines())
    assert "plan" in found(client.get("/api/plan", params={**QUICK, "rounds": "6"}))


def test_errors_are_words(client: httpx.Client) -> None:
    for query in ({"source": "60@"}, {"source": "nothing"}, {"source": "60@1", "rounds": "x"}, {"what": "1"}):
        error = found(client.get("/api/plan", params=query))["error"]
        assert "expected" in error or "unknown" in error
    page = client.get("/plan", params={"source": SCRIPT})
    assert page.status_code == 400
    assert SCRIPT not in page.text
    assert "&lt;img" in page.text
    assert client.get("/nothing").status_code == 404
    assert client.get("/assets/../app.py").status_code == 404
    assert client.get("/assets/base.html").status_code == 404
    assert client.get("/assets/%2e%2e%2fapp.py").status_code == 404


def test_pasted_budgets_become_a_text(client: httpx.Client, ours: dict[str, str]) -> None:
    def pasted(text: str) -> dict[str, Any]:
        return dict(client.post("/api/budgets", json={"text": text}, headers=ours).json())

    lines = "client,epsilon\n" + "".join(f"c{n},{1 + n % 2}\n" for n in range(10))
    assert pasted(lines) == {"source": "5@1.0,5@2.0", "delta": 0.01, "clients": 10}
    assert pasted('[{"client": "a", "epsilon": 0.1}]')["source"] == "1@0.1"
    assert pasted("client,epsilon,delta\na,1,1e-5\nb,2,1e-5\n")["delta"] == 1e-5
    for text, words in (
        ("client,epsilon\na,1\na,2\n", "once"),
        ("nonsense", "column"),
        ("client,epsilon\na,much\n", "number"),
        ("client,epsilon,delta\na,1,1e-5\nb,2,1e-6\n", "one delta"),
        ("client,epsilon\n" + "".join(f"c{n},{1 + n / 1000}\n" for n in range(900)), "at most 400"),
        ("", "expected budgets"),
    ):
        error = pasted(text)["error"]
        assert words in error
        assert "pasted.csv" not in error, "no path of ours"


def test_a_saved_plan_stays_in_the_folder(client: httpx.Client, served: Served, ours: dict[str, str]) -> None:
    def save(name: str, **more: object) -> dict[str, Any]:
        content = {"query": QUICK, "name": name, **more}
        return dict(client.post("/api/save", json=content, headers=ours).json())

    done = save("mine.toml")
    plan = load_plan(served.folder / "mine.toml")
    assert done["hash"] == plan_hash(plan)
    before = (served.folder / "mine.toml").read_bytes()
    (served.folder / "mine.toml").write_bytes(before + b"# mine\n")
    assert save("mine.toml")["exists"]
    assert (served.folder / "mine.toml").read_bytes().endswith(b"# mine\n"), "not touched"
    assert "hash" in save("mine.toml", replace=True)
    assert (served.folder / "mine.toml").read_bytes() == before
    listed = sorted(served.folder.rglob("*"))
    (served.folder.parent / "outside.toml").write_text("")
    (served.folder / "link.toml").symlink_to(served.folder.parent / "outside.toml")
    for name in ("../x.toml", "/tmp/x.toml", "runs/x.toml", "x.csv", ".x.toml", "x\0.toml", "", "..", "link.toml"):  # noqa: S108
        assert "error" in save(name, replace=True), name
    (served.folder / "link.toml").unlink()
    assert (served.folder.parent / "outside.toml").read_text() == ""
    assert sorted(served.folder.rglob("*")) == listed


def test_script_in_names_is_text(client: httpx.Client, served: Served) -> None:
    rows = client.get("/api/runs").json()["runs"]
    assert SCRIPT in {row.get("title") for row in rows}, "as JSON, which the page shows as text"
    for answer in (
        client.get("/api/curves", params={"run": "other/deep/er"}).json()["html"],
        client.get("/report", params={"run": "other/deep/er"}).text,
    ):
        assert SCRIPT not in answer
    (served.folder / f"{SCRIPT.replace('/', '')}.csv").write_text("client,epsilon\na,1\n")
    assert SCRIPT not in client.get("/plan").text


def test_a_report_opens(client: httpx.Client) -> None:
    report = client.get("/report", params=[("run", "runs/plain"), ("run", "runs/going")])
    assert "privacy report" in report.text, report.text
    assert report.headers["content-security-policy"].endswith("sandbox allow-scripts")
    for names in (["runs/nothing"], ["../x"], []):
        refused = client.get("/report", params=[("run", name) for name in names])
        assert refused.status_code == 400
        assert 'role="alert"' in refused.text


def test_a_report_follows_no_link_out_of_the_folder(
    client: httpx.Client, served: Served, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = write_run(tmp_path_factory.mktemp("outside") / "run", task_of("gdpfed", title="Secret title")).path
    linked = served.folder / "linked"
    linked.mkdir()
    (linked / "run").symlink_to(outside)
    for name in ("linked", "linked/run"):
        refused = client.get("/report", params={"run": name})
        assert refused.status_code == 400
        assert "leads out of it" in refused.text
        assert "Secret title" not in refused.text


def test_odd_files_do_not_hide_the_planner(client: httpx.Client, served: Served) -> None:
    odd = served.folder / os.fsdecode(b"odd\xff.csv")
    odd.write_text("client,epsilon\na,1\n")
    # Which nobody can read, root neither.
    unreadable = served.folder / "unreadable.toml"
    unreadable.symlink_to("/proc/self/mem")
    page = client.get("/plan")
    odd.unlink()
    unreadable.unlink()
    assert page.status_code == 200
    assert "clients.csv" in page.text
    assert "unreadable.toml" not in page.text


def test_empty_pages_say_how_to_begin(tmp_path_factory: pytest.TempPathFactory) -> None:
    from gdpfed.serve.pages import rendered

    nothing = Served(folder=tmp_path_factory.mktemp("empty"))
    facts = {"here": "/x", "title": "x", "served": nothing, "version": "0"}
    assert "gdpfed ledger init" in rendered("ledger.html", **facts)
    assert "gdpfed flower up" in rendered("deployment.html", **facts)
    assert "gdpfed train" in rendered("runs.html", **facts)
