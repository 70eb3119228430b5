"""Kills Flower's real processes, lets nodes lie, and prints whether the invariants held: `make faults`.

python tools/faults.py [--only TEXT ...] [--record FILE] [--resume]
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.flower.storm import FAULTS, Outcome, Storm  # noqa: E402 - found by the line above


def main() -> int:
    """Runs the faults in one federation; exit code 1 if something did not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[""], help="faults whose name has one of these texts")
    parser.add_argument("--record", type=Path, help="write the results here, as JSON")
    parser.add_argument("--stage-seconds", type=float, default=30.0, help="how long the server waits for answers")
    parser.add_argument("--resume", action="store_true", help="only what the record does not have yet")
    parser.add_argument("--against", choices=["models", "server"], default="models", help="the kind of plan")
    asked = parser.parse_args()
    before = json.loads(asked.record.read_text())["outcomes"] if asked.resume and asked.record.is_file() else []
    before = [row for row in before if row["killed"] != "nothing"]
    done = {row["killed"] for row in before}
    wanted = [fault for fault in FAULTS if any(text in fault.name for text in asked.only)]
    faults = tuple(fault for fault in wanted if fault.name not in done)
    folder = Path(tempfile.mkdtemp(prefix="gdpfed-faults-"))
    started = time.time()
    outcomes: list[Outcome] = []

    def say(text: str) -> None:
        print(f"{time.time() - started:6.0f} s  {text}", flush=True)  # noqa: T201
        if asked.record:
            rows = before + [as_mapping(outcome) for outcome in outcomes]
            content = {
                "against": asked.against,
                "stage_seconds": asked.stage_seconds,
                "faults": len(FAULTS),
                "outcomes": rows,
            }
            asked.record.write_text(json.dumps(content, indent=1) + "\n")

    say(f"{len(faults)} faults, in {folder}")
    Storm(folder, faults, stage_seconds=asked.stage_seconds, against=asked.against).run(say, outcomes)
    print(table(outcomes))  # noqa: T201
    return 1 if any(outcome.failures for outcome in outcomes) else 0


def as_mapping(outcome: Outcome) -> dict[str, object]:
    """Ready for JSON."""
    return {
        "killed": outcome.fault.name,
        "seconds": round(outcome.seconds, 1),
        "waited": None if outcome.waited is None else round(outcome.waited, 1),
        "charges": outcome.charges,
        "released_groups": list(outcome.released),
        "noise": None if outcome.noise is None else round(outcome.noise, 3),
        "failures": outcome.failures,
    }


def table(outcomes: list[Outcome]) -> str:
    """As Markdown."""
    lines = [
        "| killed | seconds | charges | released sums | noise / plan | |",
        "| --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for outcome in outcomes:
        noise = "" if outcome.noise is None else f"{outcome.noise:.2f}"
        verdict = "; ".join(outcome.failures) or "holds"
        facts = (outcome.fault.name, f"{outcome.seconds:.0f}", outcome.charges, len(outcome.released), noise, verdict)
        lines.append("| " + " | ".join(str(fact) for fact in facts) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
