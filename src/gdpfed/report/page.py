"""A report as one HTML file: text, tables, figures, style and script in it, nothing fetched.

Place: the last step for readers. The headline first, then the plan, the curves, the table, the rounds, and how to make
it all again. It reads without scripts; with them, points show their values.

Guarantees (tests of the same name):
  the_page_is_self_contained     no address in it is loaded, and a policy in it forbids the browser to.
  text_on_the_page_is_escaped    titles, names and files are text, whatever they contain.
  same_runs_same_bytes           no time, no path, no order of files is in a report.
"""

import math
import re
import shlex
from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template

import gdpfed
from gdpfed.privacy.rounding import delta_up, promise, rounded_up
from gdpfed.report import findings as found
from gdpfed.report import svg as draw
from gdpfed.report.colours import DARK, LIGHT
from gdpfed.report.contents import GroupCost, MethodRuns, ReportData
from gdpfed.report.figures import accuracy_strip, clipped_strip, convergence, legend, small_multiples
from gdpfed.report.plan_figures import (
    budget_stairs,
    cohorts,
    group_legend,
    group_look,
    mechanism_panels,
    promise_legend,
    promises,
    spending_panels,
)
from gdpfed.report.tables import cost_table, method_table, plan_table

__all__ = ["report_html"]

_NBSP = "\N{NO-BREAK SPACE}"


def report_html(data: ReportData) -> str:
    """The whole file."""
    sections = [
        ("promises", "Promised and spent", _promised(data)),
        ("plan", "The plan", _plan(data)),
        ("curves", "Convergence", _curves(data)),
        ("methods", "All methods", _methods(data)),
        ("rounds", "What happened in the rounds", _rounds(data)),
        ("again", "Make it again", _again(data)),
    ]
    page = Template(_resource("page.html"))
    return page.substitute(
        version=escape(gdpfed.__version__),
        title=escape(data.title),
        style=_style(data.stamp),
        script=_resource("script.js"),
        kind=_kind(data).capitalize(),
        stamp=escape(data.stamp.partition(": ")[2]),
        symbols=draw.marker_symbols(),
        eyebrow=_eyebrow(data),
        headline=_words(data, found.headline(data)),
        lede=_lede(data),
        navigation="".join(f'<a href="#{name}">{title}</a>' for name, title, _ in sections),
        sections="".join(
            f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>{body}</section>'
            for name, title, body in sections
        ),
        footer=f"{escape(data.stamp)}. Made by gdpfed {escape(gdpfed.__version__)} from {data.num_runs} run folders.",
    )


def _kind(data: ReportData) -> str:
    return data.stamp.partition(":")[0]


def _resource(name: str) -> str:
    return resources.files("gdpfed.report").joinpath("assets", name).read_text(encoding="utf-8")


def _style(stamp: str) -> str:
    return Template(_resource("style.css")).substitute(
        light=" ".join(f"--{name}: {value};" for name, value in LIGHT.items()),
        dark=" ".join(f"--{name}: {value};" for name, value in DARK.items()),
        stamp=re.sub(r'["<>\\\n]', " ", stamp),
        classes=" ".join(f".{name} {{ color: var(--{name}); }}" for name in LIGHT if name[1:].isdigit()),
    )


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _eyebrow(data: ReportData) -> str:
    plan = data.headline.plan
    rounds = sorted({method.plan.num_rounds for method in data.methods})
    spans = f"{rounds[0]} to {rounds[-1]} rounds" if len(rounds) > 1 else _count(rounds[0], "round")
    parts = [
        _count(len(data.methods), "method"), _count(len(data.seeds), "seed"), spans, _count(plan.num_clients, "client")
    ]  # fmt: skip
    return f"<b>{escape(data.title)}</b> · {' · '.join(parts)}"


def _lede(data: ReportData) -> str:
    items = [f"<li>{_words(data, sentence)}</li>" for sentence in found.findings(data)]
    for run in data.unfinished:
        items.append(
            f'<li class="alarm">Unfinished: {escape(run.folder)} (seed {run.seed}) has done {run.rounds_done} rounds; '
            f"it counts only where its method has no finished run.</li>"
        )
    return f'<ul class="lede">{"".join(items)}</ul>'


def _words(data: ReportData, sentence: str) -> str:
    """Escaped; numbers stay with their unit, and names like dp-fedavg on one line."""
    text = escape(sentence).replace(" %", _NBSP + "%")
    names = sorted({escape(method.plan.method) for method in data.methods if "-" in method.plan.method}, key=len)
    if not names:
        return text
    pattern = "|".join(re.escape(name) for name in reversed(names))
    return re.sub(rf"(?<![\w-])(?:{pattern})(?![\w-])", lambda found: f'<span class="nb">{found[0]}</span>', text)


def _figure(data: ReportData, name: str, finding: str, told: str, body: str) -> str:
    return (
        f'<figure id="{name}"><figcaption><b>{_words(data, finding)}<i>{_kind(data)}</i></b><span>{escape(told)}</span>'
        f"</figcaption>{body}</figure>"
    )


def _promised(data: ReportData) -> str:
    best = data.headline
    if not best.plan.is_private:
        return f"<p>{escape(best.label)} promises no privacy, and no other method is in this report.</p>"
    cards = "".join(_card(cost, place, len(best.costs)) for place, cost in enumerate(best.costs))
    in_a_row = min((3, 4), key=lambda number: -len(best.costs) % number)
    private = sum(method.plan.is_private for method in data.methods)
    chosen = f", the most accurate of {private} methods with privacy," if private > 1 else ""
    columns, rows = cost_table(best)
    return (
        f"<p>What each group of <b>{escape(best.label)}</b>{chosen} was promised, and what training spent, against two "
        f"adversaries. Epsilons are rounded up. The unit of protection is one client, added or removed.</p>"
        f'<div class="cards" style="--columns:{min(in_a_row, len(best.costs))}">{cards}</div>'
        '<div class="who"><p><b>Whoever sees the models</b> (a user, the public) gets every released model, and does '
        "not know who took part in which round. That secret makes each round cheaper, and the promise is made against "
        "this adversary.</p><p><b>The server</b> draws the sample, so it knows who took part; so do the other clients "
        "of a secure sum. Against it, each participation costs in full, and the promise does not hold: its epsilon is "
        "what a client trusts the server with.</p></div>"
        + _figure(
            data,
            "figure-promises",
            found.server(best),
            "Promised and spent epsilon of each group, and what the server learns. The axis is logarithmic.",
            promises(best, wide=True) + promises(best, wide=False) + promise_legend(),
        )
        + _table(f"Promises and costs of {best.label}; in brackets, a client's participations.", columns, rows)
    )


def _card(cost: GroupCost, place: int, of: int) -> str:
    group, view = cost.group, cost.server
    colour, marker = group_look(place, of)
    kept = '<span class="kept">✓ kept</span>' if cost.keeps_promise else '<span class="broken">✗ broken</span>'
    # Beyond this a factor says no more than that there is none.
    factor = ""
    if group.epsilon < 20:
        factor = (
            f"<p>Whether one client is there or not changes the probability of any outcome by at most a factor of "
            f"{rounded_up(math.exp(group.epsilon), 2)}, apart from delta.</p>"
        )
    return (
        f'<div class="card {colour}"><h3>{draw.key(marker)}<b>{escape(group.name)}</b>'
        f"<span>{_count(group.num_clients, 'client')}</span></h3><dl>"
        f"<div><dt>Promised<small>at delta {delta_up(group.delta)} (1 in {math.floor(1 / group.delta):,})</small></dt>"
        f"<dd>ε ≤ {promise(group.epsilon)}</dd></div>"
        f"<div><dt>Spent<small>against whoever sees the models</small></dt>"
        f"<dd>{rounded_up(cost.release)}<small>{kept}</small></dd></div>"
        f"<div><dt>Against the server<small>for 99 in 100 clients</small></dt>"
        f"<dd>{rounded_up(view.epsilon_p99, 2)}<small>at most {rounded_up(view.epsilon_max, 2)}</small></dd></div>"
        f"</dl>{factor}</div>"
    )


def _plan(data: ReportData) -> str:
    best = data.headline
    private = [method for method in data.methods if method.plan.is_private]
    made = ""
    if private:
        made += _figure(
            data,
            "figure-budgets",
            found.waste(data.methods),
            "All clients from left to right, the strictest first. Dashed: what each allows. Coloured: what its group "
            "promises. Hatched, between the two: budget that nobody uses.",
            budget_stairs(data),
        )
        made += _figure(
            data,
            "figure-mechanism",
            found.rates(best),
            "How often a group's clients take part and how much noise covers them, for every method with privacy. A "
            "marker is a group; one method's groups are joined by a line. In a pooled plan all groups share one sum.",
            f'<div class="panels three">{mechanism_panels(data)}</div>'
            f"{group_legend([method.plan for method in private])}",
        )
    columns, rows = plan_table(best)
    return made + _table(
        f"The plan of {best.label}, group by group; {best.plan.release} sums, "
        f"clip norm {promise(best.plan.clip_norm)}, {best.plan.accountant.upper()} accounting "
        f"({best.plan.accountant_version}).",
        columns,
        rows,
    )


def _table(caption: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, best: str = "") -> str:
    """Its own scroll area, wider than the text where a method is marked as the best."""
    head = "".join(f'<th scope="col">{escape(column).replace(" ε", _NBSP + "ε")}</th>' for column in columns)
    body = ""
    for row in rows:
        first, *rest = row
        cells = "".join(f"<td>{escape(cell).replace(' · ', '<i>·</i>')}</td>" for cell in rest)
        name, _, mark = first.partition("\n")
        kind = ' class="best"' if name == best else ""
        small = f"<small>{escape(mark)}</small>" if mark else ""
        body += f'<tr{kind}><th scope="row">{escape(name)}{small}</th>{cells}</tr>'
    return (
        f'<p class="caption">{escape(caption)}</p><div class="scroll{" breakout" if best else ""}" tabindex="0" '
        f'role="region" aria-label="{escape(caption)}"><table aria-label="{escape(caption)}"><thead><tr>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table></div>"
    )


def _curves(data: ReportData) -> str:
    return _figure(
        data,
        "figure-convergence",
        found.convergence(data),
        "Test accuracy (%) after each evaluated round: the mean over seeds, in a band from the lowest seed to the "
        "highest. Point at a curve, or walk along it with the arrow keys.",
        convergence(data, wide=True) + convergence(data, wide=False) + legend(data.methods, kind="narrow"),
    ) + _figure(
        data,
        "figure-seeds",
        _widest(data.methods),
        "One panel for each method: its seeds (thin), their mean (thick), and the other methods' means (grey).",
        small_multiples(data),
    )


def _widest(methods: Sequence[MethodRuns]) -> str:
    spread = [method for method in methods if method.std is not None]
    if not spread:
        return "One seed of each method: no spread to show."
    most = max(spread, key=lambda method: method.std or 0.0)
    return (
        f"Seeds differ most for {most.label}: from {min(most.accuracies):.2f} to {max(most.accuracies):.2f} % "
        f"at the end."
    )


def _methods(data: ReportData) -> str:
    best = data.headline
    private = [method for method in data.methods if method.plan.is_private and method is not best]
    finding = found.comparison(best, private[0]) if private else f"{best.label} ends at {found.accuracy(best)} %."
    columns, rows = method_table(data)
    return _figure(
        data,
        "figure-accuracy",
        finding,
        "Final test accuracy: a marker at the mean over seeds, a stroke for each seed, and a bar of one standard "
        "deviation to both sides.",
        accuracy_strip(data, wide=True) + accuracy_strip(data, wide=False),
    ) + _table(
        "Mean ± standard deviation over seeds. Epsilons, rounded up, group by group: what was promised, what was spent "
        "against whoever sees the models, and against the server.",
        columns,
        rows,
        best=best.label,
    )


def _rounds(data: ReportData) -> str:
    best = data.headline
    made = "<p>Who took part, and whose update was clipped, no record of a deployment tells.</p>"
    if data.is_simulation:
        made = _figure(
            data,
            "figure-cohorts",
            found.participation(best),
            f"Clients of each group of {best.label} in the recorded rounds of all seeds. Dashed: the planned mean. "
            f"Band: where 95 of 100 rounds fall.",
            cohorts(best),
        )
    if best.plan.is_private:
        made += _figure(
            data,
            "figure-spending",
            found.spending(best) or f"What {best.label} spent, round by round.",
            f"Epsilon of {best.label} against whoever sees the models, after each recorded round. Dashed: the promise.",
            spending_panels(best),
        )
    if not data.is_simulation:
        return made
    strip = clipped_strip(data, wide=True) + clipped_strip(data, wide=False)
    if strip:
        told = "Of all updates in the recorded rounds of all seeds, the share that was longer than its clip norm."
        return made + _figure(data, "figure-clipped", found.clipping(data.methods), told, strip)
    return made + f"<h3>Clipping</h3><p>{escape(found.clipping(data.methods))}</p>"


def _again(data: ReportData) -> str:
    best = data.headline
    trained = [
        ("Data set, model", f"{data.task.training.dataset}, {data.task.training.model}"),
        ("Seeds", ", ".join(str(seed) for seed in data.seeds)),
    ]
    facts = [
        ("Software", "; ".join(data.software)),
        *(trained if data.is_simulation else []),
        (f"Plan of {best.label}", best.plan_hash),
        ("Accounting", f"{best.plan.accountant.upper()}, {best.plan.accountant_version}, Poisson sampling"),
    ]
    listed = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts)
    first = best.runs[0].folder
    check = [f"{shlex.join(['gdpfed', 'verify', f'{first}/plan.toml'])}   # computes every epsilon again"]
    told = "What was released cannot be made again: nobody keeps its noise. What it cost can be computed again."
    if data.is_simulation:
        check += [*best.commands[:1], "gdpfed report again -o again.html"]
        told = "The same seed and the same software give the same bytes. These commands run beside the run folders."
    methods = ""
    for method in (one for one in data.methods if one.is_simulation):
        methods += (
            f"<details><summary>{escape(method.label)}<code>plan {method.plan_hash[:16]}</code></summary>"
            f"<pre>{escape(chr(10).join(method.commands))}</pre><p class='note'>plan {method.plan_hash}; "
            f"{escape(method.runs[0].folder)}/run.toml:</p><pre>{escape(method.run_toml.strip())}</pre></details>"
        )
    shown = f"<p>{told}</p><pre>{escape(chr(10).join(check))}</pre>"
    runs = f"<h3>Every run</h3>{methods}" if methods else ""
    return f"{shown}<dl class='facts'>{listed}</dl>{runs}"
