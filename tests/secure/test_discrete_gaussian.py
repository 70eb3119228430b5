"""The sampler against exact probabilities, and against attacks that a float share fails.

Every statistical check fails for right code with probability 1e-6.
"""

import decimal
import math
from decimal import Decimal

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from gdpfed.errors import InputError
from gdpfed.secure import discrete_gaussian as sampler
from gdpfed.secure.discrete_gaussian import discrete_gaussian
from gdpfed.secure.randomness import SimulatedRandomness, Stream
from tests.training.checkers import FALSE_ALARM, variance_window


def stream(seed: int = 1) -> Stream:
    return SimulatedRandomness(seed=seed, round_number=0, client=0).stream("noise")


def probabilities(variance: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Of every number up to 12 std, with 50 digits."""
    reach = 12 * math.isqrt(variance) + 12
    with decimal.localcontext(decimal.Context(prec=50)):
        heights = [(Decimal(-(value**2)) / (2 * variance)).exp() for value in range(reach + 1)]
        total = 2 * sum(heights) - 1
        half = [float(height / total) for height in heights]
    return np.arange(-reach, reach + 1), np.array(half[:0:-1] + half)


@pytest.mark.parametrize("variance", [64, 100, 150, 257, 1024])
def test_exact_probabilities(variance: int) -> None:
    """Chi-square over single numbers: with 10^6 samples a probability that is 5 % off near the middle is seen."""
    num = 1_000_000
    values, chances = probabilities(variance)
    samples = discrete_gaussian(num, variance=variance, stream=stream())
    reach = values[-1]
    counts = np.bincount(samples + reach, minlength=len(values))
    frequent = chances * num >= 20
    observed = np.append(counts[frequent], counts[~frequent].sum())
    expected = np.append(chances[frequent], chances[~frequent].sum()) * num
    statistic = float(((observed - expected) ** 2 / expected).sum())
    assert statistic <= stats.chi2.isf(FALSE_ALARM, len(observed) - 1)


@pytest.mark.parametrize("variance", [10_000, 160_000**2, 2**56])
def test_wide_ones_are_gaussian(variance: int) -> None:
    """Variance within 0.7 %, tails, and the first 10^5 against the continuous distribution."""
    samples = discrete_gaussian(1_000_000, variance=variance, stream=stream(2)) / math.sqrt(variance)
    low, high = variance_window(len(samples))
    assert low <= float(np.mean(samples**2)) <= high
    for reach in (1, 2, 3, 4):
        # More than so many whole steps: from half a step further on.
        expected = 2 * stats.norm.sf((math.isqrt(variance) * reach + 0.5) / math.sqrt(variance))
        beyond = int((np.abs(samples) > reach).sum())
        assert stats.binomtest(beyond, len(samples), expected).pvalue >= FALSE_ALARM
    step = 1 / math.sqrt(variance)
    smooth = samples[:100_000] + step * (np.random.default_rng(0).random(100_000) - 0.5)
    assert stats.kstest(smooth, "norm").pvalue >= FALSE_ALARM


def test_doubt_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same random bits, with a margin so wide that every tenth comparison is made exactly."""
    for variance in (64, 1000, 160_000**2):
        quick = discrete_gaussian(2_000, variance=variance, stream=stream(3))
        with monkeypatch.context() as patched:
            patched.setattr(sampler, "_MARGIN", 0.1)
            patched.setattr(sampler, "_exactly", counted := Counted(sampler._exactly))
            careful = discrete_gaussian(2_000, variance=variance, stream=stream(3))
        assert counted.calls > 100
        assert np.array_equal(quick, careful)


class Counted:
    """How often a function was called."""

    def __init__(self, function: object) -> None:
        self.function, self.calls = function, 0

    def __call__(self, *arguments: object) -> object:
        self.calls += 1
        return self.function(*arguments)  # type: ignore[operator]


def test_ties_are_broken_by_more_bits() -> None:
    """64 bits that agree with the chance: more are drawn until they differ."""
    stairs = sampler._staircase(1000)
    with decimal.localcontext(decimal.Context(prec=80)):
        chance = (Decimal(-(7**2)) / 2000).exp() * stairs.height / stairs.weights[1]
        tie = int(chance * 2**64)
    kept = [sampler._exactly(stairs, 1, 3, tie, stream(seed))[1] for seed in range(200)]
    fraction = float(chance * 2**64 - tie)
    assert stats.binomtest(sum(kept), 200, fraction).pvalue >= FALSE_ALARM
    assert sampler._exactly(stairs, 1, 3, tie - 1, stream()) == (7, True)
    assert sampler._exactly(stairs, 1, 3, tie + 1, stream()) == (7, False)


@pytest.mark.parametrize("variance", [64, 100, 1023, 10**6, 160_000**2, 2**56])
def test_staircase_is_above_the_curve(variance: int) -> None:
    """Every chance is at most 1: at the start of every step, and for a hundred steps of the tail."""
    stairs = sampler._staircase(variance)
    assert sum(stairs.weights) == 2**32
    steps = len(stairs.ends)
    with decimal.localcontext(decimal.Context(prec=60)):
        for step in range(steps + 100):
            height = (Decimal(-((step << stairs.width_bits) ** 2)) / (2 * variance)).exp() * stairs.height
            weight = stairs.weights[step] if step < steps else Decimal(2) ** -(step - steps + 1)
            assert height <= weight
    assert 0.9 < stairs.acceptance < 1


def test_tail_is_sampled() -> None:
    """Steps beyond the stairs: numbers of coins, and values that lie there."""
    stairs = sampler._staircase(100)
    start = len(stairs.ends) << stairs.width_bits
    values = [sampler._exactly(stairs, len(stairs.ends), 1, 2**63, stream(seed))[0] for seed in range(300)]
    assert min(values) == start + 1
    assert abs(np.mean([value == start + 1 for value in values]) - 0.5) < 0.15
    # A chance of 0 at bit 2^63, but accepted where the random number is small enough.
    assert sampler._exactly(stairs, len(stairs.ends), 0, 0, stream())[1]


class Recorded:
    """A stream that counts what is taken from it."""

    def __init__(self, inner: Stream) -> None:
        self.inner, self.taken = inner, []

    def words(self, num: int) -> NDArray[np.uint64]:
        self.taken.append(num)
        return self.inner.words(num)

    def take(self, num: int) -> bytes:
        return self.inner.take(num)


def test_candidates_follow_the_number() -> None:
    taken = []
    for seed in range(50):
        recorded = Recorded(stream(seed))
        assert len(discrete_gaussian(5_000, variance=160_000**2, stream=recorded)) == 5_000  # type: ignore[arg-type]
        taken.append(tuple(recorded.taken))
    assert len(set(taken)) == 1
    assert len(taken[0]) == 1


def test_any_number_of_samples() -> None:
    for num in (0, 1, 2, 65_535, 65_536, 65_537):
        assert len(discrete_gaussian(num, variance=100, stream=stream())) == num


@pytest.mark.parametrize("variance", [0, 63, 2**56 + 1])
def test_impossible_variances_are_refused(variance: int) -> None:
    with pytest.raises(InputError, match="variance"):
        discrete_gaussian(1, variance=variance, stream=stream())


# Attacks that tell x = 0 from x = 1 by what noise leaves in the lowest bits.


def float_share(num: int, std: float, value: float) -> NDArray[np.float64]:
    """What a client would send if it added Gaussian noise in float64."""
    return value + np.random.default_rng(4).standard_normal(num) * std


def lattice_attack(values: NDArray[np.float64], *, step: float) -> float:
    """The fraction of outputs that are a multiple of ``step``, which a noise without holes reaches as often as any."""
    return float(np.mean(values / step == np.round(values / step)))


def parity_attack(values: NDArray[np.int64], bit: int = 0) -> float:
    """How much more often a low bit is 1 than 0, in standard errors."""
    ones = int(((values >> bit) & 1).sum())
    return abs(2 * ones - len(values)) / math.sqrt(len(values))


@pytest.mark.parametrize("value", [0, 1, 12_345])
@pytest.mark.parametrize("bit", [0, 1, 2])
def test_low_bits_say_nothing(value: int, bit: int) -> None:
    samples = value + discrete_gaussian(1_000_000, variance=160_000**2, stream=stream(5))
    assert parity_attack(samples, bit) <= stats.norm.isf(FALSE_ALARM / 2)


def test_a_float_share_fails() -> None:
    """Positive control. Adding 1 in float64 rounds away the bits below 2^-52: outputs of small magnitude have bits that
    only x = 0 can leave, which certifies the input; on the grid every output is possible for every input."""
    num, step = 200_000, 2.0**-53
    quiet, shifted = float_share(num, 0.1, 0.0), float_share(num, 0.1, 1.0) - 1.0
    assert lattice_attack(shifted, step=step) == 1.0
    assert lattice_attack(quiet, step=step) < 0.5
    # The parity of the last bit after subtracting the guess: all even for the right guess.
    last = np.round(shifted / (step / 2)).astype(np.int64)
    assert parity_attack(last) > 100
    on_grid = 12_345 + discrete_gaussian(num, variance=1000**2, stream=stream(6))
    assert lattice_attack(on_grid - 12_345.0, step=1.0) == lattice_attack(on_grid - 12_344.0, step=1.0) == 1.0
