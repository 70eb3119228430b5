"""Certificates and keys, checked by OpenSSL through Python's ssl, over a real connection."""

import contextlib
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest

from gdpfed.errors import InputError
from gdpfed.flower.operate.certificates import days_left, make_certificates, make_node_key, renew_certificate


def connect(certificates: Path, *, trusted: Path, name: str) -> str:
    """The subject that a client of ``name`` accepts, over loopback."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(ssl.SSLError, ConnectionError):
                server.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            client = ssl.create_default_context(cafile=str(trusted))
            with (
                socket.create_connection(listening.getsockname()) as plain,
                client.wrap_socket(plain, server_hostname=name) as connection,
            ):
                return str(connection.getpeercert())
        finally:
            thread.join()


def test_a_server_certificate_holds_for_its_hosts(tmp_path: Path) -> None:
    made = make_certificates(tmp_path / "a", hosts=["fed.example.org", "127.0.0.1"])
    for name in ("fed.example.org", "127.0.0.1"):
        assert "fed.example.org" in connect(tmp_path / "a", trusted=made, name=name)
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        connect(tmp_path / "a", trusted=made, name="other.example.org")
    other = make_certificates(tmp_path / "b", hosts=["fed.example.org"])
    with pytest.raises(ssl.SSLCertVerificationError, match="verify failed"):
        connect(tmp_path / "a", trusted=other, name="fed.example.org")


def test_private_keys_are_for_the_owner_only(tmp_path: Path) -> None:
    make_certificates(tmp_path / "certificates", hosts=["127.0.0.1"])
    make_node_key(tmp_path / "node")
    keys = sorted(tmp_path.rglob("*.key"))
    assert [key.name for key in keys] == ["ca.key", "server.key", "node.key"]
    assert all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in keys)
    assert b"PRIVATE" not in (tmp_path / "node" / "node.pub").read_bytes()


def test_certificates_are_never_written_over(tmp_path: Path) -> None:
    make_certificates(tmp_path, hosts=["127.0.0.1"])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(InputError, match="move server"):
        make_certificates(tmp_path, hosts=["127.0.0.1"])
    make_node_key(tmp_path)
    with pytest.raises(InputError, match="not written over"):
        make_node_key(tmp_path)
    assert all(path.read_bytes() == content for path, content in before.items())


def test_a_renewed_certificate_has_the_same_authority(tmp_path: Path) -> None:
    authority = make_certificates(tmp_path, hosts=["127.0.0.1"], days=2)
    assert days_left(tmp_path / "server.crt") == 1
    trusted = authority.read_bytes()
    for name in ("server.key", "server.crt"):
        (tmp_path / name).unlink()
    make_certificates(tmp_path, hosts=["127.0.0.1"])
    assert authority.read_bytes() == trusted
    assert days_left(tmp_path / "server.crt") == 364
    assert connect(tmp_path, trusted=authority, name="127.0.0.1")


def test_what_cannot_be_a_certificate_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at least one host"):
        make_certificates(tmp_path, hosts=[])
    with pytest.raises(InputError, match="host name"):
        make_certificates(tmp_path, hosts=["föd.example"])
    assert not list(tmp_path.iterdir())
    make_certificates(tmp_path, hosts=["127.0.0.1"])
    for name in ("server.key", "server.crt", "ca.key"):
        (tmp_path / name).unlink()
    with pytest.raises(InputError, match=r"bring ca\.key back"):
        make_certificates(tmp_path, hosts=["127.0.0.1"])


def test_a_failed_renewal_keeps_the_old_certificate(tmp_path: Path) -> None:
    """The authority's key is kept elsewhere, as the documentation asks; or a host is mistyped."""
    authority = make_certificates(tmp_path, hosts=["127.0.0.1"])
    before = {name: (tmp_path / name).read_bytes() for name in ("server.key", "server.crt")}
    with pytest.raises(InputError, match="expected a host name"):
        renew_certificate(tmp_path, hosts=["föderation"])
    (tmp_path / "ca.key").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match=r"bring ca\.key back"):
        renew_certificate(tmp_path, hosts=["127.0.0.1"])
    assert before == {name: (tmp_path / name).read_bytes() for name in before}
    (tmp_path / "elsewhere").rename(tmp_path / "ca.key")
    renew_certificate(tmp_path, hosts=["127.0.0.1"])
    assert (tmp_path / "server.crt").read_bytes() != before["server.crt"]
    assert connect(tmp_path, trusted=authority, name="127.0.0.1")
