"""What every client allows.

Place: the entrance of the flow. `read_budgets` takes a CSV, JSON or Parquet file, `parse_compact` a text such as
``2000@0.5,2000@1.5,2000@3``; both give `Budgets`, which validates itself.

A file has a row for each client: ``client`` (any label, once), ``epsilon`` (above 0), and, if wanted, ``delta`` (its
own failure probability; empty for the common one) and ``group`` (used only when the groups are given). Other columns
are left alone. Text is as spreadsheets write it: columns separated by commas, semicolons, tabs or bars, decimal points
or decimal commas, UTF-8 or UTF-16; what could mean two things is refused.

Guarantees (tests of the same name):
  every_client_once         a duplicate label is refused.
  every_budget_is_usable    zero, negative, NaN or infinite epsilons and deltas outside (0, 1) are refused, with row
                            and client.
  formats_agree             the same clients read from CSV, JSON and Parquet give equal budgets.
  spreadsheets_agree        so do they from every kind of text that a spreadsheet writes.
  doubtful_text_is_refused  a number or a column that could mean two things is named, never guessed.
  default_delta_means_something   one tenth divided by the clients, where they have names or are fewer than 600.
"""

import codecs
import contextlib
import csv
import io
import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, MissingExtraError, suggestion
from gdpfed.privacy.accountant import SMALLEST_DELTA

__all__ = ["Budgets", "budgets_csv", "default_delta_of", "looks_compact", "parse_compact", "read_budgets"]

MAX_CLIENTS = 10_000_000
# The smallest population of the paper's experiments, and what delta times clients is at most in others.
PAPERS_SMALLEST, LARGEST_FAILURES = 600, 0.1
_DELIMITERS = ",;\t|"
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
# 1,500 is 1.5 to one reader and 1500 to the next; 0,500 and 1,5 are clear.
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_COLUMNS = ("client", "epsilon", "delta", "group")
_COMPACT_PART = re.compile(r"\s*(?P<count>[^@,\s]+)\s*@\s*(?P<epsilon>[^@,\s]+)\s*")


@dataclass(frozen=True, kw_only=True, eq=False)
class Budgets:
    """A budget for every client, in the clients' own order.

    ``deltas`` is NaN for a client without one of its own. ``clients`` is None for clients that are only counted, and
    ``groups`` is None unless the source names a group for each client.
    """

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]
    clients: tuple[str, ...] | None = None
    groups: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        for name in ("epsilons", "deltas"):
            try:
                values = np.asarray(getattr(self, name), dtype=np.float64)
            except (TypeError, ValueError):
                values = np.empty((0, 0))
            if values.ndim != 1:
                raise InputError(f"expected {name} to be numbers, one for each client, got {getattr(self, name)!r:.80}")
            object.__setattr__(self, name, values)
        if not len(self.epsilons):
            raise InputError("expected at least one client with a budget, got none")
        if len(self.deltas) != len(self.epsilons):
            raise InputError(f"expected a delta for each of {len(self.epsilons)} clients, got {len(self.deltas)}")
        for name, labels in (("client", self.clients), ("group", self.groups)):
            if labels is not None and not (isinstance(labels, tuple) and all(isinstance(one, str) for one in labels)):
                raise InputError(f"expected {name}s to be a tuple of texts, got {labels!r:.80}")
            if labels is not None and len(labels) != len(self.epsilons):
                raise InputError(f"expected a {name} for each of {len(self.epsilons)} budgets, got {len(labels)}")
        self._refuse(
            ~(np.isfinite(self.epsilons) & (self.epsilons > 0)), self.epsilons, "a finite epsilon > 0", "epsilon"
        )
        own = ~np.isnan(self.deltas)
        self._refuse(
            own & ~((self.deltas >= SMALLEST_DELTA) & (self.deltas < 1)), self.deltas, "0 < delta < 1", "delta"
        )
        if self.clients is not None and len(set(self.clients)) < len(self.clients):
            label, times = Counter(self.clients).most_common(1)[0]
            raise InputError(
                f"expected every client once, got client={label!r} {times} times: keep one row for each client"
            )

    def _refuse(self, bad: NDArray[np.bool_], values: NDArray[np.float64], expected: str, field: str) -> None:
        if bad.any():
            first = int(np.argmax(bad))
            more = f" (and {int(bad.sum()) - 1} more)" if bad.sum() > 1 else ""
            raise InputError(
                f"expected {expected}, got {field}={values[first]:g} for client {self.label(first)!r}{more}"
            )

    def __len__(self) -> int:
        return len(self.epsilons)

    def label(self, index: int) -> str:
        """The name of a client, by its place."""
        return str(index) if self.clients is None else self.clients[index]

    def deltas_or(self, default: float) -> NDArray[np.float64]:
        """Every client's delta: its own, or ``default``."""
        return np.where(np.isnan(self.deltas), default, self.deltas)

    @property
    def default_delta(self) -> float:
        """`default_delta_of` so many clients; not needed, and their largest, where all clients have their own."""
        if not np.isnan(self.deltas).any():
            return float(self.deltas.max())
        if len(self) == 1:
            raise InputError("expected a delta for a single client, got none: state the delta that was agreed on")
        return default_delta_of(len(self), has_names=self.clients is not None)


def default_delta_of(num_clients: int, *, has_names: bool) -> float:
    """The delta of clients that state none: ``0.1 / num_clients``; of 600 clients or more that are only counted, as in
    the paper's experiments, the paper's ``num_clients ** -1.1``.

    A delta allows that a client is laid open with this probability, so delta times clients bounds how many are, on
    average. By the paper's rule that is half a client of its 600, and nearly all of one among five.
    """
    if has_names or num_clients < PAPERS_SMALLEST:
        return LARGEST_FAILURES / num_clients
    return math.pow(num_clients, -1.1)


def budgets_csv(budgets: Budgets) -> str:
    """As text that `read_budgets` reads back to the same numbers."""
    text = io.StringIO()
    writer = csv.writer(text)
    # Given groups are part of the budgets: without them a plan's members could not be found again.
    writer.writerow(["client", "epsilon", "delta", *(["group"] if budgets.groups is not None else [])])
    for client, (epsilon, delta) in enumerate(zip(budgets.epsilons, budgets.deltas, strict=True)):
        group = [] if budgets.groups is None else [budgets.groups[client]]
        own = "" if np.isnan(delta) else repr(float(delta))
        writer.writerow([budgets.label(client), repr(float(epsilon)), own, *group])
    return text.getvalue()


def looks_compact(text: str) -> bool:
    """Whether ``text`` is meant as ``COUNT@EPSILON,...`` rather than as a file."""
    return "@" in text


def parse_compact(text: str) -> Budgets:
    """Reads ``2000@0.5,2000@1.5,2000@3``: so many clients at each epsilon."""
    counts: list[int] = []
    epsilons: list[float] = []
    for part in text.split(","):
        match = _COMPACT_PART.fullmatch(part)
        if match is None:
            raise InputError(f"expected COUNT@EPSILON, such as 2000@0.5, got {part.strip()!r}")
        counts.append(_count(match["count"], part))
        epsilons.append(_number(match["epsilon"], field="epsilon", where=f"in {part.strip()!r}"))
    if sum(counts) > MAX_CLIENTS:
        raise InputError(f"expected at most {MAX_CLIENTS} clients, got {sum(counts)}")
    return Budgets(epsilons=np.repeat(epsilons, counts), deltas=np.full(sum(counts), math.nan))


def _count(text: str, part: str) -> int:
    try:
        count = int(text.replace("_", ""))
    except ValueError:
        count = 0
    if count < 1:
        raise InputError(f"expected a whole number of clients >= 1 before '@', got {text!r} in {part.strip()!r}")
    return count


def _number(value: object, *, field: str, where: str) -> float:
    """A float from a cell; a missing one is NaN, a word is refused."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return math.nan
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            return float(value)
    raise InputError(f"expected a number as {field}, got {value!r} {where}")


def read_budgets(path: str | Path) -> Budgets:
    """Reads the clients' budgets from a ``.csv`` (or ``.tsv``), ``.json`` or ``.parquet`` file."""
    path = Path(path)
    if path.is_dir():
        inside = sorted(each.name for each in path.iterdir() if each.suffix.lower() in (".csv", ".json", ".parquet"))
        hint = f", such as {str(path / inside[0])!r}" if inside else ""
        raise InputError(f"expected a budgets file, got {str(path)!r}, which is a folder: name the file in it{hint}")
    readers = {".csv": _csv_columns, ".tsv": _csv_columns, ".json": _json_columns, ".parquet": _parquet_columns}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise InputError(f"expected a file that ends in .csv, .json or .parquet, got {str(path)!r}")
    if not path.is_file():
        raise InputError(f"expected a budgets file, got {str(path)!r}, which is not there: check the path")
    try:
        columns = reader(path)
    except UnicodeDecodeError:
        raise InputError(
            f"expected text (UTF-8 or UTF-16) in {str(path)!r}, got binary data or another encoding: export it as "
            f"{path.suffix} again, in UTF-8"
        ) from None
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror or error}") from None
    return _budgets(columns, source=str(path))


def _budgets(columns: Mapping[str, Sequence[Any]], *, source: str) -> Budgets:
    for required in ("client", "epsilon"):
        if required not in columns:
            present = ", ".join(repr(name) for name in columns) or "no columns"
            near = next((name for name in columns if suggestion(name, [required])), None)
            hint = f" (rename {near!r} to {required!r}?)" if near is not None else ""
            raise InputError(f"expected a column {required!r} in {source!r}, got {present}{hint}")
    for name in columns:
        others = [known for known in _COLUMNS if known not in columns]
        hint = suggestion(name, others) if name not in _COLUMNS else ""
        if hint:
            # Any other column is the file's own business; this one may be a delta that would be passed over.
            raise InputError(
                f"unknown column {name!r} in {source!r}{hint}: expected client, epsilon and optionally delta, group"
            )
    if not len(columns["epsilon"]):
        raise InputError(f"expected a row for each client in {source!r}, got none: the file has no rows")
    epsilons = _numbers(columns["epsilon"], field="epsilon", source=source)
    absent = [math.nan] * len(epsilons)
    deltas = _numbers(columns["delta"], field="delta", source=source) if "delta" in columns else absent
    groups = tuple(str(value) for value in columns["group"]) if "group" in columns else None
    clients = tuple("" if value is None else str(value).strip() for value in columns["client"])
    if "" in clients:
        raise InputError(f"expected a name for every client in {source!r}, got none in row {clients.index('') + 1}")
    return Budgets(epsilons=np.array(epsilons), deltas=np.array(deltas), clients=clients, groups=groups)


def _numbers(values: Sequence[Any], *, field: str, source: str) -> list[float]:
    """The cells of a column; decimal commas are refused where they could also group thousands."""
    commas = [value for value in values if isinstance(value, str) and "," in value]
    odd = next((value for value in commas if not _DECIMAL_COMMA.fullmatch(value.strip())), None)
    has_points = any(isinstance(value, str) and "." in value for value in values)
    if commas and (odd is not None or has_points or all(_THOUSANDS.fullmatch(value.strip()) for value in commas)):
        raise InputError(
            f"expected numbers as {field} in {source!r}, got {odd or commas[0]!r}, whose comma may be a decimal comma "
            f"or group thousands: write decimal points, or more digits"
        )
    plain = (value.replace(",", ".") if isinstance(value, str) else value for value in values)
    return [
        _number(value, field=field, where=f"in row {row} of {source!r}") for row, value in enumerate(plain, start=1)
    ]


def _text(path: Path) -> str:
    """The text of a file in UTF-8 or UTF-16, with or without a byte order mark."""
    content = path.read_bytes()
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16")
    # Without a mark: the letters of the header line have a zero byte each, all on the same side.
    start = content[:64]
    for encoding, zeros, letters in (("utf-16-le", start[1::2], start[::2]), ("utf-16-be", start[::2], start[1::2])):
        if len(start) >= 8 and not any(zeros) and all(letters):
            return content.decode(encoding)
    return content.decode("utf-8-sig")


def _csv_columns(path: Path) -> dict[str, list[Any]]:
    text = _text(path)
    if "\0" in text[:10_000]:
        raise InputError(f"expected text in {str(path)!r}, got binary data: export it as .csv again")
    # A first line "sep=;" is a spreadsheet's own.
    stated = re.match(r"sep=(.)\r?\n", text)
    text = text[stated.end() :] if stated else text
    delimiter = stated[1] if stated else _delimiter(text)
    try:
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if "".join(row).strip()]
    except csv.Error as error:
        raise InputError(f"expected comma-separated text in {str(path)!r}: {error}") from None
    if not rows:
        raise InputError(f"expected a header line 'client,epsilon' in {str(path)!r}, got an empty file")
    header = [name.strip().lower() for name in rows[0]]
    for name, times in Counter(header).items():
        if times > 1 and name in _COLUMNS:
            raise InputError(f"expected every column once in {str(path)!r}, got {name!r} {times} times")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header) and (len(row) < len(header) or "".join(row[len(header) :]).strip()):
            hint = ": do numbers have decimal commas? Then separate columns by semicolons" if delimiter == "," else ""
            raise InputError(f"expected {len(header)} fields in line {number} of {str(path)!r}, got {len(row)}{hint}")
    return {name: [row[place] for row in rows[1:]] for place, name in enumerate(header) if name}


def _delimiter(text: str) -> str:
    """What separates the columns: that by which the header has the columns that every file has; else a comma."""
    header = text.lstrip().partition("\n")[0]
    for delimiter in _DELIMITERS:
        names = {name.strip().strip('"').lower() for name in header.split(delimiter)}
        if {"client", "epsilon"} <= names:
            return delimiter
    return max(_DELIMITERS, key=header.count)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, in which every key may stand once."""
    content = dict(pairs)
    if len(content) < len(pairs):
        name, times = Counter(name for name, _ in pairs).most_common(1)[0]
        raise InputError(f"expected every client once, got {name!r} {times} times: keep one entry for each client")
    return content


def _json_columns(path: Path) -> dict[str, list[Any]]:
    text = _text(path)
    if not text.strip():
        raise InputError(f"expected JSON in {str(path)!r}, got an empty file")
    try:
        content = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise InputError(f"expected JSON in {str(path)!r}: {error}") from None
    if isinstance(content, dict):
        content = [{"client": name, "epsilon": value} for name, value in content.items()]
    if not (isinstance(content, list) and all(isinstance(row, dict) for row in content)):
        raise InputError(
            f'expected a list of {{"client": ..., "epsilon": ...}} or an object {{client: epsilon}} in {str(path)!r}'
        )
    names = dict.fromkeys(name for row in content or [{"client": "", "epsilon": ""}] for name in row)
    return {name: [row.get(name) for row in content] for name in names}


def _parquet_columns(path: Path) -> dict[str, list[Any]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingExtraError(package="pyarrow", extra="parquet", purpose="reading a Parquet file") from None
    try:
        table = pyarrow.parquet.read_table(path)
    except pyarrow.ArrowInvalid as error:
        raise InputError(f"expected a Parquet file at {str(path)!r}: {str(error).splitlines()[0]}") from None
    columns: dict[str, list[Any]] = table.to_pydict()
    return columns
