import copy
import json
from pathlib import Path

import numpy as np
import pytest

from gdpfed.errors import InputError, PrivacyError
from gdpfed.ledger.book import Ledger
from gdpfed.ledger.receipts import check_receipt, receipt
from gdpfed.ledger.status import client_statuses
from gdpfed.ledger.verify import verify_ledger
from gdpfed.privacy.budgets import parse_compact
from tests.ledger.books import TWO
from tests.ledger.test_status import played


def test_a_receipt_can_be_checked(shelf: Path) -> None:
    with played(shelf) as ledger:
        signed = json.loads(json.dumps(receipt(ledger, "people", "0")))
        public = ledger.state.about["public_key"]
        (status,) = client_statuses(ledger.state, ledger.state.population("people"), np.array([0]))
    statement = check_receipt(signed, public_key=public)
    assert statement["spent"] == {"release": status.spent_release, "server": status.spent_server}
    assert statement["participations"] == {"run": 7}
    assert statement["budget"] == {"epsilon": 1.5, "delta": 1e-3}
    # Its head is one that the ledger knows.
    head = statement["head"]
    verify_ledger(shelf / "book", known_head=f"{head['number']}:{head['hash']}")


def test_an_edited_receipt_is_refused(shelf: Path) -> None:
    with played(shelf) as ledger:
        signed = receipt(ledger, "people", "120")
        public = ledger.state.about["public_key"]
    for name, value in (("client", "121"), ("spent", {"release": 0.1, "server": 0.1}), ("events", [])):
        edited = copy.deepcopy(signed)
        edited["statement"][name] = value
        with pytest.raises(PrivacyError, match="edited"):
            check_receipt(edited)
    with Ledger.create(shelf / "other") as other:
        other.add_population("people", parse_compact(TWO))
        forged = receipt(other, "people", "120")
    check_receipt(forged)
    with pytest.raises(PrivacyError, match="another key"):
        check_receipt(forged, public_key=public)
    with pytest.raises(InputError, match="expected a receipt"):
        check_receipt({"statement": {}})
    (shelf / "book.key").unlink()
    with pytest.raises(InputError, match="key_file"):
        receipt(Ledger.read(shelf / "book"), "people", "1")
