"""A page of numbers for Prometheus, from a home's status: rounds, stages, losses, refusals, spend, seconds.

Place: operations, over `status`; a process of its own (`gdpfed flower metrics`) that reads the home's files, so that no
scrape can delay or stop a run. It listens on loopback unless told otherwise.

No client is named. A server's page has no cohort sizes; but how many answers were lost, which sums were given up and
how long stages took say a little about them, so it is for the operator. A node's page has nothing that changes when the
node is asked or sends, and no seconds: neither its sample nor its coin can be read off.

Guarantees (tests of the same name):
  a_scrape_parses            by the official parser, with the values of the status.
  metrics_name_nobody        no client's name and no size of a cohort is on a server's page.
  a_nodes_page_stands_still  it is the same before and after a round in which the node took part, once it has joined.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from gdpfed.errors import GdpfedError, MissingExtraError
from gdpfed.flower.operate.certificates import days_left
from gdpfed.flower.operate.connection import address
from gdpfed.flower.operate.status import NodeStatus, ServerStatus, status_of

try:
    from prometheus_client import CollectorRegistry, generate_latest, start_http_server
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily
    from prometheus_client.registry import Collector
except ModuleNotFoundError:
    raise MissingExtraError(package="prometheus_client", extra="flower", purpose="metrics") from None

__all__ = ["HomeCollector", "page", "serve_metrics"]

_STATES = ("no plan", "not started", "running", "stopped", "finished")


class HomeCollector(Collector):
    """Looks at a home whenever it is scraped."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def collect(self) -> Iterator[Metric]:
        """All metrics; of a home that cannot be read only that it cannot."""
        up = GaugeMetricFamily("gdpfed_up", "Whether the home could be read.")
        try:
            status = status_of(self._home)
        except (GdpfedError, OSError):
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        if isinstance(status, NodeStatus):
            yield from _node(status)
        else:
            yield from _server(status)
            yield from _certificate(self._home / "certificates" / "server.crt")


def _server(status: ServerStatus) -> Iterator[Metric]:
    state = GaugeMetricFamily("gdpfed_server_state", "1 for the state that the run is in.", labels=["state"])
    for name in _STATES:
        state.add_metric([name], name == status.state)
    yield state
    stage = GaugeMetricFamily("gdpfed_server_stage", "1 for the stage that waits for answers.", labels=["stage"])
    if status.stage is not None:
        stage.add_metric([status.stage], 1)
    yield stage
    online = None if status.online is None else len(status.online)
    for name, help_text, value in (
        ("rounds_done", "Rounds that are over.", status.rounds_done),
        ("rounds_planned", "Rounds of the plan.", status.num_rounds),
        ("clients_enrolled", "Enrolled clients.", len(status.enrolled)),
        ("nodes_online", "Enrolled clients whose node is online.", online),
        ("nodes_unbound", "Nodes that are no enrolled client's.", len(status.unbound)),
        ("round_seconds", "Median of the last five rounds.", status.seconds_a_round),
        ("seconds_left", "To the end of the run, a guess.", status.seconds_left),
        ("last_event_timestamp_seconds", "When the ServerApp last did something.", status.last_event),
    ):
        if value is not None:
            yield GaugeMetricFamily(f"gdpfed_server_{name}", help_text, value=value)
    yield CounterMetricFamily("gdpfed_server_answers_lost", "Answers that did not come.", value=status.num_lost)
    yield CounterMetricFamily("gdpfed_server_answers_refused", "Refusals of nodes.", value=status.num_refused)
    for name, help_text in (
        ("released", "Sums that were released."),
        ("given_up", "Sums that were released as noise alone."),
        ("tried_again", "Attempts at a sum that came to nothing."),
    ):
        family = CounterMetricFamily(f"gdpfed_server_sums_{name}", help_text, labels=["group"])
        for group in status.groups:
            family.add_metric([group.name], getattr(group, name))
        yield family
    budget = GaugeMetricFamily("gdpfed_server_epsilon_budget", "What a client of the group allows.", labels=["group"])
    spent = GaugeMetricFamily("gdpfed_server_epsilon_spent", "The most that a client has spent.", labels=["group"])
    for group in status.groups:
        budget.add_metric([group.name], group.epsilon)
        if group.spent is not None:
            spent.add_metric([group.name], group.spent)
    yield from (budget, spent)
    seconds = SummaryMetricFamily("gdpfed_server_stage_seconds", "How long stages took.", labels=["stage"])
    for name, (count, total) in status.stage_seconds.items():
        seconds.add_metric([name], count_value=count, sum_value=total)
    yield seconds


def _certificate(path: Path) -> Iterator[Metric]:
    try:
        left = days_left(path)
    except (GdpfedError, OSError):
        return
    yield GaugeMetricFamily("gdpfed_server_certificate_days_left", "Days for which server.crt holds.", value=left)


def _node(status: NodeStatus) -> Iterator[Metric]:
    for name, help_text, value in (
        ("pinned", "Whether an enrolment is pinned.", float(status.enrolment is not None)),
        ("epsilon_budget", "What the owner allows whoever sees the models.", status.epsilon),
        ("epsilon_spent", "What is spent or promised of it, joined runs whole.", status.spent),
        ("runs_joined", "Runs that the node joined.", float(len(status.runs))),
        ("refusals", "Refusals in the end of node.log.", float(status.num_refusals)),
    ):
        yield GaugeMetricFamily(f"gdpfed_node_{name}", help_text, value=value)


def page(home: Path) -> bytes:
    """What a scrape gets."""
    return generate_latest(_registry(home))


def _registry(home: Path) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(HomeCollector(home))
    return registry


def serve_metrics(home: Path, *, listen: str, ready: Callable[[], None] = lambda: None) -> None:
    """Serves the page at HOST:PORT until the process is told to end."""
    status_of(home)
    host, port = address(listen)
    _, thread = start_http_server(port, addr=host, registry=_registry(home))
    ready()
    thread.join()
