"""One evaluated round, as a line of records.jsonl: the only type, written by the loop and read by everybody.

Place: between the loop and whoever reads runs; needs no torch. What nobody knows is None: of a deployment, how many
updates were clipped or dropped.

Guarantees (tests of the same name):
  a_record_comes_back          the same record from its own line, and the same line again.
  a_line_of_an_older_release   a deployment's old records, with zeros for what is unknown, are read.
  public_data_is_told          by the records of every run whose model rests on some, and by none else.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from gdpfed.errors import InputError
from gdpfed.privacy.rounding import finite

__all__ = ["Record"]


@dataclass(frozen=True, kw_only=True)
class Record:
    """An evaluated round.

    ``epsilons`` and ``cohort`` have an entry for each group: what was spent so far (infinite without privacy), and how
    many took part (of a deployment, how many were planned to). ``dropped`` updates were not finite and counted as zero.
    ``vanished`` clients left secure sums, in all attempts. ``by_budget`` is the accuracy for the clients of each
    budget, strictest first, where data were tied to budgets.

    ``accuracy`` is in percent. Of a task without right answers it is what ``measure`` says in its place. ``metrics``
    are those of a caller's own, by name. ``public_data`` is what the model rests on that no budget pays for.
    """

    # In the order of a line.
    round_number: int
    accuracy: float
    loss: float
    by_budget: tuple[float, ...] = ()
    epsilons: tuple[float, ...]
    cohort: tuple[int, ...]
    clipped: int | None
    dropped: int | None
    update_norm: float
    vanished: int = 0
    device: str = "cpu"
    measure: str = "accuracy"
    metrics: Mapping[str, float] | None = None
    public_data: str = ""

    @property
    def public_data_remark(self) -> str:
        """Which public data the result rests on, in words; empty where it is none."""
        return f"rests on public data, for which no budget pays: {self.public_data}" if self.public_data else ""

    def to_line(self) -> str:
        """As JSON, with a line's end. What is usual is left out, so that lines stay as they were."""
        told = {name: value for name, value in vars(self).items() if name not in _USUAL or value != _USUAL[name]}
        content = {"round": told.pop("round_number"), **told, "epsilons": list(map(finite, self.epsilons))}
        return json.dumps(content, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, content: object, *, where: str = "a record") -> "Record":
        """Reads the parsed content of a line; InputError with ``where`` if it is none."""
        if not isinstance(content, dict):
            raise InputError(f"expected a record in {where}, got {str(content)[:80]!r}")
        values = {}
        for name, (read, kind) in _FIELDS.items():
            if name not in content:
                if name in _USUAL:
                    continue
                names = ", ".join(content) or "none"
                raise InputError(f"expected a field {name!r} in {where}, got {names}: was it edited?")
            try:
                values[name] = read(content[name])
            except TypeError:
                raise InputError(f"expected {kind} as {name} in {where}, got {content[name]!r}") from None
        return cls(round_number=values.pop("round"), **values)


def _number(value: object, least: float = -1e300) -> float:
    # Beyond 1e300, the sum of a few would be infinite.
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value <= 1e300:
        raise TypeError
    return float(value)


def _length(value: object) -> float:
    return _number(value, least=0.0)


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**15:
        raise TypeError
    return value


def _known(value: object) -> int | None:
    return None if value is None else _count(value)


def _mapping(value: object) -> Iterable[tuple[str, object]]:
    if not isinstance(value, dict):
        raise TypeError
    return value.items()


def _epsilons(values: Iterable[object]) -> tuple[float, ...]:
    return tuple(math.inf if value is None else _length(value) for value in values)


# How each field of a line is read, and what is expected of it.
_FIELDS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "round": (_count, "a count"),
    "accuracy": (_number, "a number"),
    "loss": (_number, "a number"),
    "epsilons": (_epsilons, "numbers from 0"),
    "cohort": (lambda counts: tuple(map(_count, counts)), "counts"),
    "clipped": (_known, "a count, or null,"),
    "dropped": (_known, "a count, or null,"),
    "update_norm": (_length, "a number from 0"),
    "vanished": (_count, "a count"),
    "by_budget": (lambda values: tuple(map(_number, values)), "numbers"),
    "device": (str, "a name"),
    "measure": (str, "a name"),
    "metrics": (lambda values: {str(name): _number(value) for name, value in _mapping(values)}, "numbers by name"),
    "public_data": (str, "a text"),
}
_USUAL = {field.name: field.default for field in fields(Record) if field.default is not MISSING}
