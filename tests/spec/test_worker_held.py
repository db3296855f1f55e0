"""What a worker holds: told in heartbeats by its numbers, and in turns by its highest tier."""

from typing import Any

from schemas.bus import Work, WorkLeave
from schemas.policy import Tier
from services.worker.engine import WorkKey
from services.worker.held import HeldWork


def work(request_id: str, tier: Tier = "normal", **fields: Any) -> Work:
    values: dict[str, Any] = {"number": 1, "stream": False} | fields
    return Work(
        id=request_id,
        attempt=1,
        incarnation="i",
        model="m",
        tenant="t",
        tier=tier,
        prompt="hello",
        messages=None,
        prompt_tokens=2,
        max_output_tokens=4,
        temperature=0.0,
        seed=0,
        blocks=1,
        **values,
    )


def test_the_highest_tier_is_that_of_all_work_running_or_waiting_to_join() -> None:
    held = HeldWork()
    assert held.highest_tier([]) == "batch"
    held.add(WorkKey("a", 1), work("a", "normal"))
    held.add(WorkKey("b", 1), work("b", "critical"))
    assert held.highest_tier([]) == "critical"
    leave = WorkLeave(id="a", attempt=1, incarnation="i", cause="cancelled")
    assert held.highest_tier([leave, work("c", "realtime")]) == "realtime"
    held.over(WorkKey("b", 1))
    assert held.highest_tier([leave]) == "normal"


def test_numbers_are_those_of_what_the_engine_has_and_of_what_waits_for_it() -> None:
    held = HeldWork()
    assert not held
    held.add(WorkKey("a", 1), work("a", number=4))
    assert held
    assert held.numbers([work("b", number=7)]) == [4, 7]
    held.over(WorkKey("a", 1))
    held.over(WorkKey("never-seen", 1))
    assert held.numbers([]) == []


def test_only_work_that_asks_for_it_is_streamed_and_no_longer_than_it_runs() -> None:
    held = HeldWork()
    held.add(WorkKey("a", 1), work("a", stream=True))
    held.add(WorkKey("b", 1), work("b"))
    assert held.streamed == {WorkKey("a", 1)}
    held.over(WorkKey("a", 1))
    assert held.streamed == set()


def test_a_life_that_ends_lets_all_of_its_work_leave() -> None:
    held = HeldWork()
    held.add(WorkKey("a", 1), work("a"))
    held.add(WorkKey("b", 2), work("b"))
    assert held.keys == [WorkKey("a", 1), WorkKey("b", 2)]
    assert held.leaving("old") == [
        WorkLeave(id="a", attempt=1, incarnation="old", cause="cancelled"),
        WorkLeave(id="b", attempt=2, incarnation="old", cause="cancelled"),
    ]
