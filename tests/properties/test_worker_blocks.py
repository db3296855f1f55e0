"""The block pool under any sequence of reservations, growth, leaving and compaction."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.worker.blocks import BlockPool, PoolExceededError, blocks_for

BLOCKS, TOKENS = 12, 16


class PoolMachine(RuleBasedStateMachine):
    """Holds the content that each block should have, and moves it as the pool says."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool[int](BLOCKS * TOKENS * 10 + 159, 10, TOKENS)
        self.reserved: dict[int, int] = {}
        self.content: dict[int, tuple[int, int]] = {}
        self.next_key = 0

    @rule(blocks=st.integers(1, BLOCKS + 2))
    def reserve(self, blocks: int) -> None:
        key = self.next_key
        self.next_key += 1
        if blocks > BLOCKS - sum(self.reserved.values()):
            with pytest.raises(PoolExceededError):
                self.pool.reserve(key, blocks)
            assert not self.pool.holds(key)
        else:
            self.pool.reserve(key, blocks)
            self.reserved[key] = blocks

    @precondition(lambda self: self.reserved)
    @rule(data=st.data(), tokens=st.integers(0, (BLOCKS + 1) * TOKENS))
    def grow(self, data: st.DataObject, tokens: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.reserved)))
        before = list(self.pool.table(key))
        if blocks_for(tokens, TOKENS) > self.reserved[key]:
            with pytest.raises(PoolExceededError):
                self.pool.grow(key, tokens)
            assert self.pool.table(key) == before
            return
        self.pool.grow(key, tokens)
        table = self.pool.table(key)
        assert table[: len(before)] == before
        assert len(table) == max(len(before), blocks_for(tokens, TOKENS))
        for place, block in enumerate(table):
            self.content[block] = (key, place)

    @precondition(lambda self: self.reserved)
    @rule(data=st.data())
    def free(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.reserved)))
        self.pool.free(key)
        del self.reserved[key]

    @rule()
    def compact(self) -> None:
        before = dict(self.content)
        moves = self.pool.compact()
        assert not {m.source for m in moves} & {m.target for m in moves}
        for source, target in moves:
            self.content[target] = before[source]
        held = sorted(block for key in self.reserved for block in self.pool.table(key))
        assert held == list(range(self.pool.assigned))

    @invariant()
    def every_block_is_held_once_and_keeps_its_content(self) -> None:
        self.pool.check_integrity()
        assert self.pool.reserved == sum(self.reserved.values()) <= BLOCKS
        for key in self.reserved:
            for place, block in enumerate(self.pool.table(key)):
                assert self.content[block] == (key, place)


TestPoolMachine = PoolMachine.TestCase


def test_a_budget_is_rounded_down_to_whole_blocks() -> None:
    assert BlockPool[int](46_080 * 16 * 3 - 1, 46_080, 16).blocks == 2


def test_a_budget_below_one_block_is_refused_with_the_size_it_takes() -> None:
    with pytest.raises(ValueError, match="at least 737280 bytes"):
        BlockPool[int](1000, 46_080, 16)


def test_a_reservation_is_made_once_and_is_not_empty() -> None:
    pool = BlockPool[str](1600, 10, 16)
    pool.reserve("a", 1)
    with pytest.raises(ValueError, match="already holds"):
        pool.reserve("a", 1)
    with pytest.raises(ValueError, match="at least one"):
        pool.reserve("b", 0)
