import dataclasses

import numpy as np
import pytest

from gdpfed.errors import PrivacyError
from gdpfed.ledger.chain import GENESIS, Row, checked_chain, following, pack, pack_sample, unpack, unpack_sample


def chain(length: int = 6) -> list[Row]:
    rows: list[Row] = []
    for number in range(1, length + 1):
        rows.append(following(rows[-1].hash if rows else GENESIS, number, "note", {"text": str(number)}))
    return rows


def test_an_edited_row_is_named() -> None:
    rows = chain()
    assert checked_chain(rows, source="test") == rows
    for index in range(len(rows)):
        for name, value in (("kind", "other"), ("body", '{"text":"x"}'), ("hash", GENESIS)):
            edited = [*rows]
            edited[index] = dataclasses.replace(rows[index], **{name: value})  # type: ignore[arg-type]
            with pytest.raises(PrivacyError, match=f"row {index + 1} "):
                checked_chain(edited, source="test")


def test_a_missing_row_is_named() -> None:
    rows = chain()
    for index in range(len(rows) - 1):
        with pytest.raises(PrivacyError, match=f"row {index + 1} is missing"):
            checked_chain(rows[:index] + rows[index + 1 :], source="test")
        # Numbered again, the hashes do not follow.
        renumbered = [
            dataclasses.replace(row, number=number) for number, row in enumerate(rows[:index] + rows[index + 1 :], 1)
        ]
        with pytest.raises(PrivacyError, match=f"row {index + 1} "):
            checked_chain(renumbered, source="test")
        swapped = [*rows]
        swapped[index], swapped[index + 1] = swapped[index + 1], swapped[index]
        with pytest.raises(PrivacyError, match=f"row {index + 1} "):
            checked_chain(swapped, source="test")
        with pytest.raises(PrivacyError, match=f"row {index + 2} "):
            checked_chain([*rows[: index + 1], rows[index], *rows[index + 1 :]], source="test")


@pytest.mark.parametrize("kind", [np.float64, np.int16, np.int64, np.uint8])
def test_arrays_come_back(kind: type) -> None:
    for values in (np.arange(300).astype(kind), np.empty(0, dtype=kind)):
        back = unpack(pack(values))
        assert back.dtype == values.dtype
        np.testing.assert_array_equal(back, values)
    for sample in ([], [0], [0, 1, 2, 70_000], [5, 6, 200_000]):
        assert unpack_sample(pack_sample(np.array(sample, dtype=np.int64))).tolist() == sample
    for wrong in ([1, 1], [2, 1], [-1, 4]):
        with pytest.raises(PrivacyError, match="once, in increasing order"):
            pack_sample(np.array(wrong))
    with pytest.raises(PrivacyError, match="edited"):
        unpack("<i4:!!!")
