"""Writes what a program can know of the documentation: pages, pictures, tables in other pages.

python docs/generate.py            write
python docs/generate.py --check    exit code 1 if a file is not what would be written
"""

import dataclasses
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from beyond_page import beyond_page, draw_beyond
from reference_pages import api_page, settings_page
from results_page import draw_pictures, markdown_table, results_page

from gdpfed.cli import every_command
from gdpfed.planning.methods import make_plan
from gdpfed.planning.people import allocations
from gdpfed.planning.plan import Plan
from gdpfed.planning.sparsity import noise_energy_kept
from gdpfed.privacy.accountant import ACCOUNTANTS, epsilon_of
from gdpfed.privacy.adversaries import chained_epsilon, person_epsilon
from gdpfed.privacy.rounding import rounded_up
from gdpfed.tasks.task import PRESETS, load_task
from gdpfed_reproduce.experiments import EXPERIMENTS
from gdpfed_reproduce.problem_one import theorem_one_noise_variance

DOCS = Path(__file__).parent
RECORDS = DOCS.parent / "reproduce" / "results"
NOTES = DOCS.parent / "reproduce" / "notes"


def help_text(command: str) -> str:
    """What `gdpfed COMMAND --help` prints on a terminal of 100 columns without colours."""
    plain = {**os.environ, "COLUMNS": "100", "TERM": "dumb", "NO_COLOR": "1"}
    for forcing in ("FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS"):
        plain.pop(forcing, None)
    run = subprocess.run(  # noqa: S603 - our own command
        [sys.executable, "-c", "from gdpfed.cli import main; main()", *command.split(), "--help"],
        capture_output=True,
        text=True,
        check=True,
        env=plain,
    )
    lines = [line.rstrip() for line in run.stdout.replace("Usage: -c", "Usage: gdpfed").strip().splitlines()]
    return "\n".join(lines)


def cli() -> str:
    """The page of all commands."""
    alike = [name for name in EXPERIMENTS if name != "main"]
    parts = [
        "# Commands\n\nEvery command has `--json`. An error is one line and exit code 2. What settings mean is also in "
        "[settings.md](settings.md). The options of `gdpfed reproduce main` are also those of "
        f"{', '.join(f'`{name}`' for name in alike)}.\n"
    ]
    shown = ["", *(words for words, _ in every_command() if words not in {f"reproduce {name}" for name in alike})]
    shown = [words for words in shown if words != "plan of"]
    parts += [f"## gdpfed {command}".rstrip() + f"\n\n```text\n{help_text(command)}\n```\n" for command in shown]
    return "\n".join(parts)


def _fmnist(method: str, **changes: object) -> Plan:
    task = load_task("fmnist")
    settings = dataclasses.replace(task.settings, method=method, **changes)  # type: ignore[arg-type]
    return make_plan(task.budgets, settings)


def theorem_one_table() -> str:
    """Theorem 1's noise and its true epsilon, at uniform rates."""
    rows = []
    for name in PRESETS:
        task = load_task(name)
        plan = make_plan(task.budgets, dataclasses.replace(task.settings, method="gdpfed"))
        for group in plan.groups:
            variance = theorem_one_noise_variance(
                epsilon=group.epsilon,
                delta=group.delta,
                sampling_rate=group.sampling_rate,
                num_rounds=plan.num_rounds,
            )
            claimed = dataclasses.replace(plan.mechanism(group), noise_multiplier=math.sqrt(variance))
            spent = epsilon_of(claimed, delta=group.delta)
            verdict = "**too little**" if spent > group.epsilon else ""
            rows.append(
                (
                    task.title,
                    f"{group.epsilon:g}",
                    f"{variance:.3f}",
                    f"{group.noise_multiplier**2:.3f}",
                    f"{rounded_up(spent, 2)} {verdict}".strip(),
                )
            )
    return markdown_table(
        ("data set", "budget", "Theorem 1's sigma^2", "needed (PLD)", "true epsilon of Theorem 1"), rows
    )


def fixed_size_table() -> str:
    """The epsilon of a fixed-size cohort is at least the Poisson one at half the noise."""
    rows = []
    for accountant in ACCOUNTANTS[::-1]:
        for group in (plan := _fmnist("gdpfed", accountant=accountant)).groups:
            halved = dataclasses.replace(plan.mechanism(group), noise_multiplier=group.noise_multiplier / 2)
            rows.append(
                (accountant, f"{group.epsilon:g}", f"{group.noise_multiplier**2:.3f}",
                 f"{math.floor(100 * epsilon_of(halved, delta=group.delta)) / 100:.2f}")
            )  # fmt: skip
    return markdown_table(("calibrated by", "FMNIST budget", "sigma^2", "true epsilon, fixed size, at least"), rows)


def server_table() -> str:
    """Both epsilons of every group."""
    rows = []
    for name in PRESETS:
        task = load_task(name)
        plan = make_plan(task.budgets, dataclasses.replace(task.settings, method="gdpfed+"))
        for group in plan.groups:
            view = plan.server_view(group)
            rows.append(
                (
                    task.title,
                    f"{group.epsilon:g}",
                    rounded_up(group.epsilon_release, 3),
                    f"{rounded_up(view.epsilon_mean, 2)} ({view.mean_participations})",
                    f"{rounded_up(view.epsilon_p99, 2)} ({view.p99_participations})",
                    f"{rounded_up(view.epsilon_max, 2)} ({view.max_participations})",
                )
            )
    head = ("gdpfed+ (PLD)", "budget", "release", "server, mean (participations)", "99th percentile", "most")
    return markdown_table(head, rows)


def person_table() -> str:
    """Two clients of one person, in every pair of groups."""
    plan = _fmnist("gdpfed", clients_per_person=2)
    rows = []
    for counts in allocations(plan):
        held = [group for group, count in zip(plan.groups, counts, strict=True) for _ in range(count)]
        sums = [
            [(group.sampling_rate, group.noise_multiplier)] * count
            for group, count in zip(plan.groups, counts, strict=True)
        ]
        spent = person_epsilon(sums=sums, num_rounds=plan.num_rounds, delta=plan.groups[0].delta)
        added = math.fsum(group.epsilon for group in held)
        where = "the same group" if len({group.name for group in held}) == 1 else "two groups"
        rows.append((" and ".join(f"{group.epsilon:g}" for group in held), where, f"{added:g}", rounded_up(spent, 2)))
    return markdown_table(("budgets of the two clients", "in", "the paper's sum", "epsilon at the same delta"), rows)


def _asked_always() -> Plan:
    return _fmnist("gdpfed", against="server", asks=50, trainings=1.0, clients_per_person=2)


def side_channels_table() -> str:
    """A rotation's epsilon where something tells a training from a zero, with a likelihood ratio."""
    plan = _asked_always()
    rows = []
    for group in plan.groups:
        coin, mechanism = group.sampling_rate, plan.mechanism(group)
        told = [ratio * coin / (1 - coin + ratio * coin) for ratio in (1, 1.1, 2, 10)]
        epsilons = [
            epsilon_of(dataclasses.replace(mechanism, sampling_rate=rate), delta=group.delta) for rate in (*told, 1.0)
        ]
        rows.append((f"{group.epsilon:g}", *(rounded_up(epsilon, 2) for epsilon in epsilons)))
    return markdown_table(("promised", "no channel", "r = 1.1", "r = 2", "r = 10", "known coins"), rows)


def person_in_a_rotation_table() -> str:
    """Two clients of one person, in every pair of groups, by taking away one after the other."""
    plan = _asked_always()
    rows = []
    for counts in allocations(plan):
        held = [group for group, count in zip(plan.groups, counts, strict=True) for _ in range(count)]
        mechanisms = [plan.mechanism(group) for group in held]
        spent = chained_epsilon(mechanisms, delta=plan.largest_delta, accountant=plan.accountant)
        rows.append((" and ".join(f"{group.epsilon:g}" for group in held), rounded_up(spent, 2)))
    return markdown_table(("budgets of the two clients", "epsilon of the person"), rows)


def noise_scales_table() -> str:
    """Step and noise of the paper's methods on one scale."""
    plans = [_fmnist(method, accountant="rdp") for method in ("dp-fedavg", "gdpfed", "gdpfed-opc", "gdpfed+")]
    rows = [
        (
            plan.method,
            f"{plan.paper_noise_magnitude:.2f}",
            f"{plan.step_size:.3f}",
            f"{plan.noise_at_equal_step:.2f}",
            f"{plan.signal_to_noise:.1f}",
        )
        for plan in plans
    ]
    return markdown_table(
        ("FMNIST (RDP)", "Lambda, the paper's way", "step", "noise at equal step", "signal-to-noise"), rows
    )


def topk_table() -> str:
    """What Top-k keeps of pure noise."""
    rows = [(f"{fraction:g}", f"{noise_energy_kept(fraction):.3f}") for fraction in (0.1, 0.3, 0.5, 0.7, 0.8, 0.9)]
    return markdown_table(("kept coordinates", "kept noise energy"), rows)


def simulators_table() -> str:
    """gdpfed's simulator beside its peers, as `benchmarks/simulators.py --record` left it."""
    record = json.loads((DOCS.parent / "benchmarks" / "results" / "simulators.json").read_text(encoding="utf-8"))
    contestants = record["contestants"]
    ours = next(row["seconds_per_round"] for row in contestants if row["name"] == "gdpfed")
    peak, operations = record["matmul_peak_gflop_per_second"], record["gflop_per_round"]
    rows = [
        (row["name"], f"not run: {row['not_run']}", "", "", "", "", "")
        if "not_run" in row
        else (
            row["name"],
            f"{row['seconds_per_round']:.3f}" + ("" if row["quiet"] else " (disturbed)"),
            f"{row['fastest']:.3f}",
            f"{row['seconds_per_round'] / ours:.2f}",
            f"{100 * operations / row['seconds_per_round'] / peak:.0f} %",
            f"{row['startup_seconds']:.1f}",
            f"{row['peak_memory_mb']:,}",
        )
        for row in contestants
    ]
    head = ("", "s a round", "fastest", "times gdpfed", "of peak", "start-up s", "peak MB")
    return (
        f"{record['clients_per_round']} of 6,000 clients a round, 5 steps of batch 10, a CNN of 21,840 parameters "
        f"(conv 10, conv 20, dense 50), {operations} GFLOP a round; {record['cores']} cores, {record['versions']}. "
        f"Medians over the rounds of interleaved runs. Peak: {peak} GFLOP/s of matrix products.\n\n"
        + markdown_table(head, rows)
    )


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


_EXECUTORS = {True: "warm", False: "Flower's"}
_NAMES = {"fedavg": "Flower FedAvg (no privacy)", "secagg": "Flower SecAgg+ (no noise)", "ours": "gdpfed"}


def deployment_table() -> str:
    """Latency and bytes of a round, and where its time goes, as `benchmarks/deployment.py` left them."""
    record = _measured("deployment.json")
    if record is None:
        return "Not measured yet: `python benchmarks/deployment.py`.\n"
    listed = sorted(record["rows"], key=lambda row: int(row["num_params"]))
    costs = [
        (
            f"{row['num_params']:,}",
            _NAMES[row["name"]],
            _EXECUTORS[row["is_warm"]],
            str(row["exchanges"]),
            f"{row['seconds']:.1f}",
            f"{row['seconds'] / row['exchanges']:.1f}",
            f"{row['up_bytes'] / 1e6:.2f}",
            f"{row['down_bytes'] / 1e6:.2f}",
            _per_cent(row["own_share"]),
            _per_cent(row["own_share_slowest"]),
        )
        for row in listed
    ]
    head = (
        *("parameters", "", "executor", "exchanges", "s a round", "exchange s", "MB up", "MB down", "own share"),
        "slowest node",
    )
    times = [
        (
            f"{row['num_params']:,}",
            _NAMES[row["name"]],
            _EXECUTORS[row["is_warm"]],
            *(f"{row[part]:.2f}" for part in ("import_seconds", "answer_seconds", "server_seconds", "start_seconds")),
            f"{_elsewhere(row):.2f}",
            f"{row['own_cpu_per_message']:.2f} of {row['cpu_per_message']:.2f}",
        )
        for row in listed
    ]
    parts = (
        *("parameters", "", "executor", "imports", "answers", "server", "a process starts", "Flower, rest"),
        "CPU s, message",
    )
    loads = [row["load"] for row in listed]
    return (
        f"{record['nodes']} nodes on {record['cores']} cores at a load of {min(loads):.0f} to {max(loads):.0f}, "
        f"{record['versions']}; medians of {record['rounds']} rounds; MB for each client. A round lasts from its first "
        "message to the first of the next, or to the end of the run. **Own share**: what the app itself takes of it. "
        "On a node its imports, which are repeated for every message unless the node is warm, and its answers (the "
        "mean over the nodes, added up over the exchanges); on the server all that passes between its calls to Flower, "
        "without sleep while answers are awaited. *Slowest node*: the same with the slowest node of each exchange "
        "instead of the mean.\n\n"
        + markdown_table(head, costs)
        + "\nWhere the seconds of a round go, first the app's own, then Flower's; CPU of a node for a message, own of "
        "all:\n\n" + markdown_table(parts, times)
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
            f"{real['nodes']}, real and warm",
            f"{row['num_params']:,}",
            str(asks),
            str(real["nodes"]),
            f"{asks * row['exchanges'] * row['cpu_per_message']:.1f} s",
            *(f"{asks * row[way] / 1e6:.1f} MB" for way in ("up_bytes", "down_bytes")),
            f"{asks * row['seconds'] / 60:.0f} min",
        )
        for row in real["rows"]
        for asks in (10, 50)
        if row["name"] == "ours" and row["is_warm"]
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
        f"best classifier of times on the half that it was not chosen by has an AUC of {hidden['auc']:.3f} (0.5 is "
        f"guessing; its standard error is {_auc_error(hidden):.3f}). Where nodes answer when they are ready, "
        f"{control['yes']} and {control['no']} answers give {control['auc']:.2f}. "
        + ("" if control["auc"] >= 0.9 else "**So this shows nothing yet**: the attack must see those. ")
        + f"The machine had a load of {record['load']:.0f}.\n"
    )


def _auc_error(verdict: dict[str, Any]) -> float:
    """Of guessing, on half of the answers."""
    yes, no = verdict["yes"] / 2, verdict["no"] / 2
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


def main() -> int:
    """Writes, or checks, every page."""
    stale = []
    for name, content in (
        ("cli.md", cli()),
        ("settings.md", settings_page()),
        ("api.md", api_page()),
        ("results.md", results_page(RECORDS, NOTES)),
        ("beyond.md", beyond_page(RECORDS / "beyond", NOTES / "beyond")),
        ("limits.md", limits()),
        ("benchmarks.md", filled("benchmarks.md", {"simulators": simulators_table()})),
        ("clusters.md", filled("clusters.md", {"ray": ray_text()})),
        (
            "deployment.md",
            filled(
                "deployment.md",
                {
                    "faults": faults_table(),
                    "asks": asks_table(),
                    "answer times": answer_times_text(),
                    "deployment": deployment_table(),
                    "thousand": thousand_text(),
                },
            ),
        ),
    ):
        path = DOCS / name
        if "--check" in sys.argv:
            if not path.is_file() or path.read_text(encoding="utf-8") != content:
                stale.append(name)
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
