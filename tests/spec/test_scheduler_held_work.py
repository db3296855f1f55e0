"""Work that never reached its replica is found out by what the replica says that it holds."""

from schemas import decisions as d
from tests.spec.scheduler_story import a, arrived, cancel, given, heartbeat, ready, stopped


def test_work_that_a_replica_read_past_is_tried_again() -> None:
    story = given(ready(), arrived("a"), arrived("b"), arrived("c"))
    story.when(heartbeat(at=1, read=2, held=(2,))).then(
        a(
            d.AttemptLost,
            id="a",
            losses=1,
            why="replica m/0 read past it without taking it in",
        )
    )
    # c is still on its way, and b is held.
    assert list(story.state.models["m"].replicas[0].running) == ["b", "c"]


def test_work_on_its_way_is_not_taken_for_lost() -> None:
    story = given(ready(), arrived("a"), arrived("b"))
    story.when(heartbeat(at=1, read=0, held=()), heartbeat(at=2, read=1, held=(1,)))
    story.then_nothing()


def test_a_worker_that_does_not_tell_what_it_holds_is_believed() -> None:
    given(ready(), arrived("a")).when(heartbeat(at=1, read=5)).then_nothing()


def test_a_cancelled_request_that_never_reached_its_replica_ends() -> None:
    story = given(ready(), arrived("a"), cancel("a"))
    story.when(heartbeat(at=1, read=1, held=())).then(a(d.RequestEnded, outcome="cancelled"))


def test_the_dispatches_of_a_new_life_are_counted_anew() -> None:
    story = given(ready(), arrived("a"), stopped(), ready(life="L2"))
    story.when(arrived("b")).then(
        a(d.RequestQueued), a(d.RequestDispatched, number=1, incarnation="L2")
    )
