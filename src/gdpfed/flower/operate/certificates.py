"""Certificates of a SuperLink and keys of SuperNodes.

Place: operations. TLS tells a node that it talks to the operator's SuperLink, and a node's key tells the SuperLink
which node talks. Neither protects a client's data from the operator: secure sums and the node's own checks do.

Guarantees (tests of the same name):
  private_keys_are_for_the_owner_only   every private key is made with mode 0600, never wider for a moment.
  certificates_are_never_written_over   a folder that has keys is refused: old nodes would be locked out.
  a_failed_renewal_keeps_the_old_certificate   without ca.key, or for a host that is none.
  a_server_certificate_holds_for_its_hosts   it is accepted for the hosts it was made for, by its authority only.
"""

import datetime
import ipaddress
from pathlib import Path

from gdpfed.errors import InputError, MissingExtraError
from gdpfed.files import write_whole

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ModuleNotFoundError:
    raise MissingExtraError(package="cryptography", extra="flower", purpose="making certificates") from None

__all__ = ["AUTHORITY", "days_left", "make_certificates", "make_node_key", "renew_certificate"]

AUTHORITY = "ca.crt"
_AUTHORITY_DAYS = 3650
_SERVER_DAYS = 365
_NEVER_USED_FOR = (
    "content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"
)  # fmt: skip
# The key of an authority and its certificate.
_Authority = tuple[ec.EllipticCurvePrivateKey, x509.Certificate]


def make_certificates(folder: Path, *, hosts: list[str], days: int = _SERVER_DAYS) -> Path:
    """Makes an authority and a server certificate for ``hosts`` (names or addresses) in ``folder``; returns ``ca.crt``.

    ``ca.crt`` goes to every node. ``ca.key`` signs the next server certificate and is best kept off the server.
    """
    if not hosts:
        raise InputError("expected at least one host that nodes connect to, got none: give its name or address")
    for host in hosts:
        _host(host)
    if days < 1:
        raise InputError(f"expected days >= 1, got days={days}")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = _authority(folder)
    if (folder / "server.key").exists():
        raise InputError(f"{str(folder)!r} has a server certificate: to renew it, move server.key and server.crt away")
    key = ec.generate_private_key(ec.SECP256R1())
    # Signed before anything is written: a host that is none leaves no key without a certificate.
    signed = _signed(hosts[0], key, authority, days=days, hosts=hosts)
    _write_key(folder / "server.key", key, serialization.PrivateFormat.PKCS8)
    (folder / "server.crt").write_bytes(signed)
    return folder / AUTHORITY


def renew_certificate(folder: Path, *, hosts: list[str]) -> None:
    """Another server certificate by the same authority; if it cannot be made, the old one stays."""
    names = [name for name in ("server.key", "server.crt") if (folder / name).exists()]
    for name in names:
        (folder / name).replace(folder / f"{name}.old")
    try:
        make_certificates(folder, hosts=hosts)
    except BaseException:
        for name in names:
            (folder / f"{name}.old").replace(folder / name)
        raise


def make_node_key(folder: Path) -> Path:
    """Makes a SuperNode's key (``node.key``) in ``folder``; returns the public one, ``node.pub``, for the operator."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP384R1())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write_key(folder / "node.key", key, serialization.PrivateFormat.OpenSSH)
    (folder / "node.pub").write_bytes(public + b"\n")
    return folder / "node.pub"


def days_left(certificate: Path) -> int:
    """Whole days for which a certificate is still valid (negative: expired)."""
    try:
        ends = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    except ValueError:
        again = "make it again, by gdpfed flower certificate --host"
        raise InputError(f"{str(certificate)!r} is damaged: {again}") from None
    return (ends - datetime.datetime.now(datetime.UTC)).days


def _authority(folder: Path) -> _Authority:
    """The folder's own; made if there is none."""
    if not (folder / AUTHORITY).exists():
        made = ec.generate_private_key(ec.SECP256R1())
        _write_key(folder / "ca.key", made, serialization.PrivateFormat.PKCS8)
        (folder / AUTHORITY).write_bytes(_signed("gdpfed deployment", made, None, days=_AUTHORITY_DAYS, hosts=[]))
    if not (folder / "ca.key").exists():
        raise InputError(f"{str(folder)!r} has {AUTHORITY} but not ca.key: bring ca.key back to sign with it")
    try:
        key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes())
    except ValueError:
        raise InputError(f"ca.key or {AUTHORITY} in {str(folder)!r} is damaged: restore them from a copy") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InputError(f"expected an elliptic-curve key in {str(folder / 'ca.key')!r}, got another kind")
    return key, certificate


def _signed(
    name: str, key: ec.EllipticCurvePrivateKey, authority: _Authority | None, *, days: int, hosts: list[str]
) -> bytes:
    """A certificate for ``key``: of a server by ``authority``, or without one an authority that signs itself."""
    is_authority = authority is None
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])
    issuer_key, issuer = (key, subject) if authority is None else (authority[0], authority[1].subject)
    now = datetime.datetime.now(datetime.UTC)
    allowed = {"digital_signature": not is_authority, "key_cert_sign": is_authority, "crl_sign": is_authority}
    usage = x509.KeyUsage(**allowed, **dict.fromkeys(_NEVER_USED_FOR, False))
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None), True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), False)
        .add_extension(usage, True)
    )
    if not is_authority:
        builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), False)
        builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
    return builder.sign(issuer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        if not host.strip():
            raise ValueError
        return x509.DNSName(host)
    except ValueError:
        raise InputError(f"expected a host name (ASCII) or an address, got {host!r}") from None


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey, layout: serialization.PrivateFormat) -> None:
    if path.exists():
        raise InputError(f"{str(path)!r} exists and is not written over: choose another folder")
    content = key.private_bytes(serialization.Encoding.PEM, layout, serialization.NoEncryption())
    write_whole(path, content, private=True, durable=True)
