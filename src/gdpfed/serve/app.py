"""The application: which address gives which page, and which answer.

Place: inside the guard. A page is a frame that answers fill; an answer is JSON, or lines of JSON while something is
computed: progress first, then what was found, or an error in words.

Guarantees (tests of the same name):
  a_saved_plan_stays_in_the_folder   and replaces nothing unless told.
  who_goes_away_frees_the_processor  a page that is left, or asks something else, holds up nobody.
"""

import asyncio
import contextlib
import json
import tempfile
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

import gdpfed
from gdpfed.config import text_of
from gdpfed.errors import GdpfedError, InputError, MissingExtraError
from gdpfed.files import is_text
from gdpfed.planning.methods import METHODS
from gdpfed.planning.settings import PlanSettings
from gdpfed.privacy.budgets import Budgets, default_delta_of, read_budgets
from gdpfed.runs.folder import run_folders
from gdpfed.serve.inside import inside, name_inside
from gdpfed.serve.ledgers import LedgerAsked, clients_job, ledger_job, rest_job
from gdpfed.serve.pages import asset, rendered
from gdpfed.serve.processes import Event, Processes
from gdpfed.serve.run_list import RunList
from gdpfed.serve.states import CONTROLS, field_of, read_state
from gdpfed.serve.work import (
    Planned,
    ReportAsked,
    Saving,
    compare_job,
    frontier_job,
    plan_job,
    report_job,
    save_job,
    verify_job,
)
from gdpfed.tasks.task import DEMONSTRATION, PRESETS, load_task

if TYPE_CHECKING:
    from gdpfed.serve.deployments import DeploymentWatch

__all__ = ["Served", "make_app"]

DEMONSTRATION_RUNS = "gdpfed-results/demonstration"
_MOST_ANSWERS = 64
# A link has room for so many budgets; more are named by their file.
_MOST_BUDGETS = 400
# The report has its own script and style in it; it gets no access to anything here.
_REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; sandbox allow-scripts"
)


@dataclass(frozen=True, kw_only=True)
class Served:
    """What is shown: a folder of runs and budgets, a ledger, a deployment's home."""

    folder: Path
    ledger: Path | None = None
    deployment: Path | None = None


class _Answers:
    """Jobs, and what they found: the same question is answered at once."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._known: OrderedDict[Any, list[Event]] = OrderedDict()

    async def lines(self, job: Callable[..., None], asked: Any, *, keep: bool) -> AsyncGenerator[bytes, None]:
        key = (job.__name__, asked)
        for event in self._known.get(key, ()):
            yield _line(event)
        if key in self._known:
            return
        sent: list[Event] = []
        async with contextlib.aclosing(self._processes.run(job, asked)) as events:
            async for event in events:
                sent.append(event)
                yield _line(event)
        if keep and not any("error" in event for event in sent):
            self._known[key] = [event for event in sent if not event.keys() & {"working", "waiting", "words"}]
            while len(self._known) > _MOST_ANSWERS:
                self._known.popitem(last=False)


def _line(event: Event) -> bytes:
    return json.dumps(event, allow_nan=False).encode() + b"\n"


def _watch(home: Path) -> "DeploymentWatch":
    """Of a deployment, which needs an extra that other pages do not."""
    try:
        from gdpfed.serve.deployments import DeploymentWatch
    except ModuleNotFoundError as error:
        raise MissingExtraError(package=str(error.name), extra="flower", purpose="a deployment's page") from error
    return DeploymentWatch(home)


class _Pages:
    """The handlers of all addresses."""

    def __init__(self, served: Served, processes: Processes) -> None:
        self._served, self._processes = served, processes
        self._answers = _Answers(processes)
        self._runs = RunList(served.folder)
        self._deployment = None if served.deployment is None else _watch(served.deployment)
        self._checking: asyncio.Task[None] | None = None

    # Pages

    async def overview(self, _: Request) -> Response:
        presets = []
        for name in (*PRESETS, DEMONSTRATION):
            task = load_task(name)
            presets.append((name, task, np.unique(task.budgets.epsilons)))
        demonstration = (self._served.folder / DEMONSTRATION_RUNS).is_dir()
        facts = {"presets": presets, "demonstration": demonstration, "runs_path": DEMONSTRATION_RUNS}
        return self._page("overview.html", "/", "Overview", **facts)

    async def plan(self, request: Request) -> Response:
        state = read_state(dict(request.query_params))
        fields = {name: text_of(field_of(name)) for name in CONTROLS}
        files = await asyncio.to_thread(self._budget_files)
        presets = [(name, load_task(name).title) for name in (*PRESETS, DEMONSTRATION)]
        content = {"state": state, "fields": fields, "files": files, "presets": presets, "methods": list(METHODS)}
        return self._page("plan.html", "/plan", "Plan", **content)

    async def runs(self, _: Request) -> Response:
        return self._page("runs.html", "/runs", "Runs")

    async def ledger(self, _: Request) -> Response:
        defaults = PlanSettings()
        return self._page("ledger.html", "/ledger", "Ledger", methods=list(METHODS), defaults=defaults)

    async def deployment(self, _: Request) -> Response:
        return self._page("deployment.html", "/deployment", "Deployment")

    async def asset(self, request: Request) -> Response:
        found = asset(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return Response(found[0], media_type=found[1])

    def _page(self, template: str, here: str, title: str, **content: Any) -> Response:
        facts = {"here": here, "title": title, "served": self._served, "version": gdpfed.__version__}
        return HTMLResponse(rendered(template, **facts, **content))

    def _budget_files(self) -> list[str]:
        """Names of files in the folder that may hold budgets."""
        paths = sorted(self._served.folder.iterdir())[:2000]
        return [path.name for path in paths if _may_hold_budgets(path)][:50]

    # The planner

    async def plan_answer(self, request: Request) -> Response:
        return self._stream(plan_job, request)

    async def compare_answer(self, request: Request) -> Response:
        return self._stream(compare_job, request)

    async def frontier_answer(self, request: Request) -> Response:
        return self._stream(frontier_job, request)

    def _stream(self, job: Callable[..., None], request: Request) -> Response:
        state = read_state(dict(request.query_params))
        asked = Planned(state=state, folder=self._served.folder)
        # A file may change: what it gave once is not kept.
        return _Lines(self._answers.lines(job, asked, keep=not state.is_of_a_file))

    async def budgets(self, request: Request) -> Response:
        text = (await _content(request)).get("text")
        if not isinstance(text, str) or not text.strip():
            raise InputError("expected budgets as text: lines of client,epsilon, or a text such as 500@0.8,300@2")
        return JSONResponse(await asyncio.to_thread(_compact, text))

    async def save(self, request: Request) -> Response:
        content = await _content(request)
        query, name = content.get("query"), content.get("name")
        if not isinstance(query, dict) or not isinstance(name, str):
            raise InputError("expected a state of the planner as query, and a name")
        state = read_state({str(key): str(value) for key, value in query.items()})
        asked = Planned(state=state, folder=self._served.folder)
        saving = Saving(planned=asked, name=name, replace=content.get("replace") is True)
        return JSONResponse(await self._processes.result(save_job, saving))

    # Runs

    async def runs_answer(self, request: Request) -> Response:
        rows = await asyncio.to_thread(self._runs.rows)
        self._check_plans()
        version = self._runs.version
        if request.query_params.get("version") == version:
            return JSONResponse({"version": version})
        return JSONResponse({"version": version, "runs": rows})

    async def curves(self, request: Request) -> Response:
        names = request.query_params.getlist("run")
        return JSONResponse(await asyncio.to_thread(self._runs.curves, names))

    async def report(self, request: Request) -> Response:
        paths = await asyncio.to_thread(self._reported, request.query_params.getlist("run"))
        found = await self._processes.result(report_job, ReportAsked(runs=paths))
        if "error" in found:
            raise InputError(found["error"])
        return HTMLResponse(found["html"], headers={"content-security-policy": _REPORT_POLICY})

    def _reported(self, names: list[str]) -> tuple[Path, ...]:
        """The runs in these folders, or one level below; a link among them may lead out."""
        top = self._served.folder
        found = [path for name in names for path in run_folders(inside(top, name))]
        return tuple(inside(top, name_inside(top, path)) for path in found)

    def _check_plans(self) -> None:
        """Plans of runs are verified one after the other, beside all else."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.get_running_loop().create_task(self._checked())

    async def _checked(self) -> None:
        for text in self._runs.unchecked():
            found = await self._processes.result(verify_job, text)
            self._runs.checked(text, found.get("error", ""))

    # The ledger

    def _ledger(self, **asked: Any) -> LedgerAsked:
        if self._served.ledger is None:
            raise InputError("no ledger is shown: gdpfed serve --ledger PATH")
        return LedgerAsked(path=self._served.ledger, **asked)

    async def ledger_answer(self, request: Request) -> Response:
        asked = self._ledger()
        version = await asyncio.to_thread(_version_of, asked.path)
        if request.query_params.get("version") == version:
            return JSONResponse({"version": version})

        async def lines() -> AsyncGenerator[bytes, None]:
            yield _line({"version": version})
            async with contextlib.aclosing(self._answers.lines(ledger_job, asked, keep=False)) as found:
                async for line in found:
                    yield line

        return _Lines(lines())

    async def ledger_clients(self, request: Request) -> Response:
        query = request.query_params
        names = tuple(name.strip() for name in query.get("clients", "").split(",") if name.strip())
        asked = self._ledger(population=query.get("population") or None, clients=names, most=20)
        return _Lines(self._answers.lines(clients_job, asked, keep=False))

    async def ledger_plan(self, request: Request) -> Response:
        query = dict(request.query_params)
        population = query.pop("population", "") or None
        stated = dict(read_state(query).stated)
        asked = self._ledger(population=population, settings=PlanSettings(**stated))
        return _Lines(self._answers.lines(rest_job, asked, keep=False))

    # The deployment

    async def deployment_answer(self, _: Request) -> Response:
        if self._deployment is None:
            raise InputError("no deployment is shown: gdpfed serve --deployment HOME")
        return JSONResponse(await asyncio.to_thread(self._deployment.answer))


def _version_of(path: Path) -> str:
    """Changes whenever the ledger does."""
    stats = [one.stat() for one in (path, path.with_name(path.name + ".journal")) if one.is_file()]
    return "-".join(f"{stat.st_mtime_ns}.{stat.st_size}" for stat in stats)


def _may_hold_budgets(path: Path) -> bool:
    kind = path.suffix.lower()
    try:
        if not is_text(path.name) or not path.is_file():
            return False
        return kind in (".csv", ".tsv", ".parquet") or (kind == ".toml" and _is_task(path))
    except OSError:
        return False


def _is_task(path: Path) -> bool:
    with path.open("rb") as file:
        lines = file.read(8192).splitlines()
    return any(line.startswith(b"budgets") for line in lines)


async def _content(request: Request) -> dict[str, Any]:
    try:
        content = json.loads(await request.body())
    except (ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InputError("expected a JSON object")
    return content


def _compact(text: str) -> Event:
    """A pasted file as a text that fits into a link: names are left out, since a plan needs none."""
    with tempfile.TemporaryDirectory(prefix="gdpfed-") as folder:
        path = Path(folder) / ("pasted.json" if text.lstrip()[:1] in ("[", "{") else "pasted.csv")
        path.write_text(text, encoding="utf-8")
        try:
            budgets = read_budgets(path)
        except GdpfedError as error:
            raise InputError(str(error).replace(repr(str(path)), "the pasted text")) from None
    return {"source": _counted(budgets), "delta": _only_delta(budgets), "clients": len(budgets)}


def _counted(budgets: Budgets) -> str:
    values, counts = np.unique(budgets.epsilons, return_counts=True)
    if len(values) > _MOST_BUDGETS:
        raise InputError(
            f"expected at most {_MOST_BUDGETS} different budgets in a pasted text, got {len(values)}: save the file in "
            f"the folder that is served, and choose it as the source"
        )
    return ",".join(f"{count}@{value!r}" for value, count in zip(values.tolist(), counts.tolist(), strict=True))


def _only_delta(budgets: Budgets) -> float:
    """The delta of all clients: stated, or that of clients with names."""
    deltas = np.unique(budgets.deltas_or(default_delta_of(len(budgets), has_names=True)))
    if len(deltas) > 1 or budgets.groups is not None:
        raise InputError(
            "expected client and epsilon in a pasted text, and one delta: save a file with deltas of single clients, "
            "or groups, in the folder that is served, and choose it as the source"
        )
    return float(deltas[0])


class _Lines(StreamingResponse):
    """Lines as they come. Whoever goes away ends what they asked for at once, not when memory is tidied up."""

    def __init__(self, lines: AsyncGenerator[bytes, None]) -> None:
        super().__init__(lines, media_type="application/x-ndjson")
        self._lines = lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._lines.aclose()


async def _in_words(request: Request, error: Exception) -> Response:
    """An error of ours: for a script as JSON, for a reader as a page."""
    if request.url.path.startswith("/api/"):
        # Not a status: an answer may have begun before its error is known, and a browser would complain of it.
        return JSONResponse({"error": str(error)})
    facts = {"here": "", "title": "This cannot be shown", "served": None, "version": gdpfed.__version__}
    return HTMLResponse(rendered("error.html", **facts, words=str(error)), status_code=400)


async def _missing(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 404
    words = {404: "There is no such page.", 405: "This address cannot be asked that way."}.get(status)
    words = words or str(getattr(error, "detail", "This cannot be answered."))
    response = await _in_words(request, InputError(words))
    response.status_code = status
    return response


def make_app(served: Served) -> Starlette:
    """The application, without its guard."""
    processes = Processes()
    pages = _Pages(served, processes)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        warming = asyncio.create_task(processes.warm())
        yield
        await warming
        processes.close()

    gets = {
        "/": pages.overview,
        "/plan": pages.plan,
        "/runs": pages.runs,
        "/report": pages.report,
        "/ledger": pages.ledger,
        "/deployment": pages.deployment,
        "/assets/{name}": pages.asset,
        "/api/plan": pages.plan_answer,
        "/api/compare": pages.compare_answer,
        "/api/frontier": pages.frontier_answer,
        "/api/runs": pages.runs_answer,
        "/api/curves": pages.curves,
        "/api/ledger": pages.ledger_answer,
        "/api/ledger/clients": pages.ledger_clients,
        "/api/ledger/plan": pages.ledger_plan,
        "/api/deployment": pages.deployment_answer,
    }
    posts = {"/api/budgets": pages.budgets, "/api/save": pages.save}
    routes = [Route(path, handler, methods=["GET"]) for path, handler in gets.items()]
    routes += [Route(path, handler, methods=["POST"]) for path, handler in posts.items()]
    routes += [Route("/index.html", lambda _: RedirectResponse("/"), methods=["GET"])]
    handlers: Any = {GdpfedError: _in_words, HTTPException: _missing}
    return Starlette(routes=routes, exception_handlers=handlers, lifespan=lifespan)
