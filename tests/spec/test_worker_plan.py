"""The plan of one iteration, from plain data."""

import pytest

from services.worker.engine import WorkKey
from services.worker.plan import Bounds, Chunk, Running, Waiting, plan_step

BOUNDS = Bounds(max_batch=3, prefill_tokens=10)


def key(name: str) -> WorkKey:
    return WorkKey(name, 1)


def test_nothing_waiting_and_nothing_running_is_an_empty_plan() -> None:
    plan = plan_step(BOUNDS, [], [], 5)
    assert (plan.leave, plan.join, plan.prefill, plan.decode) == ((), (), (), ())


def test_decoding_goes_on_while_a_joiners_prompt_advances_by_the_budget() -> None:
    plan = plan_step(BOUNDS, [Waiting(key("new"), 2, 25)], [Running(key("old"), 1, 0)], 5)
    assert plan.decode == (key("old"),)
    assert plan.join == (key("new"),)
    assert plan.prefill == (Chunk(key("new"), 10, last=False),)


def test_the_oldest_prompt_comes_first_and_the_rest_of_the_budget_goes_on() -> None:
    running = [Running(key("a"), 1, 4), Running(key("b"), 1, 25)]
    plan = plan_step(BOUNDS, [], running, 0)
    assert plan.prefill == (Chunk(key("a"), 4, last=True), Chunk(key("b"), 6, last=False))


def test_patient_prompts_advance_by_an_eighth_of_the_budget_together() -> None:
    bounds = Bounds(max_batch=8, prefill_tokens=256)
    waiting = [Waiting(key(name), 2, 20, patient=True) for name in "abc"]
    plan = plan_step(bounds, waiting, [Running(key("old"), 1, 0)], 9)
    assert plan.join == (key("a"), key("b"), key("c"))
    assert plan.prefill == (Chunk(key("a"), 20, last=True), Chunk(key("b"), 12, last=False))
    assert plan.decode == (key("old"),)


def test_patient_work_rests_while_the_prompt_of_another_advances() -> None:
    bounds = Bounds(max_batch=8, prefill_tokens=256)
    running = [
        Running(key("patient prompt"), 9, 100, patient=True),
        Running(key("patient decode"), 9, 0, patient=True),
        Running(key("old"), 1, 0),
    ]
    plan = plan_step(bounds, [Waiting(key("fast"), 2, 20)], running, 9, rests=2)
    assert plan.prefill == (Chunk(key("fast"), 20, last=True),)
    assert plan.decode == (key("old"),)
    assert plan.rests


def test_patient_work_has_its_turn_when_it_has_rested_for_long() -> None:
    bounds = Bounds(max_batch=8, prefill_tokens=256)
    running = [
        Running(key("patient prompt"), 9, 100, patient=True),
        Running(key("patient decode"), 9, 0, patient=True),
    ]
    plan = plan_step(bounds, [Waiting(key("fast"), 2, 20)], running, 9, rests=3)
    assert plan.prefill == (
        Chunk(key("fast"), 20, last=True),
        Chunk(key("patient prompt"), 32, last=False),
    )
    assert plan.decode == (key("patient decode"),)
    assert not plan.rests


def test_nobody_rests_where_no_prompt_but_patient_ones_advance() -> None:
    running = [Running(key("patient"), 9, 0, patient=True), Running(key("old"), 1, 0)]
    plan = plan_step(BOUNDS, [Waiting(key("other"), 2, 20, patient=True)], running, 9)
    assert plan.decode == (key("old"), key("patient"))
    assert not plan.rests


def test_a_budget_of_one_token_is_the_patient_prompts_in_its_turn() -> None:
    running = [Running(key("fast"), 1, 25), Running(key("patient"), 9, 100, patient=True)]
    bounds = Bounds(max_batch=3, prefill_tokens=1)
    plans = [plan_step(bounds, [], running, 9, rests) for rests in range(4)]
    advanced = [[chunk.key for chunk in plan.prefill] for plan in plans]
    assert advanced == [[key("fast")]] * 3 + [[key("patient")]]


def test_a_patient_prompt_advances_by_one_token_at_least() -> None:
    running = [Running(key("fast"), 1, 25), Running(key("patient"), 9, 100, patient=True)]
    plan = plan_step(BOUNDS, [], running, 9, rests=3)
    assert plan.prefill == (
        Chunk(key("fast"), 9, last=False),
        Chunk(key("patient"), 1, last=False),
    )


def test_a_leavers_blocks_and_place_serve_a_joiner_of_the_same_step() -> None:
    running = [Running(key(name), 4, 0, leaving=name == "b") for name in "abc"]
    plan = plan_step(BOUNDS, [Waiting(key("d"), 4, 1)], running, 0)
    assert plan.leave == (key("b"),)
    assert plan.join == (key("d"),)
    assert plan.decode == (key("a"), key("c"))


def test_a_waiting_request_that_leaves_never_joins() -> None:
    plan = plan_step(BOUNDS, [Waiting(key("a"), 1, 1, leaving=True)], [], 5)
    assert (plan.leave, plan.join) == ((key("a"),), ())


def test_a_first_in_line_that_does_not_fit_is_not_overtaken() -> None:
    waiting = [Waiting(key("large"), 6, 1), Waiting(key("small"), 1, 1)]
    assert plan_step(BOUNDS, waiting, [], 5).join == ()
    assert plan_step(BOUNDS, waiting, [], 7).join == (key("large"), key("small"))


def test_the_batch_bound_holds() -> None:
    waiting = [Waiting(key(str(number)), 1, 1) for number in range(9)]
    assert len(plan_step(BOUNDS, waiting, [], 100).join) == 3


@pytest.mark.parametrize("bounds", [(0, 1), (1, 0), (-1, 5)])
def test_bounds_under_which_nothing_advances_are_refused(bounds: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        Bounds(*bounds)
