"""What answers at an address: is it there, by which authority, what time does it have, and what does it let through?

Place: operations, under `doctor`. Connects as a node does, with the operator's authority and no other.

Guarantees (tests of the same name):
  a_wrong_authority_is_explained   and an old certificate, another host's, a closed port, a name that is none.
  listeners_are_found              by the kernel's list: on which addresses something accepts connections on a port.
"""

import email.utils
import http.client
import ipaddress
import socket
import ssl
import struct
from dataclasses import dataclass
from pathlib import Path

from gdpfed.errors import InputError
from gdpfed.flower.shared.leaning import CONTROL_PATH

__all__ = ["Reached", "address", "is_loopback", "listeners", "reach"]

_SECONDS = 5.0
# OpenSSL's numbers of what is wrong with a certificate.
_EXPIRED, _NOT_YET, _HOST, _ADDRESS = 10, 9, 62, 64


@dataclass(frozen=True, kw_only=True)
class Reached:
    """``problem`` is empty if a trusted connection was made; then ``health`` and ``control`` are HTTP statuses.

    ``control``: of Flower's Control API, which nobody but the operator's own machine may reach. ``clock``: the other
    side's time, in seconds since 1970.
    """

    problem: str = ""
    advice: str = ""
    is_there: bool = True
    health: int | None = None
    control: int | None = None
    clock: float | None = None


def address(text: str) -> tuple[str, int]:
    """HOST:PORT in its parts."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise InputError(f"expected HOST:PORT, got {text!r}")
    return host.strip("[]"), int(port)


def reach(where: str, authority: Path) -> Reached:
    """Connects to HOST:PORT by TLS, trusting ``authority`` alone, and asks for two paths."""
    host, port = address(where)
    try:
        context = ssl.create_default_context(cafile=str(authority))
    except (OSError, ssl.SSLError):
        return Reached(problem=f"{str(authority)!r} is no certificate", advice="ask the operator for ca.crt again")
    try:
        health, date = _asked(host, port, context, "GET", "/health")
        control, _ = _asked(host, port, context, "POST", CONTROL_PATH)
    except ssl.SSLCertVerificationError as error:
        return _distrusted(where, authority, error)
    except ssl.SSLError as error:
        return Reached(
            problem=f"{where} does not speak TLS ({error.reason})",
            advice="start the SuperLink with its certificate, as gdpfed flower init prints it",
        )
    except socket.gaierror:
        return Reached(problem=f"no machine is called {host!r}", advice="check the name", is_there=False)
    except (OSError, http.client.HTTPException) as error:
        return Reached(
            problem=f"nothing answers at {where} ({type(error).__name__})",
            advice="start the SuperLink and the gate, and let the firewall pass that port",
            is_there=False,
        )
    return Reached(health=health, control=control, clock=date)


def _asked(host: str, port: int, context: ssl.SSLContext, method: str, path: str) -> tuple[int, float | None]:
    connection = http.client.HTTPSConnection(host, port, timeout=_SECONDS, context=context)
    try:
        connection.request(method, path, body=b"")
        response = connection.getresponse()
        response.read(1 << 16)
        stated = response.getheader("date")
        return response.status, email.utils.parsedate_to_datetime(stated).timestamp() if stated else None
    finally:
        connection.close()


def _distrusted(where: str, authority: Path, error: ssl.SSLCertVerificationError) -> Reached:
    if error.verify_code == _EXPIRED:
        return Reached(
            problem=f"the certificate of {where} has expired, or this machine's clock is ahead",
            advice="compare the clocks; the operator renews it: gdpfed flower certificate HOME --host ...",
        )
    if error.verify_code == _NOT_YET:
        return Reached(
            problem=f"the certificate of {where} is not valid yet: this machine's clock is behind",
            advice="set the clock",
        )
    if error.verify_code in (_HOST, _ADDRESS):
        return Reached(
            problem=f"the certificate of {where} is for other hosts",
            advice="connect by a name that it has, or the operator makes one for this: gdpfed flower certificate HOME "
            "--host ...",
        )
    return Reached(
        problem=f"the certificate of {where} is not by the authority in {str(authority)!r}: another server answers, or "
        f"the operator has made a new authority",
        advice="ask the operator for ca.crt and its fingerprint by another way; trust no other until they agree",
    )


def listeners(port: int) -> set[str] | None:
    """The local addresses on which something listens on a port; None where the kernel does not say."""
    found: set[str] = set()
    for name in ("tcp", "tcp6"):
        try:
            rows = Path(f"/proc/net/{name}").read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            if name == "tcp":
                return None
            continue
        for row in rows:
            words = row.split()
            where, _, number = words[1].partition(":")
            if words[3] == "0A" and int(number, 16) == port:
                found.add(str(_readable(bytes.fromhex(where))))
    return found


def _readable(raw: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """The kernel prints words of four bytes in the machine's order."""
    words = struct.unpack(f"={len(raw) // 4}I", raw)
    return ipaddress.ip_address(struct.pack(f">{len(words)}I", *words))


def is_loopback(where: str) -> bool:
    """Whether only this machine reaches an address."""
    found = ipaddress.ip_address(where)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
