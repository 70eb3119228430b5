"""What the tests with real processes share: is anything left of a deployment, and a Flower app of a few lines."""

import contextlib
import os
import socket
import ssl
import time
from pathlib import Path

__all__ = ["ask", "listening_addresses", "marked_processes", "settle", "write_plain_app"]

_PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "plain"
version = "0.1.0"
license = "Apache-2.0"
dependencies = []
[tool.flwr.app]
publisher = "gdpfed-tests"
[tool.flwr.app.components]
serverapp = "plain.apps:server"
clientapp = "plain.apps:client"
[tool.flwr.app.config]
result = ""
"""
_APPS = """
import json
import time
from pathlib import Path
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

server = ServerApp()
client = ClientApp()


@server.main()
def main(grid, context):
    while not (nodes := sorted(grid.get_node_ids())):
        time.sleep(0.2)
    content = RecordDict({"c": ConfigRecord({"text": "hello"})})
    waiting = set(grid.push_messages([Message(content, node, "train") for node in nodes]))
    told = []
    while waiting:
        for reply in grid.pull_messages(list(waiting)):
            waiting.discard(reply.metadata.reply_to_message_id)
            told.append(reply.content["c"]["text"] if reply.has_content() else "error")
        time.sleep(0.1)
    Path(context.run_config["result"]).write_text(json.dumps({"nodes": len(nodes), "told": told}))


@client.train()
def train(message, context):
    text = message.content["c"]["text"] + " from " + str(context.node_config["name"])
    return Message(RecordDict({"c": ConfigRecord({"text": text})}), reply_to=message)
"""


def write_plain_app(folder: Path) -> Path:
    """A Flower app without gdpfed: every node is greeted, and answers with its name."""
    (folder / "plain").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(_PROJECT)
    (folder / "plain" / "__init__.py").write_text("")
    (folder / "plain" / "apps.py").write_text(_APPS)
    return folder


def marked_processes(folder: Path) -> dict[int, str]:
    """All processes with ``folder`` in their environment or command: those of a deployment in it."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                command = (entry / "cmdline").read_bytes()
                if str(folder).encode() in (entry / "environ").read_bytes() + command:
                    found[int(entry.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found


def listening_addresses(processes: set[int]) -> set[str]:
    """The local addresses (address:port) on which these processes accept connections."""
    sockets = set()
    for process in processes:
        with contextlib.suppress(OSError):
            for link in Path(f"/proc/{process}/fd").iterdir():
                with contextlib.suppress(OSError):
                    sockets.add(os.readlink(link).removeprefix("socket:[").removesuffix("]"))
    found = set()
    for name in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for row in Path(f"/proc/net/{name}").read_text().splitlines()[1:]:
                words = row.split()
                if words[3] == "0A" and words[9] in sockets:
                    address, port = words[1].split(":")
                    found.add(f"{_readable(address)}:{int(port, 16)}")
    return found


def _readable(address: str) -> str:
    return ".".join(str(part) for part in reversed(bytes.fromhex(address))) if len(address) == 8 else f"[{address}]"


def ask(port: int, authority: Path, head: str, body: bytes = b"") -> bytes:
    """A raw request, so that no library tidies the path."""
    context = ssl.create_default_context(cafile=str(authority))
    lines = [f"{head} HTTP/1.1", "host: x", "x-signature: abc", "connection: close", f"content-length: {len(body)}"]
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def settle(folder: Path, *, within: float = 10.0) -> dict[int, str]:
    """What is left of a deployment in ``folder`` when nothing more ends."""
    deadline = time.monotonic() + within
    while (left := marked_processes(folder)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left
