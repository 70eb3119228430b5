"""What a running deployment has done so far, read from the lines that its ServerApp writes.

Place: operations; between `progress.jsonl` in the server's home and the display. Read only, so that watching can
neither disturb nor delay a run.

Guarantees (tests of the same name):
  half_a_line_is_left_for_later   a line that is still being written is read once, when it is whole.
  progress_follows_the_events     round, stage, answers, releases and epsilons are what the lines say.
"""

import contextlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

__all__ = ["EventReader", "GroupProgress", "RunProgress", "after"]


@dataclass(frozen=True, kw_only=True)
class GroupProgress:
    """One group of the plan: how often its sum was released, given up or tried again, and what it has cost."""

    released: int = 0
    given_up: int = 0
    aborted: int = 0
    epsilon: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """Where a run is."""

    round_number: int | None = None
    stage: str | None = None
    asked: int = 0
    answered: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    rounds_done: int = 0
    accuracy: float | None = None
    loss: float | None = None
    groups: dict[int, GroupProgress] = field(default_factory=dict)
    ended: bool = False


def after(progress: RunProgress, event: dict[str, Any]) -> RunProgress:
    """The progress after one more event; what is not known is ignored."""
    changes: dict[str, Any] = {}
    match event.get("event"):
        case "begin":
            changes = {"round_number": event.get("round"), "stage": None, "asked": 0, "answered": (), "dropped": ()}
        case "stage":
            changes = {"stage": event.get("stage"), "asked": len(event.get("asked", ())), "answered": (), "dropped": ()}
        case "answered":
            changes = {"answered": (*progress.answered, str(event.get("client")))}
        case "dropped" | "refused":
            changes = {"dropped": (*progress.dropped, str(event.get("client")))}
        case "released" | "given up" | "aborted":
            changes = {"groups": {**progress.groups, **_counted(progress, event)}}
        case "round":
            groups = {
                number: replace(progress.groups.get(number, GroupProgress()), epsilon=epsilon)
                for number, epsilon in enumerate(event.get("epsilons") or ())
            }
            changes = {"rounds_done": int(event.get("round", -1)) + 1, "groups": {**progress.groups, **groups}}
            changes |= {name: event.get(name) for name in ("accuracy", "loss")}
        case "finished":
            changes = {"ended": True}
    return replace(progress, **changes)


def _counted(progress: RunProgress, event: dict[str, Any]) -> dict[int, GroupProgress]:
    name = str(event["event"]).replace(" ", "_")
    known = {number: progress.groups.get(number, GroupProgress()) for number in event.get("groups", ())}
    return {number: replace(group, **{name: getattr(group, name) + 1}) for number, group in known.items()}


class EventReader:
    """Reads the events that came since it was last asked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def new(self) -> list[dict[str, Any]]:
        """The events of whole lines since the last call."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                content = file.read()
        except FileNotFoundError:
            return []
        whole = content[: content.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        events = []
        for line in whole.splitlines():
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
        return [event for event in events if isinstance(event, dict)]
