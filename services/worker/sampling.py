"""Picks tokens from logits, each request by its own seed. Stateless, any device.

The Gumbel trick: the largest of logits + temperature x Gumbel noise is a draw from the softmax at
that temperature. The noise of (seed, index, token) is a hash of the three, so it does not depend
on the batch, on earlier draws or on the device, and a resumed request goes on as if never
interrupted. Against a walk through the cumulated probabilities it has the virtue that the last
bits of the logits, which do depend on the batch's size, matter only where two tokens nearly tie.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

_MASK: Final = 0xFFFFFFFF
# Odd multipliers below 2^31, so that no product of 32 bits with one overflows 63. Those of the
# mixing steps were published as good ones for this form by C. Wellons ("lowbias32" family).
_SPREAD: Final = 0x1E3779B1
_MIX_1: Final = 0x21F0AAAD
_MIX_2: Final = 0x735A2D97


@dataclass(frozen=True, slots=True)
class Draw:
    """How to pick one row's token: `index` counts the request's output tokens from 0."""

    temperature: float
    seed: int
    index: int


def _keys(seed: int, index: int) -> tuple[int, int]:
    """Two well-mixed 32-bit numbers of a seed and an index (splitmix64)."""
    mixed = (seed * 0x9E3779B97F4A7C15 + (index + 1) * 0xD1B54A32D192ED03) & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
    mixed ^= mixed >> 31
    return mixed & _MASK, mixed >> 32


def gumbel(draws: Sequence[Draw], vocabulary: int, device: torch.device) -> torch.Tensor:
    """Standard Gumbel noise, float32 [draws, vocabulary]."""
    keys = torch.tensor([_keys(draw.seed, draw.index) for draw in draws], device=device)
    bits = torch.arange(vocabulary, device=device) * _SPREAD + keys[:, :1]
    bits.bitwise_and_(_MASK)
    bits ^= bits >> 16
    bits.mul_(_MIX_1).add_(keys[:, 1:]).bitwise_and_(_MASK)
    bits ^= bits >> 15
    bits.mul_(_MIX_2).bitwise_and_(_MASK)
    bits ^= bits >> 15
    # In (0, 1], finest near 0, which is where the winners come from.
    uniform = bits.float().add_(0.5).mul_(2.0**-32)
    return uniform.neg_().log1p_().neg_().log_().neg_()


def pick(logits: torch.Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """One token per row of float32 [rows, vocabulary]; None where the logits are not numbers."""
    sampled = [row for row, draw in enumerate(draws) if draw.temperature > 0]
    if sampled:
        chosen = [draws[row] for row in sampled]
        noise = gumbel(chosen, logits.shape[1], logits.device)
        temperatures = torch.tensor([draw.temperature for draw in chosen], device=logits.device)
        rows = torch.tensor(sampled, device=logits.device)
        logits.index_add_(0, rows, noise.mul_(temperatures[:, None]))
    best = logits.max(dim=1)
    finite = torch.isfinite(best.values).tolist()
    return [
        token if usable else None
        for token, usable in zip(best.indices.tolist(), finite, strict=True)
    ]
