"""`gdpfed flower`: a federation of machines on Flower; try it here, start a project, prepare server and nodes."""

import shlex
import sys
import tempfile
from pathlib import Path
from typing import Annotated, cast

import typer
from typer import Argument, Option

from gdpfed.cli import options
from gdpfed.cli.show import print_json, print_plan, rounded_up, say, tell
from gdpfed.errors import InputError, PrivacyError
from gdpfed.files import missing, nothing_left, write_whole
from gdpfed.flower.server.deployment_settings import DeploymentSettings
from gdpfed.planning.settings import Against, PlanSettings
from gdpfed.secure.defaults import COLLUDING_FRACTION, COMPLETE_UP_TO

__all__ = ["flower_app"]

flower_app = typer.Typer(
    help="A federation of machines that do not trust each other, over Flower.",
    no_args_is_help=True,
    add_completion=False,
)

_PORT = 9092
_INNER_PORT = 9093
_METRICS = "127.0.0.1:9464"
Systemd = Annotated[bool, Option("--systemd", help="Write systemd units, into the home.")]
Container = Annotated[bool, Option("--container", help="Write a Containerfile and a compose file, into the home.")]
Home = Annotated[Path, Argument(help="The server's home.")]
NodeHomePath = Annotated[Path, Argument(help="The node's home.")]


def _command(*words: object) -> str:
    """A line for a shell."""
    return " ".join(shlex.quote(str(word)) for word in words)


@flower_app.command("up")
def up(
    nodes: Annotated[int, Option(help="SuperNodes, in three groups of budgets.")] = 6,
    rounds: Annotated[int, options.option(PlanSettings, "num_rounds")] = 3,
    method: Annotated[str, options.option(PlanSettings, "method")] = "gdpfed+",
    participation: Annotated[float, options.option(PlanSettings, "participation")] = 0.5,
    against: Annotated[str, options.option(PlanSettings, "against")] = "server",
    app: Annotated[Path | None, Option(help="A project of gdpfed flower new. Default: a new one in --dir.")] = None,
    folder: Annotated[Path | None, Option("--dir", help="Where all goes. Default: a temporary folder, kept.")] = None,
    as_json: options.Json = False,
) -> None:
    """Try it on this machine: SuperLink and SuperNodes with TLS and keys, a training, and everything down again."""
    from gdpfed.cli.flower_display import watching
    from gdpfed.flower.operate.processes import LocalFlower, need_flower
    from gdpfed.flower.operate.up import UpSettings, prepare, run

    need_flower()
    if against not in ("models", "server"):
        raise InputError(f"expected against 'models' or 'server', got {against!r}")
    settings = UpSettings(
        nodes=nodes, rounds=rounds, method=method, participation=participation, against=cast(Against, against)
    )
    is_own, folder = folder is None, folder or Path(tempfile.mkdtemp(prefix="gdpfed-up-"))
    if not as_json:
        say(f"{nodes} nodes on this machine, {rounds} rounds of {method}, in {folder}: making keys, homes and a plan")
    with nothing_left([[folder]] if is_own else []):
        federation = prepare(folder, settings, app=app)
    with LocalFlower(folder) as deployment, watching(federation.plan, quiet=as_json) as watch:
        final = run(federation, deployment, watch)
    home = federation.home
    groups = [group for _, group in sorted(final.groups.items())]
    content = {
        "folder": str(folder),
        "run": str(home.run_path),
        "ledger": str(home.ledger_path),
        "logs": str(deployment.logs),
        "rounds": final.rounds_done,
        "accuracy": final.accuracy,
        "epsilons": [group.epsilon for group in groups],
        "given_up": sum(group.given_up for group in groups),
    }
    spent = " ".join(rounded_up(group.epsilon, 3) for group in groups if group.epsilon)
    accuracy = "" if final.accuracy is None else f"accuracy {final.accuracy:.2f} % on public data, "
    tell(
        as_json,
        content,
        f"done, and everything is down again: {accuracy}epsilon against {federation.plan.adversary}: {spent}",
        "so few clients cannot hide one among many: the noise is large, and the model is only a demonstration",
        f"logs are in {deployment.logs} and {home.path / 'server.log'}; try next:",
        "  " + _command("gdpfed", "show", home.run_path),
        "  " + _command("gdpfed", "report", home.run_path),
        "  " + _command("gdpfed", "ledger", "status", home.ledger_path),
        "  " + _command("gdpfed", "flower", "new", "my-federation"),
    )


@flower_app.command("new")
def new(
    folder: Annotated[Path, Argument(help="A new folder; its name becomes the project's.")],
    as_json: options.Json = False,
) -> None:
    """Write a small project to start from: server, client, task, pyproject.toml, README."""
    from gdpfed.flower.operate.project import write_project

    written = write_project(folder)
    tell(
        as_json,
        {"folder": str(folder), "files": [str(path) for path in written]},
        *(f"wrote {path}" for path in written),
        "put your model and data into task.py; try it on this machine:",
        "  " + _command("gdpfed", "flower", "up", "--app", folder),
    )


@flower_app.command("init")
@options.with_settings(DeploymentSettings)
def init(
    asked: options.Asked,
    home: Annotated[Path, Argument(help="A new folder on the server.")],
    host: Annotated[list[str], Option(help="A name or address that nodes connect to; repeat it.")],
    systemd: Systemd = False,
    container: Container = False,
    as_json: options.Json = False,
) -> None:
    """Make the server's home: its identity, settings, and certificates."""
    from gdpfed.flower.operate.certificates import make_certificates
    from gdpfed.flower.operate.units import superlink_command, write_containers, write_units
    from gdpfed.flower.server.server_home import ServerHome, make_server_home

    made = ("certificates", "systemd", "container", ServerHome.key_name, ServerHome.settings_name)
    with nothing_left(missing(*(home / name for name in made))):
        make_server_home(home, settings=asked.applied(DeploymentSettings()))
        # The gate speaks to the SuperLink under this address.
        authority = make_certificates(home / "certificates", hosts=list(dict.fromkeys([*host, "127.0.0.1"])))
        absolute = home.absolute()
        superlink = superlink_command(absolute, port=_INNER_PORT)
        gate = ["gdpfed", "flower", "gate", str(absolute), "--listen"]
        opened = [*gate, f"{host[0]}:{_PORT}"]
        watched = ["gdpfed", "flower", "metrics", str(absolute), "--listen", _METRICS]
        files = write_units(home, {"superlink": superlink, "gate": opened, "metrics": watched}) if systemd else []
        if container:
            services = {"superlink": superlink, "gate": [*gate, f"0.0.0.0:{_PORT}"]}
            files += write_containers(home, services, port=_PORT)
    commands = [_command(*superlink), _command(*opened)]
    tell(
        as_json,
        {"home": str(home), "authority": str(authority), "commands": commands, "files": [str(file) for file in files]},
        f"{home}: keep a copy of server.key and certificates/ca.key elsewhere",
        f"send {authority} to every client; start the SuperLink where only this machine reaches it, and the gate:",
        *(f"  {command}" for command in commands),
        *(f"wrote {file}" for file in files),
        "clients make their homes with gdpfed flower node; then: gdpfed flower enrol",
    )


@flower_app.command("gate")
def gate(
    home: Home,
    listen: Annotated[str, Option(help="HOST:PORT that nodes connect to.")],
    superlink: Annotated[str, Option(help="HOST:PORT of the SuperLink.")] = f"127.0.0.1:{_INNER_PORT}",
    access_log: Annotated[
        Path | None, Option(help="A line of JSON for each request. Default: gate.log in the home.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Let nodes in to the SuperLink, and nobody else: without it whoever reaches its port can start runs.

    GET /health says whether the SuperLink answers (200) or not (502).
    """
    from gdpfed.flower.operate.gate import serve_gate

    if as_json:
        print_json({"home": str(home), "listen": listen, "superlink": superlink})
        sys.stdout.flush()
    serve_gate(home / "certificates", listen=listen, superlink=superlink, access_log=access_log or home / "gate.log")


@flower_app.command("certificate")
def certificate(
    home: Home,
    host: Annotated[list[str] | None, Option(help="A new certificate for these hosts, by the same authority.")] = None,
    as_json: options.Json = False,
) -> None:
    """How long the server's certificate holds, or, with --host, a new one."""
    from gdpfed.flower.operate.certificates import days_left, renew_certificate

    folder = home / "certificates"
    if not (folder / "ca.crt").is_file():
        raise InputError(f"expected certificates in {str(folder)!r}: make a server's home with gdpfed flower init")
    lines = []
    if host:
        renew_certificate(folder, hosts=list(dict.fromkeys([*host, "127.0.0.1"])))
        lines = ["made a new certificate: restart the SuperLink and the gate; nodes trust the same authority as before"]
    paths = [path for path in (folder / "server.crt", folder / "ca.crt") if path.is_file()]
    days = {str(path): days_left(path) for path in paths}
    lines += [f"{path} holds for {left} days" for path, left in days.items()]
    tell(as_json, {"renewed": bool(host), "days_left": days}, *lines)


@flower_app.command("node")
def node(
    home: Annotated[Path, Argument(help="A new folder on the client's machine.")],
    epsilon: Annotated[float, Option(help="The most that the released models may ever cost.")],
    delta: Annotated[float, Option(help="The failure probability that goes with it.")],
    name: Annotated[str | None, Option(help="As others will see it. Default: the folder's.")] = None,
    epsilon_server: Annotated[
        float | None, Option(help="The most that the server may ever learn. Default: 10 times --epsilon, at least 10.")
    ] = None,
    colluders: Annotated[
        float, Option(help="Refuse runs whose noise is sized for a smaller colluding fraction.")
    ] = COLLUDING_FRACTION,
    complete_up_to: Annotated[int, options.option(DeploymentSettings, "complete_up_to")] = COMPLETE_UP_TO,
    against: Annotated[
        str, Option(help="'models', or 'server': refuse runs whose promise does not hold against the server.")
    ] = "models",
    superlink: Annotated[str, Option(help="HOST:PORT of the operator's gate, to be printed.")] = f"HOST:{_PORT}",
    systemd: Systemd = False,
    container: Container = False,
    as_json: options.Json = False,
) -> None:
    """Make a node's home: its own budget, identity, and key; and what the operator needs of it."""
    from gdpfed.flower.node.node_home import NodeHome, make_node_home
    from gdpfed.flower.operate.certificates import make_node_key
    from gdpfed.flower.operate.units import node_command, write_containers, write_units

    path = home / "announcement.json"
    made = ("node.key", "node.pub", "sessions", "systemd", "container", NodeHome.key_name, NodeHome.settings_name)
    with nothing_left(missing(path, *(home / one for one in made))):
        announcement = make_node_home(
            home,
            epsilon=epsilon,
            delta=delta,
            name=name,
            epsilon_server=epsilon_server,
            colluding_fraction=colluders,
            complete_up_to=complete_up_to,
            against=cast(Against, against),
        )
        public = make_node_key(home)
        write_whole(path, announcement.encode())
        supernode = node_command(home.absolute(), superlink=superlink)
        files = []
        if systemd:
            watched = ["gdpfed", "flower", "metrics", str(home.absolute()), "--listen", _METRICS]
            label = name or home.absolute().name
            files += write_units(home, {f"node-{label}": supernode, f"metrics-{label}": watched})
        if container:
            files += write_containers(home, {"node": supernode})
    tell(
        as_json,
        {
            "home": str(home),
            "announcement": str(path),
            "public_key": str(public),
            "commands": [_command(*supernode)],
            "files": [str(file) for file in files],
        },
        f"send {path} and {public} to the operator; nothing in them is secret",
        f"put the operator's ca.crt into {home}; when the enrolment has come back: gdpfed flower pin",
        "then start the SuperNode with:",
        f"  {_command(*supernode)}",
        *(f"wrote {file}" for file in files),
    )


@flower_app.command("enrol")
def enrol_clients(
    home: Home,
    announcements: Annotated[list[Path], Argument(help="What clients sent: announcement.json files.")],
    as_json: options.Json = False,
) -> None:
    """Put clients on the list of the federation, sign it, and make them known to the ledger."""
    from gdpfed.flower.operate.between_runs import enrol

    enrolment = enrol(home, announcements)
    digest, path = enrolment.digest.hex(), home / "enrolment.json"
    tell(
        as_json,
        {"enrolment": str(path), "clients": len(enrolment.clients), "hash": digest},
        f"{len(enrolment.clients)} clients, hash {digest}",
        f"send {path} to every client, and tell them the hash by another channel (gdpfed flower pin)",
        "register every node's key with the SuperLink: flwr supernode register node.pub; next: gdpfed flower plan",
    )


@flower_app.command("plan")
@options.with_settings(PlanSettings, without=["delta"])
def plan_run(
    asked: options.Asked,
    home: Home,
    file: Annotated[Path | None, Option(help="A plan of gdpfed plan, instead of making one.")] = None,
    as_json: options.Json = False,
) -> None:
    """Make a plan for the enrolled clients, and name a new run by it."""
    from gdpfed.flower.operate.between_runs import set_plan
    from gdpfed.flower.server.server_home import ServerHome
    from gdpfed.planning.methods import make_plan
    from gdpfed.planning.plan_file import load_plan, plan_as_json

    if file is not None and asked.stated:
        raise InputError("expected either --file or settings for a new plan, got both")
    enrolled = ServerHome(home).enrolment.budgets
    plan = load_plan(file) if file is not None else make_plan(enrolled, asked.applied(PlanSettings()))
    run = set_plan(home, plan)
    start = _command("flwr", "run", ".", "SUPERLINK", "--run-config", f'gdpfed-home="{home.absolute()}"')
    if not as_json:
        print_plan(plan, title=f"run {run}")
    tell(
        as_json,
        {"run": run, "commands": [start], **plan_as_json(plan)},
        "start it, or go on with it after a crash, from the project's folder:",
        f"  {start}",
    )


@flower_app.command("status")
def status(
    home: Annotated[Path, Argument(help="A server's home, or a node's.")],
    watch: Annotated[bool, Option("--watch", help="Look again every two seconds, until Ctrl-C.")] = False,
    as_json: options.Json = False,
) -> None:
    """One look: round, stage, who is online or was lost, spend and time left; of a node its budget, spend and runs."""
    from gdpfed.cli.flower_status import show_status

    if watch and as_json:
        raise InputError("expected --watch, or --json for one look, got both: leave one out")
    show_status(home, watch=watch, as_json=as_json)


@flower_app.command("doctor")
def doctor(
    home: Annotated[Path | None, Argument(help="A server's home, or a node's. Default: this machine only.")] = None,
    superlink: Annotated[str | None, Option(help="HOST:PORT that nodes connect to: the gate.")] = None,
    inner: Annotated[
        str, Option(help="HOST:PORT of the SuperLink itself, on the server.")
    ] = f"127.0.0.1:{_INNER_PORT}",
    authority: Annotated[
        Path | None, Option(help="On a node: the operator's ca.crt. Default: that in the home.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Find what is wrong before a run, and what to do about it; exit code 1 if something is."""
    from gdpfed.cli.flower_status import print_findings
    from gdpfed.flower.operate.doctor import examine

    found = examine(home, superlink=superlink, inner=inner, authority=authority)
    print_findings(found, as_json=as_json)
    if any(finding.level == "problem" for finding in found):
        raise typer.Exit(1)


@flower_app.command("metrics")
def metrics(
    home: Annotated[Path, Argument(help="A server's home, or a node's.")],
    listen: Annotated[str, Option(help="HOST:PORT of the page.")] = _METRICS,
    as_json: options.Json = False,
) -> None:
    """Serve a page for Prometheus: rounds, stages, losses, refusals, spend and seconds; no client is named."""
    from gdpfed.flower.operate.metrics import serve_metrics

    def ready() -> None:
        tell(as_json, {"home": str(home), "listen": listen}, f"metrics of {home} on http://{listen}/metrics")
        sys.stdout.flush()

    serve_metrics(home, listen=listen, ready=ready)


@flower_app.command("give-up")
def give_up_run(home: Home, as_json: options.Json = False) -> None:
    """End a run that will not go on: close it in the ledger, and move its folder aside."""
    from gdpfed.flower.operate.between_runs import give_up

    run = give_up(home)
    tell(
        as_json,
        {"run": run},
        f"run {run} is given up: what it charged stays spent, what it did not use is free again; next: gdpfed flower "
        f"plan",
        "nodes that took part keep its whole plan charged in their own ledgers: they cannot know that it ended",
    )


@flower_app.command("pin")
def pin_enrolment(
    home: NodeHomePath,
    enrolment: Annotated[Path, Argument(help="The enrolment.json that the operator sent.")],
    expect: Annotated[str | None, Option("--hash", help="The hash that the operator told; another is refused.")] = None,
    renew: Annotated[bool, Option("--renew", help="Pin another list or server than before.")] = False,
    as_json: options.Json = False,
) -> None:
    """Pin the server's key and the list of clients on a node: from now on it answers to nobody else."""
    from gdpfed.flower.node.node_home import pin
    from gdpfed.flower.shared.enrolment import enrolment_from_json

    if not enrolment.is_file():
        raise InputError(f"expected the operator's enrolment.json, got {str(enrolment)!r}, which is not there")
    digest = enrolment_from_json(enrolment.read_bytes()).digest.hex()
    if expect is not None and expect.strip().lower() != digest:
        raise PrivacyError(
            f"expected the enrolment with hash {expect}, got {digest}: ask the operator, and do not pin it"
        )
    pinned = pin(home, enrolment, renew=renew)
    server = pinned.server.hex()
    lines = [f"pinned: {len(pinned.clients)} clients, server {server}, hash {digest}"]
    if expect is None:
        lines.append("compare the hash with the operator's, by another channel than this file's")
    tell(as_json, {"clients": len(pinned.clients), "server": server, "hash": digest}, *lines)
