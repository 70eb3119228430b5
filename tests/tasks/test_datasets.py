"""Loading: layouts against hand-made files, the embedded sets as they ship, and what must be refused."""

import dataclasses
import hashlib
import io
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from gdpfed.errors import InputError
from gdpfed.tasks import sources
from gdpfed.tasks.catalogue import CATALOGUE, Source
from gdpfed.tasks.datasets import NORMALISATION, Dataset, load_dataset, read_idx
from gdpfed.tasks.text import TEST_STRIDE, TRAIN_STRIDE, WINDOW_LENGTH, Role, read_roles, role_windows
from tests.tasks.conftest import idx, tiny_cifar, tiny_fmnist

pytestmark = pytest.mark.usefixtures("cache")

Put = Callable[[Path, dict[str, bytes]], Path]
EMBEDDED = Path(sources.__file__).with_name("embedded")


def use(monkeypatch: pytest.MonkeyPatch, source: Source) -> None:
    monkeypatch.setitem(CATALOGUE, source.name, source)


def images(**changes: object) -> Dataset:
    fields: dict[str, object] = {
        "name": "own",
        "train_inputs": np.zeros((4, 1, 2, 2), dtype=np.float32),
        "train_labels": np.array([0, 1, 2, 1]),
        "test_inputs": np.zeros((2, 1, 2, 2), dtype=np.float32),
        "test_labels": np.array([2, 0]),
        "num_classes": 3,
    }
    return Dataset(**(fields | changes))  # type: ignore[arg-type]


def test_mini_is_balanced() -> None:
    mini = load_dataset("fmnist-mini")
    assert mini.train_inputs.shape == (18_000, 1, 28, 28)
    assert mini.test_inputs.shape == (2_000, 1, 28, 28)
    assert mini.train_inputs.dtype == np.float32
    assert np.bincount(mini.train_labels).tolist() == [1800] * 10
    assert np.bincount(mini.test_labels).tolist() == [200] * 10
    # The official set begins with a boot, two tops and two dresses.
    assert mini.train_labels[:5].tolist() == [9, 0, 0, 3, 0]
    # All training images together have nearly the constants' mean and std, so scaling and order are right.
    assert abs(mini.train_inputs.mean()) < 0.01
    assert abs(mini.train_inputs.std() - 1) < 0.01
    assert mini.train_inputs.dtype == np.float32
    assert mini.owners is None


def test_shakespeare_as_it_ships() -> None:
    plays = load_dataset("shakespeare")
    assert plays.train_inputs.dtype == np.int64
    assert plays.num_classes == 78
    assert plays.train_inputs.shape == (CATALOGUE["shakespeare"].num_train, WINDOW_LENGTH)
    assert plays.test_inputs.shape == (CATALOGUE["shakespeare"].num_test, WINDOW_LENGTH)
    assert plays.owners is not None
    assert np.unique(plays.owners).tolist() == list(range(714))
    rows = json.loads(lzma.decompress((EMBEDDED / "shakespeare.json.xz").read_bytes()))
    alphabet = sorted({character for row in rows for line in row["lines"] for character in line} | {"\n"})
    first = "\n".join(rows[0]["lines"])
    written = [alphabet[code] for code in [*plays.train_inputs[0], plays.train_labels[0]]]
    assert "".join(written) == first[: WINDOW_LENGTH + 1]
    assert "comparable" in plays.note


def test_fmnist_layout(tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    source, files = tiny_fmnist()
    use(monkeypatch, source)
    loaded = load_dataset("fmnist", data_dir=put(tmp_path / "own", files))
    assert loaded.train_labels.tolist() == [9, 0, 1, 2, 3, 4]
    assert loaded.test_labels.tolist() == [7, 8, 9]
    pixels = np.random.default_rng(5).integers(256, size=(6, 28, 28), dtype=np.uint8)
    (mean,), (std,) = NORMALISATION["fmnist"]
    np.testing.assert_allclose(loaded.train_inputs[:, 0], (pixels / 255 - mean) / std, rtol=1e-5, atol=1e-6)


def test_cifar_layout(tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    source, contents, _ = tiny_cifar()
    use(monkeypatch, source)
    loaded = load_dataset("cifar10", data_dir=put(tmp_path / "own", contents))
    assert loaded.train_labels.tolist() == [0, 3, 1, 3, 2, 3, 3, 3, 4, 3]
    assert loaded.test_labels.tolist() == [5, 3]
    mean, std = NORMALISATION["cifar10"]
    record = contents["data_batch_2.bin"][3073:]
    for channel, row, column in ((0, 0, 0), (0, 0, 31), (1, 5, 7), (2, 31, 31)):
        pixel = record[1 + 1024 * channel + 32 * row + column]
        expected = (pixel / 255 - mean[channel]) / std[channel]
        assert loaded.train_inputs[3, channel, row, column] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def svhn_file(labels: list[int], *, seed: int, **changes: object) -> bytes:
    pixels = np.random.default_rng(seed).integers(256, size=(32, 32, 3, len(labels)), dtype=np.uint8)
    file = io.BytesIO()
    savemat(file, {"X": pixels, "y": np.array(labels, dtype=np.uint8)[:, None]} | changes, do_compression=True)
    return file.getvalue()


def test_svhn_layout_and_note(tmp_path: Path, put: Put) -> None:
    files = {"train_32x32.mat": svhn_file([10, 1, 9], seed=1), "test_32x32.mat": svhn_file([2, 10], seed=2)}
    loaded = load_dataset("svhn", data_dir=put(tmp_path / "svhn", files).parent)
    assert loaded.train_labels.tolist() == [0, 1, 9]
    assert loaded.test_labels.tolist() == [2, 0]
    assert loaded.train_inputs.shape == (3, 3, 32, 32)
    assert loaded.train_inputs.flags.c_contiguous
    pixels = np.random.default_rng(1).integers(256, size=(32, 32, 3, 3), dtype=np.uint8)
    mean, std = NORMALISATION["svhn"]
    expected = (pixels[4, 9, 2, 1] / 255 - mean[2]) / std[2]
    assert loaded.train_inputs[1, 2, 4, 9] == pytest.approx(expected, rel=1e-4, abs=1e-6)
    assert "not the official ones" in loaded.note
    assert "the test file has 2 of the official 26,032 images" in loaded.note


@pytest.mark.parametrize(
    ("train", "message"),
    [
        (svhn_file([1, 11, 3], seed=1), "labels from 1 to 10 .*train_32x32.mat, got 11 in row 1"),
        (svhn_file([1, 2, 0], seed=1), "got 0 in row 2"),
        (svhn_file([1, 2], seed=1, X=np.zeros((2, 32, 32, 3), dtype=np.uint8)), r"bytes \(32, 32, 3, n\)"),
        (svhn_file([1, 2], seed=1, X=np.zeros((32, 32, 3, 3), dtype=np.uint8)), "expected a label for each of 3"),
        (b"not a MATLAB file", "expected a MATLAB file"),
        (b"", "expected a MATLAB file"),
    ],
    # The files hold the time: an id made of them would differ between workers.
    ids=["label-too-large", "label-too-small", "wrong-shape", "too-few-labels", "not-matlab", "empty"],
)
def test_wrong_svhn_files_are_refused(train: bytes, message: str, tmp_path: Path, put: Put) -> None:
    files = {"train_32x32.mat": train, "test_32x32.mat": svhn_file([2, 10], seed=2)}
    with pytest.raises(InputError, match=message):
        load_dataset("svhn", data_dir=put(tmp_path / "own", files))


def test_labels_are_in_range(tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    for label in (3, -1):
        with pytest.raises(InputError, match=f"label from 0 to 2 in the train part of 'own', got {label} in row 2"):
            images(train_labels=np.array([0, 1, label, 1]))
    source, contents, _ = tiny_cifar(last_label=10)
    use(monkeypatch, source)
    with pytest.raises(InputError, match="label from 0 to 9 in the train part of 'cifar10', got 10 in row 1"):
        load_dataset("cifar10", data_dir=put(tmp_path / "own", contents))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_inputs_are_finite(bad: float) -> None:
    inputs = np.zeros((2, 1, 2, 2), dtype=np.float32)
    inputs[1, 0, 1, 0] = bad
    with pytest.raises(InputError, match="finite inputs in the test part of 'own', got NaN or infinity in row 1"):
        images(test_inputs=inputs)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": np.array([0, 1, 2])}, "a label for each of 4 examples"),
        ({"test_labels": np.array([0.0, 1.0])}, "int64 labels"),
        ({"train_inputs": np.zeros((4, 2, 2), dtype=np.float32)}, "float32 .n, channels"),
        ({"train_inputs": np.zeros((4, 1, 2, 2))}, "float64"),
        ({"test_inputs": np.zeros((2, 1, 3, 3), dtype=np.float32)}, "as in training"),
        ({"test_inputs": np.zeros((0, 1, 2, 2), dtype=np.float32), "test_labels": np.array([0])[:0]}, "at least one"),
        ({"owners": np.array([0, 1])}, "owner >= 0 for each of 4"),
        ({"owners": np.array([0, 1, -1, 2])}, "owner >= 0"),
        ({"train_inputs": np.array([[0, 1], [1, 3], [0, 0], [2, 2]])}, "character from 0 to 2 .*, got 3 in row 1"),
    ],
)
def test_inconsistent_datasets_are_refused(changes: dict[str, object], message: str) -> None:
    images()
    with pytest.raises(InputError, match=message):
        images(**changes)


@pytest.mark.parametrize("harm", ["truncated", "one bit", "empty"])
@pytest.mark.parametrize("name", ["fmnist-mini.npz.xz", "shakespeare.json.xz"])
def test_damaged_files_are_refused(name: str, harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(EMBEDDED, tmp_path / "embedded")
    content = bytearray((EMBEDDED / name).read_bytes())
    if harm == "one bit":
        content[len(content) // 2] ^= 4
    (tmp_path / "embedded" / name).write_bytes({"truncated": content[:-1000], "empty": b""}.get(harm, content))
    monkeypatch.setattr(sources, "_EMBEDDED", tmp_path / "embedded")
    with pytest.raises(InputError, match=r"truncated or damaged|is not the file of"):
        load_dataset(name.partition(".")[0])


def test_damaged_matlab_files_are_refused(tmp_path: Path, put: Put) -> None:
    """Wherever it is cut off: these files have no digest to fail first."""
    good = svhn_file([1, 2], seed=3)
    for length in [*range(0, 300, 37), *range(300, len(good), 997), len(good) - 1]:
        files = {"train_32x32.mat": good[:length], "test_32x32.mat": good}
        with pytest.raises(InputError, match=r"train_32x32\.mat"):
            load_dataset("svhn", data_dir=put(tmp_path / "own", files))


def test_idx_files_are_read_strictly() -> None:
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(read_idx(idx(array), name="it"), array)
    for wrong in (b"", b"\0\0\x08", idx(array)[:10], idx(array)[:-1], idx(array) + b"\0", b"\0\0\x0d\x01" + b"\0" * 8):
        with pytest.raises(InputError, match="it"):
            read_idx(wrong, name="it")


def test_pinned_content_of_another_kind_is_refused(tmp_path: Path, put: Put, monkeypatch: pytest.MonkeyPatch) -> None:
    source, contents, _ = tiny_cifar()
    short = contents["test_batch.bin"][:-1]
    last = dataclasses.replace(source.files[-1], num_bytes=len(short), sha256=hashlib.sha256(short).hexdigest())
    use(monkeypatch, dataclasses.replace(source, files=(*source.files[:-1], last)))
    with pytest.raises(InputError, match=r"records of 3073 bytes in test_batch\.bin, got 6145"):
        load_dataset("cifar10", data_dir=put(tmp_path / "own", {**contents, "test_batch.bin": short}))


def role(number: int, *, length: int) -> Role:
    """Training text of one character, test text of another, both only this role's."""
    held_out = length // 5
    return Role(
        name=f"role {number}", text=chr(200 + 2 * number) * (length - held_out) + chr(201 + 2 * number) * held_out
    )


def test_windows_stay_in_their_part() -> None:
    windows = role_windows([role(number, length=500 + 35 * number) for number in range(4)])
    for inputs, labels, offset in (
        (windows.train_inputs, windows.train_labels, 0),
        (windows.test_inputs, windows.test_labels, 1),
    ):
        assert (inputs == labels[:, None]).all()
        assert set(labels.tolist()) == {2 * number + offset for number in range(4)}
    np.testing.assert_array_equal(windows.owners, windows.train_labels // 2)


def test_windows_are_followed_by_their_label() -> None:
    text = "".join(chr(300 + place) for place in range(1000))
    windows = role_windows([Role(name="all different", text=text)])
    np.testing.assert_array_equal(windows.train_inputs[:, 0], np.arange(0, 800 - WINDOW_LENGTH, TRAIN_STRIDE))
    np.testing.assert_array_equal(windows.test_inputs[:, 0], np.arange(800, 1000 - WINDOW_LENGTH, TEST_STRIDE))
    for inputs, labels in (
        (windows.train_inputs, windows.train_labels),
        (windows.test_inputs, windows.test_labels),
    ):
        assert inputs.shape == (len(labels), WINDOW_LENGTH)
        assert (np.diff(inputs, axis=1) == 1).all()
        np.testing.assert_array_equal(labels, inputs[:, -1] + 1)


def test_longest_roles_are_kept() -> None:
    lengths = [500, 404, 900, 405, 700, 5, 900]
    roles = [role(number, length=length) for number, length in enumerate(lengths)]
    assert role_windows(roles, num_roles=3).roles == ("role 2", "role 4", "role 6")
    # 405 characters are the fewest with a test window of 80 and the next: 81 is a fifth of them.
    assert role_windows(roles).roles == ("role 0", "role 2", "role 3", "role 4", "role 6")
    with pytest.raises(InputError, match="got none among 1 roles"):
        role_windows([roles[5]])


def test_alphabet_is_of_all_roles() -> None:
    windows = role_windows([role(0, length=500), Role(name="short", text="zyx")])
    assert windows.alphabet == "xyz" + chr(200) + chr(201)
    assert windows.roles == ("role 0",)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'[{"play": "x"}]', b'[{"play": "", "role": "", "lines": 3}]'])
def test_roles_of_another_shape_are_refused(content: bytes) -> None:
    with pytest.raises(InputError, match=r"expected JSON .* in roles\.json"):
        read_roles(content, name="roles.json")
