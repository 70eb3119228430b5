"""One evaluated round, as a line of records.jsonl: the only type, written by the loop and read by everybody.

Place: between the loop and whoever reads runs; needs no torch. What nobody knows is None: of a deployment, who took
part, and how many updates were clipped.

Guarantees (tests of the same name):
  a_record_comes_back          the same record from its own line, and the same line again.
  a_line_of_an_older_release   a deployment's old records, with zeros for what is unknown, are read.
"""

import json
import math
from dataclasses import dataclass, field
from typing import Any

from gdpfed.errors import InputError

__all__ = ["Record"]


@dataclass(frozen=True, kw_only=True)
class Record:
    """An evaluated round.

    ``epsilons`` and ``cohort`` have an entry for each group: what was spent so far (infinite without privacy), and how
    many took part (of a deployment, how many were planned to). ``dropped`` updates were not finite and counted as zero.
    ``vanished`` clients left secure sums, in all attempts. ``by_budget`` is the accuracy for the clients of each
    budget, strictest first, where data were tied to budgets.
    """

    round_number: int
    accuracy: float
    loss: float
    epsilons: tuple[float, ...]
    cohort: tuple[int, ...]
    clipped: int | None
    dropped: int | None
    update_norm: float
    vanished: int = 0
    by_budget: tuple[float, ...] = ()
    device: str = field(default="cpu")

    def to_line(self) -> str:
        """As JSON, with a line's end. What is usual is left out, so that lines stay as they were."""
        content: dict[str, Any] = {"round": self.round_number, "accuracy": self.accuracy, "loss": self.loss}
        if self.by_budget:
            content["by_budget"] = list(self.by_budget)
        content |= {
            "epsilons": [None if math.isinf(value) else value for value in self.epsilons],
            "cohort": list(self.cohort),
            "clipped": self.clipped,
            "dropped": self.dropped,
            "update_norm": self.update_norm,
        }
        if self.vanished:
            content["vanished"] = self.vanished
        if self.device != "cpu":
            content["device"] = self.device
        return json.dumps(content, allow_nan=False) + "\n"

    @classmethod
    def from_line(cls, line: str, *, where: str = "a record") -> "Record":
        """Reads what `to_line` wrote; InputError with ``where`` otherwise."""
        try:
            content = json.loads(line)
            record = cls(
                round_number=_whole(content["round"]),
                accuracy=_number(content["accuracy"]),
                loss=_number(content["loss"]),
                epsilons=tuple(math.inf if value is None else _number(value) for value in content["epsilons"]),
                cohort=tuple(_whole(count) for count in content["cohort"]),
                clipped=None if content["clipped"] is None else _whole(content["clipped"]),
                dropped=None if content["dropped"] is None else _whole(content["dropped"]),
                update_norm=_number(content["update_norm"]),
                vanished=_whole(content.get("vanished", 0)),
                by_budget=tuple(_number(value) for value in content.get("by_budget", ())),
                device=str(content.get("device", "cpu")),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise InputError(f"expected a record of a round in {where}, got {line[:80]!r} ({error})") from None
        return record


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} is not a count")
    return value
