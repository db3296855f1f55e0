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
from typing import Final, NamedTuple

HOSTED_MAX: Final = 4
"""Models that one device hosts at most."""

TURN: Final = 2**64
"""What a turn of weight 1 takes on the virtual clock: whole numbers, so that nothing drifts."""


class Replica(NamedTuple):
    """Which replica a device hosts."""

    model: str
    slot: int


@dataclass(slots=True)
class Turns:
    """The turns taken so far, as far as they bear on the next."""

    _clock: int = 0
    _last: dict[Replica, int] = field(default_factory=dict[Replica, int])

    def next(self, weights: Mapping[Replica, int]) -> Replica:
        """Return whose turn it is, and count it as taken.

        Args:
            weights: of those that have work, at least one, each 1 or more. They may be others each
                time: a weight counts from the turn on at which it is told.
        """
        start, _, chosen = min(
            (self._start(replica, weight), self._last.get(replica, -1), replica)
            for replica, weight in weights.items()
        )
        self._clock = self._last[chosen] = start
        return chosen

    def forget(self, replica: Replica) -> None:
        """Drop one that is no longer hosted."""
        self._last.pop(replica, None)

    def _start(self, replica: Replica, weight: int) -> int:
        last = self._last.get(replica)
        return self._clock if last is None else max(self._clock, last + TURN // weight)
