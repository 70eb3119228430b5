"""What an adversary makes of the released sums: one number for each canary.

Place: after the canaries, before the judge. Sums come as an array (rounds, canaries): each canary's own coordinate,
divided by the planned noise std. A canary that takes part moves it by 1 / noise_multiplier.

  release   the log likelihood ratio of a mixture: in each round the canary took part with probability q, or did not.
            By Neyman and Pearson no other test of the released sums does better, if the mechanism is the planned one.
            In a rotation only the rounds count for which it was asked, and the server can do no better.
  server    the same where the rounds are known: a plain sum over them.
  one coin  for a rotation whose client does not toss again: it took part in all rounds it was asked for, or in none.
  repeat    for a mechanism that is not the planned one: how far the coordinate jumps between rounds whose noise looks
            alike. Where a noise key was used twice, the noise cancels.

Guarantees (tests of the same name):
  release_score_is_the_likelihood_ratio   against the two densities, written out.
  server_score_is_the_likelihood_ratio    given the rounds.
  repeat_score_sees_equal_noise           in two rounds among many, or in all.
"""

import math

import numpy as np

from gdpfed.audit.privacy_curves import BoolArray, FloatArray

__all__ = ["one_coin_scores", "release_scores", "repeat_scores", "server_scores"]

# Rounds whose noise correlates more than this over 100 canaries or more do not do so by chance (1e-6).
_ALIKE = 0.5
# Of longer trainings only the first rounds are compared with each other.
_MOST_ROUNDS = 200


def release_scores(
    sums: FloatArray,
    *,
    noise_multiplier: float,
    sampling_rate: float | FloatArray,
    asked: BoolArray | None = None,
) -> FloatArray:
    """log of the probability inside over that outside, by canary; ``sums`` (rounds, canaries) in noise stds.

    Only rounds count for which a canary was ``asked``, by default all. The rate may be each round's and canary's own.
    """
    shift = 1 / noise_multiplier
    ratios: FloatArray = shift * sums - shift**2 / 2
    # At a rate of 1 the logarithm of 0 counts for nothing, as it should.
    with np.errstate(divide="ignore"):
        ratios = np.logaddexp(np.log1p(-np.asarray(sampling_rate)), np.log(sampling_rate) + ratios)
    total: FloatArray = (ratios if asked is None else np.where(asked, ratios, 0.0)).sum(axis=0)
    return total


def one_coin_scores(sums: FloatArray, *, noise_multiplier: float, sampling_rate: float, asked: BoolArray) -> FloatArray:
    """The same where one coin decides for all rounds that a canary is asked for."""
    all_of_them = server_scores(sums, asked, noise_multiplier=noise_multiplier)
    with np.errstate(divide="ignore"):
        total: FloatArray = np.logaddexp(np.log1p(-sampling_rate), math.log(sampling_rate) + all_of_them)
    return total


def server_scores(sums: FloatArray, taking_part: BoolArray, *, noise_multiplier: float) -> FloatArray:
    """The same for whoever knows the rounds that a canary took part in, or would have: (rounds, canaries)."""
    shift = 1 / noise_multiplier
    total: FloatArray = np.where(taking_part, shift * sums - shift**2 / 2, 0.0).sum(axis=0)
    return total


def repeat_scores(sums: FloatArray, *, choose: BoolArray) -> FloatArray:
    """The largest distance from the median, over the rounds that are most alike by the canaries that ``choose``."""
    seen = sums[:_MOST_ROUNDS]
    if len(seen) < 2:
        return np.zeros(sums.shape[1])
    with np.errstate(invalid="ignore", divide="ignore"):
        alike = np.nan_to_num(np.atleast_2d(np.corrcoef(seen[:, choose])), nan=1.0)
    np.fill_diagonal(alike, -1.0)
    first = int(np.unravel_index(np.argmax(alike), alike.shape)[0])
    members = np.flatnonzero(alike[first] > min(_ALIKE, alike[first].max() - 1e-9))
    cluster = seen[np.append(members, first)]
    total: FloatArray = np.abs(cluster - np.median(cluster, axis=0)).max(axis=0)
    return total
