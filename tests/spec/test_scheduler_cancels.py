"""What a cancel does in each stage of a request."""

from schemas import decisions as d
from tests.spec.scheduler_story import (
    a,
    arrived,
    cancel,
    failed,
    finished,
    given,
    left,
    ready,
    stopped,
    tick,
    us,
)


def test_a_waiting_request_is_cancelled_at_once() -> None:
    given(arrived("a", at=1)).when(cancel("a", at=4)).then(
        a(
            d.RequestEnded,
            id="a",
            outcome="cancelled",
            reason="cancel-asked",
            detail="cancelled while waiting, with 0 tokens generated",
            attempts=0,
            slot=None,
            wait_us=3000,
            waits=(("no-replica", 3000),),
            run_us=0,
            e2e_us=3000,
            usage=None,
            output_offset=-1,
        )
    )


def test_a_running_request_is_asked_to_leave_and_keeps_its_blocks_until_it_has() -> None:
    story = given(ready(), arrived("a", at=1)).when(cancel("a", at=4))
    story.then(
        a(d.LeaveAsked, id="a", model="m", slot=0, incarnation="L1", attempt=1, cause="cancelled")
    )
    assert story.state.models["m"].replicas[0].blocks_used == 2
    story.when(left("a", at=6, output=5)).then(
        a(
            d.RequestEnded,
            outcome="cancelled",
            detail="cancelled while running, with 5 tokens generated",
            run_us=5000,
            output_offset=600,
            slot=0,
            attempts=1,
        )
    )
    assert story.state.models["m"].replicas[0].blocks_used == 0


def test_a_second_cancel_of_a_running_request_is_ignored() -> None:
    story = given(ready(), arrived("a"), cancel("a"))
    story.when(cancel("a")).then(a(d.CancelIgnored, id="a", why="already-asked"))


def test_a_request_in_back_off_is_cancelled_at_once() -> None:
    story = given(ready(), arrived("a", at=1), failed("a", at=5)).when(cancel("a", at=45))
    story.then(
        a(
            d.RequestEnded,
            outcome="cancelled",
            detail="cancelled while backoff, with 0 tokens generated",
            wait_us=40_000,
            waits=(("backoff", 40_000),),
            run_us=4000,
            e2e_us=44_000,
        )
    )
    story.when(tick(200)).then_nothing()


def test_a_cancelled_request_that_finished_first_is_completed() -> None:
    story = given(ready(), arrived("a"), cancel("a"))
    story.when(finished("a")).then(a(d.RequestEnded, outcome="completed"))


def test_a_cancelled_request_whose_replica_is_lost_is_not_tried_again() -> None:
    story = given(ready(), arrived("a"), cancel("a"))
    story.when(stopped()).then(
        a(d.ReplicaLost, running=1),
        a(d.RequestEnded, outcome="cancelled", usage=None),
    )


def test_a_cancelled_request_that_could_not_run_is_not_tried_again() -> None:
    story = given(ready(), arrived("a"), cancel("a"))
    story.when(failed("a")).then(a(d.RequestEnded, outcome="cancelled"))


def test_a_cancelled_request_that_is_preempted_first_ends_with_its_tokens() -> None:
    story = given(ready(), arrived("a"), cancel("a"))
    story.when(left("a", cause="preempted", output=9)).then(
        a(
            d.RequestEnded,
            outcome="cancelled",
            detail="cancelled while running, with 9 tokens generated",
            output_offset=600,
        )
    )


def test_a_cancel_of_an_ended_request_is_ignored() -> None:
    story = given(ready(), arrived("a"), finished("a"))
    story.when(cancel("a")).then(a(d.CancelIgnored, id="a", why="ended"))


def test_a_cancel_of_an_unknown_request_is_ignored_where_it_belongs() -> None:
    given().when(cancel("x")).then(a(d.CancelIgnored, id="x", why="unknown"))
    given().when(cancel("x", model=None)).then(a(d.CancelIgnored, why="unknown"))
    given(cell=2, cells=3).when(cancel("x")).then(a(d.CancelIgnored, why="unknown"))


def test_a_cancel_of_another_cells_model_is_routed_there() -> None:
    story = given(cell=0, cells=3).when(cancel("x", at=5))
    assert story.decisions == (
        d.RequestRouted(id="x", model="m", to_cell=2, arrived_us=us(5), offset=9),
    )


def test_a_cancel_without_a_model_is_sent_to_every_other_cell() -> None:
    given(cell=0, cells=3).when(cancel("x", model=None)).then(
        a(d.RequestRouted, id="x", model=None, to_cell=-1)
    )


def test_a_cancel_finds_the_request_even_when_it_names_no_model() -> None:
    given(arrived("a")).when(cancel("a", model=None)).then(a(d.RequestEnded, outcome="cancelled"))


def test_a_cancel_that_comes_before_its_request_does_not_stop_it() -> None:
    given(cancel("a")).when(arrived("a")).then(a(d.RequestQueued), a(d.QueueBlocked))
