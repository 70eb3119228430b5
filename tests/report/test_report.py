"""Reports of made-up runs: what is refused, what is computed, what the page may contain."""

import dataclasses
import html
import itertools
import json
import math
import re
import shutil
import statistics
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gdpfed.errors import InputError
from gdpfed.ledger.book import Ledger
from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import assign
from gdpfed.planning.plan_file import save_plan
from gdpfed.planning.settings import PlanSettings
from gdpfed.planning.spent import spent_so_far
from gdpfed.privacy.accountant import SampledGaussian, epsilon_of
from gdpfed.privacy.budgets import read_budgets
from gdpfed.privacy.rounding import promise, rounded_up
from gdpfed.report import findings as found
from gdpfed.report import svg as draw
from gdpfed.report.colours import DARK, LIGHT
from gdpfed.report.comparison import curves, method_results
from gdpfed.report.contents import MethodRuns, ReportData
from gdpfed.report.figures import clipped_strip, look
from gdpfed.report.load import load_planned, load_report
from gdpfed.report.page import report_html
from gdpfed.report.report_pictures import report_figures, write_figures
from gdpfed.report.tables import cost_table, method_table, plan_table
from gdpfed.report.texts import report_json, report_markdown
from gdpfed.runs.folder import STAMP, create_run, open_run
from gdpfed.runs.link import LedgerLink
from gdpfed.runs.stamp import DEPLOYED, TESTED
from tests.report.synthetic import SIX, planned, records_of, task_of, write_records, write_run, write_runs


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_runs(tmp_path_factory.mktemp("six"))


@pytest.fixture(scope="module")
def data(six: Path) -> ReportData:
    return load_report([six])


def with_accuracies(method: MethodRuns, accuracies: list[float], label: str) -> MethodRuns:
    runs = tuple(
        dataclasses.replace(
            method.runs[0],
            seed=seed,
            records=(*method.runs[0].records[:-1], dataclasses.replace(method.runs[0].last, accuracy=accuracy)),
        )
        for seed, accuracy in enumerate(accuracies, start=1)
    )
    return dataclasses.replace(method, label=label, runs=runs)


# What is computed


def test_methods_and_headline(data: ReportData) -> None:
    assert [method.label for method in data.methods] == [
        "pooled",
        "idp-fedavg",
        "gdpfed+",
        "gdpfed",
        "dp-fedavg",
        "fedavg",
    ]
    assert data.headline.label == "pooled"
    assert data.seeds == [1, 2, 3]
    assert len(data.runs) == 18
    best = data.headline
    assert best.mean == pytest.approx(sum(best.accuracies) / 3)
    assert best.std == pytest.approx(math.sqrt(sum((value - best.mean) ** 2 for value in best.accuracies) / 2))
    assert all(cost.keeps_promise for cost in best.costs)
    free = next(method for method in data.methods if method.label == "fedavg")
    assert not free.costs[0].keeps_promise


def test_findings_follow_the_numbers(data: ReportData) -> None:
    base = data.headline
    high, low = with_accuracies(base, [70, 71, 72], "high"), with_accuracies(base, [60, 61, 69.9], "low")
    assert "6.4" not in found.comparison(high, low)
    assert (
        found.comparison(high, low) == "high ends 7.4 points above low; every seed of high is above every seed of low."
    )
    assert (
        found.comparison(low, high) == "low ends 7.4 points below high; every seed of high is above every seed of low."
    )
    touching = with_accuracies(base, [60, 61, 70], "touching")
    assert found.comparison(high, touching).endswith("their seeds overlap.")
    one = with_accuracies(base, [10], "one")
    assert "no spread to judge" in found.comparison(high, one)
    assert found.headline(data).startswith("pooled reaches ")
    assert found.headline(data).endswith("keeps every group's promise")
    assert "fedavg, which promises no privacy, ends at" in found.findings(data)[0]


def test_cohort_range_holds_95_of_100(data: ReportData) -> None:
    from scipy import stats

    for group in data.headline.plan.groups:
        low, high = found.cohort_range(data.headline.plan, group)
        count = stats.binom(group.num_clients, group.sampling_rate)
        assert count.cdf(high) - count.cdf(low - 1) >= 0.95
        assert count.cdf(high - 1) - count.cdf(low) < 0.95


def test_tables_say_what_the_plan_says(data: ReportData) -> None:
    best = data.headline
    columns, rows = cost_table(best)
    assert [len(row) for row in rows] == [len(columns)] * len(best.plan.groups)
    for row, group in zip(rows, best.plan.groups, strict=True):
        view = best.plan.server_view(group)
        assert row[3:5] == [promise(group.epsilon), rounded_up(group.epsilon_release)]
        assert row[5] == f"{rounded_up(view.epsilon_mean, 2)} (in {view.mean_participations})"
        assert float(row[7].split()[0]) >= group.epsilon_server
    columns, rows = plan_table(best)
    assert [len(row) for row in rows] == [len(columns)] * len(best.plan.groups)
    columns, rows = method_table(data)
    assert {row[0] for row in rows} == set(SIX)
    assert all(len(row) == len(columns) for row in rows)
    free = next(row for row in rows if row[0] == "fedavg")
    assert free[5:9] == ["none", "infinite", "infinite", "infinite"]


def test_settings_that_differ_name_a_variant(tmp_path: Path) -> None:
    write_run(tmp_path / "a", task_of("gdpfed", clip_norm=1.0), seed=1)
    write_run(tmp_path / "b", task_of("gdpfed", clip_norm=2.0), seed=1)
    write_run(tmp_path / "c", task_of("pooled"), seed=1)
    assert {m.label for m in load_report([tmp_path]).methods} == {
        "gdpfed (clip norm 1)",
        "gdpfed (clip norm 2)",
        "pooled",
    }


def test_nobody_guesses_better() -> None:
    """The best guess there is, at 50:50: exact for a Gaussian, and for one round of sampling."""
    phi = statistics.NormalDist().cdf
    for noise, rate, delta in itertools.product((0.3, 0.7, 1.5, 4.0), (1.0, 0.2), (1e-6, 1e-3)):
        mechanism = SampledGaussian(noise_multiplier=noise, sampling_rate=rate, num_rounds=1)
        distance = rate * (2 * phi(1 / (2 * noise)) - 1)
        said = float(found.guessed_right(epsilon_of(mechanism, delta=delta), delta))
        assert 50 < 50 * (1 + distance) <= said <= 100
    # Where epsilon alone counts, it is what epsilon says: 3 to 1.
    assert found.guessed_right(math.log(3), 1e-12) == "75.1"


def test_a_plan_can_be_reported(tmp_path: Path) -> None:
    """Both adversaries, people, and what is not protected; from a file alone, or a source."""
    path = tmp_path / "plan.toml"
    budgets = "60@1,90@2,50@6"
    asked = PlanSettings(method="gdpfed", num_rounds=10, participation=0.2, clients_per_person=2, person_epsilon=7.0)
    save_plan(planned(budgets, asked), path)
    data = load_planned(str(path))
    assert (data.title, data.runs, data.task) == ("plan.toml", [], None)
    group = data.headline.plan.groups[0]
    page, text, told = report_html(data), report_markdown(data), json.loads(report_json(data))
    words = html.unescape(re.sub(r"<[^>]*>", "", page))
    for shown in (words, text.replace("**", "")):
        assert "gdpfed would promise 200 clients epsilon 1 to 6 against whoever sees the models" in shown
        assert f"is right in at most {found.guessed_right(1.0, group.delta)} of 100 cases" in shown
        assert "The server knows when this client took part" in shown
        assert "Not protected: that this client is enrolled, that it allows epsilon 1," in shown
        assert "within the limit of 7 that was set" in shown
        assert "nothing is trained yet" in shown
        assert "gdpfed verify plan.toml" in shown
        assert str(tmp_path) not in shown
    (method,) = told["methods"]
    assert method["costs"][0]["spent_release"] == group.epsilon_release
    assert method["plan"]["person_epsilon"] == 7.0
    assert [len(cost["conclusions"]) for cost in method["costs"]] == [3, 3, 3]
    assert "Convergence" not in page
    rotation = dataclasses.replace(
        asked, against="server", asks=5, trainings=2.0, person_epsilon=None, clients_per_person=1
    )
    save_plan(planned(budgets, rotation), path)
    both = load_planned(str(path))
    assert found.headline(both).endswith("against whoever sees the models, and the server")
    assert "Whoever sees the models, or is the server," in report_markdown(both)
    assert "being enrolled, and when one is asked" in report_html(both)
    source = load_planned(budgets)
    assert "All clients from left to right" in report_html(source)
    assert "gdpfed plan 60@1,90@2,50@6 --out plan.toml" in report_markdown(source)
    assert "would promise no privacy" in found.headline(dataclasses.replace(data, methods=(free_of(data),)))


def free_of(data: ReportData) -> MethodRuns:
    return dataclasses.replace(data.headline, plan=planned("60@1", PlanSettings(method="fedavg", num_rounds=10)))


def test_remarks_are_in_the_headline(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", task_of("gdpfed", delta=1e-2), seed=1)
    run.save_remarks(["nobody took part in any round: the model is its start, and noise"])
    data = load_report([tmp_path])
    page, text, told = report_html(data), report_markdown(data), json.loads(report_json(data))
    for remark in ("delta times clients is 2:", "nobody took part in any round"):
        assert f'<li class="alarm">Note: {remark}' in page
        assert f"- **Note**: {remark}" in text
        assert any(one.startswith(remark) for one in told["headline"]["remarks"])
    assert page.index("Note: nobody") < page.index("<nav")


def test_a_run_on_a_ledger_has_two_costs(tmp_path: Path) -> None:
    """Its own by what the ledger charged, a lost round with it; and that of all runs, as it was recorded."""
    task = task_of("gdpfed")
    plan = planned(task.budgets_source, task.settings)
    link = LedgerLink(path=tmp_path / "book", population="people", run="run")
    with Ledger.create(link.path) as ledger:
        ledger.add_population("people", dataclasses.replace(task.budgets, epsilons=3 * task.budgets.epsilons))
        ledger.start_run("run", "people", plan, assign(plan, task.budgets))
        ledger.reserve("run", 0, "group 1").commit(np.array([0]))
        for number in range(10):
            ledger.charge_round("run", number, {group.name: np.array([], dtype=np.int64) for group in plan.groups})
        ledger.close_run("run")
    run = write_run(tmp_path / "run", task, seed=1)
    (run.path / "ledger.json").write_text(link.as_json())
    records = records_of(plan, seed=1, level=80.0, rounds=10)
    for record in records:
        record["epsilons"] = [2 * group.epsilon for group in plan.groups]
    write_records(run, records)
    data = load_report([run.path])
    lost, *rest = data.headline.costs
    eleven = dataclasses.replace(plan.mechanism(plan.groups[0]), num_rounds=11)
    assert lost.release == pytest.approx(epsilon_of(eleven, delta=lost.group.delta), rel=2e-3)
    assert lost.release > lost.group.epsilon_release
    assert [cost.release for cost in rest] == [group.epsilon_release for group in plan.groups[1:]]
    assert [cost.over_all_runs for cost in (lost, *rest)] == [2 * group.epsilon for group in plan.groups]
    assert data.headline.runs[0].last.epsilons == tuple(group.epsilon_release for group in plan.groups)
    page = report_html(data)
    assert "Over all runs<small>of the ledger, by the end of this one" in page
    assert f"is right in at most {found.guessed_right(2.0, lost.group.delta)} of 100" in page
    assert "over all runs" in report_markdown(data)
    for record in records:
        record["epsilons"] = [0.5 * group.epsilon for group in plan.groups]
    write_records(run, records)
    with pytest.raises(InputError, match="spent what its ledger charged, got less: it was edited"):
        load_report([run.path])
    # Where the ledger is not at hand, the plan says what the run cost.
    link.path.unlink()
    assert load_report([run.path]).headline.costs[0].release == plan.groups[0].epsilon_release


# What is refused


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    write_run(tmp_path / "whole", task_of("gdpfed"), seed=1, level=70)
    write_run(tmp_path / "half", task_of("pooled"), seed=1, level=90, rounds=6)
    with pytest.raises(
        InputError, match=r"'half', which has done 6 rounds: gdpfed resume half, or ask for a partial report"
    ):
        load_report([tmp_path])
    data = load_report([tmp_path], partial=True)
    assert data.headline.label == "gdpfed", "a finished run comes before an unfinished one, however good"
    assert [run.folder for run in data.unfinished] == ["half"]
    assert "Unfinished: half" in report_html(data)
    assert "1 of 1 runs unfinished" in report_html(data)
    assert "**Unfinished**: half" in report_markdown(data)
    assert json.loads(report_json(data))["unfinished"] == ["half"]
    write_run(tmp_path / "other", task_of("pooled"), seed=2, level=60)
    data = load_report([tmp_path], partial=True)
    pooled = next(method for method in data.methods if method.label == "pooled")
    assert len(pooled.accuracies) == 1, "an unfinished run does not enter a mean of finished ones"
    alone = load_report([tmp_path / "half"], partial=True)
    assert found.headline(alone).endswith("after 6 of 10 rounds, unfinished")


def test_what_an_unfinished_run_spent(tmp_path: Path) -> None:
    write_run(tmp_path / "half", task_of("pooled"), rounds=3, timed=7)
    method = load_report([tmp_path], partial=True).methods[0]
    assert method.runs[0].rounds_done == 7
    expected = spent_so_far(method.plan, 7)
    assert tuple(cost.release for cost in method.costs) == expected
    for cost in method.costs:
        assert cost.release < cost.group.epsilon_release
        assert cost.server.max_participations == 7
    (tmp_path / "half" / "timing.jsonl").unlink()
    assert load_report([tmp_path], partial=True).methods[0].runs[0].rounds_done == 4


def test_unfinished_runs_that_evaluated_other_rounds(tmp_path: Path) -> None:
    one = write_run(tmp_path / "one", task_of("gdpfed"), seed=1, rounds=4)
    two = write_run(tmp_path / "two", task_of("gdpfed"), seed=2, rounds=4)
    records = records_of(one.plan, seed=1, level=80, rounds=4)
    write_records(one, [records[1], records[3]])
    write_records(two, [records[2]])
    data = load_report([tmp_path], partial=True)
    assert data.methods[0].rounds == (2, 4)
    parsed(report_html(data))
    assert "convergence" in report_figures(data)


def test_budgets_from_a_file(tmp_path: Path) -> None:
    """Named clients: the run folder has its own copy of their budgets, and no path of this machine is reported."""
    budgets = tmp_path / "clients.csv"
    budgets.write_text("client,epsilon\n" + "".join(f"c{place},{1 + place % 3}\n" for place in range(90)))
    task = dataclasses.replace(task_of("gdpfed"), budgets=read_budgets(budgets), budgets_source=str(budgets))
    run = create_run(tmp_path / "runs" / "a", task=task, plan=make_plan(task.budgets, task.settings), seed=1)
    write_records(run, records_of(run.plan, seed=1, level=80, rounds=10))
    (run.path / "model.safetensors").write_bytes(b"")
    budgets.unlink()
    data = load_report([tmp_path / "runs"])
    for text in (report_html(data), report_markdown(data), report_json(data)):
        assert "budgets.csv" in text
        assert str(tmp_path) not in text


def test_one_report_is_one_task(tmp_path: Path) -> None:
    write_run(tmp_path / "a", task_of("gdpfed"))
    for name, changed, words in (
        ("data", task_of("gdpfed", dataset="svhn"), r"'a' and 'data' of different data set: 'fmnist-mini' and 'svhn'"),
        ("title", task_of("gdpfed", title="Other"), "different title: 'Made up' and 'Other'"),
        ("budgets", task_of("gdpfed", budgets="60@1,90@2,50@5"), "different budgets"),
    ):
        write_run(tmp_path / name, changed)
        with pytest.raises(InputError, match=words + r".*make a report for each"):
            load_report([tmp_path])
        shutil.rmtree(tmp_path / name)
    task = task_of("pooled")
    training = dataclasses.replace(task.training, batch_size=7)
    write_run(tmp_path / "training", dataclasses.replace(task, training=training))
    with pytest.raises(InputError, match=r"different \[training\]"):
        load_report([tmp_path])
    shutil.rmtree(tmp_path / "training")
    sparse = dataclasses.replace(task.training, evaluate_every=5)
    write_run(tmp_path / "sparse", dataclasses.replace(task, training=sparse))
    assert len(load_report([tmp_path]).methods) == 2


def test_a_bad_record_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", task_of("gdpfed"))
    good = records_of(run.plan, seed=1, level=80, rounds=10)
    for name in good[0]:
        write_records(run, [*good[:2], {key: value for key, value in good[2].items() if key != name}, *good[3:]])
        with pytest.raises(InputError, match=rf"expected a field '{name}' in line 3 of .*run/records.jsonl'"):
            load_report([tmp_path])
    for name, value in (
        ("accuracy", 101), ("accuracy", "high"), ("accuracy", math.nan), ("loss", None), ("cohort", [1]),
        ("cohort", [1, 2, -3]), ("epsilons", 3), ("epsilons", [1, 2, math.inf]), ("clipped", -1), ("round", True),
        ("update_norm", -1),
    ):  # fmt: skip
        write_records(run, [*good[:9], {**good[9], name: value}])
        with pytest.raises(InputError, match=rf"expected .*{name}.*line 10"):
            load_report([tmp_path])
    for records, words in (
        ([], "at least one record"),
        (good[:9], "a record of round 10"),
        ([*good[:9], {**good[9], "epsilons": [0.1, 0.1, 0.1]}], "what its plan says"),
        ([*good[:9], {**good[9], "epsilons": [None, None, None]}], "what its plan says"),
        ([*good, good[-1]], "rising rounds"),
        ([good[1], good[0], good[9]], "rising rounds"),
        ([*good, {**good[9], "round": 11}], "rising rounds up to 10"),
    ):
        write_records(run, records)
        with pytest.raises(InputError, match=words):
            load_report([tmp_path])
    (run.path / "records.jsonl").write_text("[1, 2]\n")
    with pytest.raises(InputError, match="expected a record in line 1"):
        load_report([tmp_path])


def test_the_same_run_twice_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", task_of("gdpfed"), seed=4)
    with pytest.raises(InputError, match="twice: name it once"):
        load_report([tmp_path, run.path])
    shutil.copytree(run.path, tmp_path / "copy")
    with pytest.raises(InputError, match="gdpfed with seed 4 in 'copy' and 'run': leave one out"):
        load_report([tmp_path])


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(InputError, match="expected a run folder"):
            load_report([path])
    run = write_run(tmp_path / "run", task_of("gdpfed"))
    for content in ("", "[]", '{"seed": "one"}', "{}"):
        (run.path / "versions.json").write_text(content)
        with pytest.raises(InputError, match=r"versions\.json states its seed"):
            load_report([tmp_path])
    (run.path / "versions.json").unlink()
    with pytest.raises(InputError, match=r"versions\.json"):
        load_report([tmp_path])


def test_a_plan_that_overspends_makes_no_report(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", task_of("gdpfed"))
    text = (run.path / "plan.toml").read_text()
    (run.path / "plan.toml").write_text(re.sub(r"noise_multiplier = \S+", "noise_multiplier = 0.5", text))
    with pytest.raises(Exception, match="more than its budget"):
        load_report([tmp_path])


# What the outputs contain


class Parsed(HTMLParser):
    """Tags with their attributes, and a stack that shows whether all are closed."""

    EMPTY = frozenset({"meta", "link", "br"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.stack: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag


def parsed(page: str) -> Parsed:
    parser = Parsed()
    parser.feed(page)
    assert not parser.stack
    return parser


def test_the_page_is_self_contained(data: ReportData) -> None:
    page = report_html(data)
    tags = parsed(page).tags
    for tag, attributes in tags:
        for name in ("src", "href", "xlink:href", "action", "poster", "data", "srcset"):
            value = attributes.get(name) or "#"
            assert value.startswith("#") or (tag, value) == ("link", "data:,"), (tag, value)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "http://" not in page
    assert "https://" not in page
    policy = next(a["content"] for _, a in tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    targets = {attributes["id"] for _, attributes in tags if "id" in attributes}
    for _, attributes in tags:
        link = attributes.get("href") or ""
        if link.startswith("#"):
            assert link[1:] in targets, link


def test_every_figure_is_named_and_every_point_has_a_value(data: ReportData) -> None:
    page = report_html(data)
    tags = parsed(page).tags
    charts = [attributes for tag, attributes in tags if tag == "svg" and "chart" in (attributes.get("class") or "")]
    assert len(charts) > 20
    assert all(attributes.get("aria-label") for attributes in charts)
    assert len(re.findall('<g class="p[ "]', page)) == page.count("<title>") - 1
    assert len([tag for tag, _ in tags if tag == "figcaption"]) == 9
    assert page.count("<i>simulation</i>") == 9


HOSTILE = '<script>alert(1)</script>&"quoted" | pipe ]]> ${title} {{ 7 * 7 }} {% raw %}'


def test_text_on_the_page_is_escaped(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>"
    write_run(folder, task_of("gdpfed", title=HOSTILE), seed=1)
    versions = json.loads((folder / "versions.json").read_text())
    (folder / "versions.json").write_text(json.dumps({**versions, "torch": "<b>2</b>"}))
    plan = (folder / "plan.toml").read_text()
    (folder / "plan.toml").write_text(plan.replace('name = "group 1"', 'name = "<i onclick=x>g</i>"'))
    data = load_report([tmp_path])
    page = report_html(data)
    tags = parsed(page).tags
    assert sum(tag == "script" for tag, _ in tags) == 1
    assert not any("onerror" in attributes or "onclick" in attributes for _, attributes in tags)
    assert not any(tag == "img" for tag, _ in tags)
    text = report_markdown(data)
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    assert "<script>" not in prose.replace("\\<script\\>", "")
    rows = [line for line in prose.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (9, 12) for row in rows)
    assert json.loads(report_json(data))["title"] == HOSTILE


def test_text_in_figures_is_escaped() -> None:
    for made in (
        draw.text(0, 0, HOSTILE),
        draw.point(0, 0, marker="circle", label=HOSTILE),
        draw.svg("", width=1, height=1, title=HOSTILE),
    ):
        assert "<script" not in made
        parsed(made)


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 8))
def test_ticks_are_round_numbers(low: float, span: float, wanted: int) -> None:
    high = low + span
    made = draw.ticks(low, high, wanted)
    assert 1 <= len(made) <= 2 * wanted + 1
    slack = 1e-6 * max(abs(low), abs(high), span)
    assert low - slack <= made[0] <= made[-1] <= high + slack
    steps = [b - a for a, b in itertools.pairwise(made)]
    assert all(math.isclose(step, steps[0], rel_tol=1e-6, abs_tol=slack) for step in steps)


def test_labels_are_pushed_apart() -> None:
    placed = draw.pushed_apart([10, 10, 11, 90], gap=15, low=0, high=100)
    assert sorted(placed) == placed
    assert min(b - a for a, b in itertools.pairwise(placed)) >= 15
    assert placed[-1] <= 100
    crowded = draw.pushed_apart([99, 99, 99], gap=20, low=0, high=100)
    assert max(crowded) <= 100


def luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dim = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dim + 0.05)


@pytest.mark.parametrize("scheme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_have_contrast(scheme: dict[str, str]) -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    decoration = {"paper", "card", "tint", "rule", "rule-strong", "ghost", "stamp", "stamp-ink", "warn"}
    for name, colour in scheme.items():
        if name not in decoration:
            for ground in ("paper", "card") if name[0] in "cg" else ("paper", "card", "tint"):
                assert contrast(colour, scheme[ground]) >= 4.5, (name, ground)
    assert contrast(scheme["stamp-ink"], scheme["stamp"]) >= 4.5


def test_a_method_looks_like_no_other() -> None:
    looks = [look(place) for place in range(10)]
    assert len({(dash, marker) for _, dash, marker in looks}) == 10
    assert len({marker for _, _, marker in looks}) == 10
    assert len({colour for colour, _, _ in looks}) == 10
    assert len({look(place)[2] + look(place)[0] for place in range(20)}) == 20


@pytest.mark.training
def test_same_runs_same_bytes(six: Path, tmp_path: Path) -> None:
    one = load_report([six])
    moved = tmp_path / "moved"
    shutil.copytree(six, moved)
    other = load_report(sorted(moved.iterdir(), reverse=True))
    for made in (report_html, report_markdown, report_json):
        assert made(one) == made(other)
        assert str(six) not in made(one)


def test_json_has_every_number(data: ReportData) -> None:
    content = json.loads(report_json(data))
    assert content["stamp"] == STAMP
    assert [method["label"] for method in content["methods"]] == [method.label for method in data.methods]
    best = content["methods"][0]
    assert len(best["runs"]) == 3
    assert len(best["runs"][0]["records"]) == 10
    assert best["accuracy"]["mean"] == data.headline.mean
    for cost, group in zip(best["costs"], data.headline.plan.groups, strict=True):
        assert cost["spent_release"] == group.epsilon_release
        assert cost["server"]["epsilon_max"] == group.epsilon_server
        assert cost["kept"] is True
    assert best["plan"]["hash"] == data.headline.plan_hash
    free = next(method for method in content["methods"] if method["label"] == "fedavg")
    assert free["costs"][0]["spent_release"] is None
    assert free["runs"][0]["records"][0]["epsilons"] == [None]


def test_markdown_is_stamped_and_complete(data: ReportData) -> None:
    text = report_markdown(data)
    assert text.count(STAMP) >= 2
    for words in ("## Promised and spent: pooled", "## The plan: pooled", "## Methods", "## Make it again"):
        assert words in text
    for method in data.methods:
        assert method.plan_hash in text
        for run in method.runs:
            name = run.folder
            again = f"gdpfed train {name}/run.toml --plan {name}/plan.toml --seed {run.seed} --out again/{name}"
            assert again in text


def test_the_stamp_cannot_be_removed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", task_of("gdpfed"))
    versions = json.loads((run.path / "versions.json").read_text())
    (run.path / "versions.json").write_text(json.dumps({**versions, "stamp": "a private release"}))
    data = load_report([tmp_path])
    for text in (report_html(data), report_markdown(data), report_json(data)):
        assert "not a private release" in text
        assert "a private release" not in text.replace("not a private release", "")


def test_a_deployment_is_called_one(tmp_path: Path) -> None:
    """And tells no cohorts and no clipping, which its server does not know; beside a simulation it counts as one."""
    run = write_run(tmp_path / "run", task_of("gdpfed"))
    versions = json.loads((run.path / "versions.json").read_text())
    for stamp, kind in ((DEPLOYED, "Deployment"), (TESTED, "Test of a deployment")):
        (run.path / "versions.json").write_text(json.dumps({**versions, "stamp": stamp}))
        data = load_report([tmp_path])
        page, text = report_html(data), report_markdown(data)
        assert f"<strong>{kind}</strong>" in page
        assert stamp in text
        assert json.loads(report_json(data))["stamp"] == stamp
        for unknown in ("figure-cohorts", "figure-clipped", "gdpfed train", "clipped most", "<i>simulation", "seeds 1"):
            assert unknown not in page + text
        assert "not known" in text
        assert "gdpfed verify run/plan.toml" in text
        assert json.loads(report_json(data))["methods"][0]["clipped_share"] is None
    write_run(tmp_path / "other", task_of("gdpfed+"))
    assert load_report([tmp_path]).stamp == STAMP


@pytest.mark.parametrize(
    ("methods", "seeds"),
    [(("fedavg",), 1), (("dp-fedavg",), 2), (("pooled",), 1)],
    ids=["no privacy", "one group", "one"],
)
def test_small_reports(methods: tuple[str, ...], seeds: int, tmp_path: Path) -> None:
    data = load_report([write_runs(tmp_path, methods=methods, seeds=seeds)])
    parsed(report_html(data))
    assert methods[0] in report_markdown(data)
    json.loads(report_json(data))
    assert "convergence" in report_figures(data)


def test_many_budgets_and_rare_clients(tmp_path: Path) -> None:
    """Hundreds of budgets, groups that waste, and a round of one evaluation only."""
    budgets = ",".join(f"1@{1 + place / 100:g}" for place in range(300))
    task = task_of("gdpfed", budgets=budgets, num_rounds=1, participation=0.3)
    run = write_run(tmp_path / "run", task)
    assert run.plan.mean_waste > 0
    page = report_html(load_report([tmp_path]))
    parsed(page)
    assert "of each client's budget unused" in found.waste(load_report([tmp_path]))
    assert "nan" not in re.sub(r"<script>.*?</script>", "", page, flags=re.S).replace("finance", "")


def test_nothing_clipped_is_said_in_words(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", task_of("gdpfed"))
    write_records(run, [{**record, "clipped": 0} for record in records_of(run.plan, seed=1, level=80, rounds=10)])
    page = report_html(load_report([tmp_path]))
    assert "figure-clipped" not in page
    assert "No update of the recorded rounds was longer than the clip norm." in page


def test_what_nobody_knows_is_left_out(tmp_path: Path) -> None:
    """Records without counts of clipped and dropped updates: unknown is not zero."""
    run = write_run(tmp_path / "run", task_of("gdpfed"))
    records = records_of(run.plan, seed=1, level=80, rounds=10)
    write_records(run, [{**record, "clipped": None, "dropped": None} for record in records])
    data = load_report([tmp_path])
    page, text = report_html(data), report_markdown(data)
    parsed(page)
    assert "How many updates were clipped is not known." in page
    assert "figure-clipped" not in page
    assert "not known" in text
    assert json.loads(report_json(data))["methods"][0]["clipped_share"] is None
    assert json.loads(report_json(data))["methods"][0]["runs"][0]["records"][0]["clipped"] is None
    write_run(tmp_path / "other", task_of("gdpfed+"))
    both = load_report([tmp_path])
    assert "gdpfed+ clipped most" in found.clipping(both)
    assert "gdpfed: " not in clipped_strip(both, wide=True)
    assert "gdpfed+: " in clipped_strip(both, wide=True)


# Against the server

AGAINST_SERVER = {"against": "server", "asks": 4, "trainings": 1.5}


def test_a_rotation_costs_one_epsilon(tmp_path: Path) -> None:
    """Also before its end, where the most asked client counts."""
    run = write_run(tmp_path / "done", task_of("gdpfed", **AGAINST_SERVER))
    write_run(tmp_path / "begun", task_of("dp-fedavg", **AGAINST_SERVER), rounds=6, timed=7)
    data = load_report([tmp_path], partial=True)
    done, begun = (next(one for one in data.methods if one.plan.method == name) for name in ("gdpfed", "dp-fedavg"))
    for method, asks in ((done, 4), (begun, 3)):
        for cost in method.costs:
            view = cost.server
            assert {view.epsilon_mean, view.epsilon_p99, view.epsilon_max} == {cost.release}
            assert view.max_participations == asks
    assert [cost.release for cost in done.costs] == [group.epsilon_release for group in run.plan.groups]
    assert 0 < begun.costs[0].release < begun.plan.groups[0].epsilon_release


def test_a_rotation_tells_its_story_in_one_look(tmp_path: Path) -> None:
    """One promise against both, how many asks, what is not hidden; nothing of Poisson sampling, nothing unknown."""
    write_run(tmp_path / "run", task_of("gdpfed", **AGAINST_SERVER))
    data = load_report([tmp_path])
    page, text = report_html(data), report_markdown(data)
    parsed(page)
    seen = re.sub(r"<(script|style)>.*?</\1>", "", page, flags=re.S)
    for words in (
        "keeps every group's promise, also against the server",
        "asks every client 4 times in 10 rounds",
        "being enrolled, and when one is asked",
        "a secret coin at each ask",
        "secret coin (%)",
        "not recorded",
    ):
        assert words in text.replace("\\", "")
        assert words in html.unescape(seen)
    for words in ("4 asks", "the same promise holds against both", "asked as many clients as planned"):
        assert words in seen
    for words in ("Poisson", "added or removed", "99 in 100 clients", "not known", "nan", "None"):
        assert words not in seen.replace("finance", "")
    columns, rows = cost_table(data.headline)
    assert not any("server ε" in column for column in columns)
    assert [row[columns.index("asks of a client")] for row in rows] == ["4"] * 3
    columns, rows = plan_table(data.headline)
    assert rows[0][columns.index("secret coin (%)")] == "37.500"
    assert rows[0][columns.index("asked a round")] == "24.0"
    assert set(report_figures(data)) == {"convergence", "accuracy", "mechanism", "participation"}
    assert json.loads(report_json(data))["methods"][0]["clipped_share"] is None


def test_both_kinds_of_participation_in_one_report(tmp_path: Path) -> None:
    write_run(tmp_path / "server", task_of("gdpfed", **AGAINST_SERVER), level=80)
    write_run(tmp_path / "models", task_of("gdpfed"), level=70)
    data = load_report([tmp_path])
    parsed(report_html(data))
    labels = [method.label for method in data.methods]
    assert labels == ["gdpfed (against server, asks 4, trainings 1.5)", "gdpfed (against models)"]
    assert "clipped most" in found.clipping(data)
    results = method_results(curves([open_run(tmp_path / name) for name in ("models", "server")]))
    assert [(one.against, len(one.accuracies)) for one in results] == [("models", 1), ("server", 1)]


# Pictures


@pytest.mark.training
def test_every_picture_is_stamped(data: ReportData, tmp_path: Path) -> None:
    figures = report_figures(data)
    assert list(figures) == ["convergence", "accuracy", "mechanism", "participation"]
    for figure in figures.values():
        assert any(STAMP in text.get_text() for text in figure.findobj(lambda part: hasattr(part, "get_text")))
    for kind, start in (("svg", b"<?xml"), ("png", b"\x89PNG"), ("pdf", b"%PDF")):
        written = write_figures(figures, tmp_path / kind, kind=kind)
        assert [path.name for path in written] == [f"{name}.{kind}" for name in figures]
        assert all(path.read_bytes().startswith(start) for path in written)
    once = (tmp_path / "svg" / "convergence.svg").read_bytes()
    again = write_figures({"convergence": report_figures(data)["convergence"]}, tmp_path / "again", kind="svg")
    assert again[0].read_bytes() == once


def test_pictures_are_whole(data: ReportData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = report_figures(data)

    def broken(*_: object, **__: object) -> None:
        raise InputError("cannot draw")

    monkeypatch.setattr(figures["participation"], "savefig", broken)
    with pytest.raises(InputError):
        write_figures(figures, tmp_path / "plots", kind="png")
    assert not (tmp_path / "plots").exists()
    with pytest.raises(InputError, match="expected the format svg, png or pdf, got 'gif'"):
        write_figures(figures, tmp_path / "plots", kind="gif")
    with pytest.raises(InputError, match="is not a folder"):
        write_figures(figures, tmp_path / "no" / "plots", kind="png")
