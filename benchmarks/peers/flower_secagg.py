# mypy: ignore-errors
# (Flower lives in an environment of its own, where the type checker does not look.)
"""Flower's SecAgg+ at given sizes: its own client functions, and the calls that its server's workflow makes.

Run by ../secure.py in an environment with Flower. Reads a JSON list of sizes from the first argument, prints one line
of JSON for each. A client's four stages are Flower's functions, called as its mod does. The server's unmasking is timed
call by call (restoring a secret; expanding a mask and adding it; adding an input) and multiplied by how often the
workflow makes each call: at the larger sizes it would take minutes.
"""

import importlib
import json
import os
import sys
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
from flwr.common import bytes_to_ndarray, ndarray_to_bytes, ndarrays_to_parameters
from flwr.common.secure_aggregation.crypto.shamir import combine_shares, create_shares
from flwr.common.secure_aggregation.crypto.symmetric_encryption import encrypt, generate_shared_key
from flwr.common.secure_aggregation.ndarrays_arithmetic import parameters_addition, parameters_subtraction
from flwr.common.secure_aggregation.secaggplus_constants import Key
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen, share_keys_plaintext_concat
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
)

# The package has a function of the same name in its place.
mod = importlib.import_module("flwr.client.mod.secure_aggregation.secaggplus_mod")
MODULUS = 1 << 32


def client(num_params: int, holders: int, threshold: int) -> tuple[float, int]:
    """Seconds of one client through all stages, and the bytes that it sends."""
    state: Any = SimpleNamespace(nid=0)
    update = ndarrays_to_parameters([np.random.default_rng(1).standard_normal(num_params).astype(np.float32) * 0.01])
    peers = [tuple(generate_key_pairs()) + tuple(generate_key_pairs()) for _ in range(holders - 1)]
    setup = {
        Key.SAMPLE_NUMBER: holders,
        Key.SHARE_NUMBER: holders,
        Key.THRESHOLD: threshold,
        Key.CLIPPING_RANGE: 8.0,
        Key.TARGET_RANGE: 1 << 22,
        Key.MOD_RANGE: MODULUS,
        Key.MAX_WEIGHT: 1000.0,
    }
    began = time.process_time()
    keys = mod._setup(state, setup)
    spent = time.process_time() - began
    public = {"0": (keys[Key.PUBLIC_KEY_1], keys[Key.PUBLIC_KEY_2])}
    for number, (_, mask_public, _, seal_public) in enumerate(peers, start=1):
        public[str(number)] = (public_key_to_bytes(mask_public), public_key_to_bytes(seal_public))
    began = time.process_time()
    shared = mod._share_keys(state, public)
    spent += time.process_time() - began
    own = bytes_to_public_key(state.pk2)
    share = bytes(52)
    sealed = [
        encrypt(generate_shared_key(peer[2], own), share_keys_plaintext_concat(number, 0, share, share))
        for number, peer in enumerate(peers, start=1)
    ]
    delivered = {Key.CIPHERTEXT_LIST: sealed, Key.SOURCE_LIST: list(range(1, holders))}
    began = time.process_time()
    masked = mod._collect_masked_vectors(state, delivered, 10, update)
    lists = {Key.ACTIVE_NODE_ID_LIST: list(range(holders)), Key.DEAD_NODE_ID_LIST: []}
    revealed = mod._unmask(state, lists)
    spent += time.process_time() - began
    sent = len(state.pk1) + len(state.pk2) + sum(map(len, shared[Key.CIPHERTEXT_LIST]))
    sent += sum(map(len, masked[Key.MASKED_PARAMETERS]))
    sent += sum(map(len, revealed[Key.SHARE_LIST]))
    return spent, sent


def seconds(function: Any, *, times: int) -> float:
    """The fastest of some calls."""
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        function()
        best = min(best, time.process_time() - began)
    return best


def server(num_params: int, cohort: int, holders: int, threshold: int, lost: int) -> float:
    """Seconds of the server's arithmetic, from measured calls."""
    total = [np.zeros(1, dtype=np.int64), np.zeros(num_params, dtype=np.int64)]
    shapes = [(1,), (num_params,)]
    seed_shares = create_shares(os.urandom(32), threshold, holders)
    private = private_key_to_bytes(generate_key_pairs()[0])
    key_shares = create_shares(private, threshold, holders)
    one, other = generate_key_pairs()[0], generate_key_pairs()[1]
    content = ndarray_to_bytes(total[1])
    alive_holders = max(threshold, round(holders * (cohort - lost) / cohort))

    def mask() -> None:
        parameters_subtraction(total, pseudo_rand_gen(os.urandom(32), MODULUS, shapes))

    def pair() -> None:
        generate_shared_key(
            bytes_to_private_key(private_key_to_bytes(one)), bytes_to_public_key(public_key_to_bytes(other))
        )

    def arrive() -> None:
        parameters_addition(total, [total[0], bytes_to_ndarray(content)])

    times = 3 if num_params <= 10**6 else 1
    pairs = lost * (holders - 1)
    return (
        (cohort - lost) * seconds(lambda: combine_shares(seed_shares[:alive_holders]), times=2)
        + lost * seconds(lambda: combine_shares(key_shares[:alive_holders]), times=2)
        + (cohort - lost) * seconds(arrive, times=times)
        + (cohort - lost + pairs) * seconds(mask, times=times)
        + pairs * seconds(pair, times=5)
    )


def main() -> None:
    """Every size that is asked for."""
    for size in json.loads(sys.argv[1]):
        spent, sent = client(size["num_params"], size["holders"], size["threshold"])
        of_server = server(size["num_params"], size["cohort"], size["holders"], size["threshold"], size["lost"])
        print(json.dumps({"client_seconds": spent, "client_bytes": sent, "server_seconds": of_server}), flush=True)


if __name__ == "__main__":
    main()
