"""The KV block pool: who holds which blocks of a stated byte budget. Pure bookkeeping, no tensors.

A request's blocks are promised when it joins (`reserve`) or later (`extend`), and assigned one by
one as its tokens arrive (`grow`), lowest number first. So the pool is never exceeded, a request
whose blocks are promised in full never waits for one, and the assigned blocks lie close together at
the pool's start. `compact` closes
the gaps that leavers made; the engine copies the blocks it names. Dense assignment is what lets
attention read the pool in place instead of gathering it (see paged_attention.py).
"""

import heapq
from collections.abc import Hashable
from typing import Generic, NamedTuple, TypeVar

KeyT = TypeVar("KeyT", bound=Hashable)


class Move(NamedTuple):
    """Copy the content of block `source` to block `target`; both are in the pool."""

    source: int
    target: int


class PoolExceededError(Exception):
    """A reservation asks for more blocks than are free; says how many of each."""


def blocks_for(tokens: int, block_tokens: int) -> int:
    """Whole blocks that hold so many tokens."""
    return -(-tokens // block_tokens)


class BlockPool(Generic[KeyT]):
    """Blocks numbered from 0, each either free or assigned to one request.

    Raises:
        ValueError: When the budget does not hold a single block.
    """

    def __init__(self, pool_bytes: int, bytes_per_token: int, block_tokens: int) -> None:
        self.blocks = pool_bytes // (bytes_per_token * block_tokens)
        if self.blocks < 1:
            raise ValueError(
                f"A KV pool of {pool_bytes} bytes does not hold one block of {block_tokens} tokens"
                f" at {bytes_per_token} bytes each; give it at least"
                f" {bytes_per_token * block_tokens} bytes."
            )
        self.block_tokens = block_tokens
        self.reserved = 0
        self.version = 0
        """Changes with every change of any table."""
        self._free = list(range(self.blocks))  # a heap: the lowest number goes first
        self._reserved: dict[KeyT, int] = {}
        self._tables: dict[KeyT, list[int]] = {}

    @property
    def unreserved(self) -> int:
        """Blocks that no reservation holds."""
        return self.blocks - self.reserved

    @property
    def assigned(self) -> int:
        """Blocks that hold tokens."""
        return self.blocks - len(self._free)

    def reserve(self, key: KeyT, blocks: int) -> None:
        """Promise `blocks` blocks to `key`.

        Raises:
            PoolExceededError: When fewer are unreserved; nothing is changed.
            ValueError: When `key` already has a reservation, or `blocks` is not positive.
        """
        if key in self._reserved:
            raise ValueError(f"{key} already holds {self._reserved[key]} blocks.")
        if blocks < 1:
            raise ValueError(f"{key} asks for {blocks} blocks; a reservation is at least one.")
        if blocks > self.unreserved:
            raise PoolExceededError(
                f"{key} asks for {blocks} blocks and {self.unreserved} of {self.blocks} are free."
            )
        self._reserved[key] = blocks
        self._tables[key] = []
        self.reserved += blocks

    def extend(self, key: KeyT, blocks: int) -> None:
        """Promise `key` so many blocks more.

        Raises:
            PoolExceededError: When fewer are unreserved; nothing is changed.
        """
        if blocks > self.unreserved:
            raise PoolExceededError(
                f"{key} asks for {blocks} blocks more and {self.unreserved} of {self.blocks} are"
                " free."
            )
        self._reserved[key] += blocks
        self.reserved += blocks

    def grow(self, key: KeyT, tokens: int) -> None:
        """Assign blocks until `key` can hold `tokens` tokens.

        Raises:
            PoolExceededError: When that is more than `key` reserved; nothing is changed.
        """
        table = self._tables[key]
        needed = blocks_for(tokens, self.block_tokens)
        if needed <= len(table):
            return
        if needed > self._reserved[key]:
            raise PoolExceededError(
                f"{key} needs {needed} blocks for {tokens} tokens and reserved"
                f" {self._reserved[key]}."
            )
        while len(table) < needed:
            table.append(heapq.heappop(self._free))
        self.version += 1

    def table(self, key: KeyT) -> list[int]:
        """The blocks of `key`, in the order of its tokens."""
        return self._tables[key]

    def holds(self, key: KeyT) -> bool:
        """Whether `key` has a reservation."""
        return key in self._reserved

    def free(self, key: KeyT) -> None:
        """Give everything of `key` back.

        Raises:
            KeyError: When `key` has no reservation.
        """
        self.reserved -= self._reserved.pop(key)
        for block in self._tables.pop(key):
            heapq.heappush(self._free, block)
        self.version += 1

    def compact(self) -> list[Move]:
        """Renumber so that the assigned blocks are 0 to `assigned` - 1; the copies this takes.

        No target is another move's source, so the copies may be done in any order or at once.
        """
        dense = self.assigned
        gaps = [block for block in self._free if block < dense]
        if not gaps:
            return []
        gaps.sort()
        moves: list[Move] = []
        for table in self._tables.values():
            for position, block in enumerate(table):
                if block >= dense:
                    target = gaps[len(moves)]
                    table[position] = target
                    moves.append(Move(block, target))
        self._free = list(range(dense, self.blocks))
        self.version += 1
        return moves

    def check_integrity(self) -> None:
        """Assert that every block is free or held once, within its holder's reservation."""
        held = [block for table in self._tables.values() for block in table]
        assert sorted(held + self._free) == list(range(self.blocks)), (  # noqa: S101 - integrity
            "A KV block is held twice or lost."
        )
        assert self._tables.keys() == self._reserved.keys(), (  # noqa: S101 - integrity
            "A block table has no reservation."
        )
        for key, table in self._tables.items():
            assert len(table) <= self._reserved[key], (  # noqa: S101 - integrity
                f"{key} holds {len(table)} blocks and reserved {self._reserved[key]}."
            )
        assert self.reserved == sum(self._reserved.values()) <= self.blocks, (  # noqa: S101 - same
            f"{self.reserved} blocks are reserved of {self.blocks}."
        )
