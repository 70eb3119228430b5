"""The doctor, on homes that are sound and on homes with something wrong; connections on loopback."""

import datetime
import json
import os
import shutil
import socket
import ssl
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gdpfed.cli import main
from gdpfed.flower.operate import doctor
from gdpfed.flower.operate.certificates import make_certificates
from gdpfed.flower.operate.connection import Reached, is_loopback, listeners, reach
from gdpfed.flower.operate.doctor import Finding, examine
from gdpfed.flower.operate.processes import free_ports
from gdpfed.flower.shared import leaning
from gdpfed.ledger.book import Ledger
from tests.flower.federations import Federation

pytestmark = pytest.mark.training


@pytest.fixture
def federation(tmp_path: Path) -> Federation:
    made = Federation(tmp_path, sizes=(2, 2), epsilons=(1.0, 4.0), participation=1.0, rounds=1)
    authority = make_certificates(made.home.path / "certificates", hosts=["127.0.0.1"])
    for number in made.numbers:
        shutil.copy(authority, made.node_path(number) / "ca.crt")
    return made


def seen(path: Path | None, **options: str) -> list[Finding]:
    """With ports on which nothing listens, whatever runs on this machine."""
    inner, outer = free_ports(2)
    found = examine(path, inner=f"127.0.0.1:{inner}", **{"superlink": None, **options})
    del outer
    return found


def problems(path: Path | None, **options: str) -> dict[str, str]:
    found = [finding for finding in seen(path, **options) if finding.level == "problem"]
    assert all(finding.advice for finding in found), found
    return {finding.what: finding.text for finding in found}


def test_a_healthy_home_has_no_problems(federation: Federation) -> None:
    node = federation.node_path(0)
    for path in (None, federation.home.path, node):
        assert problems(path) == {}
    said = {finding.what for finding in seen(federation.home.path)}
    assert said >= {"versions", "disk", "certificates", "enrolment", "plan", "ports", "connection"}
    federation.serve()
    for path in (federation.home.path, node):
        assert problems(path) == {}
    # What is left of a budget that one plan took whole is worth a word, not an alarm.
    (budget,) = [finding for finding in seen(node) if finding.what == "budget"]
    assert "is spent or promised" in budget.text


def test_every_problem_says_what_to_do(federation: Federation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, node = federation.home.path, federation.node_path(0)
    folder = home / "certificates"
    assert "nodes connect to fed.example.org" in problems(home, superlink="fed.example.org:9092")["certificates"]
    # Two years later.
    later = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=730)
    with monkeypatch.context() as patch:
        patch.setattr(doctor, "_now", lambda: later)
        assert "server.crt expired" in problems(home)["certificates"]
    # Another authority's certificate, and one that is damaged.
    other = make_certificates(tmp_path / "other", hosts=["127.0.0.1"])
    kept = (folder / "ca.crt").read_bytes()
    (folder / "ca.crt").write_bytes(other.read_bytes())
    assert "is not by the authority in ca.crt" in problems(home)["certificates"]
    (folder / "ca.crt").write_bytes(b"nothing")
    assert "missing or damaged" in problems(home)["certificates"]
    (folder / "ca.crt").write_bytes(kept)
    (folder / "server.key").write_bytes((other.parent / "server.key").read_bytes())
    assert problems(home)["certificates"] == "server.key is not of server.crt"
    # A plan that was changed by hand, and one that does not fit what is left.
    with Ledger.open(federation.home.ledger_path) as ledger:
        ledger.tighten("clients", ["0"], epsilon=0.2)
    assert "budgets" in problems(home)
    plan = home / "plan.toml"
    plan.write_text(plan.read_text() + "\n")
    assert "expected the plan of run" in problems(home)["enrolment"]
    # The machine.
    with monkeypatch.context() as patch:
        patch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
        assert "0.0 GB free" in problems(None)["disk"]
    with monkeypatch.context() as patch:
        patch.setattr(leaning, "KNOWN", "1.40.")
        patch.setattr(leaning.metadata, "version", lambda _: "1.42.0")
        (versions,) = [finding for finding in seen(None) if finding.what == "versions"]
        assert versions.level == "note"
        assert "node/warm.py needs it" in versions.text
    os.utime(node / "budget.toml", (time.time() + 9999, time.time() + 9999))
    assert "in the future" in problems(node)["clock"]
    # A node without its authority, and without a pin.
    (node / "ca.crt").unlink()
    for name in ("enrolment.json", "enrolment.sha256", "server.pub"):
        (node / name).unlink()
    assert set(problems(node)) == {"clock", "certificates", "enrolment"}


def test_an_exposed_port_is_found(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "listeners", lambda _: {"127.0.0.1", "0.0.0.0"})  # noqa: S104 - nothing is opened
    assert "is open on 0.0.0.0: whoever reaches it can start runs" in problems(federation.home.path)["ports"]
    monkeypatch.setattr(doctor, "listeners", lambda _: {"127.0.0.1"})
    assert "ports" not in problems(federation.home.path)


def test_clocks_are_compared() -> None:
    ahead = Reached(health=200, control=404, clock=time.time() + 600)
    assert [one.what for one in doctor._reachable("a:1", ahead, is_needed=True) if one.level == "problem"] == ["clock"]


def test_listeners_are_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        assert listeners(port) == {"127.0.0.1"}
    assert listeners(port) == set()
    assert [is_loopback(where) for where in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0", "::")] == [  # noqa: S104
        True, True, True, False, False,
    ]  # fmt: skip


def test_a_wrong_authority_is_explained(tmp_path: Path) -> None:
    ours = make_certificates(tmp_path / "ours", hosts=["localhost"])
    theirs = make_certificates(tmp_path / "theirs", hosts=["127.0.0.1"])

    def served(folder: Path) -> int:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        listening = socket.create_server(("127.0.0.1", 0))

        def serve() -> None:
            try:
                connection, _ = listening.accept()
                context.wrap_socket(connection, server_side=True).close()
            except OSError:
                pass
            finally:
                listening.close()

        threading.Thread(target=serve, daemon=True).start()
        return int(listening.getsockname()[1])

    foreign = reach(f"127.0.0.1:{served(theirs.parent)}", ours)
    assert "is not by the authority in" in foreign.problem
    assert "fingerprint" in foreign.advice
    assert "is for other hosts" in reach(f"127.0.0.1:{served(ours.parent)}", ours).problem
    closed = reach(f"127.0.0.1:{free_ports(1)[0]}", ours)
    assert "nothing answers" in closed.problem
    assert not closed.is_there
    assert "no machine is called" in reach("nobody.invalid:1", ours).problem
    (tmp_path / "none").write_text("nothing")
    assert "is no certificate" in reach("127.0.0.1:1", tmp_path / "none").problem


def test_the_exit_code_says_it(federation: Federation, capsys: pytest.CaptureFixture[str]) -> None:
    def called(*words: object) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["flower", "doctor", *map(str, words)])
        return int(ended.value.code or 0), capsys.readouterr().out

    inner = f"127.0.0.1:{free_ports(1)[0]}"
    code, text = called(federation.home.path, "--inner", inner, "--json")
    assert (code, json.loads(text)["problems"]) == (0, 0)
    (federation.home.path / "plan.toml").unlink()
    code, text = called(federation.home.path, "--inner", inner)
    assert code == 1
    assert text.splitlines()[-2].startswith("problem  enrolment:")
