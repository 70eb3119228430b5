"""What a running deployment has done so far, read from the lines that its ServerApp writes.

Place: operations; between `progress.jsonl` in the server's home and the display. Read only, so that watching can
neither disturb nor delay a run.

Guarantees (tests of the same name):
  half_a_line_is_left_for_later   a line that is still being written is read once, when it is whole.
  progress_follows_the_events     round, stage, answers, losses, releases, epsilons and seconds are what the lines say.
"""

import contextlib
import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

__all__ = ["EventReader", "GroupProgress", "Loss", "RunProgress", "after", "progress_in"]

_MOST_LOSSES = 20
# Before a stage has begun.
_NOBODY: dict[str, Any] = {"stage": None, "asked": 0, "answered": (), "dropped": ()}


@dataclass(frozen=True, kw_only=True)
class GroupProgress:
    """One group of the plan: how often its sum was released, given up or tried again, and what it has cost."""

    released: int = 0
    given_up: int = 0
    aborted: int = 0
    epsilon: float | None = None


@dataclass(frozen=True, kw_only=True)
class Loss:
    """Who was lost to a sum, or refused, as far as the server knows: a refusal says nothing."""

    client: str
    stage: str
    why: str
    time: float


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """Where a run is. Times are seconds since 1970; ``until``: when the stage ends at the latest.

    ``losses`` are the last ones; ``num_lost`` and ``num_refused`` count all of the run. ``stage_seconds`` has, for each
    stage, how often it ended and how long it took in all.
    """

    run: str | None = None
    time: float | None = None
    begun: float | None = None
    until: float | None = None
    round_number: int | None = None
    stage: str | None = None
    stage_begun: float | None = None
    asked: int = 0
    waiting: tuple[str, ...] = ()
    answered: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    online: tuple[str, ...] | None = None
    losses: tuple[Loss, ...] = ()
    num_lost: int = 0
    num_refused: int = 0
    unbound: dict[str, str] = field(default_factory=dict)
    round_seconds: tuple[float, ...] = ()
    stage_seconds: dict[str, tuple[int, float]] = field(default_factory=dict)
    rounds_done: int = 0
    accuracy: float | None = None
    loss: float | None = None
    groups: dict[int, GroupProgress] = field(default_factory=dict)
    ended: bool = False


def after(progress: RunProgress, event: dict[str, Any]) -> RunProgress:
    """The progress after one more event; what is not known is ignored."""
    changes: dict[str, Any] = {}
    match event.get("event"):
        case "started":
            # What the process before left open took no time that is known.
            changes = {"run": event.get("run"), "begun": None, "unbound": {}, "ended": False, "stage_begun": None}
            changes |= {**_NOBODY, "waiting": (), "until": None}
        case "begin":
            changes = {**_stage_over(progress, event), **_NOBODY}
            changes |= {"round_number": event.get("round"), "begun": _time(event)}
        case "online":
            changes = {"online": _names(event, "online"), "waiting": _names(event, "waiting")}
            changes["until"] = event.get("until")
        case "unbound":
            changes = {"unbound": {**progress.unbound, str(event.get("node")): str(event.get("why"))}}
        case "stage":
            asked = _names(event, "asked")
            changes = {**_stage_over(progress, event), **_NOBODY}
            changes |= {"stage": event.get("stage"), "stage_begun": _time(event)}
            changes |= {"asked": len(asked), "waiting": asked, "until": event.get("until")}
            if "online" in event:
                changes["online"] = _names(event, "online")
        case "answered":
            name = str(event.get("client"))
            changes = {"answered": (*progress.answered, name), "waiting": _without(progress.waiting, name)}
        case "dropped" | "refused" as kind:
            changes = _lost(progress, event, kind)
        case "charged" | "released" | "given up" | "aborted" as kind:
            changes = _stage_over(progress, event)
            if kind != "charged":
                changes["groups"] = {**progress.groups, **_counted(progress, event)}
        case "round":
            changes = {**_ended_round(progress, event), **_stage_over(progress, event)}
        case "finished":
            changes = {"ended": True, **_stage_over(progress, event)}
    return replace(progress, **changes, time=_time(event) or progress.time)


def progress_in(path: Path) -> RunProgress:
    """What the events in a file say."""
    progress = RunProgress()
    for event in EventReader(path).new():
        progress = after(progress, event)
    return progress


def _time(event: dict[str, Any]) -> float | None:
    time = event.get("time")
    return float(time) if isinstance(time, int | float) else None


def _names(event: dict[str, Any], field_name: str) -> tuple[str, ...]:
    listed = event.get(field_name)
    return tuple(str(name) for name in listed) if isinstance(listed, list) else ()


def _without(names: tuple[str, ...], gone: str) -> tuple[str, ...]:
    return tuple(name for name in names if name != gone)


def _stage_over(progress: RunProgress, event: dict[str, Any]) -> dict[str, Any]:
    """Nobody is waited for; who answered is shown until the next stage begins."""
    changes: dict[str, Any] = {"stage_begun": None, "waiting": (), "until": None}
    now = _time(event)
    if progress.stage is not None and progress.stage_begun is not None and now is not None:
        count, seconds = progress.stage_seconds.get(progress.stage, (0, 0.0))
        took = (count + 1, seconds + max(0.0, now - progress.stage_begun))
        changes["stage_seconds"] = {**progress.stage_seconds, progress.stage: took}
    return changes


def _lost(progress: RunProgress, event: dict[str, Any], kind: str) -> dict[str, Any]:
    name = str(event.get("client"))
    why = "refused: its own log says why" if kind == "refused" else str(event.get("why", "was lost"))
    loss = Loss(client=name, stage=str(event.get("stage")), why=why, time=_time(event) or 0.0)
    counted = "num_refused" if kind == "refused" else "num_lost"
    return {
        "dropped": (*progress.dropped, name),
        "waiting": _without(progress.waiting, name),
        "losses": (*progress.losses, loss)[-_MOST_LOSSES:],
        counted: getattr(progress, counted) + 1,
    }


def _ended_round(progress: RunProgress, event: dict[str, Any]) -> dict[str, Any]:
    groups = {
        number: replace(progress.groups.get(number, GroupProgress()), epsilon=epsilon)
        for number, epsilon in enumerate(event.get("epsilons") or ())
    }
    changes = {"rounds_done": int(event.get("round", -1)) + 1, "groups": {**progress.groups, **groups}}
    changes |= {name: event.get(name) for name in ("accuracy", "loss")}
    if progress.begun is not None and (now := _time(event)) is not None:
        changes["round_seconds"] = (*progress.round_seconds, max(0.0, now - progress.begun))
    return changes


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
