"""The work that one worker has read and not reported over: numbers, tiers, what is streamed. Pure.

Says what a heartbeat and a turn on a shared device need to know; decides nothing.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from schemas.bus import Work, WorkLeave
from schemas.policy import TIERS, Tier
from services.worker.commands import Command
from services.worker.engine import WorkKey

_RANKS = {tier: rank for rank, tier in enumerate(TIERS)}


class _Held(NamedTuple):
    """The dispatch number and the tier's rank of one attempt; 0 is the highest."""

    number: int
    rank: int


@dataclass(slots=True)
class HeldWork:
    """What the engine has, from its adding until its end was reported.

    Attributes:
        streamed: of which tokens are wanted one by one.
    """

    streamed: set[WorkKey] = field(default_factory=set[WorkKey])
    _held: dict[WorkKey, _Held] = field(default_factory=dict[WorkKey, _Held])

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self._held)

    def add(self, key: WorkKey, command: Work) -> None:
        """Note work that the engine was given."""
        self._held[key] = _Held(command.number, _RANKS[command.tier])
        if command.stream:
            self.streamed.add(key)

    def over(self, key: WorkKey) -> None:
        """Note that the end of work was reported."""
        self._held.pop(key, None)
        self.streamed.discard(key)

    @property
    def keys(self) -> list[WorkKey]:
        """All of it, in the order of adding."""
        return list(self._held)

    def leaving(self, incarnation: str) -> list[Command]:
        """Return what lets all of it leave, as cancelled by the life `incarnation`."""
        return [
            WorkLeave(id=key.id, attempt=key.attempt, incarnation=incarnation, cause="cancelled")
            for key in self._held
        ]

    def numbers(self, inbox: Iterable[Command]) -> list[int]:
        """Return the dispatch numbers of it, and of work that waits in the inbox."""
        waiting = [item.number for item in inbox if isinstance(item, Work)]
        return [*(held.number for held in self._held.values()), *waiting]

    def highest_tier(self, inbox: Iterable[Command]) -> Tier:
        """Return the highest tier of it, and of work in the inbox; the lowest if there is none."""
        waiting = (_RANKS[item.tier] for item in inbox if isinstance(item, Work))
        running = (held.rank for held in self._held.values())
        return TIERS[min((*running, *waiting), default=len(TIERS) - 1)]
