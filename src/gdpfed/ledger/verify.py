"""Is everything true that a ledger says? Recomputed from its rows.

Place: reads the files, trusts nothing that was computed before. In order: the hash chain of both records and the sealed
head; that every row can follow the rows before it; every claim of every plan; that no charge took a client above the
budget that it had then; every spend that a closed run recorded; that nobody has two budgets.

Guarantees (tests of the same name):
  any_changed_row_fails         an edited, deleted, moved or added row makes it fail, and is named.
  overspending_fails            rows that are well formed but charge too much.
  an_old_copy_is_noticed        if a head that was noted before is given.
"""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.doubled import check_no_doubled, not_compared
from gdpfed.ledger.population import Population
from gdpfed.ledger.spend import spent
from gdpfed.ledger.state import Counts, LedgerState
from gdpfed.ledger.store import Store
from gdpfed.privacy.cache import without_cache
from gdpfed.privacy.rounding import allowance, delta_up, rounded_up

__all__ = ["Verified", "verify_ledger"]

# A recorded spend and its recomputation.
_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Verified:
    """What was found true. ``largest_share`` is the largest part of a budget that some client has spent.

    ``not_compared`` are populations of which nobody can tell whether their clients are in another one too.
    """

    num_rows: int
    head: str
    is_sealed: bool
    num_clients: int
    num_runs: int
    num_charges: int
    num_published: int
    largest_share: float
    not_compared: tuple[str, ...]
    state: LedgerState


def verify_ledger(path: str | Path, *, key_file: Path | None = None, known_head: str | None = None) -> Verified:
    """Recomputes everything; raises PrivacyError with the row, or the client, that is wrong.

    ``known_head`` is NUMBER:HASH as a receipt or an earlier verification gave it.
    """
    store = Store.read(Path(path), key_file=key_file)
    if store.journal_is_damaged:
        raise PrivacyError(f"the journal of {str(path)!r} is damaged: opening the ledger to write repairs it")
    _check_known(store, known_head)
    with without_cache():
        state, share = _replay(store)
    runs = state.runs.values()
    return Verified(
        num_rows=len(store.rows),
        head=store.head,
        is_sealed=store.key is not None,
        num_clients=sum(len(population) for population in state.populations.values()),
        num_runs=len(state.runs),
        num_charges=sum(attempt.is_charged for run in runs for attempt in run.all_attempts()),
        num_published=sum(run.count("published") for run in runs),
        largest_share=share,
        not_compared=tuple(not_compared(state)),
        state=state,
    )


def _check_known(store: Store, known_head: str | None) -> None:
    if known_head is None:
        return
    number, _, digest = known_head.partition(":")
    if not number.isdecimal() or len(digest) != len(store.last_hash):
        raise InputError(f"expected a head as NUMBER:HASH, got {known_head!r}")
    if int(number) > (end := len(store.rows)):
        raise PrivacyError(f"row {number} was there before, the ledger ends at row {end}: an old copy was put back")
    if int(number) and store.rows[int(number) - 1].hash != digest:
        raise PrivacyError(f"row {number} is not the one that was there before: the ledger was rewritten")


def _replay(store: Store) -> tuple[LedgerState, float]:
    state = LedgerState()
    checked: Counts = {}
    share, plans = 0.0, set()
    for row in store.rows:
        # A tightened budget counts from then on: what was charged before is judged by the one before.
        if row.kind == "tighten":
            share, checked = _check_spends(state, checked, share)
        state.apply(row)
        if row.kind == "run":
            run = state.run(row.content["run"])
            if run.plan_hash not in plans:
                plans.add(run.plan_hash)
                run.plan.verify()
        if row.kind == "close":
            _check_recorded(state, row.content, row.number)
    share, _ = _check_spends(state, checked, share)
    check_no_doubled(state)
    return state, share


def _check_spends(state: LedgerState, checked: Counts, share: float) -> tuple[float, Counts]:
    """Every class that was charged since ``checked`` keeps its budgets; returns the largest share, the counts now."""
    for population in state.populations.values():
        for number, stays in enumerate(population.classes):
            if any(state.end_of(stay) > max(stay.first, checked.get((stay.run, stay.group), 0)) for stay in stays):
                share = max(share, _check_class(state, population, number))
    return share, {(run.name, group): count for run in state.runs.values() for group, count in enumerate(run.charged)}


def _check_class(state: LedgerState, population: Population, number: int) -> float:
    history = state.history(population, number)
    share = 0.0
    for epsilon, delta in population.strictest_of(number):
        cost = spent(history, delta=delta)
        if cost > epsilon:
            client = population.label(int(np.argmax(population.class_of == number)))
            raise PrivacyError(
                f"client {client!r} of {population.name!r} and its like spent epsilon {rounded_up(cost, 6)} at delta "
                f"{delta_up(delta)}, more than the {allowance(epsilon)} that the strictest of them allowed"
            )
        share = max(share, cost / epsilon)
    return share


def _check_recorded(state: LedgerState, content: dict[str, object], row: int) -> None:
    run, recorded = state.run(str(content["run"])), content["spent"]
    if not isinstance(recorded, dict):
        raise PrivacyError(f"row {row} (close) records no spend")
    for name, stated in recorded.items():
        actual = state.most_spent(run, run.group_number(name))
        if not math.isclose(actual, float(stated), rel_tol=_TOLERANCE, abs_tol=_TOLERANCE):
            raise PrivacyError(f"row {row} (close) records epsilon {stated} for {name!r}, the rows give {actual}")
