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
    """Rows `first` to `first` + `tokens` of one sequence.

    `mask` [1, group x tokens, stored] is 0 or -inf; a single token needs none.
    """

    first: int
    tokens: int
    stored: int
    table: torch.Tensor
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class _Decode:
    """The decoding rows, which come first.

    Attributes:
        rows: How many.
        blocks: How many leading blocks of the pool are read, when `chosen` is None.
        chosen: Which blocks are gathered instead.
        owner: [rows, blocks] 1 where a block belongs to the row, else 0.
        asked: [blocks x heads] where the owner's queries are in a layer's qkv, head by head.
        table: [rows x longest] each row's blocks; the number of blocks for none.
        place: [blocks] where in `table` a block stands; a place of none, for none.
        mask: [blocks, 1, block tokens] 0 for filled slots, -inf for others.
        totals: [heads, blocks + 1] room for the blocks' log-sums; -inf in the last place.
    """

    rows: int
    blocks: int
    chosen: torch.Tensor | None
    owner: torch.Tensor
    asked: torch.Tensor
    table: torch.Tensor
    place: torch.Tensor
    mask: torch.Tensor
    totals: torch.Tensor


class PagedKV:
    """The pool: [layers, keys and values, blocks, KV heads, block tokens, head size]."""

    def __init__(
        self, shape: Shape, blocks: int, block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shape = shape
        self.block_tokens = block_tokens
        size = (shape.layers, 2, blocks, shape.kv_heads, block_tokens, shape.head_size)
        # Zeros, not empty: a slot not yet written is multiplied by 0, and 0 x NaN is NaN.
        self.pool = torch.zeros(size, dtype=dtype, device=device)
        self.dtype = dtype
        self.device = device

    def move(self, moves: Sequence[Move]) -> None:
        """Copy blocks; no target is another move's source."""
        if moves:
            sources = torch.tensor([move.source for move in moves], device=self.device)
            targets = torch.tensor([move.target for move in moves], device=self.device)
            self.pool.index_copy_(2, targets, self.pool.index_select(2, sources))

    def clear(self, blocks: Sequence[int]) -> None:
        """Overwrite blocks with zeros."""
        self.pool[:, :, list(blocks)] = 0


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
        self._heads, self._kv_heads = kv.shape.heads, kv.shape.kv_heads
        self._rows = sum(sequence.tokens for sequence in chain(decode, chunks))
        self._slots = self._slot_index([*decode, *chunks])
        self._decode: _Decode | None = None
        self._chunks: list[_Chunk] = []
        if len(decode) > 1:
            self._decode = self._plan_decode(decode, dense)
        elif decode:  # one alone is quicker as a chunk of one token
            self._chunks.append(self._plan_chunk(0, decode[0]))
        first = len(decode)
        for sequence in chunks:
            self._chunks.append(self._plan_chunk(first, sequence))
            first += sequence.tokens

    def _slot_index(self, sequences: Sequence[SequenceRows]) -> torch.Tensor:
        """Where each row's keys, then values, go: row by row, in a layer seen as [slots, size]."""
        size, heads, pool = self._kv.block_tokens, self._kv_heads, self._kv.pool
        bases = [
            table[position // size] * heads * size + position % size
            for table, context, tokens in sequences
            for position in range(context, context + tokens)
        ]
        base = torch.tensor(bases, device=self._kv.device)
        parts = torch.arange(2 * heads, device=self._kv.device)
        within = parts % heads * size + parts // heads * (pool.shape[2] * heads * size)
        return (base[:, None] + within).view(-1)

    def _plan_chunk(self, first: int, sequence: SequenceRows) -> _Chunk:
        kv = self._kv
        stored = sequence.context + sequence.tokens
        used = -(-stored // kv.block_tokens)
        places = torch.arange(stored, device=kv.device)
        allowed = places <= places[sequence.context :, None]
        mask: torch.Tensor | None = None
        if sequence.tokens > 1:
            mask = torch.zeros(allowed.shape, dtype=kv.dtype, device=kv.device)
            mask = mask.masked_fill_(~allowed, float("-inf")).repeat(kv.shape.group, 1)[None]
        return _Chunk(
            first,
            sequence.tokens,
            stored,
            torch.tensor(sequence.table[:used], device=kv.device),
            mask,
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
        # With a column of padding, if there are blocks of none: they need a place of weight 0.
        longest = max(map(len, tables)) + (needed < dense)
        owner = [0] * dense
        place = [-1] * dense
        padded: list[int] = []
        for row, table in enumerate(tables):
            for block in table:
                owner[block] = row
                place[block] = len(padded)
                padded.append(block)
            padded += [dense] * (longest - len(table))
        heads, device = kv.shape.heads, kv.device
        owners = torch.tensor(owner, device=device)
        in_qkv = (owners * (heads + 2 * kv.shape.kv_heads))[:, None]
        places = torch.tensor(place, device=device)
        places[places < 0] = longest - 1
        filled = torch.tensor([s.context % size for s in decode], device=device)
        unfilled = torch.arange(size, device=device) > filled[:, None]
        mask = torch.zeros(dense, size, dtype=kv.dtype, device=device)
        last = torch.tensor([table[-1] for table in tables], device=device)
        mask[last] = mask[last].masked_fill_(unfilled, float("-inf"))
        rows_of = torch.arange(rows, device=device)
        return _Decode(
            rows,
            dense,
            chosen,
            owner=(owners == rows_of[:, None]).to(kv.dtype),
            asked=(in_qkv + torch.arange(heads, device=device)).view(-1),
            table=torch.tensor(padded, device=device),
            place=places,
            mask=mask[:, None],
            totals=torch.full((heads, dense + 1), float("-inf"), device=device),
        )

    def __call__(self, layer: int, qkv: torch.Tensor, out: torch.Tensor) -> None:
        """Store the rows' keys and values, and attend (see smollm2.Attention)."""
        pool = self._kv.pool[layer]
        size = pool.shape[-1]
        new = qkv[: self._rows, self._heads :].reshape(-1, size)
        pool.view(-1, size).index_copy_(0, self._slots, new)
        if self._decode is not None:
            self._attend_decode(self._decode, qkv, pool, out)
        for chunk in self._chunks:
            self._attend_chunk(chunk, qkv, pool, out)

    def _attend_decode(
        self, plan: _Decode, qkv: torch.Tensor, pool: torch.Tensor, out: torch.Tensor
    ) -> None:
        heads, group, size = self._heads, self._kv.shape.group, pool.shape[-1]
        count, slots = plan.blocks, self._kv.block_tokens
        both = pool[:, :count] if plan.chosen is None else pool.index_select(1, plan.chosen)
        keys, values = both[0].view(-1, slots, size), both[1].view(-1, slots, size)
        asked = qkv.view(-1, size).index_select(0, plan.asked).view(-1, group, size)
        scores = torch.bmm(asked, keys.transpose(1, 2)).view(count, heads, slots)
        scores += plan.mask
        shares = torch.log_softmax(scores, -1, dtype=torch.float32)
        torch.sub(scores[..., 0].t(), shares[..., 0].t(), out=plan.totals[:, :count])
        by_row = plan.totals.index_select(1, plan.table).view(heads, plan.rows, -1)
        weights = torch.softmax(by_row, 2).view(heads, -1).index_select(1, plan.place)
        shares.exp_().mul_(weights.t()[..., None])
        parts = torch.bmm(shares.view(-1, group, slots).to(values.dtype), values)
        # A product instead of index_add_, which took 0.3 ms for 230 blocks on a CPU.
        torch.mm(plan.owner, parts.view(count, heads * size), out=out[: plan.rows])

    def _attend_chunk(
        self,
        chunk: _Chunk,
        qkv: torch.Tensor,
        pool: torch.Tensor,
        out: torch.Tensor,
    ) -> None:
        kv_heads, group, size = self._kv_heads, self._kv.shape.group, pool.shape[-1]
        rows = slice(chunk.first, chunk.first + chunk.tokens)
        # [KV heads, group x tokens, size]: the queries of a group share their keys.
        asked = qkv[rows, : self._heads].view(chunk.tokens, kv_heads, group, size)
        asked = asked.permute(1, 2, 0, 3).reshape(1, kv_heads, group * chunk.tokens, size)
        # [2, KV heads, stored, size]: the chunk's own blocks in order.
        stored = pool.index_select(1, chunk.table).transpose(1, 2)
        keys, values = stored.reshape(2, 1, kv_heads, -1, size)[:, :, :, : chunk.stored]
        attended = functional.scaled_dot_product_attention(
            asked, keys, values, attn_mask=chunk.mask, scale=1.0
        )
        attended = attended.view(kv_heads, group, chunk.tokens, size).permute(2, 0, 1, 3)
        out[rows] = attended.reshape(chunk.tokens, -1)
