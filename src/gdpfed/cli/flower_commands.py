"""`gdpfed flower`: a federation of machines on Flower; try it here, start a project, prepare server and nodes."""

import shlex
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from gdpfed.cli import options
from gdpfed.cli.show import console, print_json, rounded_up
from gdpfed.errors import InputError, PrivacyError
from gdpfed.secure.defaults import COLLUDING_FRACTION, COMPLETE_UP_TO

__all__ = ["flower_app"]

flower_app = typer.Typer(
    help="A federation of machines that do not trust each other, over Flower.", no_args_is_help=True
)

_PORT = 9092
_INNER_PORT = 9093
Home = Annotated[Path, typer.Argument(help="The server's home.")]
NodeHomePath = Annotated[Path, typer.Argument(help="The node's home.")]
CompleteUpTo = Annotated[
    int,
    typer.Option("--complete-up-to", help="In cohorts of up to so many clients everyone is everyone's neighbour."),
]


def _say(*lines: str) -> None:
    for line in lines:
        console().print(line, soft_wrap=True)


def _command(*words: object) -> str:
    return "  " + " ".join(shlex.quote(str(word)) for word in words)


@flower_app.command("up")
def up(
    nodes: Annotated[int, typer.Option("--nodes", help="SuperNodes, in three groups of budgets.")] = 6,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds of training.")] = 3,
    method: Annotated[str, typer.Option("--method", help="As in gdpfed train.")] = "gdpfed+",
    participation: Annotated[float, typer.Option("--participation", help="Mean fraction of nodes in a round.")] = 0.5,
    app: Annotated[
        Path | None, typer.Option("--app", help="A project of gdpfed flower new. Default: a new one in the folder.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Where everything goes. Default: a new temporary folder, kept.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Try it on this machine: SuperLink and SuperNodes with TLS and keys, a training, and everything down again."""
    from gdpfed.cli.flower_display import watching
    from gdpfed.flower.operate.processes import LocalFlower, need_flower
    from gdpfed.flower.operate.up import UpSettings, prepare, run

    need_flower()
    settings = UpSettings(nodes=nodes, rounds=rounds, method=method, participation=participation)
    folder = folder or Path(tempfile.mkdtemp(prefix="gdpfed-up-"))
    if not as_json:
        _say(f"{nodes} nodes on this machine, {rounds} rounds of {method}, in {folder}: making keys, homes and a plan")
    federation = prepare(folder, settings, app=app)
    with LocalFlower(folder) as deployment, watching(federation.plan, quiet=as_json) as watch:
        final = run(federation, deployment, watch)
    home = federation.home
    if as_json:
        print_json(
            {
                "folder": str(folder),
                "run": str(home.run_path),
                "ledger": str(home.ledger_path),
                "logs": str(deployment.logs),
                "rounds": final.rounds_done,
                "accuracy": final.accuracy,
                "epsilons": [final.groups[number].epsilon for number in sorted(final.groups)],
                "given_up": sum(group.given_up for group in final.groups.values()),
            }
        )
        return
    spent = " ".join(rounded_up(group.epsilon, 3) for _, group in sorted(final.groups.items()) if group.epsilon)
    accuracy = "" if final.accuracy is None else f"accuracy {final.accuracy:.2f} % on public data, "
    _say(
        f"done, and everything is down again: {accuracy}epsilon (release) {spent}",
        "so few clients cannot hide one among many: the noise is large, and the model is only a demonstration",
        f"logs are in {deployment.logs} and {home.path / 'server.log'}; try next:",
        _command("gdpfed", "show", home.run_path),
        _command("gdpfed", "report", home.run_path),
        _command("gdpfed", "ledger", "status", home.ledger_path),
        _command("gdpfed", "flower", "new", "my-federation"),
    )


@flower_app.command("new")
def new(
    folder: Annotated[Path, typer.Argument(help="A new folder; its name becomes the project's.")],
) -> None:
    """Write a small project to start from: server, client, task, pyproject.toml, README."""
    from gdpfed.flower.operate.project import write_project

    for path in write_project(folder):
        _say(f"wrote {path}")
    _say(
        "put your model and data into task.py; try it on this machine:",
        _command("gdpfed", "flower", "up", "--app", folder),
    )


@flower_app.command("init")
def init(
    home: Annotated[Path, typer.Argument(help="A new folder on the server.")],
    host: Annotated[list[str], typer.Option("--host", help="A name or address that nodes connect to; repeat it.")],
    dropout: Annotated[
        float, typer.Option("--dropout", help="Fraction of a cohort that may vanish in the middle of a round.")
    ] = 0.1,
    colluders: Annotated[
        float,
        typer.Option(
            "--colluders", help="Fraction of every cohort that may tell the server all they know; it picks cohorts."
        ),
    ] = COLLUDING_FRACTION,
    complete_up_to: CompleteUpTo = COMPLETE_UP_TO,
) -> None:
    """Make the server's home: its identity, settings, and certificates."""
    from gdpfed.flower.operate.certificates import make_certificates
    from gdpfed.flower.server.deployment_settings import DeploymentSettings
    from gdpfed.flower.server.server_home import make_server_home

    settings = DeploymentSettings(dropout_rate=dropout, colluding_fraction=colluders, complete_up_to=complete_up_to)
    made = make_server_home(home, settings=settings)
    # The gate speaks to the SuperLink under this address.
    authority = make_certificates(home / "certificates", hosts=list(dict.fromkeys([*host, "127.0.0.1"])))
    folder = authority.parent
    _say(
        f"{made.path}: keep a copy of server.key and certificates/ca.key elsewhere",
        f"send {authority} to every client; start the SuperLink where only this machine reaches it, and the gate:",
        _command(
            "flower-superlink", "--host", "127.0.0.1", "--port", _INNER_PORT, "--enable-supernode-auth",
            "--ssl-ca-certfile", authority, "--ssl-certfile", folder / "server.crt",
            "--ssl-keyfile", folder / "server.key", "--database", home / "superlink.db",
            "--disable-runtime-dependency-installation",
        ),
        _command("gdpfed", "flower", "gate", home, "--listen", f"{host[0]}:{_PORT}"),
        "clients make their homes with gdpfed flower node; then: gdpfed flower enrol",
    )  # fmt: skip


@flower_app.command("gate")
def gate(
    home: Home,
    listen: Annotated[str, typer.Option("--listen", help="HOST:PORT that nodes connect to.")],
    superlink: Annotated[
        str, typer.Option("--superlink", help="HOST:PORT of the SuperLink.")
    ] = f"127.0.0.1:{_INNER_PORT}",
) -> None:
    """Let nodes in to the SuperLink, and nobody else: without it whoever reaches its port can start runs."""
    from gdpfed.flower.operate.gate import serve_gate

    serve_gate(home / "certificates", listen=listen, superlink=superlink)


@flower_app.command("certificate")
def certificate(
    home: Home,
    host: Annotated[
        list[str] | None, typer.Option("--host", help="Make a new certificate for these hosts, by the same authority.")
    ] = None,
) -> None:
    """How long the server's certificate holds, or, with --host, a new one."""
    from gdpfed.flower.operate.certificates import days_left, renew_certificate

    folder = home / "certificates"
    if not (folder / "ca.crt").is_file():
        raise InputError(f"expected certificates in {str(folder)!r}: make a server's home with gdpfed flower init")
    if host:
        renew_certificate(folder, hosts=list(dict.fromkeys([*host, "127.0.0.1"])))
        _say("made a new certificate: restart the SuperLink and the gate; nodes trust the same authority as before")
    if (folder / "server.crt").is_file():
        _say(f"{folder / 'server.crt'} holds for {days_left(folder / 'server.crt')} days")
    _say(f"{folder / 'ca.crt'} holds for {days_left(folder / 'ca.crt')} days")


@flower_app.command("node")
def node(
    home: Annotated[Path, typer.Argument(help="A new folder on the client's machine.")],
    epsilon: Annotated[float, typer.Option("--epsilon", help="The most that the released models may ever cost.")],
    delta: Annotated[float, typer.Option("--delta", help="The failure probability that goes with it.")],
    name: Annotated[str | None, typer.Option("--name", help="As others will see it. Default: the folder's.")] = None,
    epsilon_server: Annotated[
        float | None,
        typer.Option(
            "--epsilon-server",
            help="The most that the server itself may ever learn. Default: ten times --epsilon, 10 at least.",
        ),
    ] = None,
    colluders: Annotated[
        float,
        typer.Option("--colluders", help="Refuse runs whose noise is sized for a smaller colluding fraction."),
    ] = COLLUDING_FRACTION,
    complete_up_to: CompleteUpTo = COMPLETE_UP_TO,
    superlink: Annotated[
        str, typer.Option("--superlink", help="HOST:PORT of the operator's SuperLink, for the command to print.")
    ] = f"HOST:{_PORT}",
) -> None:
    """Make a node's home: its own budget, identity, and key; and what the operator needs of it."""
    from gdpfed.flower.node.node_home import make_node_home
    from gdpfed.flower.operate.certificates import make_node_key

    announcement = make_node_home(
        home,
        epsilon=epsilon,
        delta=delta,
        name=name,
        epsilon_server=epsilon_server,
        colluding_fraction=colluders,
        complete_up_to=complete_up_to,
    )
    public = make_node_key(home)
    path = home / "announcement.json"
    path.write_text(announcement, encoding="utf-8")
    absolute = home.absolute()
    _say(
        f"send {path} and {public} to the operator; nothing in them is secret",
        "when the enrolment has come back: gdpfed flower pin; then start the SuperNode with:",
        _command(
            "flower-supernode", "--superlink", superlink, "--root-certificates", "ca.crt",
            "--auth-supernode-private-key", home / "node.key",
            "--node-config", f'gdpfed-home="{absolute}" data="{absolute / "data.npz"}"',
        ),
    )  # fmt: skip


@flower_app.command("enrol")
def enrol_clients(
    home: Home,
    announcements: Annotated[list[Path], typer.Argument(help="What clients sent: announcement.json files.")],
    as_json: options.Json = False,
) -> None:
    """Put clients on the list of the federation, sign it, and make them known to the ledger."""
    from gdpfed.flower.operate.between_runs import enrol

    made = enrol(home, announcements)
    if as_json:
        print_json({"enrolment": str(home / "enrolment.json"), "clients": len(made.clients), "hash": made.digest.hex()})
        return
    _say(
        f"{len(made.clients)} clients, hash {made.digest.hex()}",
        f"send {home / 'enrolment.json'} to every client, and tell them the hash on another way (gdpfed flower pin)",
        "register every node's key with the SuperLink: flwr supernode register node.pub; next: gdpfed flower plan",
    )


@flower_app.command("plan")
def plan_run(
    home: Home,
    file: Annotated[Path | None, typer.Option("--file", help="A plan of gdpfed plan, instead of making one.")] = None,
    method: options.Method = None,
    rounds: options.Rounds = None,
    participation: options.Participation = None,
    clip_norm: options.ClipNorm = None,
    accountant: options.Accountant = None,
    max_participations: options.MaxParticipations = None,
    server_learning_rate: options.ServerLearningRate = None,
) -> None:
    """Make a plan for the enrolled clients, and name a new run by it."""
    from gdpfed.cli.show import print_plan
    from gdpfed.flower.operate.between_runs import set_plan
    from gdpfed.flower.server.server_home import ServerHome
    from gdpfed.planning.methods import make_plan
    from gdpfed.planning.plan_file import load_plan
    from gdpfed.planning.settings import PlanSettings

    asked = {
        "method": method,
        "num_rounds": rounds,
        "participation": participation,
        "clip_norm": clip_norm,
        "accountant": accountant,
        "max_participations": max_participations,
        "server_learning_rate": server_learning_rate,
    }
    if file is not None and any(value is not None for value in asked.values()):
        raise InputError("expected either --file or settings for a new plan, got both")
    enrolled = ServerHome(home).enrolment.budgets
    made = load_plan(file) if file is not None else make_plan(enrolled, options.stated(PlanSettings(), asked))
    run = set_plan(home, made)
    print_plan(made, title=f"run {run}")
    _say(
        "start it, or go on with it after a crash, from the project's folder:",
        _command("flwr", "run", ".", "SUPERLINK", "--run-config", f'gdpfed-home="{home.absolute()}"'),
    )


@flower_app.command("give-up")
def give_up_run(home: Home) -> None:
    """End a run that will not go on: close it in the ledger, and move its folder aside."""
    from gdpfed.flower.operate.between_runs import give_up

    run = give_up(home)
    _say(
        f"run {run} is given up: what it charged stays spent, what it did not use is free again; next: gdpfed flower "
        f"plan",
        "nodes that took part keep its whole plan charged in their own ledgers: they cannot know that it ended",
    )


@flower_app.command("pin")
def pin_enrolment(
    home: NodeHomePath,
    enrolment: Annotated[Path, typer.Argument(help="The enrolment.json that the operator sent.")],
    expect: Annotated[
        str | None, typer.Option("--hash", help="The hash that the operator told; refused if it is another.")
    ] = None,
    renew: Annotated[bool, typer.Option("--renew", help="Pin another list or server than before.")] = False,
) -> None:
    """Pin the server's key and the list of clients on a node: from now on it answers to nobody else."""
    from gdpfed.flower.node.node_home import pin
    from gdpfed.flower.shared.enrolment import enrolment_from_json

    if not enrolment.is_file():
        raise InputError(f"expected the operator's enrolment.json, got {str(enrolment)!r}, which is not there")
    found = enrolment_from_json(enrolment.read_bytes()).digest.hex()
    if expect is not None and expect.strip().lower() != found:
        raise PrivacyError(
            f"expected the enrolment with hash {expect}, got {found}: ask the operator, and do not pin it"
        )
    made = pin(home, enrolment, renew=renew)
    _say(f"pinned: {len(made.clients)} clients, server {made.server.hex()}, hash {found}")
    if expect is None:
        _say("compare the hash with the operator's on another way than this file came")
