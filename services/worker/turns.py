"""Whose iteration is next on a device that several models share. Pure: no clock, no bus, no torch.

Weighted round robin, by start-time fair queueing (Goyal, Vin and Cheng 1996) with one iteration as
the unit of service, however long it takes. A virtual clock runs over the turns: a model's next turn
starts at its last one's start plus TURN over its weight, but never before the clock, and the
earliest start is next; the clock stands where the latest turn started.

So a model that was idle starts at the clock: it gains no credit. What holds, however models and
their work come and go, of any two that have work over a stretch of turns: their turns, each divided
by its model's weight, differ by at most 1/w + 1/v. Of a model that has work and weight w, another
of weight v takes at most v/w + 1 turns before it has its own: it never waits longer than the sum of
the weights over its own, and one turn more for each other model. (The sum over its own weight
alone cannot be promised: of weights 3, 2 and 1, turns every 2, 3 and 6 at the most fit into no
order.)

Plain smooth round robin by credits was tried on paper first: a credit that is lost when its model
goes idle leaves the others in debt, so a model that comes and goes could freeze one that stays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lcm
from typing import Final, NamedTuple

HOSTED_MAX: Final = 4
"""Models that one device hosts at most."""

TURN: Final = lcm(*range(1, 101)) ** 2
"""What a turn of weight 1 takes on the virtual clock. Whole numbers, so that nothing drifts; any
product of two weights up to 100 divides it, so those of the policy are kept exactly."""


class Replica(NamedTuple):
    """Which replica a device hosts."""

    model: str
    slot: int


class _Last(NamedTuple):
    """Where a model's last turn started on the virtual clock, and which turn of all it was."""

    start: int
    number: int


_NEVER: Final = _Last(-TURN, -1)


@dataclass(slots=True)
class Turns:
    """The turns taken so far, as far as they bear on the next."""

    _clock: int = 0
    _count: int = 0
    _last: dict[Replica, _Last] = field(default_factory=dict[Replica, _Last])

    def next(self, weights: Mapping[Replica, int]) -> Replica:
        """Return whose turn it is, and count it as taken; of equals, who waits the longest.

        Args:
            weights: of those that have work, at least one, each 1 or more. They may be others each
                time: a weight counts from the turn on at which it is told.
        """
        start, _, chosen = min(
            (max(self._clock, start + TURN // weights[replica]), number, replica)
            for replica in weights
            for start, number in [self._last.get(replica, _NEVER)]
        )
        self._clock = start
        self._last[chosen] = _Last(start, self._count)
        self._count += 1
        return chosen

    def forget(self, replica: Replica) -> None:
        """Drop one that is no longer hosted."""
        self._last.pop(replica, None)
