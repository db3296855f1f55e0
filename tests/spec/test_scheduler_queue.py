"""The queue of one model on its own: its order, and that it keeps count."""

import pytest

from schemas.policy import Tier
from services.scheduler.queue import Queue


def filled(*items: tuple[Tier, str, str]) -> Queue:
    """Return a queue to which each (tier, tenant, id) was added at its place in the list, in µs."""
    queue = Queue()
    for joined_us, (tier, tenant, request_id) in enumerate(items):
        add(queue, tier, tenant, request_id, joined_us)
    return queue


def add(queue: Queue, tier: Tier, tenant: str, request_id: str, joined_us: int) -> None:
    lane = queue.add(tier, tenant, request_id, joined_us)
    if len(lane) == 1:
        queue.tiers[tier].give_turn(tenant, lane, 0)
        queue.tiers[tier].note_age(tenant, lane)


def test_no_more_than_asked_for_are_given() -> None:
    queue = filled(("normal", "x", "a"), ("normal", "x", "b"), ("batch", "x", "c"))
    assert list(queue.first(2)) == ["a", "b"]
    assert list(queue.first(3)) == ["a", "b", "c"]
    assert list(queue.first(9)) == ["a", "b", "c"]


def test_turns_go_on_after_a_tenant_has_nothing_left() -> None:
    queue = filled(("normal", "x", "x0"), ("normal", "y", "y0"), ("normal", "y", "y1"))
    assert list(queue.first(9)) == ["x0", "y0", "y1"]
    assert list(queue.first(2)) == ["x0", "y0"]
    assert list(queue.first(1)) == ["x0"]


def test_a_tenant_goes_behind_the_others_when_what_it_used_leads_to_another_round() -> None:
    queue = filled(("normal", "x", "x0"), ("normal", "x", "x1"), ("normal", "y", "y0"))
    queue.remove("normal", "x", "x0", 0)
    of_tier = queue.tiers["normal"]
    of_tier.move("x", 0)
    assert list(queue.first(9)) == ["x1", "y0"], "its round goes on"
    of_tier.move("x", 640)
    assert list(queue.first(9)) == ["y0", "x1"]
    of_tier.move("gone", 640)
    assert list(queue.first(9)) == ["y0", "x1"]


def test_those_that_came_back_stand_in_the_order_of_their_age() -> None:
    queue = filled(("normal", "x", "f"))
    for order, name in ((7, "r7"), (3, "r3"), (5, "r5")):
        queue.add_returned("normal", "x", name, order, 50)
    assert list(queue.first(9)) == ["r3", "r5", "r7", "f"]
    queue.remove("normal", "x", "r5", 5)
    assert list(queue.first(9)) == ["r3", "r7", "f"]
    assert queue.waiting == 3


def test_an_empty_lane_is_not_kept() -> None:
    queue = filled(("normal", "x", "a"))
    queue.remove("normal", "x", "a", 0)
    of_tier = queue.tiers["normal"]
    assert not of_tier.lanes
    assert not of_tier.turns
    assert not of_tier.ages
    assert queue.waiting == of_tier.waiting == 0


@pytest.mark.parametrize(("request_id", "order"), [("b", 0), ("a2", 2), ("r", 2), ("r", 9)])
def test_what_does_not_wait_cannot_be_taken_out(request_id: str, order: int) -> None:
    queue = filled(("normal", "x", "a"))
    queue.add_returned("normal", "x", "r", 1, 50)
    with pytest.raises(KeyError, match=request_id):
        queue.remove("normal", "x", request_id, order)
    assert queue.waiting == 2


def test_turns_stop_where_the_count_ends_in_any_round() -> None:
    queue = filled(*[("normal", name[0], name) for name in ("x0", "y0", "x1", "y1")])  # pyright: ignore[reportArgumentType] - a tier is a literal
    assert [list(queue.first(count)) for count in (1, 2, 3, 4)] == [
        ["x0"],
        ["x0", "y0"],
        ["x0", "y0", "x1"],
        ["x0", "y0", "x1", "y1"],
    ]


def test_the_oldest_of_a_tier_is_known_whoever_leaves() -> None:
    queue = filled(("normal", "x", "x0"), ("normal", "y", "y0"), ("normal", "x", "x1"))
    of_tier = queue.tiers["normal"]
    assert of_tier.oldest_us == 0
    queue.remove("normal", "y", "y0", 0)
    assert of_tier.oldest_us == 0
    queue.remove("normal", "x", "x0", 0)
    assert of_tier.oldest_us == 2
    queue.add_returned("normal", "x", "r", 0, 9)
    assert of_tier.oldest_us == 2
    queue.remove("normal", "x", "x1", 0)
    assert of_tier.oldest_us == 9
    queue.remove("normal", "x", "r", 0)
    assert of_tier.oldest_us is None


def test_the_ages_of_tenants_that_come_and_go_are_not_kept() -> None:
    queue = filled(("normal", "old", "o"))
    for number in range(1, 1000):
        add(queue, "normal", "y", f"y{number}", number)
        queue.remove("normal", "y", f"y{number}", 0)
    assert len(queue.tiers["normal"].ages) <= 64 + 2 * 2
    assert queue.tiers["normal"].oldest_us == 0


def test_the_head_of_a_queue_in_which_all_are_held_back_is_named_too() -> None:
    queue = filled(("batch", "x", "a"))
    of_tier = queue.tiers["batch"]
    of_tier.take_turn(of_tier.lanes["x"])
    assert list(queue.first(1)) == []
    assert queue.head() == "a"
