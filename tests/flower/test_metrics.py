"""The page for Prometheus, by its own parser; test_real_up.py scrapes it from a real process."""

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gdpfed.flower.operate.certificates import make_certificates
from gdpfed.flower.operate.metrics import page
from gdpfed.flower.operate.status import ServerStatus, status_of
from tests.flower.federations import FIRST_NODE, Federation

pytestmark = pytest.mark.training


def samples(home: Path) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(page(home).decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_a_scrape_parses(tmp_path: Path) -> None:
    federation = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), participation=1.0, rounds=2)
    make_certificates(federation.home.path / "certificates", hosts=["127.0.0.1"])
    grid = federation.grid()
    grid.offline = {FIRST_NODE}
    federation.serve(grid)
    found, status = samples(federation.home.path), status_of(federation.home.path)
    assert isinstance(status, ServerStatus)
    assert found["gdpfed_up", ()] == 1
    assert found["gdpfed_server_state", (("state", "finished"),)] == 1
    assert found["gdpfed_server_rounds_done", ()] == found["gdpfed_server_rounds_planned", ()] == 2
    assert found["gdpfed_server_answers_lost_total", ()] == status.num_lost == 2
    for group in status.groups:
        assert found["gdpfed_server_epsilon_spent", (("group", group.name),)] == group.spent
        assert found["gdpfed_server_sums_released_total", (("group", group.name),)] == 2
    assert found["gdpfed_server_stage_seconds_count", (("stage", "input"),)] == 2
    assert found["gdpfed_server_certificate_days_left", ()] == 364
    (federation.home.path / "plan.toml").write_text("nothing")
    assert samples(federation.home.path) == {("gdpfed_up", ()): 0.0}


def test_metrics_name_nobody(tmp_path: Path) -> None:
    """Two runs with cohorts of other clients and other sizes have the same page, but for times."""
    pages = []
    for name, cohort in (("one", {0}), ("two", {1, 2})):
        federation = Federation(tmp_path / name, sizes=(3,), epsilons=(4.0,), participation=1.0, rounds=1)
        grid = federation.grid()
        # Whoever is offline when the round begins was not asked, as if not sampled.
        grid.offline = {FIRST_NODE + number for number in federation.numbers if number not in cohort}
        federation.serve(grid)
        pages.append(samples(federation.home.path))
    varying = ("seconds", "nodes_online", "answers_lost")
    one, two = ({key: value for key, value in page.items() if not any(v in key[0] for v in varying)} for page in pages)
    assert one == two
    assert {label for page in pages for (_, labels) in page for label, _ in labels} == {"state", "group", "stage"}


def test_a_nodes_page_stands_still(tmp_path: Path) -> None:
    federation = Federation(tmp_path, sizes=(2,), epsilons=(4.0,), participation=1.0, rounds=3)
    pages: list[bytes] = []

    def fault(reached: str, _: int) -> None:
        if reached == "checkpointed":
            pages.append(page(federation.node_path(0)))

    before = page(federation.node_path(0))
    federation.serve(fault=fault)
    assert len(pages) == 3
    assert before != pages[0] == pages[1] == pages[2]
