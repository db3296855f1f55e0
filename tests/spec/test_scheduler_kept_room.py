"""Room that is kept for a large request is used by it, and never stands empty for good."""

from schemas import decisions as d
from schemas.policy import Override
from tests.spec.scheduler_story import (
    a,
    arrived,
    asked,
    cancel,
    dispatched,
    finished,
    given,
    heartbeat,
    ready,
    with_policy,
)


def test_the_one_for_which_room_is_kept_gets_it_however_many_stand_ahead() -> None:
    story = given(ready(), arrived("a", tenant="t0"))
    story.when(arrived("big", tenant="t0", prompt=140, output=16, at=1))
    story.when(arrived("c", tenant="t0", at=2600)).then(a(d.RequestQueued), a(d.RoomKept, id="big"))
    # Their tenants have used nothing yet, so all of them stand ahead of "big".
    others = [arrived(f"o{n}", tenant=f"t{n}", at=2700 + n) for n in range(1, 9)]
    assert dispatched(story.when(*others)) == []
    assert dispatched(story.when(finished("a", at=3000))) == ["big"]


def test_past_its_cap_it_gets_the_room_though_a_higher_tier_fills_the_look_ahead() -> None:
    story = given(ready(batch=2), arrived("x", tier="realtime", prompt=140))
    story.when(arrived("n1", at=1), arrived("r1", at=5002, tier="realtime"))
    # One that had starved goes first, so the next that starves may not yet.
    assert dispatched(story.when(finished("x", at=5100))) == ["n1", "r1"]
    story.when(arrived("big", prompt=140, at=5200), finished("r1", at=5300))
    story.when(heartbeat(at=7000), arrived("n3", at=7800), heartbeat(at=9000))
    story.when(*[arrived(f"h{n}", tier="realtime", at=10_300 + n) for n in range(8)])
    story.when(finished("n1", at=10_400))
    assert "big" in story.state.models["m"].replicas[0].running


def test_room_binds_nobody_while_the_tenant_of_the_one_it_is_kept_for_is_held_back() -> None:
    one = Override(tenant="t", key="quota_running_requests", value=1)
    story = given(ready(), arrived("a", tenant="u"), policy=with_policy(overrides=(one,)))
    story.when(arrived("big", tenant="t", prompt=140, at=1))
    story.when(arrived("b", tenant="u", at=2600)).then(a(d.RequestQueued), a(d.RoomKept, id="big"))
    urgent = arrived("rt", tenant="t", tier="realtime", prompt=16, output=16, at=2700)
    # "rt" may have the room as one of a higher tier; with it the tenant has all it may.
    assert dispatched(story.when(urgent)) == ["rt", "b"]


def test_what_a_cancelled_one_gives_up_makes_it_worth_asking_another_to_leave_at_once() -> None:
    story = given(ready(), arrived("n", tier="realtime", prompt=64))
    story.when(arrived("c", tier="critical", prompt=32, at=1))
    # Eight blocks: "c" alone would not be enough.
    assert asked(story.when(arrived("rt", tier="realtime", prompt=112, at=2))) == []
    assert asked(story.when(cancel("n", at=3))) == ["c"]
