"""The waiting requests of one model: a lane per tier and tenant. Pure.

A lane is first in, first out, except that a request which ran before and came back stands ahead of
younger ones. Within a tier the tenants take turns: the lane that was served goes to the end. Every
operation costs the same at any depth but the walk over the first few, which its caller bounds.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

from schemas.policy import TIERS, Tier


@dataclass(slots=True)
class Lane:
    """The waiting requests of one tier and tenant.

    Attributes:
        returned: (order, id) of those that ran before, oldest first; never more than ran at once.
        fresh: ids in order of arrival. An OrderedDict, because a plain dict walks over the holes
            that its removed first keys leave.
    """

    returned: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    fresh: "OrderedDict[str, int]" = field(default_factory=OrderedDict[str, int])

    def __bool__(self) -> bool:
        return bool(self.fresh or self.returned)

    def __iter__(self) -> Iterator[str]:
        if not self.returned:
            return iter(self.fresh)
        return chain([request_id for _, request_id in self.returned], self.fresh)


Tenants = OrderedDict[str, Lane]


@dataclass(slots=True)
class Queue:
    """All waiting requests of one model; `tiers` stand in the order of their rank."""

    tiers: dict[Tier, Tenants] = field(
        default_factory=lambda: {tier: Tenants() for tier in TIERS},
    )
    waiting: int = 0

    def add(self, tier: Tier, tenant: str, request_id: str, order: int) -> None:
        """Append a request that arrived; `order` grows with each arrival."""
        self._lane(tier, tenant).fresh[request_id] = order
        self.waiting += 1

    def add_returned(self, tier: Tier, tenant: str, request_id: str, order: int) -> None:
        """Put a request that ran before ahead of all younger ones of its lane."""
        insort(self._lane(tier, tenant).returned, (order, request_id))
        self.waiting += 1

    def remove(self, tier: Tier, tenant: str, request_id: str, order: int) -> None:
        """Take a request out.

        Raises:
            KeyError: it does not wait here.
        """
        tenants = self.tiers[tier]
        lane = tenants[tenant]
        if lane.fresh.pop(request_id, None) is None:
            at = bisect_left(lane.returned, (order, request_id))
            if at == len(lane.returned) or lane.returned[at] != (order, request_id):
                raise KeyError(request_id)
            del lane.returned[at]
        self.waiting -= 1
        if not lane:
            del tenants[tenant]

    def served(self, tier: Tier, tenant: str) -> None:
        """Move the tenant behind the others of its tier, after one of its requests was taken."""
        tenants = self.tiers[tier]
        if tenant in tenants:
            tenants.move_to_end(tenant)

    def first(self, count: int) -> Iterator[str]:
        """Yield at most `count` ids in the order in which they are to run.

        Tiers come by rank. Within a tier the tenants give one request each, in turn, as often as
        needed. Costs O(count), whatever the depth and however many tenants.
        """
        for tenants in self.tiers.values():
            if not tenants:
                continue
            for request_id in _in_turn(tenants, count):
                yield request_id
                count -= 1
            if count <= 0:
                return

    def _lane(self, tier: Tier, tenant: str) -> Lane:
        tenants = self.tiers[tier]
        lane = tenants.get(tenant)
        if lane is None:
            lane = tenants[tenant] = Lane()
        return lane


def _in_turn(tenants: Tenants, count: int) -> Iterator[str]:
    if len(tenants) == 1:
        yield from islice(next(iter(tenants.values())), count)
        return
    lanes: list[Iterator[str]] = []
    # A lane is never empty, and most walks end at the first request: so the others are not begun.
    for lane in islice(tenants.values(), count):
        ids = iter(lane)
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
