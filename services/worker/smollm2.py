"""SmolLM2's forward pass over rows of tokens, with attention left to the caller. No state.

A row is one token of one sequence; a batch of rows mixes decoding sequences and prompt chunks, so
that every weight is read once per iteration. What differs between a paged and a contiguous cache
is the attention alone, which is passed in: the engine and the loops that it is measured against
run the same code.
"""

from collections.abc import Sequence
from typing import Final, Protocol

import torch
from torch.nn import functional

from services.worker.weights import Layer, Weights

_PLAIN_ROWS_MAX: Final = 31
"""bfloat16 on a CPU: up to so many rows, x W^T is computed as such (see `project`)."""
_SMALL: Final = 8
"""float32 on a CPU: up to so many rows the fast kernel takes any number but one."""


class Attention(Protocol):
    """Stores the new keys and values of all rows, then attends."""

    def __call__(self, layer: int, qkv: torch.Tensor, out: torch.Tensor) -> None:
        """Attend for one layer.

        Args:
            layer: Which layer, from 0.
            qkv: [rows, heads + 2 x KV heads, head size]; queries are scaled, queries and keys
                rotated.
            out: [rows, heads x head size], to be filled; rows that are only padding may be left.
        """
        ...


def padded_rows(rows: int, dtype: torch.dtype, device: torch.device) -> int:
    """How many rows to run for so many: the CPU's float32 product has slow sizes.

    Measured with MKL on 2 cores, all layers: 40 ms for 1 row and 14 for 2; 82 for 15 rows and 43
    for 16; 118 for 47 and 76 for 48.
    """
    if dtype != torch.float32 or device.type != "cpu":
        return rows
    if rows <= _SMALL:
        return max(2, rows)
    if rows <= 2 * _SMALL:
        return 2 * _SMALL
    return -(-rows // _SMALL) * _SMALL


def project(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """X W^T: [rows, inputs] and [outputs, inputs] to [rows, outputs], not always contiguous.

    On a CPU it is computed as (W x^T)^T where that is faster: measured with MKL on 2 cores, all
    layers in float32, 20 instead of 49 ms for 4 rows, 43 instead of 52 for 16, 109 instead of
    156 for 80. In bfloat16 that form is the slower one below 32 rows.
    """
    if x.device.type == "cpu" and (x.dtype == torch.float32 or x.shape[0] > _PLAIN_ROWS_MAX):
        return (weight @ x.t()).t()
    return functional.linear(x, weight)


class SmolLM2:
    """The model on one device in one dtype."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        self.shape = weights.shape
        self.dtype = weights.embedding.dtype
        self.device = weights.embedding.device
        half = torch.arange(0, self.shape.head_size, 2, dtype=torch.float64)
        angles = torch.outer(
            torch.arange(self.shape.context, dtype=torch.float64),
            self.shape.rope_base ** (-half / self.shape.head_size),
        )
        # [context, 1, head size / 2]; neighbours in a head are one complex number (GGUF's order).
        self._turns = (
            torch.polar(torch.ones_like(angles), angles)
            .to(torch.complex64)
            .unsqueeze(1)
            .to(self.device)
        )

    def hidden(
        self, ids: Sequence[int], positions: Sequence[int], attention: Attention
    ) -> torch.Tensor:
        """The last layer's output for each row: [rows, width], before the final norm.

        `ids` are token ids, `positions` their places in their sequences, from 0.
        """
        id_tensor = torch.tensor(ids, device=self.device)
        turns = self._turns.index_select(0, torch.tensor(positions, device=self.device))
        x = self.weights.embedding.index_select(0, id_tensor)
        attended = x.new_zeros(len(ids), self.shape.heads * self.shape.head_size)
        for number, layer in enumerate(self.weights.layers):
            self._layer(number, layer, x, turns, attention=attention, attended=attended)
        return x

    def _layer(
        self,
        number: int,
        layer: Layer,
        x: torch.Tensor,
        turns: torch.Tensor,
        *,
        attention: Attention,
        attended: torch.Tensor,
    ) -> None:
        """One layer; `x` is changed in place."""
        shape = self.shape
        rotated = shape.heads + shape.kv_heads
        qkv = project(self._norm(x), layer.qkv).contiguous().view(x.shape[0], -1, shape.head_size)
        pairs = qkv[:, :rotated].float().reshape(x.shape[0], rotated, -1, 2)
        qkv[:, :rotated] = torch.view_as_real(torch.view_as_complex(pairs) * turns).flatten(2)
        attention(number, qkv, attended)
        x += project(attended, layer.output)
        gate, up = project(self._norm(x), layer.gate_up).chunk(2, dim=1)
        x += project((functional.silu(gate) * up).contiguous(), layer.down)

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        """RMS norm; its weights are in the matrix that follows."""
        return functional.rms_norm(x, (x.shape[1],), eps=self.shape.norm_epsilon)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[rows, width] to float32 [rows, vocabulary]."""
        x = self._norm(hidden) * self.weights.final_norm
        rows = x.shape[0]
        padded = padded_rows(rows, self.dtype, self.device)
        if padded > rows:
            x = functional.pad(x, (0, 0, 0, padded - rows))
        return project(x, self.weights.embedding)[:rows].float()
