"""What one tenant has waiting, running and used up of one model. Pure data and its arithmetic.

Used by evolve only. Nothing here grows while a tenant is idle: what it might have saved up is lost,
what it owes is not, or a tenant could pay its debt by pausing. A debt is bounded by the requests
that ran at once, and is over when the others have used as much.
"""

from dataclasses import dataclass, field

from services.scheduler.queue import LINES, RANKS, Line, TierQueue

# Fractions of a cost unit, so that a weight of thousands still divides a small cost.
COST_SCALE = 1 << 16
MINUTE_US = 60_000_000


def _zeros() -> list[int]:
    return [0] * len(LINES)


@dataclass(slots=True)
class Account:
    """One tenant of one model.

    Attributes:
        waiting, waiting_tokens, running: its requests, and the tokens that those waiting ask for.
        held: whether it has as many running as it may, so that its lanes take no turns.
        refusals: in a row, up to the last request that was accepted.
        minute_until_us: when the tokens that it took of its minute will have come back.
        paid: by the line's rank, what it has used over its weight, in cost units × COST_SCALE.
        rounds: by the line's rank, the start of the round that `paid` lies in.
    """

    waiting: int = 0
    waiting_tokens: int = 0
    running: int = 0
    held: bool = False
    refusals: int = 0
    minute_until_us: int = 0
    paid: list[int] = field(default_factory=_zeros)
    rounds: list[int] = field(default_factory=_zeros)

    def enter(self, of_tier: TierQueue, rank: int) -> int:
        """Return the round in which a lane begins to take turns; earlier ones are not saved up."""
        self.paid[rank] = max(self.paid[rank], of_tier.clock)
        self.rounds[rank] = max(self.rounds[rank], of_tier.clock)
        return self.rounds[rank]

    def charge(  # noqa: PLR0917 - it is what a dispatch says, in its order
        self, of_tier: TierQueue, line: Line, tenant: str, cost: int, weight: int, quantum: int
    ) -> None:
        """Count `cost` units, or give them back when negative, and move the lane accordingly."""
        rank = RANKS[line]
        paid = self.paid[rank] + cost * COST_SCALE // weight
        self.paid[rank] = paid
        self.rounds[rank] = round_start = paid - paid % (quantum * COST_SCALE)
        of_tier.move(tenant, round_start)

    def take_minute(self, taken_us: int, now_us: int) -> None:
        """Take a part of the minute's tokens, stated in the time in which they come back."""
        self.minute_until_us = max(self.minute_until_us, now_us) + taken_us

    def give_minute_back(self, unused_us: int) -> None:
        """Give back what was taken for tokens that were not used."""
        self.minute_until_us -= unused_us
