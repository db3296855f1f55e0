"""The queue of one model on its own: its order, and that it keeps count."""

import pytest

from schemas.policy import Tier
from services.scheduler.queue import Queue


def filled(*items: tuple[Tier, str, str]) -> Queue:
    queue = Queue()
    for order, (tier, tenant, request_id) in enumerate(items):
        queue.add(tier, tenant, request_id, order)
    return queue


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


def test_the_tenant_that_was_served_goes_behind_the_others() -> None:
    queue = filled(("normal", "x", "x0"), ("normal", "x", "x1"), ("normal", "y", "y0"))
    queue.remove("normal", "x", "x0", 0)
    queue.served("normal", "x")
    assert list(queue.first(9)) == ["y0", "x1"]
    queue.served("normal", "gone")
    assert list(queue.first(9)) == ["y0", "x1"]


def test_those_that_came_back_stand_in_the_order_of_their_age() -> None:
    queue = filled(("normal", "x", "f"))
    for order, name in ((7, "r7"), (3, "r3"), (5, "r5")):
        queue.add_returned("normal", "x", name, order)
    assert list(queue.first(9)) == ["r3", "r5", "r7", "f"]
    queue.remove("normal", "x", "r5", 5)
    assert list(queue.first(9)) == ["r3", "r7", "f"]
    assert queue.waiting == 3


def test_an_empty_lane_is_not_kept() -> None:
    queue = filled(("normal", "x", "a"))
    queue.remove("normal", "x", "a", 0)
    assert queue == Queue()


@pytest.mark.parametrize(("request_id", "order"), [("b", 0), ("a2", 2), ("r", 2), ("r", 9)])
def test_what_does_not_wait_cannot_be_taken_out(request_id: str, order: int) -> None:
    queue = filled(("normal", "x", "a"))
    queue.add_returned("normal", "x", "r", 1)
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
