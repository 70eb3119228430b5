"""Bad calls of the library: every public name, with one or two wrong arguments.

A right call of each name is written here; which parameters there are is read from the signature.
"""

import dataclasses
import inspect
import random
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import gdpfed

FLOATS: list[Any] = [-1.0, 0.0, -0.0, 1.0, 0.5, 2.0, float("nan"), float("inf"), float("-inf"), 1e308, 1e-308, 5e-324]
INTS: list[Any] = [-1, 0, 1, 2, 10**9, 2**63, -(2**63), 10**30]
WORDS: list[Any] = ["", "x", "\0", "a\nb", "\udcff", "gdpfed", "pooled", "server", "x" * 5000, "own:model", "5@1"]
PATHS: list[Any] = [
    "", ".", "absent", "absent/x", "clients.csv", "tiny.toml", "plan.toml", "rotation.toml", "book.db", "run", "home",
    "loop",
    "fifo", "a\0b", "\udcff.csv", "/proc/x", "x" * 300, "empty", "empty.csv", "binary.csv", "new", "clients.csv/x",
]  # fmt: skip
# Of other kinds than asked for: a number that is a text, a text that is a number.
STRANGE: list[Any] = ["5", None, 2.5, True, [1], np.float64(0.5), np.int64(3), b"x", (), {}, object()]


def _arrays() -> list[Any]:
    """In the place of budgets' arrays."""
    return [
        np.array([]), np.array(1.0), np.array([[1.0, 2.0]]), np.array([1.0, np.nan]), np.array([-1.0, 1.0]),
        np.array([1, 2]),
        np.array([np.inf, 1.0]), np.array(["a", "b"]), np.array([0.0, 1.0]), [1.0, 2.0], None,
        np.array([1e-300, 1e300]),
        np.array([object(), object()]), np.array([1j, 2j]), np.full(3, 0.5),
    ]  # fmt: skip


def _examples(rng: random.Random) -> Any:
    """In the place of a client's examples."""
    import torch

    x, y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
    return rng.choice(
        [
            (x, y), (x[:0], y[:0]), (x, y[:2]), (x[:, :2], y), (x * float("nan"), y), (x + float("inf"), y),
            (x, y.float() + 0.5),
            (x, y - 1), (x, y + 7), (x.to(torch.int64), y), (x.to(torch.complex64), y), (x.bool(), y), (x.double(), y),
            (x, x), (x,),
            x, None, [], {}, {"x": x}, {"x": x, "y": y}, {"a": x, "b": y}, (x.numpy(), y.numpy()),
            (x.numpy().tolist(), y.tolist()),
            (np.array(["a"] * 4), y), (np.array([None] * 4), y), (x, None), "text", 3, (x.half(), y), (x[0], y),
            (x, y[0]),
            ([[1, 2, 3], [1]], [0, 1]), [(x[0], 0)], [(x[0],)], [1, 2],
        ]
    )  # fmt: skip


def _clients(rng: random.Random) -> Any:
    good = _GOOD_EXAMPLES()
    several = [good] * 20
    some = rng.randrange(20)
    return rng.choice(
        [
            lambda: [*several[:some], _examples(rng), *several[some + 1 :]], lambda: several[:19], lambda: [],
            lambda: None,
            lambda: {f"c{number}": good for number in range(20)}, lambda: {0: good}, lambda: "clients", lambda: 7,
            lambda: [_examples(rng)] * 20, lambda: (_examples(rng) for _ in range(20)), lambda: good,
        ]
    )()  # fmt: skip


def _GOOD_EXAMPLES() -> Any:  # noqa: N802
    import torch

    return torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])


def _model(rng: random.Random) -> Any:
    from torch import nn

    frozen = nn.Linear(3, 2)
    frozen.requires_grad_(False)
    nan = nn.Linear(3, 2)
    nan.weight.data.fill_(float("nan"))
    return rng.choice(
        [
            nn.Linear(2, 2), nn.Linear(3, 1), nn.BatchNorm1d(3), nn.Identity(), nn.Sequential(), frozen, nan, None,
            "model", nn.Linear,
            nn.LSTM(3, 2), nn.Linear(3, 2).double(), nn.Linear(3, 2).half(), nn.Flatten(0), nn.Embedding(3, 2),
            lambda x: x,
            nn.Sequential(nn.Linear(3, 2), nn.Dropout(1.0)), nn.Conv2d(3, 2, 1),
        ]
    )  # fmt: skip


def _losses() -> list[Any]:
    return [
        "mse", "bce-with-logits", "next-token", "nothing", "", None, 3, lambda o, _: o, lambda o: o, lambda *_: None,
        lambda *_: 1 / 0, lambda o, _: o.sum() * float("nan"), lambda _, t: t.float(), lambda *_: "x",
        lambda o, _: o.mean(),
    ]  # fmt: skip


def _budgets() -> list[Any]:
    parse = gdpfed.parse_compact
    return [
        parse("20@1"),
        parse("1@1"),
        parse("5@1,5@2"),
        parse("20@1e-6"),
        parse("20@1000000"),
        "20@1",
        "clients.csv",
        "x",
        "",
        None,
    ]


def _settings() -> list[Any]:
    make = gdpfed.PlanSettings
    return [
        make(), make(method="fedavg"), make(num_rounds=1, participation=1.0),
        make(participation=1e-5, method="pooled"), None,
        make(method="idp-fedavg", participation=1e-5), make(groups=(0.5, 3.0)), make(groups=40), make(rates=(0.1, 0.2)),
        make(against="server", method="gdpfed"), make(clip_norm=1e-9), make(noise_multipliers=(1.0,)),
        make(keep=(0.5,)),
        make(linked=(("a", "b"),)), make(delta=1e-300), make(person_epsilon=1e-3, clients_per_person=2),
        make(max_participations=1), "gdpfed", {},
    ]  # fmt: skip


def _plans() -> list[Any]:
    plan = gdpfed.load_plan("plan.toml")
    replace = dataclasses.replace
    makers: list[Callable[[], Any]] = [
        lambda: plan, lambda: gdpfed.load_plan("rotation.toml"), lambda: replace(plan, groups=()),
        lambda: replace(plan, num_rounds=0),
        lambda: replace(plan, num_rounds=999), lambda: replace(plan, clip_norm=float("nan")),
        lambda: replace(plan, method=""),
        lambda: replace(plan, groups=plan.groups[:1]), lambda: None, lambda: "plan.toml", lambda: "absent", lambda: 3,
        lambda: replace(plan, groups=(replace(plan.groups[0], noise_multiplier=1e-9),)),
        lambda: replace(plan, groups=(replace(plan.groups[0], num_clients=10**9), *plan.groups[1:])),
        lambda: replace(plan, sampling="rotation"), lambda: replace(plan, assignment_digest="x"),
    ]  # fmt: skip
    made = []
    for make in makers:
        try:
            made.append(make())
        except gdpfed.GdpfedError:
            continue
    return made


def _by_name(rng: random.Random, name: str) -> Any:
    """Wrong values for parameters whose kind is richer than their annotation says."""
    pools: dict[str, Callable[[], Any]] = {
        "clients": lambda: _clients(rng),
        "test": lambda: _examples(rng),
        "model": lambda: _model(rng),
        "loss": lambda: rng.choice(_losses()),
        "metrics": lambda: rng.choice(
            [{"a": one} for one in _losses()[5:]] + [{}, None, {"": None}, {1: max}, [max], "x"]
        ),
        "budgets": lambda: rng.choice(_budgets()),
        "settings": lambda: rng.choice(_settings()),
        "plan": lambda: rng.choice(_plans()),
        "epsilons": lambda: rng.choice(_arrays()),
        "deltas": lambda: rng.choice(_arrays()),
        "columns": lambda: rng.choice([("x", "y"), ("x",), "x", (), None, (1, 2), ("a", "a")]),
        "assignment": lambda: rng.choice(_arrays()),
        "paths": lambda: [Path(one) for one in rng.sample(PATHS, rng.randrange(3)) if "\0" not in one],
        "linked": lambda: rng.choice(
            [(), (("a",),), ((),), (("a", "a"),), (("c1", "c2"), ("c2", "c3")), "x", (1,), None]
        ),
    }
    return pools[name]() if name in pools else _NONE


_NONE = object()


def _bad(rng: random.Random, name: str, annotation: Any, *, with_strange: bool) -> Any:
    """For a parameter, by its name or its annotation."""
    special = _by_name(rng, name)
    if special is not _NONE:
        return special
    told = str(annotation)
    if with_strange and rng.random() < 0.15:
        return rng.choice(STRANGE)
    kinds: list[list[Any]] = []
    kinds += [FLOATS] if "float" in told else []
    kinds += [INTS] if "int" in told else []
    kinds += [PATHS] if "Path" in told or name in ("path", "source") else []
    kinds += [WORDS] if "str" in told or "Literal" in told else []
    kinds += [[(), (1.0,), (float("nan"),), (-1.0, 2.0), ("x",), (0.5,) * 3]] if "tuple" in told else []
    value = rng.choice(rng.choice(kinds or [STRANGE]))
    return Path(value) if isinstance(value, str) and "Path" in told and rng.random() < 0.5 else value


def _train() -> dict[str, Any]:
    from torch import nn

    settings = gdpfed.PlanSettings(num_rounds=2, participation=0.5, delta=1e-3, local_steps=1)
    clients = [_GOOD_EXAMPLES()] * 20
    test = _GOOD_EXAMPLES()
    return {
        "model": nn.Linear(3, 2),
        "clients": clients,
        "budgets": "20@3",
        "seed": 1,
        "settings": settings,
        "test": test,
        "num_workers": 1,
    }


def _ledger(method: str, /, **given: Any) -> Callable[..., Any]:
    """A method of an open ledger, with what it needs to be right."""

    def call(**changed: Any) -> Any:
        with gdpfed.Ledger.open("book.db") as ledger:
            return getattr(ledger, method)(**{**given, **changed})

    call.__signature__ = inspect.signature(getattr(gdpfed.Ledger, method))  # type: ignore[attr-defined]
    return call


_MECHANISM = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "num_rounds": 5}
# For each name what makes a right call: the call, and its arguments.
RIGHT: dict[str, Callable[[], tuple[Callable[..., Any], dict[str, Any]]]] = {
    "Budgets": lambda: (gdpfed.Budgets, {"epsilons": np.array([1.0, 2.0]), "deltas": np.array([1e-5, 1e-5])}),
    "Group": lambda: (gdpfed.Group, vars(gdpfed.load_plan("plan.toml").groups[0])),
    "Ledger.create": lambda: (gdpfed.Ledger.create, {"path": "new.db"}),
    "Ledger.open": lambda: (lambda **given: gdpfed.Ledger.open(**given).close(), {"path": "book.db"}),
    "Ledger.read": lambda: (gdpfed.Ledger.read, {"path": "book.db"}),
    "Ledger.add_population": lambda: (
        _ledger("add_population", name="others", budgets=gdpfed.parse_compact("5@1"), other_people=True), {},
    ),
    "Ledger.join": lambda: (_ledger("join", population="people", budgets=gdpfed.read_budgets("clients.json")), {}),
    "Ledger.leave": lambda: (_ledger("leave", population="people", clients=["c1"]), {}),
    "Ledger.tighten": lambda: (_ledger("tighten", population="people", clients=["c1"], epsilon=0.5), {}),
    "Ledger.close_run": lambda: (_ledger("close_run", run="run-1"), {}),
    "Ledger.start_run": lambda: (
        _ledger("start_run", name="r", population="people", plan=gdpfed.load_plan("plan.toml"),
            assignment=np.zeros(60, int)), {},
    ),
    "LocalTraining": lambda: (gdpfed.LocalTraining, {}),
    "Plan": lambda: (gdpfed.Plan, vars(gdpfed.load_plan("plan.toml"))),
    "PlanSettings": lambda: (gdpfed.PlanSettings, {}),
    "SampledGaussian": lambda: (gdpfed.SampledGaussian, dict(_MECHANISM)),
    "TrainingSettings": lambda: (gdpfed.TrainingSettings, {}),
    "account": lambda: (gdpfed.account, {"delta": 1e-5, "sampling_rate": 0.1, "num_rounds": 5, "epsilon": 2.0}),
    "assign": lambda: (gdpfed.assign, {"plan": gdpfed.load_plan("plan.toml"),
        "budgets": gdpfed.read_budgets("clients.csv")}),
    "audit_plan": lambda: (
        gdpfed.audit_plan,
        {"plan": gdpfed.load_plan("plan.toml"), "seed": 1, "num_canaries": 200, "mechanisms": ["float"],
            "with_controls": False},
    ),
    "epsilon_of": lambda: (
        lambda *, delta=1e-5, accountant="pld", **mechanism: gdpfed.epsilon_of(
            gdpfed.SampledGaussian(**mechanism), delta=delta, accountant=accountant
        ),
        dict(_MECHANISM),
    ),
    "load_plan": lambda: (gdpfed.load_plan, {"path": "plan.toml"}),
    "load_report": lambda: (gdpfed.load_report, {"paths": [Path("run")]}),
    "load_task": lambda: (gdpfed.load_task, {"source": "tiny.toml"}),
    "make_plan": lambda: (
        gdpfed.make_plan,
        {"budgets": gdpfed.read_budgets("clients.csv"), "settings": gdpfed.PlanSettings(num_rounds=3,
            participation=0.2)},
    ),
    "max_participations_for": lambda: (
        gdpfed.max_participations_for, {"noise_multiplier": 1.0, "epsilon": 2.0, "delta": 1e-5},
    ),
    "method": lambda: (gdpfed.method, {"name": "x"}),
    "noise_multiplier_for": lambda: (
        gdpfed.noise_multiplier_for, {"epsilon": 2.0, "delta": 1e-5, "sampling_rate": 0.1, "num_rounds": 5},
    ),
    "num_rounds_for": lambda: (
        gdpfed.num_rounds_for, {"noise_multiplier": 1.0, "sampling_rate": 0.1, "epsilon": 2.0, "delta": 1e-5},
    ),
    "open_run": lambda: (lambda path: gdpfed.open_run(path).records(), {"path": Path("run")}),
    "parse_compact": lambda: (gdpfed.parse_compact, {"text": "5@1"}),
    "plan_frontier": lambda: (
        gdpfed.plan_frontier,
        {"budgets": gdpfed.parse_compact("60@3"), "settings": gdpfed.PlanSettings(num_rounds=2,
            participation=0.5, method="gdpfed")},
    ),
    "plan_hash": lambda: (gdpfed.plan_hash, {"plan": gdpfed.load_plan("plan.toml")}),
    "read_budgets": lambda: (gdpfed.read_budgets, {"path": "clients.csv"}),
    "report_html": lambda: (lambda paths: gdpfed.report_html(gdpfed.load_report(paths)), {"paths": [Path("run")]}),
    "sampling_rate_for": lambda: (
        gdpfed.sampling_rate_for, {"noise_multiplier": 1.0, "epsilon": 2.0, "delta": 1e-5, "num_rounds": 5},
    ),
    "save_plan": lambda: (gdpfed.save_plan, {"plan": gdpfed.load_plan("plan.toml"), "path": "new.toml"}),
    "server_epsilon": lambda: (gdpfed.server_epsilon, {"noise_multiplier": 1.0, "num_participations": 2,
        "delta": 1e-5}),
    "simulate": lambda: (
        lambda *, folder="unfinished", num_workers=1, **given: gdpfed.simulate(
            gdpfed.open_run(folder), num_workers=num_workers, **given
        ),
        {},
    ),
    "start_run": lambda: (gdpfed.start_run, {"task": gdpfed.load_task("tiny.toml"), "seed": 1, "folder": Path("new")}),
    "train": lambda: (gdpfed.train, _train()),
    "verify_ledger": lambda: (gdpfed.verify_ledger, {"path": "book.db"}),
}  # fmt: skip
# What the library itself makes and hands out, or plain values.
NOT_CALLED = {
    "AuditReport",
    "GdpfedError",
    "InputError",
    "METHODS",
    "PrivacyError",
    "RunFolder",
    "Task",
    "Trained",
    "__version__",
}
# Handed in by a caller who knows what a function is.
_LEFT = {"self", "watch", "say", "read_plan", "fault", "task", "engine", "local", "store", "with_power"}


def bad_call(rng: random.Random) -> tuple[str, Callable[[], Any]]:
    """A call with one to three wrong arguments, and what it is."""
    weights = [8 if name == "train" else 3 if name == "PlanSettings" else 1 for name in RIGHT]
    name = rng.choices(sorted(RIGHT), [weights[list(RIGHT).index(one)] for one in sorted(RIGHT)])[0]
    function, given = RIGHT[name]()
    hints = typing.get_type_hints(function) if inspect.isclass(function) else {}
    parameters = [
        (one.name, hints.get(one.name, one.annotation))
        for one in inspect.signature(function).parameters.values()
        if one.kind is not one.VAR_KEYWORD
    ]
    known = dict.fromkeys(given, "") | dict(parameters)
    names = sorted(known.keys() - _LEFT)
    # A plan, a group and a ledger come from the library: their fields have the right kinds, and wrong values.
    strange = not name.startswith(("Plan", "Group", "Ledger")) or name == "PlanSettings"
    picked = rng.sample(names, min(len(names), rng.choice([1, 1, 1, 2, 2, 3])))
    changed = {one: _bad(rng, one, known[one], with_strange=strange) for one in picked}
    if not strange:
        changed = {
            one: value
            for one, value in changed.items()
            if type(value) in (type(given.get(one)), float, int, str, Path)
            and one not in ("budgets", "plan", "groups", "clients")
            and "\0" not in str(value)
        }
    about = f"gdpfed.{name}({', '.join(f'{one}={str(value)[:60]!r}' for one, value in changed.items())})"
    return about, lambda: function(**{**given, **changed})
