"""The word so far, as features."""

import pytest
import torch

from gdpfed.errors import InputError
from gdpfed.tasks.catalogue import source_of
from gdpfed.tasks.sources import obtain
from gdpfed.tasks.text import PLAYS_ALPHABET, read_roles, role_windows
from gdpfed.tasks.words import WordSoFar


def features(*texts: str) -> torch.Tensor:
    return WordSoFar(alphabet=78)(torch.tensor([[PLAYS_ALPHABET.index(one) for one in text] for text in texts]))


def buckets(*texts: str) -> list[tuple[int, int]]:
    """By the last two and the last three characters of the word."""
    made = features(*texts)[:, 156:]
    assert made.sum(1).tolist() == [2.0] * len(texts)
    return list(zip(made[:, :256].argmax(1).tolist(), made[:, 256:].argmax(1).tolist(), strict=True))


def test_only_the_word_counts() -> None:
    one, other, longer, letter = buckets("so sth", "no sth", " froth", "my sti")
    assert one == other
    assert longer[0] == one[0]
    assert longer[1] != one[1]
    assert letter[0] != one[0]
    # At the start of a word nothing is known but that.
    assert buckets("quoth ", "alone,")[0] == buckets("quick\n", "what! ")[1]
    begun, another = buckets("and th", "may th")
    assert begun == another != buckets("pathth")[0]


def test_capitals_count_as_small() -> None:
    small, capital = features("is the", "is tHE")
    assert torch.equal(small[156:], capital[156:])
    assert not torch.equal(small[:78], capital[:78])
    assert small[PLAYS_ALPHABET.index("e")] == 1
    assert small[78 + PLAYS_ALPHABET.index("h")] == pytest.approx(0.7)


def test_buckets_stay() -> None:
    assert buckets("of the", "o' the", "when I", "and th", "is it?") == STAYED


STAYED = [(174, 466), (174, 466), (214, 192), (185, 477), (22, 89)]


def test_another_alphabet_has_no_words() -> None:
    with pytest.raises(InputError, match=r"alphabet of 78 .* got one of 64"):
        WordSoFar(alphabet=64)
    content = obtain(source_of("shakespeare")).contents["shakespeare.json.xz"]
    assert role_windows(read_roles(content, name="plays"), num_roles=1).alphabet == PLAYS_ALPHABET
