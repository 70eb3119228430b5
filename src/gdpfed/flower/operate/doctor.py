"""What is wrong with a deployment, before it runs: each finding says what to do.

Place: operations, over homes, certificates and `connection`. It reads, connects as a node would, and changes nothing.

Guarantees (tests of the same name):
  a_healthy_home_has_no_problems   of a server and of a node, before and while they run.
  every_problem_says_what_to_do    expired or foreign certificates, hashes, ports, versions, clock, disk, spent budgets.
  an_exposed_superlink_is_found    on another address than loopback, or behind a gate that lets too much through.
"""

import datetime
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import numpy as np

from gdpfed import __version__
from gdpfed.errors import GdpfedError, MissingExtraError
from gdpfed.flower.node.node_home import NodeHome
from gdpfed.flower.node.own_ledger import OwnLedger
from gdpfed.flower.operate.connection import Reached, address, is_loopback, listeners, reach
from gdpfed.flower.operate.status import home_at
from gdpfed.flower.server.server_home import POPULATION, ServerHome
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.status import run_status
from gdpfed.planning.people import assign
from gdpfed.privacy.rounding import allowance, rounded_up
from gdpfed.runs.folder import is_finished
from gdpfed.runs.ledgered import check_link
from gdpfed.runs.link import LedgerLink

try:
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes, serialization
except ModuleNotFoundError:
    raise MissingExtraError(package="cryptography", extra="flower", purpose="looking at certificates") from None

__all__ = ["Finding", "examine"]

Level = Literal["fine", "note", "problem"]
_SOON_DAYS = 30
_LEAST_BYTES = 1 << 30
_MOST_SKEW_SECONDS = 60.0
_NODE_PORT = 9094
_NOT_FOUND, _OK, _BAD_GATEWAY = 404, 200, 502


@dataclass(frozen=True, kw_only=True)
class Finding:
    """About ``what``; ``advice`` says what to do, and is empty where nothing is."""

    what: str
    level: Level
    text: str
    advice: str = ""


def examine(
    path: Path | None, *, superlink: str | None = None, inner: str = "127.0.0.1:9093", authority: Path | None = None
) -> list[Finding]:
    """All findings about this machine and, if given, a home.

    ``superlink`` is where nodes connect to, ``inner`` the SuperLink itself on the server, ``authority`` the operator's
    certificate on a node (default: ca.crt in its home).
    """
    found = [*_versions(), *_disk(path or Path())]
    if path is None:
        return found
    home = home_at(path)
    found += _clock(home.path)
    if isinstance(home, ServerHome):
        found += _server(home, superlink=superlink, inner=inner)
    else:
        found += _node(home, superlink=superlink, authority=authority or home.path / "ca.crt")
    return found


# the machine


def _versions() -> Iterator[Finding]:
    from gdpfed.flower.shared.leaning import KNOWN, broken_assumptions

    try:
        flower = metadata.version("flwr")
    except metadata.PackageNotFoundError:
        yield Finding(what="versions", level="problem", text="flwr is missing", advice="pip install 'gdpfed[flower]'")
        return
    text = f"gdpfed {__version__}, flwr {flower}"
    if broken := broken_assumptions():
        advice = f"install flwr {KNOWN}x everywhere, or start flower-supernode in place of gdpfed-supernode"
        yield Finding(what="versions", level="note", text=f"{text}: {'; '.join(broken)}", advice=advice)
    else:
        yield Finding(what="versions", level="fine", text=f"{text}; peers need the same minor version of flwr")


def _disk(folder: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(folder if folder.exists() else Path()).free
    text = f"{free / 1e9:.1f} GB free where {str(folder)!r} is"
    if free < _LEAST_BYTES:
        advice = "make room: a ledger that cannot be written stops the run"
        yield Finding(what="disk", level="problem", text=text, advice=advice)
    else:
        yield Finding(what="disk", level="fine", text=text)


def _clock(folder: Path) -> Iterator[Finding]:
    """A file from the future: the clock was put back, or is wrong."""
    newest = max((entry.stat().st_mtime for entry in folder.iterdir() if entry.is_file()), default=0.0)
    ahead = newest - time.time()
    if ahead > _MOST_SKEW_SECONDS:
        text = f"a file of {str(folder)!r} was written {ahead:.0f} s in the future"
        yield Finding(what="clock", level="problem", text=text, advice="set the clock (NTP)")


# the server


def _server(home: ServerHome, *, superlink: str | None, inner: str) -> Iterator[Finding]:
    yield from _certificates(home.path / "certificates", superlink)
    yield from _enrolment_and_plan(home)
    yield from _inner_port(inner)
    where = superlink or "127.0.0.1:9092"
    reached = reach(where, home.path / "certificates" / "ca.crt")
    yield from _reachable(where, reached, is_needed=superlink is not None)


def _certificates(folder: Path, superlink: str | None) -> Iterator[Finding]:
    try:
        authority, server = (
            x509.load_pem_x509_certificate((folder / name).read_bytes()) for name in ("ca.crt", "server.crt")
        )
        key = serialization.load_pem_private_key((folder / "server.key").read_bytes(), password=None)
    except (OSError, ValueError) as error:
        yield Finding(
            what="certificates",
            level="problem",
            text=f"ca.crt, server.crt or server.key in {str(folder)!r} is missing or damaged ({type(error).__name__})",
            advice="restore them, or make new ones: gdpfed flower certificate HOME --host ...",
        )
        return
    try:
        server.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        yield Finding(
            what="certificates",
            level="problem",
            text="server.crt is not by the authority in ca.crt: every node would refuse it",
            advice="bring the ca.crt and ca.key back that nodes have, then gdpfed flower certificate HOME --host ...",
        )
    layout = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    if server.public_key().public_bytes(*layout) != key.public_key().public_bytes(*layout):
        advice = "restore the pair, or gdpfed flower certificate HOME --host ..."
        yield Finding(what="certificates", level="problem", text="server.key is not of server.crt", advice=advice)
    for name, certificate in (("server.crt", server), ("ca.crt", authority)):
        yield _expiry(name, certificate)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    hosts = [str(one.value) for one in names]
    asked = None if superlink is None else address(superlink)[0]
    if asked is not None and asked not in hosts:
        advice = f"gdpfed flower certificate HOME --host {asked}"
        text = f"server.crt is for {', '.join(hosts)}, nodes connect to {asked}"
        yield Finding(what="certificates", level="problem", text=text, advice=advice)
    fingerprint = authority.fingerprint(hashes.SHA256()).hex()
    text = f"server.crt is for {', '.join(hosts)}; authority's SHA-256 {fingerprint}"
    yield Finding(what="certificates", level="fine", text=text)
    if (folder / "ca.key").exists():
        advice = "keep it elsewhere between renewals"
        yield Finding(what="certificates", level="note", text="ca.key lies on the server", advice=advice)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _expiry(name: str, certificate: x509.Certificate) -> Finding:
    now = _now()
    days = (certificate.not_valid_after_utc - now).days
    renew = "gdpfed flower certificate HOME --host ..., then restart SuperLink and gate"
    if name == "ca.crt":
        renew = "make a new server home, and let every node have its ca.crt"
    if certificate.not_valid_before_utc > now:
        text = f"{name} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M}Z on: this clock is behind"
        return Finding(what="certificates", level="problem", text=text, advice="set the clock")
    if days < 0:
        return Finding(what="certificates", level="problem", text=f"{name} expired {-days} days ago", advice=renew)
    level: Level = "note" if days < _SOON_DAYS else "fine"
    text = f"{name} holds for {days} days"
    return Finding(what="certificates", level=level, text=text, advice=renew if level == "note" else "")


def _enrolment_and_plan(home: ServerHome) -> Iterator[Finding]:
    try:
        enrolment = home.enrolment
        text = f"{len(enrolment.clients)} clients, hash {enrolment.digest.hex()}"
        yield Finding(what="enrolment", level="fine", text=text)
        name, plan = home.run_name, home.plan
    except GdpfedError as error:
        yield Finding(
            what="enrolment", level="problem", text=str(error), advice="gdpfed flower enrol, gdpfed flower plan"
        )
        return
    if is_finished(home.run_path):
        yield Finding(
            what="plan", level="note", text=f"run {name} is finished", advice="gdpfed flower plan for another"
        )
        return
    yield Finding(what="plan", level="fine", text=f"run {name}: the plan holds what it promises")
    try:
        with Ledger.read(home.ledger_path) as ledger:
            joined = ledger.state.runs.get(name)
            if joined is not None:
                for group in run_status(ledger.state, joined):
                    if group.rounds_left <= 0 and group.charged < group.num_rounds:
                        text = (
                            f"{group.group} has charged {group.charged} of {group.num_rounds} rounds, and cannot pay "
                        )
                        text += "for another"
                        advice = "the others go on; gdpfed ledger status says who has spent what"
                        yield Finding(what="budgets", level="problem", text=text, advice=advice)
                return
        link = LedgerLink(path=home.ledger_path, population=POPULATION, run=name)
        order = np.arange(len(enrolment.clients))
        check_link(link, plan, enrolment.budgets, order=order, assignment=assign(plan, enrolment.budgets))
    except GdpfedError as error:
        advice = "set a plan that fits what is left: gdpfed flower plan"
        yield Finding(what="budgets", level="problem", text=str(error), advice=advice)


def _inner_port(inner: str) -> Iterator[Finding]:
    _, port = address(inner)
    found = listeners(port)
    open_to_others = sorted(where for where in found or () if not is_loopback(where))
    if open_to_others:
        yield Finding(
            what="ports",
            level="problem",
            text=f"the SuperLink's port {port} is open on {', '.join(open_to_others)}: whoever reaches it can start "
            f"runs, and so send code to every node",
            advice="start the SuperLink with --host 127.0.0.1, and gdpfed flower gate before it",
        )
    elif found:
        yield Finding(what="ports", level="fine", text=f"port {port} is open on loopback only")
    else:
        yield Finding(what="ports", level="note", text=f"nothing listens on {inner}", advice="start the SuperLink")


# a node


def _node(home: NodeHome, *, superlink: str | None, authority: Path) -> Iterator[Finding]:
    try:
        budget, _, enrolment = home.budget, home.identity, home.enrolment
    except GdpfedError as error:
        yield Finding(what="home", level="problem", text=str(error), advice="restore the file that it names")
        return
    if enrolment is None:
        advice = "gdpfed flower pin HOME enrolment.json --hash ..."
        yield Finding(what="enrolment", level="problem", text="nothing is pinned: it answers nothing", advice=advice)
    else:
        text = (
            f"pinned: {len(enrolment.clients)} clients, hash {enrolment.digest.hex()}; compare it with the operator's"
        )
        yield Finding(what="enrolment", level="fine", text=text)
        if home.announcement not in enrolment.clients:
            text = "budget.toml is not what the pinned enrolment has of this node"
            advice = "lowering epsilon is fine; anything else needs a new announcement, enrolment and pin"
            yield Finding(what="enrolment", level="note", text=text, advice=advice)
    if home.ledger_path.exists():
        try:
            with OwnLedger(home, is_snapshot=True) as ledger:
                spent = ledger.promised(budget)
        except GdpfedError as error:
            yield Finding(what="budget", level="problem", text=str(error), advice="docs/runbook.md: restored disk")
        else:
            text = f"epsilon {rounded_up(spent, 3)} of {allowance(budget.epsilon)} is spent or promised"
            is_over = not spent < budget.epsilon
            advice = "docs/runbook.md: spent budget" if is_over else ""
            yield Finding(what="budget", level="note" if is_over else "fine", text=text, advice=advice)
    yield from _node_port()
    if not authority.is_file():
        advice = "ask the operator for ca.crt, and put it there"
        text = f"there is no {str(authority)!r}: the node cannot tell the operator's SuperLink from another"
        yield Finding(what="certificates", level="problem", text=text, advice=advice)
    elif superlink is not None:
        yield from _reachable(superlink, reach(superlink, authority), is_needed=True)


def _node_port() -> Iterator[Finding]:
    if listeners(_NODE_PORT):
        yield Finding(
            what="ports",
            level="note",
            text=f"port {_NODE_PORT}, which flower-supernode takes unless told otherwise, is in use: another node?",
            advice="gdpfed-supernode takes a free one by itself; flower-supernode needs --port",
        )
    else:
        yield Finding(what="ports", level="fine", text=f"port {_NODE_PORT} is free")


# both


def _reachable(where: str, reached: Reached, *, is_needed: bool) -> Iterator[Finding]:
    if reached.problem:
        level: Level = "problem" if is_needed or reached.is_there else "note"
        yield Finding(what="connection", level=level, text=reached.problem, advice=reached.advice)
        return
    if reached.control != _NOT_FOUND:
        yield Finding(
            what="connection",
            level="problem",
            text=f"{where} lets Flower's Control API through (HTTP {reached.control}): whoever reaches it starts runs",
            advice="put gdpfed flower gate before the SuperLink, and let nobody reach it otherwise",
        )
    if reached.health == _BAD_GATEWAY:
        yield Finding(
            what="connection",
            level="problem",
            text=f"the gate at {where} does not reach its SuperLink",
            advice="start the SuperLink, or tell the gate where it is (--superlink)",
        )
    elif reached.health == _OK:
        yield Finding(what="connection", level="fine", text=f"{where} answers, by the right authority")
    skew = 0.0 if reached.clock is None else reached.clock - time.time()
    if abs(skew) > _MOST_SKEW_SECONDS:
        text = f"the clock of {where} differs from this one by {skew:.0f} s"
        yield Finding(what="clock", level="problem", text=text, advice="set both clocks (NTP)")
