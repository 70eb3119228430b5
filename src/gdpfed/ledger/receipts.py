"""A receipt: what a client allowed and what it has spent, signed, for the client to keep.

Place: read from the ledger's state. It lists the client's events, so that whoever holds it can compute the epsilon
again without the ledger, and the ledger's length and last hash, so that an older copy of the ledger put back later is
noticed by `verify_ledger`. Only for the client: it says how often it took part, which others must not learn.

Guarantees (tests of the same name):
  a_receipt_can_be_checked      its signature holds, and its events cost what it says.
  an_edited_receipt_is_refused  any changed character of its content.
"""

import dataclasses
import json
from typing import Any

import numpy as np

from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.keys import is_signed, sign
from gdpfed.ledger.spend import spent
from gdpfed.ledger.status import client_statuses
from gdpfed.planning.plan import ADJACENCIES
from gdpfed.privacy.accountant import SampledGaussian, accountant_version
from gdpfed.privacy.cache import without_cache

__all__ = ["check_receipt", "receipt"]

_TOLERANCE = 1e-9


def _message(statement: dict[str, Any]) -> bytes:
    return json.dumps(statement, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def receipt(ledger: Ledger, population: str, client: str) -> dict[str, Any]:
    """A signed statement of what one client has spent over all runs."""
    secret = ledger.store.key
    if secret is None:
        raise InputError("expected the ledger's key, to sign a receipt: give its path as key_file")
    state, people = ledger.state, ledger.state.population(population)
    index = people.index(client)
    runs = [run for run in state.runs_of(people) if run.assignment[index] >= 0]
    (status,) = client_statuses(state, people, np.array([index]))
    statement = {
        "ledger": state.about["id"],
        "population": population,
        "client": client,
        "adjacency": ADJACENCIES["rotation" if any(run.plan.is_rotation for run in runs) else "poisson"],
        "accountant": accountant_version(),
        "budget": {"epsilon": status.epsilon, "delta": status.delta},
        "spent": {"release": status.spent_release, "server": status.spent_server},
        "events": [dataclasses.asdict(event) for event in state.history(people, int(people.class_of[index]))],
        "participations": {run.name: int(run.participations[index]) for run in runs},
        "has_left": status.has_left,
        "head": {"number": len(ledger.store.rows), "hash": ledger.store.last_hash},
        "public_key": state.about["public_key"],
    }
    return {"statement": statement, "signature": sign(secret, _message(statement))}


def check_receipt(content: dict[str, Any], *, public_key: str | None = None) -> dict[str, Any]:
    """The statement of a receipt whose signature holds and whose epsilon follows from its events; else PrivacyError.

    ``public_key`` is the one that the client knows; without it the receipt's own is used, which shows only that
    nothing was changed since.
    """
    try:
        statement, signature = content["statement"], content["signature"]
        named = statement["public_key"]
        events = [SampledGaussian(**event) for event in statement["events"]]
        stated, delta = float(statement["spent"]["release"]), float(statement["budget"]["delta"])
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"expected a receipt with a statement and a signature, got something else ({error})") from None
    if public_key is not None and named != public_key:
        raise PrivacyError(f"the receipt was signed with another key ({named}), not {public_key}")
    if not is_signed(named, signature, _message(statement)):
        raise PrivacyError("the signature does not belong to this statement: the receipt was edited")
    with without_cache():
        actual = spent(events, delta=delta)
    if abs(actual - stated) > _TOLERANCE * max(actual, 1.0):
        raise PrivacyError(f"the receipt states epsilon {stated}, its events cost {actual}")
    return dict(statement)
