"""What the engine is measured against: a bare torch loop, also a static batcher.

A static batch is the loop run until its longest output ends; the other rows are padding by then.
It runs the model code of smollm2.py with a contiguous, padded cache and torch's own attention:
the same kernels, no scheduler, no text. Sequences of one batch start together with prompts of
equal length, which spares the static batcher all padding but that of the outputs.
"""

from collections.abc import Sequence

import torch
from torch.nn import functional

from services.worker.smollm2 import SmolLM2, padded_rows


class ContiguousCache:
    """Keys and values, each [layers, sequences, KV heads, longest, head size], and attention."""

    def __init__(self, model: SmolLM2, sequences: int, longest: int) -> None:
        shape = model.shape
        self._shape = shape
        size = (shape.layers, sequences, shape.kv_heads, longest, shape.head_size)
        self._keys = torch.zeros(size, dtype=model.dtype, device=model.device)
        self._values = torch.zeros(size, dtype=model.dtype, device=model.device)
        self._sequences = sequences
        self.stored = 0
        self.tokens = 1

    def __call__(self, layer: int, qkv: torch.Tensor, out: torch.Tensor) -> None:
        """Attend for `tokens` new rows of each sequence (see smollm2.Attention)."""
        shape, count = self._shape, self._sequences
        rows = count * self.tokens
        parts = qkv[:rows].view(count, self.tokens, -1, shape.head_size).transpose(1, 2)
        queries, keys, values = parts.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
        until = self.stored + self.tokens
        self._keys[layer, :, :, self.stored : until] = keys
        self._values[layer, :, :, self.stored : until] = values
        all_keys = self._keys[layer, :, :, :until]
        all_values = self._values[layer, :, :, :until]
        if self.tokens == 1:
            # A group's queries as rows of one head: faster than enable_gqa here, 12 ms for 43 at 16
            # sequences in bfloat16.
            asked = queries.reshape(count, shape.kv_heads, shape.group, shape.head_size)
            attended = functional.scaled_dot_product_attention(
                asked, all_keys, all_values, scale=1.0
            )
        else:
            attended = functional.scaled_dot_product_attention(
                queries, all_keys, all_values, scale=1.0, is_causal=True, enable_gqa=True
            )
            attended = attended.transpose(1, 2)
        out[:rows] = attended.reshape(rows, -1)


class BareLoop:
    """Greedy decoding of equal prompts, one call of `decode` after the other."""

    def __init__(self, model: SmolLM2, prompts: Sequence[Sequence[int]], longest: int) -> None:
        """Prefill; `longest` bounds prompt plus output."""
        self._model = model
        self._count = len(prompts)
        self._cache = ContiguousCache(model, len(prompts), longest)
        self._cache.tokens = len(prompts[0])
        ids = [token for prompt in prompts for token in prompt]
        positions = list(range(len(prompts[0]))) * len(prompts)
        with torch.inference_mode():
            hidden = model.hidden(ids, positions, self._cache)
            ends = torch.arange(1, len(prompts) + 1) * len(prompts[0]) - 1
            self._last = self._pick(hidden.index_select(0, ends.to(model.device)))
        self._cache.stored, self._cache.tokens = len(prompts[0]), 1
        self._padding = padded_rows(self._count, model.dtype, model.device) - self._count

    def _pick(self, hidden: torch.Tensor) -> list[int]:
        return self._model.logits(hidden).argmax(dim=1).tolist()

    @torch.inference_mode()
    def decode(self, steps: int) -> None:
        """Produce `steps` tokens for every sequence."""
        for _ in range(steps):
            rows = self._count + self._padding
            hidden = self._model.hidden(
                self._last + [0] * self._padding, [self._cache.stored] * rows, self._cache
            )
            self._last = self._pick(hidden[: self._count])
            self._cache.stored += 1
