import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from gdpfed.errors import InputError
from gdpfed.privacy.budgets import Budgets, parse_compact, read_budgets

ROWS = [("a", 0.5, None), ("b", 1.5, 1e-6), ("c", 3.0, None)]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_formats_agree(tmp_path: Path) -> None:
    csv_file = write(tmp_path / "b.csv", "client,epsilon,delta\na,0.5,\nb,1.5,1e-6\nc,3,\n")
    json_file = write(
        tmp_path / "b.json",
        json.dumps([{"client": c, "epsilon": e, **({"delta": d} if d else {})} for c, e, d in ROWS]),
    )
    parquet_file = tmp_path / "b.parquet"
    table = pyarrow.table(
        {name: [row[place] for row in ROWS] for place, name in enumerate(("client", "epsilon", "delta"))}
    )
    pyarrow.parquet.write_table(table, parquet_file)
    for path in (csv_file, json_file, parquet_file):
        budgets = read_budgets(path)
        assert budgets.clients == ("a", "b", "c")
        assert budgets.epsilons.tolist() == [0.5, 1.5, 3.0]
        assert budgets.deltas_or(1e-5).tolist() == [1e-5, 1e-6, 1e-5]


def test_json_object_and_group_column(tmp_path: Path) -> None:
    assert read_budgets(write(tmp_path / "b.json", '{"x": 1, "y": 2.5}')).clients == ("x", "y")
    grouped = read_budgets(write(tmp_path / "b.csv", "Client, Epsilon ,group\n1,2,ward\n2,3,lab\n"))
    assert grouped.groups == ("ward", "lab")


def test_compact() -> None:
    budgets = parse_compact("2_000@0.5, 3@1.5")
    assert len(budgets) == 2003
    assert budgets.default_delta == pytest.approx(2003**-1.1)
    assert budgets.label(7) == "7"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("10@0", "epsilon"),
        ("10@-1", "epsilon"),
        ("10@nan", "epsilon"),
        ("10@inf", "epsilon"),
        ("10@abc", "epsilon"),
        ("0@1", "clients"),
        ("-5@1", "clients"),
        ("1.5@1", "clients"),
        ("10@1,", "COUNT@EPSILON"),
        ("10@1@2", "COUNT@EPSILON"),
        ("99999999999@1", "at most"),
    ],
)
def test_bad_compact_is_refused(text: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        parse_compact(text)


def test_every_client_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"client='a' 2 times"):
        read_budgets(write(tmp_path / "b.csv", "client,epsilon\na,1\nb,1\na,2\n"))


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_every_budget_is_usable(value: float) -> None:
    with pytest.raises(InputError, match=r"epsilon=.* for client '1'"):
        Budgets(epsilons=np.array([1.0, value]), deltas=np.full(2, math.nan))
    if not math.isnan(value):
        with pytest.raises(InputError, match=r"delta=.* for client '1'"):
            Budgets(epsilons=np.ones(2), deltas=np.array([math.nan, value]))


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("b.csv", "", "empty"),
        ("b.csv", "client,epsilon\n", "no rows"),
        ("b.csv", "client,epsilom\na,1\n", "rename 'epsilom' to 'epsilon'"),
        ("b.csv", "id,epsilon\na,1\n", "column 'client'"),
        ("b.csv", "client,epsilon,detla\na,1,2\n", "did you mean 'delta'"),
        ("b.csv", "client,epsilon\na,one\n", "epsilon, got 'one' in row 1"),
        ("b.csv", "client,epsilon\na,\n", "epsilon=nan"),
        ("b.csv", "client,epsilon\na,1,2\n", "2 fields in line 2"),
        ("b.json", "", "empty"),
        ("b.json", "[]", "no rows"),
        ("b.json", "{", "JSON"),
        ("b.json", '{"a": 0.5, "b": 1, "a": 3}', "'a' 2 times"),
        ("b.json", '[{"epsilon": 1}, {"client": "b", "epsilon": 2}]', "name for every client"),
        ("b.json", "[" * 100_000, "JSON"),
        ("b.json", '{"a": ' + "9" * 5000 + "}", "JSON"),
        ("b.csv", "client,epsilon,epsilon\na,1,9\n", "every column once"),
        ("b.csv", "client,epsilon\na,1\na ,9\n", "client='a' 2 times"),
        ("b.csv", "client,epsilon\n,1\n", "name for every client"),
        ("b.json", "[1, 2]", "list of"),
        ("b.json", '[{"client": "a", "epsilon": true}]', "epsilon"),
        ("b.json", '[{"client": "a", "epsilon": [1]}]', "epsilon"),
        ("b.parquet", "not parquet", "Parquet"),
        ("b.xlsx", "", r"\.csv, \.json or \.parquet"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, content: str, named: str) -> None:
    with pytest.raises(InputError, match=named):
        read_budgets(write(tmp_path / name, content))


@pytest.mark.parametrize("name", ["b.csv", "b.json"])
def test_binary_and_absent_files_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="not there"):
        read_budgets(tmp_path / name)
    (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff\xfe" * 10)
    with pytest.raises(InputError, match="binary"):
        read_budgets(tmp_path / name)


def test_a_single_client_needs_a_delta() -> None:
    with pytest.raises(InputError, match="expected a delta for a single client"):
        _ = parse_compact("1@1").default_delta


PLAIN = "client,epsilon,delta\nana,0.5,\nböb,1.5,0.000001\nc,3,\n"
WITH_COMMAS = "client;epsilon;delta\nana;0,5;\nböb;1,5;0,000001\nc;3;\n"


@pytest.mark.parametrize(
    "content",
    [
        PLAIN.encode(),
        PLAIN.encode("utf-8-sig"),
        PLAIN.encode("utf-16"),
        PLAIN.encode("utf-16-le"),
        PLAIN.encode("utf-16-be"),
        PLAIN.replace(",", ";").encode(),
        PLAIN.replace(",", "\t").encode("utf-16"),
        PLAIN.replace(",", " | ").encode(),
        PLAIN.replace("\n", "\r\n").encode(),
        WITH_COMMAS.encode(),
        WITH_COMMAS.replace(";", "\t").encode("utf-16"),
        ("sep=;\r\n" + WITH_COMMAS).encode(),
        (WITH_COMMAS + ";;\n;;\n").encode(),
        WITH_COMMAS.replace("\n", ";\n").encode(),
        'client,epsilon,delta\nana,"0,5",\nböb,"1,5","1e-6"\nc,3,\n'.encode(),
        "city,client,epsilon,delta,room\nUlm,ana,0.5,,x\nUlm,böb,1.5,1e-6,x\nUlm,c,3,,x\n".encode(),
    ],
)
def test_spreadsheets_agree(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "b.csv"
    path.write_bytes(content)
    budgets = read_budgets(path)
    assert budgets.clients == ("ana", "böb", "c")
    assert budgets.epsilons.tolist() == [0.5, 1.5, 3.0]
    assert budgets.deltas_or(1e-5).tolist() == [1e-5, 1e-6, 1e-5]


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("client;epsilon\na;1,500\nb;2,250\n", "'1,500', whose comma"),
        ("client;epsilon\na;1,5\nb;2.5\n", "'1,5', whose comma"),
        ("client;epsilon\na;1,5,2\n", "'1,5,2', whose comma"),
        ("client,epsilon\na,0,5\n", "decimal commas"),
        ("client;epsilon;deltas\na;1;1e-5\n", "did you mean 'delta'"),
        ("client,epsilon,group,Groups\na,1,x,y\n", None),
        ("client;epsilon\na\n", "2 fields in line 2"),
        ("name\tage\nx\t3\n", "column 'client'.*got 'name', 'age'"),
    ],
)
def test_doubtful_text_is_refused(tmp_path: Path, content: str, named: str | None) -> None:
    path = write(tmp_path / "b.csv", content)
    if named is None:
        assert read_budgets(path).groups == ("x",)
        return
    with pytest.raises(InputError, match=named):
        read_budgets(path)


def test_a_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is a folder: name the file in it$"):
        read_budgets(tmp_path)
    write(tmp_path / "b.csv", PLAIN)
    with pytest.raises(InputError, match=r"is a folder: .*b\.csv"):
        read_budgets(tmp_path)
    (tmp_path / "latin.csv").write_bytes(PLAIN.encode("latin-1"))
    with pytest.raises(InputError, match="another encoding"):
        read_budgets(tmp_path / "latin.csv")


@pytest.mark.parametrize("num_clients", [2, 5, 100, 599])
def test_default_delta_means_something(num_clients: int) -> None:
    assert parse_compact(f"{num_clients}@1").default_delta * num_clients == pytest.approx(0.1)


@pytest.mark.parametrize("num_clients", [2, 600, 6000, 200_000])
def test_who_has_a_name_is_no_experiment(num_clients: int) -> None:
    """Delta times clients is at most 0.1, whatever their number."""
    counted = parse_compact(f"{num_clients}@1")
    named = dataclasses.replace(counted, clients=tuple(map(str, range(num_clients))))
    assert named.default_delta * num_clients == pytest.approx(0.1)


@pytest.mark.parametrize("num_clients", [600, 687, 714, 6000])
def test_the_papers_populations_have_the_papers_delta(num_clients: int) -> None:
    assert parse_compact(f"{num_clients}@1").default_delta == num_clients**-1.1
