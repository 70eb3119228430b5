"""A Ray cluster of two nodes on loopback, a head and one more, with $CORES cores each (1), until its input is closed.

python -m tests.training.ray_cluster FOLDER      one line of JSON: the address, and process ids
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def environment(folder: Path) -> dict[str, str]:
    """Nothing of this cluster is seen beyond loopback, nothing is reported, and its files are in ``folder``."""
    root = Path(__file__).parents[2]
    return {
        **os.environ,
        "RAY_TMPDIR": str(folder),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        # A dead node is noticed within 4 seconds instead of 15.
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "3000",
        "RAY_health_check_failure_threshold": "3",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)]),
    }


def patient(get_node: Callable[..., Any]) -> Callable[..., Any]:
    """Ray gives a node 30 seconds to start, which a busy machine may miss: asks for longer."""

    def wait_for_node(*arguments: Any) -> Any:
        until = time.monotonic() + 150
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    return wait_for_node


def main() -> None:
    """Starts the nodes, tells about them, waits."""
    from ray._private import services
    from ray.cluster_utils import Cluster

    services.get_node = patient(services.get_node)
    (Path(sys.argv[1]) / "ray").mkdir(exist_ok=True)
    node: dict[str, Any] = {
        "node_ip_address": "127.0.0.1",
        "num_cpus": int(os.environ.get("CORES", "1")),
        "object_store_memory": 400 * 2**20,
    }
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    second = cluster.add_node(**node)
    heart = cluster.head_node.all_processes["gcs_server"][0].process.pid
    told = {"address": cluster.address, "heart": heart, "second": second.all_processes["raylet"][0].process.pid}
    sys.stdout.write(json.dumps(told) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    cluster.shutdown()


if __name__ == "__main__":
    main()
