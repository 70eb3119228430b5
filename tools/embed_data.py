"""Makes the data files that ship inside the package, in `src/gdpfed/tasks/embedded/`.

python tools/embed_data.py ROLES.JSON [--data-dir FOLDER]

Images: the first 1,800 training and 200 test images of each class of Fashion-MNIST, in the official order. Text: the
file as it is. Prints the sizes and digests of the contents, which `tasks/catalogue.toml` pins.
"""

import argparse
import hashlib
import io
import lzma
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.tasks.catalogue import source_of
from gdpfed.tasks.datasets import read_idx
from gdpfed.tasks.sources import obtain

EMBEDDED = Path(__file__).parents[1] / "src" / "gdpfed" / "tasks" / "embedded"


def first_of_each_class(labels: NDArray[np.uint8], count: int) -> NDArray[np.int64]:
    """The places of the first ``count`` examples of each class, in the order they stand in."""
    return np.sort(np.concatenate([np.flatnonzero(labels == label)[:count] for label in range(10)]))


def fmnist_mini(data_dir: str | None) -> bytes:
    """The chosen images and labels as an uncompressed ``.npz``."""
    contents = obtain(source_of("fmnist"), data_dir=data_dir).contents
    arrays: dict[str, Any] = {}
    for split, prefix, count in (("train", "train", 1800), ("test", "t10k", 200)):
        images = read_idx(contents[f"{prefix}-images-idx3-ubyte.gz"], name=f"{prefix} images")
        labels = read_idx(contents[f"{prefix}-labels-idx1-ubyte.gz"], name=f"{prefix} labels")
        chosen = first_of_each_class(labels, count)
        arrays |= {f"{split}_images": images[chosen], f"{split}_labels": labels[chosen]}
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def main() -> None:
    """Writes both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roles", type=Path)
    parser.add_argument("--data-dir")
    given = parser.parse_args()
    for name, content in (
        ("fmnist-mini.npz.xz", fmnist_mini(given.data_dir)),
        ("shakespeare.json.xz", given.roles.read_bytes()),
    ):
        packed = lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)
        (EMBEDDED / name).write_bytes(packed)
        sys.stdout.write(
            f"{name}: {len(packed)} bytes; content num_bytes={len(content)} "
            f"sha256={hashlib.sha256(content).hexdigest()} "
            f"md5={hashlib.md5(content, usedforsecurity=False).hexdigest()}\n"
        )


if __name__ == "__main__":
    main()
