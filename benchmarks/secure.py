"""What a secure sum costs: seconds and bytes of a client and of the server, beside Flower's SecAgg+ on the same sizes.

    python benchmarks/secure.py [--quick | --sizes 100000x200,100000x1000] [--flower-python PATH] [--no-flower]

Seconds are CPU seconds of one core: the programs run one thread of work at a time, and other processes on the machine
then matter less. For each size a cohort runs the whole protocol. One client is measured through all its stages, with
nothing remembered from others: every signature checked, every key agreed, clip, encoding, noise and masks. The others
make real keys, shares, signatures and answers but send a constant instead of a masked vector, which costs the server
the same.
The server's time is all it does from the first message to the sum. Cohorts stand 10 % dropouts (by rate) and 10 %
colluders; "lost" clients vanish after they shared their keys, the most expensive moment.

Flower's SecAgg+ (`peers/flower_secagg.py`) runs with the same number of holders and the same threshold, in an
environment of its own (.venv-secagg, made on the first run) or in that of `--flower-python`, on the sizes with
dropout. It has no signatures, no agreement on the survivors and no noise, and its masks have 32 bits of seed.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import subprocess
import sys
import time
import venv
from pathlib import Path
from typing import Any

import numpy as np

from gdpfed.secure import messages, shares
from gdpfed.secure.client import SecureClient, confirmations
from gdpfed.secure.encoding import ClientEncoding, PlannedSum
from gdpfed.secure.graph import circle, neighbours, topology
from gdpfed.secure.noise_shares import Tolerance
from gdpfed.secure.primitives import signing_public, verified
from gdpfed.secure.server import SecureServer
from gdpfed.secure.session import Directory, Session

HERE = Path(__file__).resolve().parent
FLOWER = "flwr==1.41.0"
TOLERANCE = Tolerance(dropout_rate=0.1, colluding_fraction=0.1)
PARAMS = (10**4, 10**5, 10**6, 10**7)
COHORTS = (10, 40, 100, 300, 1000)
# (num_params, cohort): the sizes of the stated targets.
CLIENT_TARGET, SERVER_TARGET = (10**5, 40), (10**6, 300)


class Stopwatch:
    """Adds up the seconds of some calls."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self, function: Any, *arguments: Any) -> Any:
        """Calls, and counts."""
        began = time.process_time()
        result = function(*arguments)
        self.seconds += time.process_time() - began
        return result


class Idle(SecureClient):
    """Does all but the arithmetic on its vector."""

    def constant(self, delivery: bytes, vector: bytes) -> bytes:
        """Stage 3 with a vector that is given; its header becomes this client's."""
        joined, _, masked, _ = self._opened(delivery)
        self._state = dataclasses.replace(self._state, masked=masked, secrets=None)
        head = messages.MaskedInput(
            roster=joined.roster.digest,
            client=self._client,
            confirmed=confirmations(masked, roster=joined.roster.digest, client=self._client),
            values=np.zeros(0, np.uint32),
        ).encode()
        return head[:-4] + vector


def identity(number: int) -> bytes:
    """A signing key."""
    return hashlib.sha256(b"benchmark %d" % number).digest()


def forget() -> None:
    """As in a process that has just one client."""
    verified.cache_clear()
    circle.cache_clear()
    neighbours.cache_clear()
    shares._weights.cache_clear()
    messages._remembered_roster.cache_clear()


def measure(num_params: int, cohort: int, *, dropout: bool) -> dict[str, Any]:
    """One sum."""
    unit = 2.0**-19
    encoding = ClientEncoding(clip_norm=1.5, scale=1.0, unit=unit, norm_bound=3 * 2**18, num_params=num_params)
    planned = PlannedSum(
        place=0,
        groups=(0,),
        num_params=num_params,
        unit=unit,
        noise_variance=10**12,
        released_variance=4 * 10**12,
        largest_cohort=1500,
        encodings=(encoding,),
    )
    session = Session(
        plan_hash=bytes(32), model_hash=bytes(32), round_number=0, attempt=0, place=0, num_params=num_params
    )
    directory = Directory(
        server=signing_public(identity(cohort)),
        clients={number: signing_public(identity(number)) for number in range(cohort)},
    )
    shape = topology(cohort, TOLERANCE)
    lost = set(range(1, 1 + cohort // 10)) if dropout else set()
    update = np.random.default_rng(1).standard_normal(num_params)
    vector = num_params.to_bytes(4, "little") + bytes(4 * num_params)
    of_client, of_server = Stopwatch(), Stopwatch()
    sent = received = 0

    common: dict[str, Any] = {
        "session": session,
        "planned": planned,
        "group": 0,
        "directory": directory,
        "tolerance": TOLERANCE,
    }
    forget()
    first = of_client(lambda: SecureClient(client=0, identity=identity(0), **common))
    others = [Idle(client=number, identity=identity(number), **common) for number in range(1, cohort)]
    server = of_server(
        lambda: SecureServer(
            session=session,
            invited=range(cohort),
            identity=identity(cohort),
            directory=directory,
            tolerance=TOLERANCE,
        )
    )

    def from_first(function: Any, *arguments: Any) -> bytes:
        nonlocal sent, received
        forget()
        answer: bytes = of_client(function, *arguments)
        sent += len(answer)
        received += sum(len(argument) for argument in arguments if isinstance(argument, bytes))
        return answer

    of_server(server.receive_advertisement, from_first(first.advertise))
    for other in others:
        of_server(server.receive_advertisement, other.advertise())
    roster = of_server(server.roster)
    of_server(server.receive_shares, from_first(first.share, roster))
    for other in others:
        of_server(server.receive_shares, other.share(roster))
    deliveries = of_server(server.deliveries)
    of_server(server.receive_input, from_first(first.mask, deliveries[0], update))
    for number, other in enumerate(others, start=1):
        if number not in lost:
            of_server(server.receive_input, other.constant(deliveries[number], vector))
    survivors = of_server(server.survivors)
    alive = {number: other for number, other in enumerate(others, start=1) if number not in lost}
    of_server(server.receive_agreement, from_first(first.agree, survivors[0]))
    for number, other in alive.items():
        of_server(server.receive_agreement, other.agree(survivors[number]))
    agreements = of_server(server.agreements)
    of_server(server.receive_revealed, from_first(first.reveal, agreements))
    for other in alive.values():
        of_server(server.receive_revealed, other.reveal(agreements))
    shares._weights.cache_clear()
    of_server(server.total)
    return {
        "num_params": num_params,
        "cohort": cohort,
        "holders": shape.num_holders,
        "threshold": shape.threshold,
        "lost": len(lost),
        "client_seconds": of_client.seconds,
        "client_sent": sent,
        "client_received": received,
        "server_seconds": of_server.seconds,
    }


def flower_python(given: str | None) -> str | None:
    """A Python that has Flower; made if none is given."""
    if given:
        return given
    folder = HERE.parent / ".venv-secagg"
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"making {folder} with {FLOWER} ...", file=sys.stderr)
        venv.create(folder, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", FLOWER]
        if subprocess.run(command, check=False).returncode:  # noqa: S603
            return None
    return str(python)


def flower(python: str, row: dict[str, Any]) -> dict[str, Any] | None:
    """Flower's numbers for the same size."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FLWR_TELEMETRY_ENABLED": "0"}
    environment.pop("PYTHONPATH", None)
    size = {name: row[name] for name in ("num_params", "cohort", "holders", "threshold", "lost")}
    done = subprocess.run(  # noqa: S603
        [python, str(HERE / "peers" / "flower_secagg.py"), json.dumps([size])],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        print(f"Flower did not run: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def amount(num_bytes: float) -> str:
    """Bytes in thousands or millions."""
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 1e5 else f"{num_bytes / 1e3:.1f} kB"


def main() -> None:
    """All sizes, as a table in Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="the sizes of the targets only")
    parser.add_argument("--sizes", help="parameters x cohort, for example 100000x200,100000x1000")
    parser.add_argument("--no-flower", action="store_true")
    parser.add_argument("--flower-python", help="a Python in which Flower is installed")
    options = parser.parse_args()
    python = None if options.no_flower else flower_python(options.flower_python)
    sizes = [CLIENT_TARGET, SERVER_TARGET] if options.quick else [(num, size) for num in PARAMS for size in COHORTS]
    if options.sizes:
        sizes = [
            (int(params), int(cohort)) for params, cohort in (size.split("x") for size in options.sizes.split(","))
        ]
    columns = ["parameters", "cohort", "holders", "lost", "client", "sends", "receives", "server"]
    print("| " + " | ".join([*columns, "Flower: client", "sends", "server"]) + " |")
    print("|" + " ---: |" * 11)
    for num_params, cohort in sizes:
        for dropout in (False, True):
            row = measure(num_params, cohort, dropout=dropout)
            peer = flower(python, row) if python and dropout else None
            theirs = (
                f"{peer['client_seconds']:.3f} s | {amount(peer['client_bytes'])} | {peer['server_seconds']:.1f} s"
                if peer
                else "- | - | -"
            )
            print(
                f"| {num_params:,} | {cohort:,} | {row['holders']} | {row['lost']} | {row['client_seconds']:.3f} s | "
                f"{amount(row['client_sent'])} | {amount(row['client_received'])} | {row['server_seconds']:.2f} s | "
                f"{theirs} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
