"""Dropout whose masks follow from the client and the step, not from the order of the work.

Place: around a module's forward pass in `batched.py`. PyTorch draws masks from one generator for the whole process, so
they would depend on who is trained before whom. Here a mask is a hash (SplitMix64) of a key, which belongs to one step
of one client in one round, of the number of the layer's call in the pass, and of the place in the tensor. So stock
layers work (nn.Dropout, nn.TransformerEncoderLayer, nn.MultiheadAttention, functional.dropout), many clients at once
or one after the other.

Masks hide nothing: they are no part of the privacy mechanism.

Guarantees (tests of the same name):
  masks_follow_the_key         the same key, call and place give the same bit, with vmap and without, on any device.
  masks_keep_the_right_share   each key drops its share, and keys, calls and places are independent.
  attention_drops_weights      as PyTorch's own attention does with the same mask.
"""

import math
import types
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from gdpfed.errors import InputError

__all__ = ["SeededDropout", "step_keys", "uniform"]

# Of SplitMix64, as signed numbers.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_FIRST = 0xBF58476D1CE4E5B9 - 2**64
_SECOND = 0x94D049BB133111EB - 2**64


def _shifted(values: Tensor, places: int) -> Tensor:
    """To the right, with zeros: PyTorch would repeat the sign."""
    return (values >> places) & ((1 << (64 - places)) - 1)


def _mixed(values: Tensor) -> Tensor:
    values = (values ^ _shifted(values, 30)) * _FIRST
    values = (values ^ _shifted(values, 27)) * _SECOND
    return values ^ _shifted(values, 31)


def step_keys(base: int, clients: Tensor, num_steps: int) -> Tensor:
    """A key for each step of each client (clients, steps), from a round's ``base``."""
    own = _mixed(clients.long() * _GOLDEN + base)
    return _mixed(own.unsqueeze(1) + torch.arange(1, num_steps + 1, device=clients.device) * _GOLDEN)


def uniform(key: Tensor, call: int, shape: tuple[int, ...]) -> Tensor:
    """Numbers from 0 to below 1, of 24 bits, by hash."""
    # A call takes 2 ** 40 places.
    places = torch.arange(math.prod(shape), device=key.device) + (call << 40)
    return (_shifted(_mixed(_mixed(key + places * _GOLDEN)), 40).float() * 2.0**-24).view(shape)


class SeededDropout(TorchFunctionMode):
    """Within it, every dropout takes its mask from ``key`` (one number, or under vmap one for each client)."""

    def __init__(self, key: Tensor | None) -> None:
        super().__init__()
        self._key = key
        self._calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Handles dropout, and attention that has it; passes on the rest."""
        del types
        kwargs = kwargs or {}
        if func in _KINDS:
            return self._dropped(*args, kind=func, **kwargs)
        if func is functional.scaled_dot_product_attention:
            return self._attended(*args, **kwargs)
        if func is functional.multi_head_attention_forward:
            # Its own code, which must not come back here at once: what it calls is handled here.
            with self:
                return _ATTENTION(*args, **kwargs)
        return func(*args, **kwargs)

    def _kept(self, shape: tuple[int, ...], p: float) -> Tensor:
        if self._key is None:
            raise InputError("the model has dropout, and no key was given for its masks: train it with gdpfed.train")
        self._calls += 1
        return uniform(self._key, self._calls, shape) >= p

    def _dropped(
        self, values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False, *, kind: Any
    ) -> Tensor:
        del inplace
        if not training or p == 0:
            return values
        if p == 1:
            return values * 0
        shape = tuple(values.shape)
        if kind is not functional.dropout:
            # Whole channels; without a batch, the first dimension is theirs.
            batched = values.ndim != _KINDS[kind]
            shape = (*shape[: 1 + batched], *(1 for _ in shape[1 + batched :]))
        return values * self._kept(shape, p) * (1 / (1 - p))

    def _attended(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """By its definition: PyTorch's fast ways draw their own masks, and cannot be batched over clients."""
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
        scores = query @ key.transpose(-2, -1) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
        if is_causal:
            attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        elif attn_mask is not None:
            scores = scores + attn_mask
        weights = torch.softmax(scores, dim=-1)
        return self._dropped(weights, dropout_p, kind=functional.dropout) @ value


# The number of dimensions without a batch; PyTorch's dropout2d takes three for a batch of signals.
_KINDS = {functional.dropout: 0, functional.dropout1d: 2, functional.dropout2d: 0, functional.dropout3d: 4}


def _without_dispatch(function: Any) -> types.FunctionType:
    """The same function of PyTorch, which does its work instead of asking whose it is."""
    known = {**function.__globals__, "has_torch_function": lambda *_: False}
    copied = types.FunctionType(
        function.__code__, known, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


_ATTENTION = _without_dispatch(functional.multi_head_attention_forward)
