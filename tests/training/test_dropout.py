"""Masks by hash, and stock layers that use them."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional

from gdpfed.errors import InputError
from gdpfed.training.clients.dropout import SeededDropout, step_keys, uniform

KEYS = step_keys(12345, torch.arange(6), 4)


GOLDEN = 0x9E3779B97F4A7C15


def mixed(value: int) -> int:
    value %= 2**64
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB % 2**64
    return value ^ (value >> 31)


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def dropped(key: Tensor, values: Tensor) -> Tensor:
    with SeededDropout(key):
        return functional.dropout(values, 0.3)


def test_masks_follow_the_key() -> None:
    values = torch.ones(6, 5, 7)
    together = vmap(dropped)(KEYS[:, 0], values)
    for row in range(6):
        assert torch.equal(together[row], dropped(KEYS[row, 0], values[row]))
    assert torch.equal(dropped(KEYS[0, 0], values), dropped(KEYS[0, 0], values))
    # On another day, in another release: by Python's whole numbers, as SplitMix64 is published.
    own = mixed(12345 + 5 * GOLDEN)
    assert KEYS[5].tolist() == [signed(mixed(own + step * GOLDEN)) for step in (1, 2, 3, 4)]
    drawn = uniform(KEYS[5, 0], 3, (2, 2)).flatten().tolist()
    wanted = [mixed(mixed(KEYS[5, 0].item() + ((3 << 40) + place) * GOLDEN)) >> 40 for place in range(4)]
    assert drawn == [value / 2**24 for value in wanted]


def test_masks_keep_the_right_share() -> None:
    """60,000 bits in each comparison: 5 standard deviations, a false alarm in a million; a share 0.01 off is seen."""
    bits = torch.stack([uniform(key, call, (10_000,)) >= 0.3 for key in KEYS[:, 0] for call in (1, 2)]).double()
    assert abs(float(bits.mean()) - 0.7) < 5 * math.sqrt(0.21 / bits.numel())
    centred = bits - 0.7
    products = centred @ centred.T / 10_000 / 0.21
    off = products - torch.diag(torch.diag(products))
    assert float(off.abs().max()) < 5.5 / math.sqrt(10_000)
    beside = (centred[:, 1:] * centred[:, :-1]).mean() / 0.21
    assert abs(float(beside)) < 5 / math.sqrt(bits.numel())
    assert len(KEYS.flatten().unique()) == 24


@pytest.mark.parametrize("causal", [False, True])
def test_attention_drops_weights(causal: bool) -> None:
    query, key, value = (torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(i)) for i in range(3))
    plain = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    with SeededDropout(None):
        ours = functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
    torch.testing.assert_close(ours, plain)
    with SeededDropout(KEYS[0, 0]):
        lossy = functional.scaled_dot_product_attention(query, key, value, is_causal=causal, dropout_p=0.5)
    scores = query @ key.transpose(-2, -1) / 2
    if causal:
        scores = scores.masked_fill(~torch.ones(5, 5).tril().bool(), -math.inf)
    kept = uniform(KEYS[0, 0], 1, (2, 3, 5, 5)) >= 0.5
    torch.testing.assert_close(lossy, (torch.softmax(scores, -1) * kept * 2) @ value)


def test_stock_layers_draw_from_the_key() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
    inputs = torch.randn(3, 5, 8)
    state = torch.get_rng_state()

    def passed(key: Tensor) -> Tensor:
        with SeededDropout(key):
            result: Tensor = layer(inputs)
            return result

    assert torch.equal(passed(KEYS[0, 0]), passed(KEYS[0, 0]))
    assert not torch.equal(passed(KEYS[0, 0]), passed(KEYS[0, 1]))
    # The global generator is neither used nor moved.
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(InputError, match="no key"):
        passed(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layer", "shape", "whole"),
    [
        (nn.Dropout1d(0.5), (40, 30, 6), 2),
        (nn.Dropout1d(0.5), (40, 6), 1),
        (nn.Dropout2d(0.5), (40, 30, 6, 2), 2),
        (nn.Dropout3d(0.5), (40, 3, 2, 2), 1),
    ],
)
def test_channels_are_dropped_whole(layer: nn.Module, shape: tuple[int, ...], whole: int) -> None:
    with SeededDropout(KEYS[0, 0]):
        result = layer(torch.ones(shape)).flatten(whole)
    assert bool((result == result[..., :1]).all())
    assert set(result.unique().tolist()) == {0.0, 2.0}
