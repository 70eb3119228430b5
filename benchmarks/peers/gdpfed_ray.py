"""gdpfed's rounds by the local engine and by a Ray cluster on the same cores, in turns, in one process for each.

    python -m peers.gdpfed_ray --engine local --rounds 3 --workers 2
    python -m peers.gdpfed_ray --engine ray --ray-address 127.0.0.1:6379 --rounds 3 --workers 2

The work and the line of JSON are those of `peers.gdpfed_peer`.
"""

import argparse
import os

from gdpfed.training.clients.engines import Engine
from peers import gdpfed_peer, work


def main() -> None:
    """Runs the rounds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--engine", default="local")
    parser.add_argument("--ray-address")
    given, rest = parser.parse_known_args()
    engine = Engine(name=given.engine, ray_address=given.ray_address)
    gdpfed_peer.run(work.read_settings(rest), name=f"gdpfed, {given.engine}", engine=engine)
    # Not through Ray's own goodbye: the numbers are out.
    os._exit(0)


if __name__ == "__main__":
    main()
