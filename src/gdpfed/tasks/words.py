"""What has been written of the current word: features of text that depend on no client's data.

Place: the first part of the model `word-linear`, as `features.LastCharacters` is of `char-linear`. A dense layer on the
last characters adds up what each says by itself; in the middle of a word they speak together. So the last two and
the last three characters, as far as they belong to the word, are one feature each, by a fixed hash: many buckets would
be as many parameters more, of which most carry noise alone, and few would mix words up. Capitals count as small
letters there, and what is no letter, apostrophe or punctuation mark is all the same: that is known of English, and
nothing is fitted to data.

The features of a text: which character is the last (1), and the one before (0.7), and the buckets of the word so far
by its last two and three characters (1 each). All else is 0.

Guarantees (tests of the same name):
  only_the_word_counts      what stands before the word does not change its buckets; its letters do.
  capitals_count_as_small   in the buckets, and not in the last two characters.
  buckets_stay              the same for ever: a model that was trained must find its features again.
  another_alphabet_has_no_words   an alphabet of another size is refused.
"""

import torch
from torch import Tensor, nn

from gdpfed.errors import InputError
from gdpfed.tasks.text import PLAYS_ALPHABET

__all__ = ["WordSoFar"]

# Characters of the word that a feature looks at, and its buckets.
_BUCKETS = {2: 256, 3: 512}
# How large the features of the last character, and of the one before it, are.
_SIZES = (1.0, 0.7)
_RARE = '/0124568@]_{&"()'


def _folded() -> Tensor:
    """A number for each character: the same for both cases, and for all that are rare."""
    numbers: dict[str, int] = {}
    kinds = ["#" if character in _RARE else character.lower() for character in PLAYS_ALPHABET]
    return torch.tensor([numbers.setdefault(kind, len(numbers)) for kind in kinds])


_FOLDED = _folded()
_NOTHING = int(_FOLDED.max()) + 1
_IN_WORD = torch.tensor([character.isalpha() or character == "'" for character in PLAYS_ALPHABET])


class WordSoFar(nn.Module):
    """Text (batch, length), as places in the alphabet of the plays, to features (batch, 924)."""

    num_features = len(_SIZES) * len(PLAYS_ALPHABET) + sum(_BUCKETS.values())

    def __init__(self, *, alphabet: int) -> None:
        super().__init__()
        if alphabet != len(PLAYS_ALPHABET):
            raise InputError(
                f"expected text in the alphabet of {len(PLAYS_ALPHABET)} characters whose letters 'word-linear' knows, "
                f"got one of {alphabet}: use 'char-linear'"
            )

    def forward(self, characters: Tensor) -> Tensor:
        """Each text's features."""
        last = characters[:, -max(_BUCKETS) :].flip(1)
        folded, in_word = (table.to(last.device)[last] for table in (_FOLDED, _IN_WORD))
        word = torch.where(in_word.long().cumprod(1).bool(), folded, _NOTHING)
        one_hot = nn.functional.one_hot
        parts = [size * one_hot(last[:, place], len(PLAYS_ALPHABET)) for place, size in enumerate(_SIZES)]
        parts += [one_hot(_bucket(word[:, :length], buckets), buckets) for length, buckets in _BUCKETS.items()]
        return torch.cat([part.float() for part in parts], dim=1)


def _bucket(word: Tensor, buckets: int) -> Tensor:
    """(batch, length) -> (batch,): a fixed number for each row, as good as random."""
    length = word.shape[1]
    mixed = torch.full_like(word[:, 0], (100 + length) * 7919 + 17)
    for place in range(length):
        mixed = (mixed * 1_000_003 + word[:, place] + 1) & 0x7FFFFFFF
        mixed = ((mixed ^ (mixed >> 13)) * 69_069 + 5) & 0x7FFFFFFF
    return (mixed >> 3) % buckets
