"""The page for Prometheus, by its own parser; test_real_up.py scrapes it from a real process."""

from pathlib import Path

import pytest
from flwr.app import Message
from prometheus_client.parser import text_string_to_metric_families

from gdpfed.flower.operate.certificates import make_certificates
from gdpfed.flower.operate.metrics import page
from gdpfed.flower.operate.status import ServerStatus, status_of
from tests.flower.federations import FIRST_NODE, Federation, stage_of

pytestmark = pytest.mark.training

# Of which the samples differ in size.
SEEDS = (1, 2)


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
    pages, cohorts = [], []
    for seed in SEEDS:
        federation = Federation(
            tmp_path / str(seed), sizes=(5,), epsilons=(4.0,), participation=0.5, rounds=1, test_seed=seed
        )
        asked: set[int] = set()

        def deliver(client: int, message: Message, asked: set[int] = asked) -> bool:
            asked.update({client} if stage_of(message) == "shares" else ())
            return True

        federation.serve(federation.grid(deliver=deliver))
        cohorts.append(asked)
        pages.append({key: value for key, value in samples(federation.home.path).items() if "seconds" not in key[0]})
    one, two = cohorts
    assert one
    assert two
    assert len(one) != len(two)
    assert pages[0] == pages[1]
    assert {label for (_, labels) in pages[0] for label, _ in labels} == {"state", "group"}


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
