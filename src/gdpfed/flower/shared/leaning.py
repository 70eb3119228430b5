"""All that we lean on of Flower beyond its documented API, in one place: names, paths, modules, words of its logs.

Place: under the modules that use it. `broken_assumptions` looks at the installed Flower and says, in words, which
assumption no longer holds; `gdpfed flower doctor` prints it, and the warm node then starts Flower's own programs. What
can only be seen by running Flower (what it passes to Popen, how long it sleeps) has tests in tests/flower/test_warm.py.

A new minor version of Flower: install it, run tests/flower/test_leaning.py and test_warm.py, mend what they name, then
change `KNOWN` here and the range in pyproject.toml.

Guarantees (tests of the same name):
  every_assumption_holds       of the Flower that is installed.
  a_broken_assumption_is_named   each of them, when it does not hold.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

from gdpfed.errors import InputError

__all__ = [
    "ASSUMPTIONS", "CLIENTAPP", "CONTROL_PATH", "FLEET_PREFIX", "KNOWN", "LOOPS", "NODE_UNAVAILABLE", "ONLINE_WORDS",
    "POLL_VARIABLE", "PROGRAMS", "PULLS", "SERVERAPP", "SUPEREXEC", "SUPERLINK", "SUPERNODE", "TAKING",
    "Assumption", "ask_again_soon", "broken_assumptions", "check_programs",
]  # fmt: skip

# The minor version that all of this was read in.
KNOWN = "1.41."
# The programs of a node: the SuperNode starts a SuperExec, and that a ClientApp for each message.
SUPERNODE, SUPEREXEC, CLIENTAPP = PROGRAMS = ("flower-supernode", "flower-superexec", "flwr-clientapp")
SUPERLINK, SERVERAPP = "flower-superlink", "flwr-serverapp"
# Where the two that run on sleep between two looks for work.
LOOPS = {SUPERNODE: "flwr.supernode.start_client_internal", SUPEREXEC: "flwr.supercore.superexec.run_superexec"}
# Of a SuperNode's loop: takes a message, and returns its run, or None if there is none.
TAKING = "_pull_and_store_message"
# One port serves three APIs; nodes sign every request to the first, and the second asks for nothing.
FLEET_PREFIX = "/v1/fleet"
CONTROL_PATH = "/v1/control/list-runs"
# In a SuperNode's log, when it was admitted.
ONLINE_WORDS = "SuperNode ID:"
# Flower's error for a message to a node that is offline. It comes from the SuperLink, not in the node's name.
NODE_UNAVAILABLE = 5
# Seconds between two looks of a SuperExec.
POLL_VARIABLE = "FLWR_SUPEREXEC_TASK_POLL_INTERVAL"
# A message is known before its content is there. Who is too early sleeps for a second, then two, and so on.
PULLS, PULLING, EARLY = (
    "flwr.supercore.inflatable.inflatable_utils",
    ("pull_objects", "pull_and_inflate_object_from_tree"),
    "initial_backoff",
)  # fmt: skip
_SOON = 0.05


@dataclass(frozen=True, kw_only=True)
class Assumption:
    """``text`` is what must hold, ``needed_by`` the module of ours that breaks without it."""

    text: str
    needed_by: str
    holds: Callable[[], bool]


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def _paths(router: str) -> list[str]:
    found = getattr(_module(router), "router", None)
    return [str(route.path) for route in getattr(found, "routes", ())]


def _fields(module: str, name: str) -> set[str]:
    found = getattr(_module(module), name, None)
    return set(getattr(getattr(found, "DESCRIPTOR", None), "fields_by_name", ()))


def _source(module: str) -> str:
    path = getattr(_module(module), "__file__", None)
    if path is None:
        return ""
    with open(path, encoding="utf-8") as file:
        return file.read()


def _scripts() -> set[str]:
    return {entry.name for entry in metadata.distribution("flwr").entry_points}


def _sleeps_by_time(module: str) -> bool:
    return getattr(_module(module), "time", None) is _module("time")


def _defaults() -> list[dict[str, Any]]:
    found = [getattr(_module(PULLS), name, None) for name in PULLING]
    return [getattr(one, "__kwdefaults__", None) or {} for one in found]


def ask_again_soon() -> None:
    """In this process: who asks for a content that is not there yet asks again after 0.05 s, not after a second."""
    for defaults in _defaults():
        if EARLY in defaults:
            defaults[EARLY] = _SOON


ASSUMPTIONS = (
    Assumption(
        text=f"the version of flwr is {KNOWN}x",
        needed_by="node/warm.py",
        holds=lambda: metadata.version("flwr").startswith(KNOWN),
    ),
    Assumption(
        text=f"flwr has the programs {', '.join(PROGRAMS)}",
        needed_by="node/warm.py",
        holds=lambda: set(PROGRAMS) <= _scripts(),
    ),
    Assumption(
        text=f"flwr has the programs {SUPERLINK} and {SERVERAPP}",
        needed_by="operate/processes.py",
        holds=lambda: {SUPERLINK, SERVERAPP} <= _scripts(),
    ),
    Assumption(
        text=f"a SuperNode sleeps by the module time, in {LOOPS[SUPERNODE]}",
        needed_by="node/warm.py",
        holds=lambda: _sleeps_by_time(LOOPS[SUPERNODE]),
    ),
    Assumption(
        text=f"a SuperNode takes a message by {TAKING}, in {LOOPS[SUPERNODE]}",
        needed_by="node/warm.py",
        holds=lambda: f"run_id = {TAKING}(" in _source(LOOPS[SUPERNODE]),
    ),
    Assumption(
        text=f"a SuperExec sleeps by the module time, in {LOOPS[SUPEREXEC]}",
        needed_by="node/warm.py",
        holds=lambda: _sleeps_by_time(LOOPS[SUPEREXEC]),
    ),
    Assumption(
        text=f"a SuperNode that was admitted writes {ONLINE_WORDS!r} to its log",
        needed_by="operate/processes.py",
        holds=lambda: ONLINE_WORDS in _source(LOOPS[SUPERNODE]),
    ),
    Assumption(
        text=f"a SuperExec takes its interval from {POLL_VARIABLE}",
        needed_by="operate/processes.py",
        holds=lambda: POLL_VARIABLE in _source(LOOPS[SUPEREXEC]),
    ),
    Assumption(
        text=f"who pulls a content too early waits for {EARLY}, a keyword of {', '.join(PULLING)} in {PULLS}",
        needed_by="node/warm.py",
        holds=lambda: all(EARLY in defaults for defaults in _defaults()),
    ),
    Assumption(
        text=f"all that nodes ask for is one word below {FLEET_PREFIX}/",
        needed_by="operate/gate.py",
        holds=lambda: (
            bool(paths := _paths("flwr.superlink.routers.fleet.router"))
            and all(path.startswith(f"{FLEET_PREFIX}/") and path.count("/") == 3 for path in paths)
        ),
    ),
    Assumption(
        text=f"the Control API has {CONTROL_PATH}",
        needed_by="operate/connection.py",
        holds=lambda: CONTROL_PATH in _paths("flwr.superlink.routers.control.router"),
    ),
    Assumption(
        text="a node's information has node_id and last_activated_at",
        needed_by="server/waiting.py",
        holds=lambda: {"node_id", "last_activated_at"} <= _fields("flwr.proto.node_pb2", "NodeInfo"),
    ),
    Assumption(
        text=f"a node that is offline is error {NODE_UNAVAILABLE}",
        needed_by="server/transport.py",
        holds=lambda: (
            getattr(getattr(_module("flwr.common.constant"), "ErrorCode", None), "NODE_UNAVAILABLE", None)
            == NODE_UNAVAILABLE
        ),
    ),
    Assumption(
        text="a Grid has get_nodes, push_messages and pull_messages",
        needed_by="server/transport.py",
        holds=lambda: all(
            hasattr(getattr(_module("flwr.serverapp"), "Grid", None), name)
            for name in ("get_nodes", "push_messages", "pull_messages")
        ),
    ),
    Assumption(
        text="a ClientApp has a lifespan around all that Flower calls",
        needed_by="apps.py",
        holds=lambda: hasattr(getattr(_module("flwr.clientapp"), "ClientApp", None), "lifespan"),
    ),
)


def broken_assumptions() -> list[str]:
    """What does not hold of the installed Flower, and which module needs it; empty if all is as it was."""
    return [
        f"expected that {assumption.text} ({assumption.needed_by} needs it)"
        for assumption in ASSUMPTIONS
        if not assumption.holds()
    ]


def check_programs() -> None:
    """Raises InputError unless Flower's programs on a node are those that are known; quick, for every start."""
    if not (found := metadata.version("flwr")).startswith(KNOWN):
        raise InputError(f"expected flwr {KNOWN}x, which this was made for, got {found}")
    if missing := [name for name in PROGRAMS if name not in _scripts()]:
        raise InputError(f"expected the programs {', '.join(PROGRAMS)} of flwr, found no {', '.join(missing)}")
