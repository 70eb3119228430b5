"""Files by which a machine keeps a server's or a node's programs running: systemd units, a Containerfile, compose.

Place: operations; `gdpfed flower init` and `node` write them into the home on request. The commands in them are those
that these two print. Each program runs as the owner of the home, may write there only, and is started again when it
ends.

Guarantees (tests of the same name):
  units_are_valid            systemd-analyze accepts them, also with spaces and signs in paths.
  compose_files_are_valid    one home, one image, the SuperLink's port open to nobody.
"""

import os
import pwd
import re
import string
import sysconfig
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from gdpfed import __version__
from gdpfed.files import write_whole

__all__ = ["node_command", "superlink_command", "write_containers", "write_units"]

# Nothing is fetched or reported, and a log is JSON.
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "GDPFED_FLOWER_LOG": "json",
    "PYTHONUNBUFFERED": "1",
}
_IN_CONTAINER = Path("/home/gdpfed/home")


def superlink_command(home: Path, *, port: int) -> list[str]:
    """Starts the SuperLink where only this machine reaches it."""
    folder = home / "certificates"
    return [
        "flower-superlink", "--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth",
        "--ssl-ca-certfile", str(folder / "ca.crt"), "--ssl-certfile", str(folder / "server.crt"),
        "--ssl-keyfile", str(folder / "server.key"), "--database", str(home / "superlink.db"),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip


def node_command(home: Path, *, superlink: str) -> list[str]:
    """Starts a SuperNode that is kept warm; the operator's ca.crt is in the node's home."""
    return [
        "gdpfed-supernode", "--superlink", superlink, "--root-certificates", str(home / "ca.crt"),
        "--auth-supernode-private-key", str(home / "node.key"),
        "--node-config", f'gdpfed-home="{home}" data="{home / "data.npz"}"',
    ]  # fmt: skip


def write_units(home: Path, commands: Mapping[str, Sequence[str]]) -> list[Path]:
    """One unit for each command, by name, in ``home/systemd``; returns the files."""
    home = home.absolute()
    template = string.Template(_template("unit.service.txt"))
    scripts = Path(sysconfig.get_path("scripts"))
    written = []
    for name, command in commands.items():
        words = [str(scripts / command[0]), *command[1:]]
        # The SuperLink, and the ServerApp that it starts, need no other machine; the gate and nodes do.
        is_inner = command[0] == "flower-superlink"
        text = template.substitute(
            name=name,
            command=" ".join(map(_word, words)),
            user=pwd.getpwuid(home.stat().st_uid).pw_name,
            home=f'"{_escaped(str(home))}"',
            folder=str(home).replace("%", "%%"),
            network="IPAddressDeny=any\nIPAddressAllow=localhost\n" if is_inner else "",
            environment="\n".join(f'Environment="{key}={value}"' for key, value in _environment(home, scripts).items()),
        )
        written.append(_written(home / "systemd" / f"gdpfed-{_unit_name(name)}.service", text))
    return written


def write_containers(home: Path, services: Mapping[str, Sequence[str]], *, port: int | None = None) -> list[Path]:
    """A Containerfile, requirements.txt and compose.yaml in ``home/container``; returns the files.

    ``services`` are commands by name, whose paths in ``home`` become those in the container. The first owns the
    network, in which the others live, and ``port`` of it is published.
    """
    home = home.absolute()
    owner = home.stat()
    first, *_ = services
    parts = []
    for name, command in services.items():
        words = [word.replace(str(home), str(_IN_CONTAINER)) for word in command]
        lines = [f"  {_unit_name(name)}:", "    <<: *gdpfed", f"    command: {_flow(words)}"]
        if name == first and port is not None:
            lines += ["    ports:", f'      - "{port}:{port}"']
        if name != first:
            lines += [f'    network_mode: "service:{_unit_name(first)}"', f"    depends_on: [{_unit_name(first)}]"]
        parts.append("\n".join(lines))
    environment = {**ENVIRONMENT, "FLWR_HOME": str(_IN_CONTAINER / "flower")}
    compose = string.Template(_template("compose.yaml.txt")).substitute(
        user=f"{owner.st_uid}:{owner.st_gid}",
        home=_quoted(f"{home}:{_IN_CONTAINER}"),
        environment="\n".join(f"    {key}: {_quoted(value)}" for key, value in environment.items()),
        services="\n".join(parts),
    )
    folder = home / "container"
    return [
        _written(folder / "Containerfile", _template("Containerfile.txt")),
        _written(folder / "requirements.txt", f"gdpfed[flower]=={__version__}\n"),
        _written(folder / "compose.yaml", compose),
    ]


def _environment(home: Path, scripts: Path) -> dict[str, str]:
    path = os.pathsep.join([str(scripts), "/usr/local/bin", "/usr/bin", "/bin"])
    stated = {**ENVIRONMENT, "FLWR_HOME": f"{home}/flower", "PATH": path}
    return {name: _escaped(value) for name, value in stated.items()}


def _written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_whole(path, text.encode())
    return path


def _template(name: str) -> str:
    return resources.files("gdpfed.flower.operate").joinpath("template", name).read_text(encoding="utf-8")


def _unit_name(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-.") or "node"


def _escaped(text: str) -> str:
    """For systemd: within double quotes; a percent sign begins a specifier."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")


def _word(text: str) -> str:
    """A word of a systemd command line, in which a dollar sign begins a variable, too."""
    is_plain = re.fullmatch(r"[A-Za-z0-9_@:,./=+-]+", text) is not None
    return text if is_plain else f'"{_escaped(text).replace("$", "$$")}"'


def _quoted(text: str) -> str:
    """For YAML and compose, which replaces what follows a dollar sign."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$") + '"'


def _flow(words: Sequence[str]) -> str:
    return "[" + ", ".join(_quoted(word) for word in words) + "]"
