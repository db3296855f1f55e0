"""What a cell process commits for people: how far its ledgers are, and never at any cost."""

import asyncio
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, IllegalStateError, RequestTimedOutError

from schemas.topics import REQUESTS
from services import bus
from streams.cells import Cells, Held
from streams.counting import counter_of

CELL_0 = TopicPartition(REQUESTS, 0)


class OwnerAt:
    """Stands where an owner would, at a request offset."""

    next_request_offset = 12


class Group:
    """Kafka's client as a group member that owns cell 0; it raises what Kafka would answer."""

    def __init__(self, answer: Exception | None = None) -> None:
        self._answer = answer
        self.committed: list[dict[TopicPartition, int]] = []

    def assignment(self) -> set[TopicPartition]:
        return {CELL_0}

    async def commit(self, offsets: dict[TopicPartition, int]) -> None:
        if self._answer is not None:
            raise self._answer
        self.committed.append(offsets)


async def commit(group: Group) -> None:
    cells = Cells("127.0.0.1:1", counter_of)
    nothing = asyncio.create_task(asyncio.sleep(0))
    cells._held = {  # pyright: ignore[reportPrivateUsage] - as a rebalance leaves it
        0: Held(nothing, cast("Any", OwnerAt())),
        1: Held(nothing, cast("Any", OwnerAt())),
    }
    await cells._commit_for_people(cast("Any", group))  # pyright: ignore[reportPrivateUsage] - as above


async def test_the_offsets_of_the_cells_that_are_still_ours_are_committed() -> None:
    group = Group()
    await commit(group)
    assert group.committed == [{CELL_0: 12}]


@pytest.mark.parametrize("answer", [CommitFailedError(), IllegalStateError("not assigned")])
async def test_a_rebalance_in_the_midst_of_a_commit_does_not_end_the_membership(
    answer: Exception,
) -> None:
    await commit(Group(answer))


async def test_a_broker_that_does_not_take_commits_is_told() -> None:
    with pytest.raises(bus.BusError, match="could not take a commit"):
        await commit(Group(RequestTimedOutError()))
