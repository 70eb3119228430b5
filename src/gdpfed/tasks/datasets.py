"""Raw files into arrays to train on.

Place: after `sources`, before `partitions`. `load_dataset` gives a `Dataset`, which validates itself.

Images are float32 (n, channels, height, width): bytes / 255, then (value - mean) / std for each channel, with the
constants in `NORMALISATION`. They are the ones in common use, fixed here and never computed from a client's data, so
that they cost no privacy in a run; they were once computed by others from the public training sets. Text is in `text`.

Guarantees (tests of the same name):
  labels_are_in_range       a label outside 0 .. num_classes - 1 is refused, with its row.
  inputs_are_finite         NaN or infinite inputs are refused.
  damaged_files_are_refused  a truncated or altered file is an `InputError`, never other data.
  mini_is_balanced          `fmnist-mini` has 1,800 training and 200 test images of each of 10 classes.

Loaded arrays are shared, not copied: do not write to them.
"""

import dataclasses
import io
import math
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gdpfed.errors import InputError, expect_word
from gdpfed.tasks.catalogue import DATA_SETS, Source, source_of
from gdpfed.tasks.downloads import Progress
from gdpfed.tasks.sources import RawData, obtain
from gdpfed.tasks.text import read_roles, role_windows

__all__ = ["NORMALISATION", "Dataset", "load_dataset", "read_idx"]

# For each channel mean and std of the pixels, scaled to 0 .. 1.
NORMALISATION: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "fmnist": ((0.2860,), (0.3530,)),
    "fmnist-mini": ((0.2860,), (0.3530,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}
_NUM_CLASSES = 10
_CIFAR_RECORD = 1 + 3 * 32 * 32


@dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """Examples to train and to test on.

    Inputs are float32 (n, channels, height, width) for images, float16 (n, features) for features that were computed
    of them, int64 (n, length) for text. ``owners`` is whose each training example is, where the data has natural
    owners. ``note`` is what a reader of results must know.
    """

    name: str
    train_inputs: NDArray[Any]
    train_labels: NDArray[np.int64]
    test_inputs: NDArray[Any]
    test_labels: NDArray[np.int64]
    num_classes: int
    owners: NDArray[np.int64] | None = None
    description: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        self._check("train", self.train_inputs, self.train_labels)
        self._check("test", self.test_inputs, self.test_labels)
        shape, test_shape = self.train_inputs.shape[1:], self.test_inputs.shape[1:]
        if shape != test_shape:
            raise InputError(
                f"expected test inputs of shape {shape}, as in training, got {test_shape} in {self.name!r}"
            )
        owners = self.owners
        if owners is not None and (
            owners.shape != self.train_labels.shape or owners.dtype != np.int64 or owners.min() < 0
        ):
            raise InputError(
                f"expected an int64 owner >= 0 for each of {len(self.train_labels)} training examples, got "
                f"{owners.dtype} {owners.shape} in {self.name!r}"
            )

    def _check(self, split: str, inputs: NDArray[Any], labels: NDArray[np.int64]) -> None:
        where = f"{split} part of {self.name!r}"
        if not len(inputs):
            raise InputError(f"expected at least one example in the {where}, got none")
        if labels.shape != (len(inputs),):
            raise InputError(f"expected a label for each of {len(inputs)} examples in the {where}, got {labels.shape}")
        if labels.dtype != np.int64:
            raise InputError(f"expected int64 labels in the {where}, got {labels.dtype}")
        self._refuse_outside(labels, where, what="label")
        if inputs.dtype == np.int64 and inputs.ndim == 2:
            self._refuse_outside(inputs, where, what="character")
        elif inputs.dtype == np.float16 and inputs.ndim == 2:
            # Features of images that were checked; to read them all would cost more than training on them.
            pass
        elif inputs.dtype != np.float32 or inputs.ndim != 4:
            raise InputError(
                f"expected inputs as float32 (n, channels, height, width) or int64 (n, length) in the {where}, got "
                f"{inputs.dtype} {inputs.shape}"
            )
        # The least and the greatest tell of any NaN or infinity, without a mask of the inputs' size.
        elif not np.isfinite([inputs.min(), inputs.max()]).all():
            row = int(np.argmin(np.isfinite(inputs).all(axis=(1, 2, 3))))
            raise InputError(f"expected finite inputs in the {where}, got NaN or infinity in row {row}")

    def _refuse_outside(self, values: NDArray[np.int64], where: str, *, what: str) -> None:
        if values.min() >= 0 and values.max() < self.num_classes:
            return
        row, *rest = np.argwhere((values < 0) | (values >= self.num_classes))[0]
        raise InputError(
            f"expected every {what} from 0 to {self.num_classes - 1} in the {where}, got {values[row, *rest]} in row "
            f"{row}: correct or remove it"
        )

    def holding_out(self, validation: int) -> "Dataset":
        """The last ``validation`` training examples in the test set's place; the data set itself for 0."""
        if not validation:
            return self
        left = len(self.train_labels) - validation
        if left < 1:
            raise InputError(f"expected validation below {len(self.train_labels)}, all examples, got {validation}")
        return dataclasses.replace(
            self,
            train_inputs=self.train_inputs[:left],
            train_labels=self.train_labels[:left],
            test_inputs=self.train_inputs[left:],
            test_labels=self.train_labels[left:],
            owners=None if self.owners is None else self.owners[:left],
        )


def load_dataset(name: str, *, data_dir: str | Path | None = None, progress: Progress | None = None) -> Dataset:
    """Finds a data set (`sources` says where), reads and checks it."""
    expect_word("a data set among", name, DATA_SETS)
    source = source_of(name)
    return _READERS[name](source, obtain(source, data_dir=data_dir, progress=progress))


Split = tuple[NDArray[np.uint8], NDArray[Any]]


def _images(source: Source, *, train: Split, test: Split, note: str = "") -> Dataset:
    """A data set of images from bytes (n, channels, height, width) and labels."""
    return Dataset(
        name=source.name,
        train_inputs=_normalised(train[0], source.name),
        train_labels=train[1].astype(np.int64),
        test_inputs=_normalised(test[0], source.name),
        test_labels=test[1].astype(np.int64),
        num_classes=_NUM_CLASSES,
        description=f"{source.title}: {len(train[0]):,} training and {len(test[0]):,} test images",
        note=note,
    )


def _normalised(pixels: NDArray[np.uint8], name: str) -> NDArray[np.float32]:
    mean, std = (np.array(values, dtype=np.float32).reshape(1, -1, 1, 1) for values in NORMALISATION[name])
    values = pixels.astype(np.float32, order="C")
    # In place: a copy of CIFAR-10 is 0.6 GB.
    values /= np.float32(255)
    values -= mean
    values /= std
    return values


def _fmnist_mini(source: Source, raw: RawData) -> Dataset:
    (content,) = raw.contents.values()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            train, test = (
                (arrays[f"{split}_images"][:, None], arrays[f"{split}_labels"]) for split in ("train", "test")
            )
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"expected images and labels in {str(raw.found.paths[0])!r}: {error}") from None
    return _images(source, train=train, test=test)


def read_idx(content: bytes, *, name: str) -> NDArray[np.uint8]:
    """The array in a file of the IDX format (bytes only): Fashion-MNIST's images (n, 28, 28) or labels (n,)."""
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise InputError(f"expected an IDX file of bytes as {name}, got one that begins {content[:4]!r}")
    num_dimensions = content[3]
    start = 4 + 4 * num_dimensions
    shape = tuple(int.from_bytes(content[at : at + 4]) for at in range(4, start, 4))
    if len(content) != start + math.prod(shape):
        raise InputError(
            f"expected {start + math.prod(shape)} bytes in {name}, as its head says, got {len(content)}: truncated?"
        )
    return np.frombuffer(content, dtype=np.uint8, offset=start).reshape(shape)


def _fmnist(source: Source, raw: RawData) -> Dataset:
    arrays = [read_idx(raw.contents[file.name], name=file.name) for file in source.files]
    for file, array, num_dimensions in zip(source.files, arrays, (3, 1, 3, 1), strict=True):
        if array.ndim != num_dimensions:
            raise InputError(f"expected {num_dimensions} dimensions in {file.name}, got {array.ndim}")
    train_images, train_labels, test_images, test_labels = arrays
    return _images(
        source,
        train=(train_images[:, None], train_labels),
        test=(test_images[:, None], test_labels),
    )


def _cifar10(source: Source, raw: RawData) -> Dataset:
    records = []
    for file in source.files:
        content = raw.contents[file.name]
        if not content or len(content) % _CIFAR_RECORD:
            raise InputError(f"expected records of {_CIFAR_RECORD} bytes in {file.name}, got {len(content)} bytes")
        records.append(np.frombuffer(content, dtype=np.uint8).reshape(-1, _CIFAR_RECORD))
    train, test = (
        (rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]) for rows in (np.concatenate(records[:-1]), records[-1])
    )
    return _images(source, train=train, test=test)


def _svhn(source: Source, raw: RawData) -> Dataset:
    train, test = (_svhn_split(raw.contents[file.name], name=file.name) for file in source.files)
    notes = []
    if raw.differences:
        notes.append("the files are not the official ones (by SHA-256)")
    for split, here, official in (("train", train, source.num_train), ("test", test, source.num_test)):
        if len(here[1]) != official:
            notes.append(
                f"the {split} file has {len(here[1]):,} of the official {official:,} images, a part that may be "
                f"biased: report results on it as such"
            )
    return _images(source, train=train, test=test, note="; ".join(notes))


def _svhn_split(content: bytes, *, name: str) -> Split:
    from scipy.io import loadmat

    try:
        arrays = loadmat(io.BytesIO(content), variable_names=("X", "y"))
        images, labels = arrays["X"], arrays["y"].reshape(-1)
    except Exception as error:  # loadmat has no error of its own: what damage raises depends on the damaged byte
        raise InputError(f"expected a MATLAB file with X and y as {name}, got a damaged one ({error!r})") from None
    if images.ndim != 4 or images.shape[:3] != (32, 32, 3) or images.dtype != np.uint8:
        raise InputError(f"expected X as bytes (32, 32, 3, n) in {name}, got {images.dtype} {images.shape}")
    outside = (labels < 1) | (labels > _NUM_CLASSES)
    if outside.any():
        row = int(np.argmax(outside))
        raise InputError(f"expected labels from 1 to 10 (10 for the digit 0) in {name}, got {labels[row]} in row {row}")
    return images.transpose(3, 2, 0, 1), labels % _NUM_CLASSES


def _shakespeare(source: Source, raw: RawData) -> Dataset:
    ((name, content),) = raw.contents.items()
    windows = role_windows(read_roles(content, name=name))
    return Dataset(
        name=source.name,
        train_inputs=windows.train_inputs,
        train_labels=windows.train_labels,
        test_inputs=windows.test_inputs,
        test_labels=windows.test_labels,
        num_classes=len(windows.alphabet),
        owners=windows.owners,
        description=(
            f"{source.title}: {len(windows.roles)} roles, {len(windows.train_labels):,} training and "
            f"{len(windows.test_labels):,} test windows of {windows.train_inputs.shape[1]} characters"
        ),
        note="another edition and split than LEAF's and TFF's: accuracies are not comparable number for number",
    )


_READERS: Mapping[str, Callable[[Source, RawData], Dataset]] = {
    "fmnist-mini": _fmnist_mini,
    "fmnist": _fmnist,
    "cifar10": _cifar10,
    "svhn": _svhn,
    "shakespeare": _shakespeare,
}
