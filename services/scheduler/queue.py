"""The waiting requests of one model: a lane per tier and tenant, in the order of their turns. Pure.

Tiers come by rank. Within a tier the tenants take turns by deficit round robin, whose rounds are
counted instead of walked. `paid` is what a tenant has used up, in cost over weight. A turn lasts
while `paid` stays in its round of one quantum, so the lanes stand sorted by (round, turn), and a
lane moves only when what it used takes it into another round. It may go over by its last request
and stays in debt for that. A lane that comes anew starts in the round that is served now: nothing
is saved up while nothing waits. Between two tenants that both wait all the time, what each has
used over its weight differs by at most one quantum and one request, and by what the requests that
run now are estimated wrong.

A lane is first in, first out, except that a request which ran before and came back stands ahead of
younger ones. Each operation costs the logarithm of the tenants that wait; that the sorted list of
turns moves in memory is a microsecond for 10,000 of them.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import chain, islice
from typing import Literal

from schemas.decisions import CAUSES, Cause
from schemas.policy import TIERS, Tier

# Where a request stands among those that wait: its tier, or below every tier if it is an item of an
# offline job, so that offline work yields to any other. The highest stands first.
Line = Tier | Literal["offline"]
LINES: tuple[Line, ...] = (*TIERS, "offline")
RANKS: dict[Line, int] = {line: rank for rank, line in enumerate(LINES)}

# Below this many items a heap is not worth sweeping.
_SWEEP_ITEMS_MIN = 64

# (the start of the round, the turn in it, the tenant)
Turn = tuple[int, int, str]
NO_TURN: Turn = (-1, -1, "")


@dataclass(slots=True)
class Lane:
    """The waiting requests of one tier and tenant.

    Attributes:
        returned: (order, id, joined µs) of those that ran before, oldest first; never more than
            ran at once.
        fresh: ids, with when each joined, in order of arrival. An OrderedDict, because a plain dict
            walks over the holes that its removed first keys leave.
        turn: its place among the turns, or NO_TURN while its tenant is held back.
        held_since_us: when its tenant was held back, or -1. frozen_us: its cause totals then.
        shift_us: what its cause totals differ by from its tier's, or None for nothing.
    """

    returned: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])
    fresh: "OrderedDict[str, int]" = field(default_factory=OrderedDict[str, int])
    turn: Turn = NO_TURN
    held_since_us: int = -1
    frozen_us: tuple[int, ...] = ()
    shift_us: tuple[int, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self.fresh or self.returned)

    def __len__(self) -> int:
        return len(self.fresh) + len(self.returned)

    def __iter__(self) -> Iterator[str]:
        if not self.returned:
            return iter(self.fresh)
        return chain([request_id for _, request_id, _ in self.returned], self.fresh)

    def oldest_us(self) -> int:
        """Return when the one that has waited longest joined."""
        if not self.returned:
            return next(iter(self.fresh.values()))
        first_us = self.returned[0][2]
        return min(first_us, next(iter(self.fresh.values()), first_us))


@dataclass(slots=True)
class TierQueue:
    """The lanes of one tier.

    Attributes:
        lanes: by tenant; none is empty.
        turns: of the lanes that are not held back, sorted: the first one runs next.
        ages: a heap of (joined µs, tenant): no lane's oldest is older than its item says, and the
            top one is exact.
        clock: the start of the round that is served. turn_next: counts the turns.
        waiting: requests, held ones too.
        timed: whether an item of State.starving waits for its oldest.
        cause: what holds its requests back since `cause_since_us`, None when nothing waits.
        totals_us: by cause (index in CAUSES), up to `cause_since_us`.
    """

    lanes: dict[str, Lane] = field(default_factory=dict[str, Lane])
    turns: list[Turn] = field(default_factory=list[Turn])
    ages: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    clock: int = 0
    turn_next: int = 0
    waiting: int = 0
    timed: bool = False
    cause: Cause | None = None
    cause_since_us: int = 0
    totals_us: tuple[int, ...] = (0,) * len(CAUSES)

    @property
    def oldest_us(self) -> int | None:
        """When the longest waiting of the lanes that are not held back joined."""
        return self.ages[0][0] if self.ages else None

    def first(self, count: int) -> Iterator[str]:
        """Yield at most `count` ids in the order in which they are to run, in O(count).

        After the first request of each lane come the second ones: a request that does not fit
        leaves the next try to another tenant.
        """
        turns = self.turns
        if len(turns) == 1:
            yield from islice(self.lanes[turns[0][2]], count)
            return
        lanes: list[Iterator[str]] = []
        # Most walks end at the first request: so the others are not begun.
        for turn in islice(turns, count):
            ids = iter(self.lanes[turn[2]])
            yield next(ids)
            lanes.append(ids)
        count -= len(lanes)
        while lanes and count > 0:
            still: list[Iterator[str]] = []
            for ids in lanes:
                request_id = next(ids, None)
                if request_id is None:
                    continue
                yield request_id
                still.append(ids)
                count -= 1
                if count == 0:
                    return
            lanes = still

    def give_turn(self, tenant: str, lane: Lane, round_start: int) -> None:
        """Put a lane behind the others of its round."""
        lane.turn = (round_start, self.turn_next, tenant)
        self.turn_next += 1
        insort(self.turns, lane.turn)

    def take_turn(self, lane: Lane) -> None:
        """Take a lane out of the turns."""
        del self.turns[bisect_left(self.turns, lane.turn)]
        lane.turn = NO_TURN

    def move(self, tenant: str, round_start: int) -> None:
        """Put the tenant's lane, if one takes turns, into the round that what it used leads to."""
        lane = self.lanes.get(tenant)
        if lane is None or lane.turn is NO_TURN or lane.turn[0] == round_start:
            return
        self.take_turn(lane)
        self.give_turn(tenant, lane, round_start)

    def note_age(self, tenant: str, lane: Lane) -> None:
        """Remember how old a lane's oldest is, once it takes turns."""
        oldest_us = lane.oldest_us()
        if self.ages and oldest_us < self.ages[0][0]:
            # It was held back until now: what is timed for the others would come too late for it.
            self.timed = False
        heappush(self.ages, (oldest_us, tenant))
        if len(self.ages) > 2 * len(self.lanes) + _SWEEP_ITEMS_MIN:
            self.rebuild_ages()

    def true_age(self) -> None:
        """Make the top of `ages` exact again."""
        ages = self.ages
        while ages:
            noted_us, tenant = ages[0]
            lane = self.lanes.get(tenant)
            if lane is None or lane.turn is NO_TURN:
                heappop(ages)
                continue
            oldest_us = lane.oldest_us()
            if oldest_us == noted_us:
                return
            heapreplace(ages, (oldest_us, tenant))

    def rebuild_ages(self) -> None:
        """Make `ages` anew from the lanes."""
        self.ages = [
            (lane.oldest_us(), tenant)
            for tenant, lane in self.lanes.items()
            if lane.turn is not NO_TURN
        ]
        heapify(self.ages)


@dataclass(slots=True)
class Queue:
    """All waiting requests of one model; `tiers` stand in the order of their rank.

    Behind them all, in a line of their own, wait the items of offline jobs.

    Attributes:
        waiting: requests, held ones too.
        since_starved: dispatches since the last one that went before a higher tier.
    """

    tiers: dict[Line, TierQueue] = field(
        default_factory=lambda: {line: TierQueue() for line in LINES},
    )
    waiting: int = 0
    since_starved: int = 100

    def add(self, tier: Line, tenant: str, request_id: str, joined_us: int) -> Lane:
        """Append a request that arrived and return its lane, which may be a new one."""
        lane = self._lane(tier, tenant)
        lane.fresh[request_id] = joined_us
        return lane

    def add_returned(
        self, tier: Line, tenant: str, request_id: str, order: int, joined_us: int
    ) -> Lane:
        """Put a request that ran before ahead of all younger ones of its lane, and return that."""
        lane = self._lane(tier, tenant)
        insort(lane.returned, (order, request_id, joined_us))
        return lane

    def remove(self, tier: Line, tenant: str, request_id: str, order: int) -> None:
        """Take a request out.

        Raises:
            KeyError: it does not wait here.
        """
        of_tier = self.tiers[tier]
        lane = of_tier.lanes[tenant]
        if lane.fresh.pop(request_id, None) is None:
            at = bisect_left(lane.returned, (order, request_id, 0))
            if at == len(lane.returned) or lane.returned[at][:2] != (order, request_id):
                raise KeyError(request_id)
            del lane.returned[at]
        self.waiting -= 1
        of_tier.waiting -= 1
        if not lane:
            del of_tier.lanes[tenant]
            if lane.turn is not NO_TURN:
                of_tier.take_turn(lane)
        if of_tier.ages and of_tier.ages[0][1] == tenant:
            of_tier.true_age()

    def first(self, count: int) -> Iterator[str]:
        """Yield at most `count` ids in the order in which they are to run; held ones are not."""
        for of_tier in self.tiers.values():
            if not of_tier.turns:
                continue
            for request_id in of_tier.first(count):
                yield request_id
                count -= 1
            if count <= 0:
                return

    def head(self) -> str:
        """Return the id that would run next, held back or not.

        Raises:
            StopIteration: nothing waits.
        """
        head = next(self.first(1), None)
        if head is None:
            lanes = next(of_tier.lanes for of_tier in self.tiers.values() if of_tier.lanes)
            head = next(iter(next(iter(lanes.values()))))
        return head

    def _lane(self, tier: Line, tenant: str) -> Lane:
        of_tier = self.tiers[tier]
        self.waiting += 1
        of_tier.waiting += 1
        lane = of_tier.lanes.get(tenant)
        if lane is None:
            lane = of_tier.lanes[tenant] = Lane()
        return lane
