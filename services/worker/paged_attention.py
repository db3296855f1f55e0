"""The KV pool as tensors, and attention over its blocks where they lie.

Decoding reads the pool in place. Blocks are dense (see blocks.py), so one batched product takes
all of them at once, each against the query of the sequence that owns it: gathering queries is a
sixteenth of the traffic of gathering keys. Each block's softmax is then weighted by its share of
its sequence's total, which the blocks' log-sums give exactly (as in flash decoding):

    softmax(s)[block] = softmax(s[block]) x softmax over blocks(logsumexp(s[block]))

The cost follows the tokens that are there, not the longest sequence: nothing is padded.
Prompt chunks gather their own blocks, once per chunk and layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

import torch
from torch.nn import functional

from services.worker.blocks import Move
from services.worker.weights import Shape

_IN_PLACE_SHARE_MIN: Final = 0.6
"""Gather the blocks instead when less than this share of the dense range is decoding: reading a
block that is not needed costs about as much as copying one that is."""


class SequenceRows(NamedTuple):
    """Rows of one sequence in this iteration: `tokens` rows behind `context` stored tokens."""

    table: Sequence[int]
    context: int
    tokens: int


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One prompt chunk: rows `first` to `first` + `tokens`; `mask` [1, group x tokens, stored]."""

    first: int
    tokens: int
    stored: int
    table: torch.Tensor
    mask: torch.Tensor


@dataclass(frozen=True, slots=True)
class _Decode:
    """The decoding rows, which come first.

    Attributes:
        rows: How many.
        blocks: How many leading blocks of the pool are read, when `chosen` is None.
        chosen: Which blocks are gathered instead.
        owner: [blocks] the row that a block belongs to; `rows` for none.
        table: [rows x longest] each row's blocks; the number of blocks for none.
        place: [blocks] where in `table` a block stands.
        last: [rows] the row's last block.
        tail: [rows, heads, block tokens] 0 for filled slots of the last block, -inf for others.
    """

    rows: int
    blocks: int
    chosen: torch.Tensor | None
    owner: torch.Tensor
    table: torch.Tensor
    place: torch.Tensor
    last: torch.Tensor
    tail: torch.Tensor


class PagedKV:
    """Keys and values, each [layers, blocks, KV heads, block tokens, head size]."""

    def __init__(
        self, shape: Shape, blocks: int, block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.block_tokens = block_tokens
        size = (shape.layers, blocks, shape.kv_heads, block_tokens, shape.head_size)
        # Zeros, not empty: a slot not yet written is multiplied by 0, and 0 x NaN is NaN.
        self.keys = torch.zeros(size, dtype=dtype, device=device)
        self.values = torch.zeros(size, dtype=dtype, device=device)
        self.device = device

    def move(self, moves: Sequence[Move]) -> None:
        """Copy blocks; no target is another move's source."""
        if moves:
            sources = torch.tensor([move.source for move in moves], device=self.device)
            targets = torch.tensor([move.target for move in moves], device=self.device)
            for tensor in (self.keys, self.values):
                tensor.index_copy_(1, targets, tensor.index_select(1, sources))


class PagedAttention:
    """Attention of one iteration: decoding sequences (one row each) first, then prompt chunks."""

    def __init__(
        self,
        kv: PagedKV,
        decode: Sequence[SequenceRows],
        chunks: Sequence[SequenceRows],
        dense: int,
    ) -> None:
        """`dense` is how many leading blocks of the pool are in use by anyone."""
        self._kv = kv
        shape = kv.shape
        self._heads, self._kv_heads = shape.heads, shape.kv_heads
        self._slots = self._slot_index([*decode, *chunks])
        self._rows = self._slots.shape[0] // shape.kv_heads
        self._decode = self._plan_decode(decode, dense) if decode else None
        self._chunks: list[_Chunk] = []
        first = len(decode)
        for sequence in chunks:
            self._chunks.append(self._plan_chunk(first, sequence))
            first += sequence.tokens

    def _slot_index(self, sequences: Sequence[SequenceRows]) -> torch.Tensor:
        """Where each row's keys go in a layer seen as [blocks x KV heads x block tokens, size]."""
        size, heads = self._kv.block_tokens, self._kv_heads
        bases = [
            table[position // size] * heads * size + position % size
            for table, context, tokens in sequences
            for position in range(context, context + tokens)
        ]
        base = torch.tensor(bases, device=self._kv.device)
        return (base[:, None] + torch.arange(heads, device=self._kv.device) * size).view(-1)

    def _plan_chunk(self, first: int, sequence: SequenceRows) -> _Chunk:
        kv = self._kv
        stored = sequence.context + sequence.tokens
        used = -(-stored // kv.block_tokens)
        places = torch.arange(stored, device=kv.device)
        allowed = places <= places[sequence.context :, None]
        mask = torch.zeros(allowed.shape, dtype=kv.keys.dtype, device=kv.device)
        mask.masked_fill_(~allowed, float("-inf"))
        return _Chunk(
            first,
            sequence.tokens,
            stored,
            torch.tensor(sequence.table[:used], device=kv.device),
            mask.repeat(kv.shape.group, 1)[None],
        )

    def _plan_decode(self, decode: Sequence[SequenceRows], dense: int) -> _Decode:
        kv, rows, size = self._kv, len(decode), self._kv.block_tokens
        tables = [s.table[: s.context // size + 1] for s in decode]
        needed = sum(map(len, tables))
        chosen: torch.Tensor | None = None
        if needed < dense * _IN_PLACE_SHARE_MIN:
            flat = list(chain.from_iterable(tables))
            chosen = torch.tensor(flat, device=kv.device)
            renumbered = iter(range(needed))
            tables = [[next(renumbered) for _ in table] for table in tables]
            dense = needed
        longest = max(map(len, tables))
        owner, place = [rows] * dense, [0] * dense
        padded: list[int] = []
        for row, table in enumerate(tables):
            for block in table:
                owner[block] = row
                place[block] = len(padded)
                padded.append(block)
            padded += [dense] * (longest - len(table))
        filled = torch.tensor([s.context % size for s in decode], device=kv.device)
        tail = torch.zeros(rows, kv.shape.heads, size, dtype=kv.keys.dtype, device=kv.device)
        slots = torch.arange(size, device=kv.device)
        tail.masked_fill_((slots > filled[:, None])[:, None], float("-inf"))
        return _Decode(
            rows,
            dense,
            chosen,
            torch.tensor(owner, device=kv.device),
            torch.tensor(padded, device=kv.device),
            torch.tensor(place, device=kv.device),
            torch.tensor([table[-1] for table in tables], device=kv.device),
            tail,
        )

    def __call__(self, layer: int, qkv: torch.Tensor, out: torch.Tensor) -> None:
        """Store the rows' keys and values, and attend (see smollm2.Attention)."""
        keys, values = self._kv.keys[layer], self._kv.values[layer]
        size, first_value = keys.shape[-1], self._heads + self._kv_heads
        rows = qkv[: self._rows]
        new_keys = rows[:, self._heads : first_value].reshape(-1, size)
        keys.view(-1, size).index_copy_(0, self._slots, new_keys)
        values.view(-1, size).index_copy_(0, self._slots, rows[:, first_value:].reshape(-1, size))
        if self._decode is not None:
            self._attend_decode(self._decode, qkv, keys, values, out=out)
        for chunk in self._chunks:
            self._attend_chunk(chunk, qkv, keys, values, out=out)

    def _attend_decode(
        self,
        plan: _Decode,
        qkv: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        out: torch.Tensor,
    ) -> None:
        heads, group, size = self._heads, self._kv.shape.group, keys.shape[-1]
        count, slots = plan.blocks, self._kv.block_tokens
        if plan.chosen is not None:
            keys, values = keys.index_select(0, plan.chosen), values.index_select(0, plan.chosen)
        keys = keys[:count].view(-1, slots, size)
        values = values[:count].view(-1, slots, size)
        # One row more than there are: blocks that no decoding sequence owns read and fill that.
        queries = qkv[: plan.rows + 1, :heads].reshape(-1, heads * size)
        if queries.shape[0] == plan.rows:
            queries = functional.pad(queries, (0, 0, 0, 1))
        asked = queries.index_select(0, plan.owner).view(-1, group, size)
        scores = torch.bmm(asked, keys.transpose(1, 2)).view(count, heads, slots)
        scores.index_add_(0, plan.last, plan.tail)
        shares = torch.log_softmax(scores, -1, dtype=torch.float32)
        totals = shares.new_full((count + 1, heads), float("-inf"))
        torch.sub(scores[..., 0], shares[..., 0], out=totals[:count])
        by_row = totals.index_select(0, plan.table).view(plan.rows, -1, heads)
        weights = torch.softmax(by_row, 1).view(-1, heads).index_select(0, plan.place)
        shares.exp_().mul_(weights[..., None])
        parts = torch.bmm(shares.view(-1, group, slots).to(values.dtype), values)
        summed = out.new_zeros(plan.rows + 1, heads * size)
        summed.index_add_(0, plan.owner, parts.view(count, heads * size))
        out[: plan.rows] = summed[: plan.rows]

    def _attend_chunk(
        self,
        chunk: _Chunk,
        qkv: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        out: torch.Tensor,
    ) -> None:
        kv_heads, group, size = self._kv_heads, self._kv.shape.group, keys.shape[-1]
        rows = slice(chunk.first, chunk.first + chunk.tokens)
        # [KV heads, group x tokens, size]: the queries of a group share their keys.
        asked = qkv[rows, : self._heads].view(chunk.tokens, kv_heads, group, size)
        asked = asked.permute(1, 2, 0, 3).reshape(1, kv_heads, group * chunk.tokens, size)
        attended = functional.scaled_dot_product_attention(
            asked,
            self._stored(keys, chunk),
            self._stored(values, chunk),
            attn_mask=chunk.mask,
            scale=1.0,
        )
        attended = attended.view(kv_heads, group, chunk.tokens, size).permute(2, 0, 1, 3)
        out[rows] = attended.reshape(chunk.tokens, -1)

    def _stored(self, tensor: torch.Tensor, chunk: _Chunk) -> torch.Tensor:
        """A chunk's own keys or values: [1, KV heads, stored, head size]."""
        blocks = tensor.index_select(0, chunk.table).transpose(0, 1)
        return blocks.reshape(1, self._kv_heads, -1, tensor.shape[-1])[:, :, : chunk.stored]
