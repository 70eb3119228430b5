"""How long the server waits for an answer, and who is not worth waiting for.

Place: under `transport`. A node's time at a stage is what the settings say. Once it has answered that stage, it is five
times what it needed then, a minute at least, and never more than the settings say. It depends on this node's own
answers alone, all of which the server sees anyway: nobody is lost because of how fast others were. In a plan against
the server the terms fix the moment of an input, so its time never shrinks, and nobody is given up before that moment.

A node that went offline, or was started again since it was asked, has lost its message: it is a dropout like any other.

Guarantees (tests of the same name):
  times_follow_a_nodes_own_answers   never beyond the settings, never below a minute, never by others' answers.
  an_input_has_its_fixed_moment      of a plan against the server: its time is as stated, whatever was needed before.
  nobody_waits_for_the_dead          a node that is gone, or came back without its message, is lost at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gdpfed.flower.server.deployment_settings import DeploymentSettings

__all__ = ["LOOK_SECONDS", "TELL_SECONDS", "Patience", "activations", "lost_since"]

# Between two looks at who is online.
LOOK_SECONDS = 2.0
# The operator is told whom the server waits for after so long, and again when that changed.
TELL_SECONDS = 10.0
_FACTOR = 5.0
_SHORTEST_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Patience:
    """The time of each node at each stage. ``is_rotation``: the plan is against the server."""

    settings: DeploymentSettings
    is_rotation: bool
    _needed: dict[tuple[str, int], float] = field(default_factory=dict, init=False)

    def seconds(self, stage: str, node: int) -> float:
        """How long this node is waited for."""
        stated: float = getattr(self.settings, f"{stage}_seconds")
        needed = self._needed.get((stage, node))
        if needed is None or (self.is_rotation and stage == "input"):
            return stated
        return min(stated, max(_SHORTEST_SECONDS, _FACTOR * needed))

    def undisturbed(self, stage: str) -> float:
        """For so long nobody is given up or asked after: what a plan against the server takes for every input."""
        return self.settings.answer_seconds if self.is_rotation and stage == "input" else 0.0

    def answered(self, stage: str, node: int, seconds: float) -> None:
        """What the node needed; the longest counts."""
        self._needed[stage, node] = max(seconds, self._needed.get((stage, node), 0.0))


def activations(nodes: Iterable[Any]) -> dict[int, str]:
    """When each of the nodes that are online was started, by Flower's `NodeInfo`."""
    return {node.node_id: node.last_activated_at for node in nodes}


def lost_since(node: int, before: Mapping[int, str], now: Mapping[int, str]) -> str | None:
    """Why no answer can come from a node that was asked when ``before`` were online; None if one can."""
    if node not in now:
        return "went offline"
    return "was started again, and has lost its message" if now[node] != before.get(node, now[node]) else None
