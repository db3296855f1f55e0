"""Models on one device take turns by weight; one that was idle neither gains nor loses by it."""

from collections import Counter

from services.worker.turns import Replica, Turns

A, B, C = Replica("a", 0), Replica("b", 0), Replica("c", 0)


def taken(turns: Turns, weights: dict[Replica, int], count: int) -> str:
    return "".join(turns.next(weights).model for _ in range(count))


def test_equal_weights_alternate() -> None:
    assert taken(Turns(), {B: 1, A: 1}, 6) == "ababab"


def test_turns_are_spread_and_not_bunched() -> None:
    # Starts at weight 3: 0, 1/3, 2/3, 1 …; at 2: 0, 1/2, 1 …; at 1: 0, 1 ….
    assert taken(Turns(), {A: 3, B: 2, C: 1}, 12) == "abcabacbaaba"


def test_a_model_alone_has_every_turn() -> None:
    assert taken(Turns(), {B: 7}, 3) == "bbb"


def test_only_models_that_have_work_are_chosen() -> None:
    turns = Turns()
    assert taken(turns, {A: 9, B: 1}, 2) == "ab"
    assert taken(turns, {B: 1, C: 1}, 4) == "cbcb"


def test_a_model_that_was_idle_gains_no_credit() -> None:
    turns = Turns()
    taken(turns, {A: 1, B: 1}, 2)
    taken(turns, {A: 1}, 1_000)
    # It has the next turn, and not the next thousand.
    assert taken(turns, {A: 1, B: 1}, 6) == "bababa"


def test_a_model_that_comes_and_goes_has_no_more_than_its_share() -> None:
    turns, got = Turns(), Counter[str]()
    for turn in range(1_000):
        # b leaves after each of its turns, and is back at once.
        weights = {A: 9, B: 1} if turn % 2 else {A: 9, B: 1, C: 90}
        got[turns.next(weights).model] += 1
    assert got["b"] * 9 <= got["a"] + 9 + 1


def test_a_model_that_goes_idle_does_not_take_the_turns_of_one_that_stays() -> None:
    turns = Turns()
    order = ""
    for _ in range(200):
        order += taken(turns, {A: 9, B: 5, C: 1}, 1)
        order += taken(turns, {A: 9, C: 1}, 1)
    # Sum of the weights over its own, and a turn more for each other: 15 + 2.
    assert max(len(gap) for gap in order.split("c")) <= 17


def test_a_higher_weight_counts_from_the_next_turn_on() -> None:
    turns = Turns()
    # b has just had a turn at weight 1, and would wait for eight of a's.
    assert taken(turns, {A: 8, B: 1}, 3) == "aba"
    assert taken(turns, {A: 8, B: 64}, 8) == "bbbbbbbb"


def test_one_that_left_and_comes_again_begins_anew() -> None:
    turns = Turns()
    assert taken(turns, {A: 8, B: 1}, 2) == "ab"
    turns.forget(B)
    turns.forget(C)
    assert taken(turns, {A: 8, B: 1}, 2) == "ba"


def test_two_slots_of_one_model_take_turns_too() -> None:
    turns = Turns()
    first, second = Replica("m", 0), Replica("m", 1)
    assert [turns.next({first: 1, second: 1}).slot for _ in range(4)] == [0, 1, 0, 1]
