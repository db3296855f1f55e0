"""Who is asked to leave where several wait: starved, behind others, beside claims, by replica."""

from dataclasses import replace

from schemas import decisions as d
from tests.spec.scheduler_story import (
    a,
    arrived,
    asked,
    dispatched,
    finished,
    given,
    left,
    policy_is,
    ready,
    tick,
    with_policy,
)

QUEUED = a(d.RequestQueued)


def test_a_starved_one_gets_the_place_and_the_higher_one_asks_for_another() -> None:
    story = given(
        ready(batch=2),
        arrived("n0"),
        arrived("n1"),
        policy=with_policy(starvation_cap_ms=10),
    )
    story.when(arrived("b", at=1, tier="batch"))
    assert asked(story.when(arrived("r", at=2, tier="realtime"))) == ["n1"]
    # "b" has waited for its cap, but nobody leaves for the lowest tier; and one leaves for "r". It
    # lacks a place and no KV, so no room is kept for it.
    story.when(tick(12)).then_nothing()
    story.when(left("n1", at=13, cause="preempted", output=5))
    assert dispatched(story) == ["b"]
    assert asked(story) == ["n0"]


def test_of_those_that_join_behind_full_replicas_only_one_for_whom_others_may_leave_is_tried() -> (
    None
):
    story = given(ready(batch=1), arrived("n"), arrived("waits"))
    story.when(arrived("same", at=1)).then(QUEUED)
    story.when(arrived("lower", at=2, tier="batch")).then(QUEUED)
    assert asked(story.when(arrived("higher", at=3, tier="critical"))) == ["n"]
    # The place that "n" gives up is claimed already.
    assert asked(story.when(arrived("next", at=4, tier="critical"))) == []


def test_who_leaves_runs_on_the_replica_that_has_somebody_to_leave() -> None:
    story = given(
        ready(0, batch=1), ready(1, batch=1), arrived("r0", tier="realtime"), arrived("n")
    )
    assert story.state.requests["n"].slot == 1
    assert asked(story.when(arrived("r1", at=1, tier="realtime"))) == ["n"]


def test_one_that_joins_behind_as_many_as_are_looked_at_is_not_tried_whoever_sent_it() -> None:
    story = given(
        ready(batch=2), arrived("n0"), arrived("n1"), policy=with_policy(look_ahead_requests=1)
    )
    assert asked(story.when(arrived("c1", at=1, tier="critical", tenant="x"))) == ["n1"]
    assert asked(story.when(arrived("c2", at=2, tier="critical", tenant="y"))) == []


def test_a_policy_that_lets_work_leave_more_often_holds_for_what_runs_already() -> None:
    story = given(ready(batch=1), arrived("b", tier="batch"), policy=with_policy(preemptions_max=0))
    assert asked(story.when(arrived("r", at=1, tier="realtime"))) == []
    assert asked(story.when(policy_is(with_policy(version=2, preemptions_max=5), at=2))) == ["b"]


def test_a_policy_that_lets_work_leave_less_often_holds_for_what_runs_already() -> None:
    story = given(ready(batch=1), arrived("b", tier="batch"))
    story.when(policy_is(with_policy(version=2, preemptions_max=0), at=1))
    assert asked(story.when(arrived("r", at=2, tier="realtime"))) == []


def test_reports_about_several_requests_are_answered_in_their_order() -> None:
    story = given(ready(batch=3), *(arrived(name) for name in "abc"))
    one = finished("a", "b", "c", at=1)
    story.when(replace(one, items=(*one.items, one.items[0])))
    ended = [item.id for item in story.decisions if isinstance(item, d.RequestEnded)]
    assert ended == ["a", "b", "c"]
