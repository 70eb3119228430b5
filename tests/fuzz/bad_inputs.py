"""Bad inputs by the thousand, over all commands and public calls: none may end in a traceback, hang, or leave a mess.

    python -m tests.fuzz.bad_inputs --inputs 10000 --seed 1
    python -m tests.fuzz.bad_inputs --seed 1 --only 4711

What is tried follows from the seed and a number, so that every input can be tried again. Commands, options and calls
are read from the program itself: what is added later is tried, too. What is refused must say so in one line, with exit
code 2 (a call: with an error of gdpfed), and leave every file as it was. What turns out to be right may succeed.
"""

import argparse
import contextlib
import functools
import io
import json
import os
import random
import re
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.calls import bad_call
from tests.fuzz.sandbox import Outcome, Sandbox

_MEMORY = 12 * 2**30

INTEGERS = [
    "-1",
    "0",
    "1",
    "2",
    "3",
    "7",
    "1000000007",
    "9223372036854775808",
    "1" * 400,
    "-0",
    "1.5",
    "1e3",
    "٣",
    "0x10",
]
NUMBERS = [
    "-1", "0", "-0.0", "1", "0.5", "2", "nan", "inf", "-inf", "1e308", "1e400", "1e-308", "5e-324", "1e-16", "1e16",
    "1,5",
    "0.1,0.2", "0.1,nan", "1_0", "½",
]  # fmt: skip
TEXTS = [
    "", " ", "x", "-", "--", "a,b", ",", "a" * 5000, "é", "日本", "\u202e", "\x1b[31m", "a\nb", "\udcff", "'\"", "%s",
    "{}",
    "[", "None", "own:model", "own:broken", "own:ones", "own:absent", "own", "absent:x", "os:getcwd", "60@1",
    "30@1,30@4", "@", "1@",
    "1@1@1", "0@1", "-5@1", "5@nan", "5@1e400", "99999999999@1", "5@1,5@", "1.5@2", "c1", "c1,c2", "people", "../x",
]  # fmt: skip
PATHS = [
    "clients.csv", "clients.json", "linked.csv", "linked.json", "tiny.toml", "plan.toml", "rotation.toml", "book.db",
    "book.db.key", "receipt.json", "run", "run/plan.toml", "run/run.toml", "unfinished", "home", "node", "node2",
    "home/enrolment.json", "node/announcement.json", "node3/announcement.json", "report.html", "groups.csv", "own.py",
    "empty.csv", "binary.csv", "empty", "fifo", "loop", "loop/x", "absent", "absent/absent", "absent.csv",
    "clients.csv/x",
    "/proc/x", "/proc/self/status", ".", "..", "~", "a" * 300, "new", "new.toml", "new.csv", "new.json", "new.png",
    "new.svg",
    "new.md", "new.html", "new.parquet", "\udcff.csv", "\x1b[31m.csv", "a\nb.toml", "home/certificates",
    "empty/new.png",
]  # fmt: skip

# What a command needs at least, by the names of its parameters; of new names the type decides.
GOOD = {
    "source": "clients.csv", "sources": "clients.csv", "folder": "run", "folders": "run", "runs": "run",
    "path": "book.db",
    "name": "fmnist-mini", "names": "c1", "client": "c1", "run": "run-1", "plan_file": "plan.toml", "paths": ".",
    "home": "home", "enrolment": "home/enrolment.json", "announcements": "node3/announcement.json",
    "host": "localhost", "listen": "127.0.0.1:9", "delta": "1e-5", "epsilon": "2", "out": "new.json",
}  # fmt: skip
GOOD_IN = {
    "train": {"source": "tiny.toml"},
    "compare": {"source": "tiny.toml"},
    "audit": {"source": "plan.toml"},
    "resume": {"folder": "unfinished"},
    "flower init": {"home": "new"},
    "flower node": {"home": "new"},
    "flower new": {"folder": "new"},
    "flower pin": {"home": "node"},
    "ledger init": {"path": "new.db"},
    "ledger join": {"source": "10@1"},
    "plot": {"out": "new"},
}
# So that what is accepted after all is small; an option that is tried comes in its place.
SMALL = {
    "plan": "--rounds 5 --participation 0.2",
    "train": "--workers 1 --out new",
    "compare": "--workers 1 --methods gdpfed",
    "resume": "--workers 1",
    "audit": "--canaries 200 --no-controls --mechanism float",
    "account": "--rate 0.1 --rounds 5",
    "flower plan": "--rounds 2 --participation 0.5",
    "data check": "fmnist-mini",
    "reproduce": "--datasets fmnist",
}


@dataclass(frozen=True)
class Case:
    """One input: what it is, in words that can be read, and how it is tried."""

    about: str
    run: Callable[[Sandbox], Outcome]


# They serve until they are interrupted, as does whatever watches.
ENDLESS = {"serve", "flower metrics"}


@functools.cache
def commands() -> dict[str, Any]:
    """All that can be called, by its words."""
    from gdpfed.cli import every_command

    return {words: command for words, command in every_command() if not hasattr(command, "commands")}


def _value(rng: random.Random, parameter: Any) -> str:
    """For one parameter: mostly of its kind, and mostly wrong."""
    kind = type(parameter.type).__name__
    pool = INTEGERS if "Int" in kind else NUMBERS if "Float" in kind else PATHS if "Path" in kind else TEXTS + PATHS
    chance = rng.random()
    if chance < 0.12:
        pool = INTEGERS + NUMBERS + TEXTS + PATHS
    elif chance < 0.3 and (told := re.findall(r"[a-z][a-z0-9+-]*", getattr(parameter, "help", None) or "")):
        pool = told
    elif chance < 0.4 and pool is TEXTS + PATHS:
        pool = NUMBERS
    return rng.choice(pool)


def _words(rng: random.Random) -> list[str]:
    """A command line: a small right one, with one to three mistakes."""
    # What plans and trains has most options; what reproduces the paper has the same ones many times.
    weights = {"plan": 3, "train": 4, "compare": 3, "account": 3, "audit": 3, "reproduce": 0.3}
    names = sorted(commands().keys() - ENDLESS)
    (name,) = rng.choices(names, [weights.get(one.split()[0], 1) for one in names])
    command = commands()[name]
    group = name.split()[0]
    options = {
        parameter.name: parameter
        for parameter in command.params
        if parameter.param_type_name == "option" and parameter.name != "watch"
    }
    given: dict[str, list[str]] = {}
    arguments: list[str] = []
    mistakes = rng.choice([1, 1, 1, 2, 2, 3])
    for parameter in command.params:
        good = GOOD_IN.get(name, {}).get(parameter.name, GOOD.get(parameter.name, "x"))
        if parameter.param_type_name == "argument" and (parameter.required or parameter.name == "source"):
            if mistakes and rng.random() < 0.3:
                good, mistakes = _value(rng, parameter), mistakes - 1
            arguments += [good] if rng.random() > 0.03 else []
        elif parameter.required and rng.random() > 0.05:
            given[parameter.opts[0]] = [good]
    extra: list[str] = []
    for _ in range(mistakes):
        parameter = options[rng.choice(sorted(options))]
        flag = rng.choice([*parameter.opts, *parameter.secondary_opts])
        chance = rng.random()
        if chance < 0.04:
            extra += [rng.choice([flag + "x", "--no-such", "-z", *TEXTS])]
        elif parameter.is_flag:
            given[flag] = []
        elif chance < 0.08:
            extra += [flag]
        else:
            given[flag] = [_value(rng, parameter)]
    small = SMALL.get(name, SMALL.get(group, "")).split()
    while small:
        word = small.pop(0)
        flag = word.replace("--no-", "--")
        if not word.startswith("--"):
            arguments = arguments or [word]
        elif any(flag in (*one.opts, *one.secondary_opts) for one in options.values()):
            value = [small.pop(0)] if small and not small[0].startswith("--") else []
            given.setdefault(word, value)
        elif small and not small[0].startswith("--"):
            small.pop(0)
    if rng.random() < 0.2 and "--json" not in given:
        given["--json"] = []
    listed = [[flag, *values] for flag, values in given.items()]
    rng.shuffle(listed)
    return [*name.split(), *arguments, *(word for pair in listed for word in pair), *extra]


def _damage(rng: random.Random, sandbox: Sandbox, words: list[str]) -> str:
    """Spoils one of the files that the words name, or any."""
    named = [Path(word) for word in words if not word.startswith("/") and os.path.exists(word)]
    inside = [path for one in named for path in ([one] if one.is_file() else sorted(one.rglob("*"))) if path.is_file()]
    around = [Path(f"{one}{end}") for one in named for end in (".key", "-wal") if Path(f"{one}{end}").is_file()]
    path = rng.choice(inside + around or [Path("clients.csv")])
    content = bytearray(path.read_bytes())
    how = rng.choice(["cut", "flip", "flip", "swap", "junk", "line", "empty", "number", "word", "nul"])
    place = rng.randrange(len(content)) if content else 0
    if how == "cut":
        content = content[:place]
    elif how == "flip" and content:
        content[place] ^= 1 << rng.randrange(8)
    elif how == "empty":
        content = bytearray()
    elif how == "junk":
        content[place:place] = rng.randbytes(20)
    elif how == "nul":
        content[place:place] = b"\0"
    elif how == "line":
        lines = content.split(b"\n")
        lines.insert(rng.randrange(len(lines)), lines.pop(rng.randrange(len(lines))))
        content = bytearray(b"\n".join(lines[: rng.randint(1, len(lines))]))
    elif how == "swap":
        other = rng.choice([one for one in PATHS if os.path.isfile(one)])
        content = bytearray(Path(other).read_bytes())
    else:
        shape = rb"-?\d+(\.\d+)?(e-?\d+)?" if how == "number" else rb"\"[^\"\n]*\"|\b[a-z_]+\b"
        found = list(re.finditer(shape, bytes(content)))
        if found:
            spot = rng.choice(found)
            put = rng.choice(NUMBERS if how == "number" else [*TEXTS, '"x"', "[]", "{}", "null", "true", "1"])
            content[spot.start() : spot.end()] = put.encode("utf-8", "surrogateescape")
    path.write_bytes(bytes(content))
    return f"{path}: {how}"


def case(seed: int, number: int) -> Case:
    """The input of this number."""
    rng = random.Random(f"{seed}/{number}")  # noqa: S311 - to be repeated
    if rng.random() < 0.25:
        about, call = bad_call(rng)
        return Case(about, lambda sandbox: sandbox.try_call(call))
    words = _words(rng)
    if rng.random() >= 0.3:
        return Case(" ".join(map(repr, words)), lambda sandbox: sandbox.try_words(words))

    def damaged(sandbox: Sandbox) -> Outcome:
        _damage(rng, sandbox, words)
        return sandbox.try_words(words)

    return Case(" ".join(map(repr, words)) + " with a damaged file", damaged)


def built(folder: Path) -> Sandbox:
    """A sandbox in ``folder``, by the commands that make what it holds."""
    from gdpfed.cli import main

    def gdpfed(words: list[str]) -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                main(words)
            except SystemExit as ended:
                if ended.code:
                    raise RuntimeError(f"cannot build the sandbox: {words}") from None

    sandbox = Sandbox(folder)
    sandbox.build(gdpfed)
    return sandbox


def fuzz(numbers: Sequence[int], *, seed: int, sandbox: Sandbox, say: Callable[[str], None]) -> Counter[str]:
    """Tries the inputs; says what is wrong, and returns what came of them."""
    counted: Counter[str] = Counter()
    for number in numbers:
        sandbox.restore()
        os.chdir(sandbox.here)
        tried = case(seed, number)
        started = time.perf_counter()
        outcome = tried.run(sandbox)
        counted[outcome.kind] += 1
        if outcome.problem:
            say(f"input {number} ({time.perf_counter() - started:.1f} s): {tried.about}\n    {outcome.problem}")
        if not counted.total() % 500:
            sys.stderr.write(f"{counted.total()} of {len(numbers)}: {dict(counted)}\n")
    return counted


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first input")
    parser.add_argument("--only", type=int, help="this input only")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", type=Path, help="write what came of it here, as JSON")
    asked = parser.parse_args()
    os.environ |= {"GDPFED_CACHE": "off", "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    numbers = [asked.only] if asked.only is not None else range(asked.first, asked.first + asked.inputs)
    record = None if asked.record is None else asked.record.absolute()

    def say(text: str) -> None:
        sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
        sys.stdout.flush()

    started = time.time()
    with tempfile.TemporaryDirectory(prefix="gdpfed-fuzz-") as folder:
        counted = fuzz(numbers, seed=asked.seed, sandbox=built(Path(folder)), say=say)
        os.chdir("/")
    content = {
        "seed": asked.seed,
        "first": asked.first,
        "inputs": len(numbers),
        "outcomes": dict(counted.most_common()),
    }
    say(f"{json.dumps(content)}  {time.time() - started:.0f} s")
    if record is not None:
        record.write_text(json.dumps(content, indent=1) + "\n")
    sys.exit(1 if counted["finding"] else 0)


if __name__ == "__main__":
    main()
