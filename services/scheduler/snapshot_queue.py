"""A model's queue and its tenants' accounts as plain values, and back. Pure; part of the snapshot.

Stored is what the order rests on; what follows from it (the sorted turns, the heap of ages, the
counts) is made anew.
"""

from collections import OrderedDict
from dataclasses import fields
from typing import Any

from services.scheduler.accounts import Account
from services.scheduler.queue import LINES, NO_TURN, Lane, TierQueue
from services.scheduler.state import Model

_ACCOUNT_FIELDS = tuple(
    field.name for field in fields(Account) if field.name not in {"paid", "rounds"}
)
_LANE_FIELDS = tuple(
    field.name for field in fields(Lane) if field.name not in {"fresh", "returned"}
)
_TIER_FIELDS = ("clock", "turn_next", "cause", "cause_since_us", "totals_us")


def freeze(model: Model) -> list[Any]:
    """Return the content of queue and accounts as values that no later step changes."""
    queue = model.queue
    return [
        queue.since_starved,
        [
            [
                [getattr(queue.tiers[tier], name) for name in _TIER_FIELDS],
                [
                    [
                        tenant,
                        list(lane.returned),
                        list(lane.fresh.items()),
                        [getattr(lane, name) for name in _LANE_FIELDS],
                    ]
                    for tenant, lane in queue.tiers[tier].lanes.items()
                ],
            ]
            for tier in LINES
        ],
        [
            [
                tenant,
                [getattr(account, name) for name in _ACCOUNT_FIELDS],
                list(account.paid),
                list(account.rounds),
            ]
            for tenant, account in model.accounts.items()
        ],
        list(model.idle),
    ]


def thaw(model: Model, stored: list[Any]) -> None:
    """Fill the queue and the accounts of a new model with what `freeze` gave."""
    queue = model.queue
    since_starved, tiers, accounts, idle = stored
    queue.since_starved = since_starved
    for tier, (values, lanes) in zip(LINES, tiers, strict=True):
        of_tier = queue.tiers[tier]
        for name, value in zip(_TIER_FIELDS, values, strict=True):
            setattr(of_tier, name, value)
        of_tier.totals_us = tuple(of_tier.totals_us)
        for tenant, returned, fresh, more in lanes:
            _thaw_lane(of_tier, tenant, returned, fresh, more)
        of_tier.turns.sort()
        of_tier.rebuild_ages()
        queue.waiting += of_tier.waiting
    for tenant, values, paid, rounds in accounts:
        account = Account(paid=paid, rounds=rounds)
        for name, value in zip(_ACCOUNT_FIELDS, values, strict=True):
            setattr(account, name, value)
        model.accounts[tenant] = account
    model.idle = OrderedDict.fromkeys(idle)


def _thaw_lane(
    of_tier: TierQueue, tenant: str, returned: list[Any], fresh: list[Any], more: list[Any]
) -> None:
    lane = Lane([(order, key, joined_us) for order, key, joined_us in returned], OrderedDict(fresh))
    for name, value in zip(_LANE_FIELDS, more, strict=True):
        setattr(lane, name, value)
    lane.frozen_us = tuple(lane.frozen_us)
    lane.shift_us = None if lane.shift_us is None else tuple(lane.shift_us)
    round_start, number, name = lane.turn
    lane.turn = NO_TURN if number < 0 else (round_start, number, name)
    of_tier.lanes[tenant] = lane
    of_tier.waiting += len(lane)
    if lane.turn is not NO_TURN:
        of_tier.turns.append(lane.turn)
