"""The clock of a ledger: it follows the wall clock, never stands still, and never goes back.

Facts are stamped with it, once. A wall clock that is set back would freeze every back-off, deadline
and loss until it had caught up; so this one goes on by the monotonic clock, a tenth more slowly,
until the two agree again. The broker's stamps are taken by the same wall clock (clocks of one
deployment are kept together), so they are moved by as much before they are compared.
"""

import time
from collections.abc import Callable

# One part in so many is left out while this clock is ahead of the wall clock.
_SLEW_PARTS = 10


class LedgerClock:
    """Gives µs since 1970.

    Args:
        wall_ns: the wall clock.
        monotonic_ns: a clock that is never set.
    """

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._read_ns = monotonic_ns()
        self._now_ns = wall_ns()
        self.ahead_us = 0

    def go_on_from(self, stamp_us: int) -> None:
        """Go on from the last stamp of the ledger, if the wall clock stands before it."""
        self._now_ns = max(self._now_ns, stamp_us * 1000)

    def now_us(self) -> int:
        """Return the time now; `ahead_us` then tells by how much it is ahead of the wall clock."""
        read_ns, wall_ns = self._monotonic_ns(), self._wall_ns()
        passed_ns = read_ns - self._read_ns
        self._read_ns = read_ns
        slowed_ns = self._now_ns + passed_ns - passed_ns // _SLEW_PARTS
        self._now_ns = max(wall_ns, slowed_ns)
        self.ahead_us = (self._now_ns - wall_ns) // 1000
        return self._now_ns // 1000
