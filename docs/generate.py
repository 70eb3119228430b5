"""Writes what a program can know of the documentation: pages, pictures, tables in other pages.

python docs/generate.py            write
python docs/generate.py --check    exit code 1 if a file is not what would be written
"""

import json
import sys
from pathlib import Path
from typing import Any

from beyond_page import beyond_page, beyond_tables, draw_beyond
from limits_tables import (
    findings_table,
    fixed_size_table,
    limit_tables,
    noise_scales_table,
    person_in_a_rotation_table,
    person_table,
    server_table,
    side_channels_table,
    theorem_one_table,
    topk_table,
)
from results_page import draw_pictures, results_page
from results_tables import markdown_table, result_tables

DOCS = Path(__file__).parent
RECORDS = DOCS.parent / "reproduce" / "results"
NOTES = DOCS.parent / "reproduce" / "notes"
TABLES = DOCS.parent / "reproduce" / "tables"


def _times(row: dict[str, Any]) -> str:
    """How many times gdpfed's seconds: the median, the lowest and the highest of the turns."""
    ratio = f"{row.get('ratio', 1):.2f}" + ("" if row["quiet"] else "*")
    return ratio + (f" ({row['lowest_ratio']:.2f}-{row['highest_ratio']:.2f})" if "lowest_ratio" in row else "")


def tasks_text() -> str:
    """A round of each preset beside a plain loop's and pfl's, as `benchmarks/simulators.py --task all` left it."""
    record = _measured("simulators-tasks.json")
    if record is None:
        return "Not measured yet: `python benchmarks/simulators.py --task all`.\n"
    rows = []
    for table in record["tasks"]:
        found = {row["name"]: row for row in table["contestants"]}
        others = [found[f"plain loop, {record['cores']} processes"], found[f"pfl, {record['cores']} workers"]]
        rows.append(
            (
                f"{table['title']}, {table['model']}",
                f"{table['clients_per_round']} of {table['preset_cohort']}",
                f"{table['local_steps']} of {table['batch_size']}",
                f"{found['gdpfed']['seconds_per_round']:.2f}" + ("" if found["gdpfed"]["quiet"] else "*"),
                *("not run" if "not_run" in row else _times(row) for row in others),
            )
        )
    disturbed = any(not row.get("quiet", True) for table in record["tasks"] for row in table["contestants"])
    return (
        f"Seconds of a round on {record['cores']} cores, and how many times that the others take (lowest and highest "
        f"of interleaved turns){'; *: disturbed' if disturbed else ''}. Clients: of the preset's cohort.\n\n"
        + markdown_table(("", "clients", "steps of batch", "gdpfed", "plain loop", "pfl"), rows)
    )


def simulators_tables() -> str:
    """gdpfed's simulator beside its peers, as both runs of `benchmarks/simulators.py --record` left it."""
    parts = [
        "# Simulators\n\nWritten by `docs/generate.py` from what `python benchmarks/simulators.py --record` left: "
        "medians over the rounds of interleaved runs; ratios within each turn, in brackets the lowest and the highest. "
        "Peak: of a product of two matrices of 1,024 x 1,024, which other work can exceed; *: disturbed by others."
    ]
    for name, what in (("simulators.json", ""), ("simulators-tasks.json", ", one of all")):
        record = _measured(name)
        for table in record["tasks"] if record else []:
            parts.append(f"## {table['title']}{what}\n\n{_simulators_table(record, table)}")
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _simulators_table(record: dict[str, Any], table: dict[str, Any]) -> str:
    peak, operations = table["matmul_peak_gflop_per_second"], table["gflop_per_round"]
    rows = [
        (row["name"], f"not run: {row['not_run']}", "", "", "", "", "")
        if "not_run" in row
        else (
            row["name"],
            f"{row['seconds_per_round']:.3f}",
            f"{row['fastest']:.3f}",
            _times(row),
            f"{100 * operations / row['seconds_per_round'] / peak:.0f} %",
            f"{row['startup_seconds']:.1f}",
            f"{row['peak_memory_mb']:,}",
        )
        for row in table["contestants"]
    ]
    head = ("", "s a round", "fastest", "times gdpfed", "of peak", "start-up s", "peak MB")
    return (
        f"{table['clients_per_round']} of {table['num_clients']:,} clients a round (the preset's cohort: "
        f"{table['preset_cohort']}), {table['local_steps']} steps of batch {table['batch_size']}, {table['model']} "
        f"({table['parameters']:,} parameters), {operations} GFLOP a round; {record['cores']} cores, "
        f"{record['versions']}. Peak: {peak} GFLOP/s.\n\n" + markdown_table(head, rows)
    )


_FAULTS = "What it means: [deployment](../../docs/deployment.md#when-something-dies)."


def _measured(name: str) -> dict[str, Any] | None:
    path = DOCS.parent / "benchmarks" / "results" / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def faults_table() -> str:
    """What was killed, and what held, as `make faults` left it."""
    record = _measured("faults.json")
    if record is None:
        return "Not measured yet: `make faults`.\n"
    rows = [
        (
            row["killed"] if row["killed"].startswith(("a node", "nothing")) else f"SIGKILL: {row['killed']}",
            f"{row['seconds']:.0f}" if row["seconds"] else "",
            str(row["charges"]),
            str(len(row["released_groups"])),
            "" if row["noise"] is None else f"{row['noise']:.2f}",
            "; ".join(row["failures"]) or "holds",
        )
        for row in record["outcomes"]
    ]
    head = ("what happens", "seconds to the end of the round", "charges", "sums released", "noise / plan", "invariants")
    num_killed = sum(row["killed"] != "nothing" for row in record["outcomes"])
    done = f"{num_killed} of {record['faults']} faults were run"
    done = f"{done}. " if num_killed < record["faults"] else f"{done}, and a round in which nothing happened. "
    told = f"{done}The server waited {record['stage_seconds']:g} s for answers.\n\n"
    return told + markdown_table(head, rows) + waiting_text()


def waiting_text() -> str:
    """How long a killed node was waited for, as `tools/faults.py --stage-seconds 600` left it."""
    record = _measured("faults-waiting.json")
    if record is None:
        return ""
    waited = [row["waited"] for row in record["outcomes"] if row["waited"] is not None]
    stated = f"{record['stage_seconds']:g}"
    return (
        f"\nWith {stated} s for every stage (`tools/faults.py --only 'SuperNode of three' --stage-seconds {stated}`), "
        f"a node killed at each of {len(waited)} stages: the round went on "
        f"after {min(waited):.0f} to {max(waited):.0f} s, and the log said why.\n"
    )


def faults_text() -> str:
    """What came out of all of them, in a sentence; every fault is in a table of its own."""
    record = _measured("faults.json")
    if record is None:
        return faults_table()
    outcomes = [row for row in record["outcomes"] if row["killed"] != "nothing"]
    held = sum(not row["failures"] for row in outcomes)
    seconds = [row["seconds"] for row in outcomes if row["seconds"]]
    noise = [row["noise"] for row in outcomes if row["noise"] is not None]
    return (
        f"**{held} of {record['faults']} faults hold**: no fewer charges than releases, no less noise than planned. "
        f"The noise was {min(noise):.2f} to {max(noise):.2f} times the plan's; a round ended {min(seconds):.0f} to "
        f"{max(seconds):.0f} s after its fault; the server waited {record['stage_seconds']:g} s for answers. "
        "[Every fault](../reproduce/tables/faults.md).\n"
    )


_NAMES = {"fedavg": "Flower FedAvg", "secagg": "Flower SecAgg+", "ours": "gdpfed"}


def deployment_table() -> str:
    """Latency and bytes of a round, and where its time goes, as `benchmarks/deployment.py` left them."""
    record = _measured("deployment.json")
    if record is None:
        return "Not measured yet: `python benchmarks/deployment.py`.\n"
    rounds = {(row["num_params"], row["executor"]): {} for row in record["rows"]}
    for row in record["rows"]:
        rounds[row["num_params"], row["executor"]][row["name"]] = row
    costs = []
    for (num_params, executor), found in rounds.items():
        seconds = {name: found[name]["seconds"] for name in _NAMES}
        costs.append(
            (
                f"{num_params:,}",
                executor,
                *(f"{seconds[name]:.1f} s" for name in _NAMES),
                f"{seconds['ours'] / seconds['fedavg']:.2f}",
                f"{seconds['ours'] / seconds['secagg']:.2f}",
                f"{found['ours']['up_bytes'] / 1e6:.2f} + {found['ours']['down_bytes'] / 1e6:.2f}",
            )
        )
    head = ("parameters", "executor", *_NAMES.values(), "/ FedAvg", "/ SecAgg+", "MB, up + down")
    loads = [row["load"] for row in record["rows"]]
    return (
        f"{record['nodes']} nodes on {record['cores']} cores at a load of {min(loads):.0f} to {max(loads):.0f}, "
        f"{record['versions']}; medians of {record['rounds']} rounds; MB of gdpfed for each client. "
        "FedAvg has no privacy, SecAgg+ no noise.\n\n"
        + markdown_table(head, costs)
        + "\n[Where the seconds of a round go](../reproduce/tables/deployment.md).\n"
    )


def seconds_table() -> str:
    """Where the seconds of a deployed round go, from the same record."""
    record = _measured("deployment.json")
    if record is None:
        return "Not measured yet: `python benchmarks/deployment.py`.\n"
    rows = [
        (
            f"{row['num_params']:,}",
            _NAMES[row["name"]],
            row["executor"],
            *(f"{row[part]:.2f}" for part in ("import_seconds", "answer_seconds", "server_seconds", "start_seconds")),
            f"{_elsewhere(row):.2f}",
            f"{row['own_cpu_per_message']:.2f} of {row['cpu_per_message']:.2f}",
            _per_cent(row["own_share"]),
            _per_cent(row["own_share_slowest"]),
        )
        for row in sorted(record["rows"], key=lambda row: int(row["num_params"]))
    ]
    head = (
        *("parameters", "", "executor", "imports", "answers", "server", "a process starts", "Flower, rest"),
        *("CPU s, message", "own share", "slowest node"),
    )
    return (
        "# Where the seconds of a deployed round go\n\nFirst the app's own, then Flower's; CPU of a node for a "
        "message, own of all. A round lasts from its first message to the first of the next, or to the end of the run. "
        "Own share: what the app itself takes of it, imports and answers of the mean node, and the server's work "
        "between its calls to Flower. Slowest node: the same with the slowest node of each exchange. What it means: "
        "[deployment](../../docs/deployment.md#cost).\n\n" + markdown_table(head, rows)
    )


def asks_table() -> str:
    """What a client pays for being asked, as `benchmarks/thousand_nodes.py --asks` and `deployment.py` left it."""
    simulated, real = _measured("asks.json") or {}, _measured("deployment.json") or {"rows": []}
    rows = [
        (
            f"{found['nodes']:,}, simulated",
            f"{found['num_params']:,}",
            asks,
            f"{found['asks']:,}",
            f"{int(asks) * found['cpu']:.1f} s",
            *(f"{int(asks) * found[way] / 1e6:.1f} MB" for way in ("up", "down")),
            "",
        )
        for asks, found in sorted(simulated.items(), key=lambda item: int(item[0]))
    ]
    rows += [
        (
            f"{real['nodes']}, real and {row['executor']}",
            f"{row['num_params']:,}",
            str(asks),
            str(real["nodes"]),
            f"{asks * row['exchanges'] * row['cpu_per_message']:.1f} s",
            *(f"{asks * row[way] / 1e6:.1f} MB" for way in ("up_bytes", "down_bytes")),
            f"{asks * row['seconds'] / 60:.0f} min",
        )
        for row in real["rows"]
        for asks in (10, 50)
        if row["name"] == "ours" and row["executor"].startswith("warm")
    ]
    head = ("nodes", "parameters", "asked", "roster", "client: CPU", "sends", "receives", "passes, without waiting")
    return markdown_table(head, rows)


def _per_cent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _elsewhere(row: dict[str, Any]) -> float:
    own = row["import_seconds"] + row["answer_seconds"] + row["server_seconds"]
    return float(row["seconds"] - own - row["start_seconds"])


def ray_text() -> str:
    """What Ray costs, as `benchmarks/simulators.py --ray --record` left it."""
    record = _measured("ray.json")
    if record is None:
        return "Not measured yet: `python benchmarks/simulators.py --ray`.\n"
    rows = [
        (
            name,
            str(record[key]["rounds"]),
            f"{record[key]['seconds_per_round']:.3f}",
            f"{record[key]['fastest']:.3f}",
            f"{record[key]['startup_seconds']:.1f}",
        )
        for name, key in (("this machine alone", "local"), ("Ray, a head and one more node", "ray"))
    ]
    overhead = record["overhead"]
    return (
        f"Rounds of the FMNIST preset by both engines in turns, on the same {record['cores']} cores; the models are "
        f"the same. Ray takes longer by **{_per_cent(overhead['seconds_per_round'])}** (medians; "
        f"{_per_cent(overhead['fastest'])} by the fastest rounds).\n\n"
        + markdown_table(("", "rounds", "s a round", "fastest", "start-up s"), rows)
    )


def thousand_text() -> str:
    """A thousand simulated nodes, as `benchmarks/thousand_nodes.py` left it."""
    record = _measured("thousand_nodes.json")
    if record is None:
        return "Not measured yet: `python benchmarks/thousand_nodes.py`.\n"
    seconds = ", ".join(f"{value:.0f}" for value in record["seconds_per_round"])
    return (
        f"{record['nodes']:,} nodes on Flower's simulation runtime, {100 * record['dropout']:.0f} % of a cohort "
        f"vanishing at a random stage: {record['rounds']} rounds took {seconds} s (the first with all announcements) "
        f"on {record['cores']} cores at a load of {record['load']:.0f}. {record['asked']} invitations, "
        f"{record['answered']:,} answers, {record['dropped']} lost, {record['refused']} refused; "
        f"{record['released']} sums released, "
        f"{record['aborted']} tried again, {record['given up']} given up.\n"
    )


def answer_times_text() -> str:
    """Whether yes and no can be told apart, as `python -m tests.attacks.answer_times --flower` left it."""
    record = _measured("answer_times.json")
    if record is None:
        return "Not measured yet: `python -m tests.attacks.answer_times --flower FOLDER`.\n"
    hidden, control = record["hidden"], record["control"]
    is_equal = "all of the same length" if len(hidden["lengths"]) == 1 else "of different lengths"
    return (
        f"{hidden['yes']} answers of nodes that trained and {hidden['no']} of nodes that did not, {is_equal}; the "
        f"best classifier of times, on answers that it was not chosen by, has an AUC of {hidden['auc']:.3f} (0.5 is "
        f"guessing; its standard error is {_auc_error(hidden):.3f}). Where nodes answer when they are ready, "
        f"{control['yes']} and {control['no']} answers give {control['auc']:.2f}. "
        + ("" if control["auc"] >= 0.9 else "**So this shows nothing yet**: the attack must see those. ")
        + f"The machine had a load of {record['load']:.0f}.\n"
    )


def _auc_error(verdict: dict[str, Any]) -> float:
    """Of guessing."""
    yes, no = verdict["yes"], verdict["no"]
    return float(((yes + no + 1) / (12 * yes * no)) ** 0.5)


def filled(page: str, tables: dict[str, str]) -> str:
    """A page that is written by hand, its tables filled in."""
    text = (DOCS / page).read_text(encoding="utf-8")
    for name, made in tables.items():
        before, start, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        if not (start and end):
            raise SystemExit(f"{page} has no place for {name}")
        text = before + start + made + end + after
    return text


def limits() -> str:
    """The page of limits."""
    return filled(
        "limits.md",
        {
            "theorem-one": theorem_one_table(),
            "fixed-size": fixed_size_table(),
            "server": server_table(),
            "person": person_table(),
            "side-channels": side_channels_table(),
            "person-rotation": person_in_a_rotation_table(),
            "noise": noise_scales_table(),
            "topk": topk_table(),
        },
    )


def pages() -> dict[Path, str]:
    """Every page, and what would be written."""
    written = {
        "results.md": results_page(RECORDS, NOTES, findings=findings_table()),
        "beyond.md": beyond_page(RECORDS / "beyond", NOTES / "beyond"),
        "limits.md": limits(),
        "benchmarks.md": filled("benchmarks.md", {"simulators": tasks_text()}),
        "clusters.md": filled("clusters.md", {"ray": ray_text()}),
        "deployment.md": filled(
            "deployment.md",
            {
                "faults": faults_text(),
                "answer times": answer_times_text(),
                "deployment": deployment_table(),
                "thousand": thousand_text(),
            },
        ),
    }
    clipping = DOCS.parent / "benchmarks" / "results" / "adaptive_clipping.json"
    beyond = beyond_tables(RECORDS / "beyond", NOTES / "beyond", clipping=clipping)
    tables = result_tables(RECORDS, NOTES) | beyond | limit_tables()
    tables["simulators"] = simulators_tables()
    tables["deployment"] = (
        f"{seconds_table()}\n## What a client pays for being asked\n\nThrough Flower, all messages: the node's own "
        f"work in a simulation (`benchmarks/thousand_nodes.py --params 100000 --asks 10`, and 50), all of the process "
        f"on real nodes (`benchmarks/deployment.py`).\n\n{asks_table()}"
    )
    tables["faults"] = (
        f"# Faults\n\nWritten by `docs/generate.py` from what `make faults` left. {_FAULTS}\n\n{faults_table()}"
    )
    return {DOCS / name: text for name, text in written.items()} | {
        TABLES / f"{name}.md": text for name, text in tables.items()
    }


def main() -> int:
    """Writes, or checks, every page."""
    stale = []
    TABLES.mkdir(exist_ok=True)
    for path, content in pages().items():
        if "--check" in sys.argv:
            if not path.is_file() or path.read_text(encoding="utf-8") != content:
                stale.append(path.name)
        else:
            path.write_text(content, encoding="utf-8")
    if "--check" not in sys.argv:
        draw_pictures(RECORDS, DOCS / "img")
        draw_beyond(RECORDS / "beyond", DOCS / "img")
    if stale:
        sys.stderr.write(f"not what would be written: {', '.join(stale)}; run: make docs\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
