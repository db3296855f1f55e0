"""Which tier runs next: the higher one, unless another has waited past its starvation cap."""

from schemas import decisions as d
from schemas.policy import Override
from services.scheduler.step import next_due_us
from tests.spec.scheduler_story import (
    Story,
    a,
    arrived,
    cancel,
    draining,
    finished,
    given,
    policy_is,
    ready,
    stopped,
    tick,
    with_policy,
)


def busy(*, cap_ms: int = 50, share_pct: int = 25, count: int = 12) -> Story:
    """Return a story with one running request, realtime ones at 0 ms and two of batch at 0 ms."""
    policy = with_policy(
        starvation_cap_ms=5000,
        starved_share_pct=share_pct,
        overrides=(Override(tier="batch", key="starvation_cap_ms", value=cap_ms),),
    )
    return given(
        ready(batch=1),
        arrived("runs"),
        *[arrived(f"r{n}", tier="realtime") for n in range(count)],
        *[arrived(f"b{n}", tier="batch") for n in range(2)],
        policy=policy,
    )


def drain(story: Story, at: float, first: str, count: int) -> list[str]:
    """Return the ids in the order in which they run when each one ends 1 ms after it began."""
    order: list[str] = []
    running = first
    for step in range(count):
        story.when(finished(running, at=at + step))
        (dispatch,) = [x for x in story.decisions if isinstance(x, d.RequestDispatched)]
        running = dispatch.id
        order.append(running)
    return order


def test_below_its_cap_a_lower_tier_waits_for_the_higher_one() -> None:
    assert drain(busy(), 10, "runs", 5) == ["r0", "r1", "r2", "r3", "r4"]


def test_past_its_cap_a_request_runs_next_whatever_stands_above_it() -> None:
    story = busy()
    story.when(finished("runs", at=50)).then(
        a(d.RequestEnded), a(d.RequestDispatched, id="b0", starved=True)
    )


def test_those_past_their_cap_get_their_share_and_no_more() -> None:
    assert drain(busy(), 60, "runs", 6) == ["b0", "r0", "r1", "r2", "b1", "r3"]
    assert drain(busy(share_pct=50), 60, "runs", 4) == ["b0", "r0", "b1", "r1"]
    assert drain(busy(share_pct=100), 60, "runs", 3) == ["b0", "b1", "r0"]


def test_the_one_whose_cap_passed_first_goes_first() -> None:
    policy = with_policy(
        starved_share_pct=100,
        overrides=(
            Override(tier="batch", key="starvation_cap_ms", value=10),
            Override(tier="normal", key="starvation_cap_ms", value=100),
        ),
    )
    story = given(
        ready(batch=1),
        arrived("runs"),
        arrived("n", tier="normal", at=0),
        arrived("b", tier="batch", at=50),
        arrived("r", tier="realtime", at=51),
        policy=policy,
    )
    # Of "b" it passed at 60 ms, of "n" at 100 ms.
    assert drain(story, 110, "runs", 3) == ["b", "n", "r"]


def test_a_higher_tier_that_is_past_its_own_cap_keeps_its_place() -> None:
    policy = with_policy(starvation_cap_ms=10)
    story = given(
        ready(batch=1),
        arrived("runs"),
        arrived("r", tier="realtime", at=1),
        arrived("b", tier="batch", at=2),
        policy=policy,
    )
    story.when(finished("runs", at=100)).then(
        a(d.RequestEnded), a(d.RequestDispatched, id="r", starved=False)
    )


def test_a_cap_that_passes_lets_what_fits_run_without_any_other_fact() -> None:
    policy = with_policy(look_ahead_requests=1, replica_lost_ms=60_000)
    story = given(
        ready(blocks=10, batch=8),
        arrived("runs", prompt=40, output=40),
        arrived("more", at=1, prompt=40, output=40),
        arrived("small", at=10, tier="batch"),
        arrived("large", at=4000, prompt=80, output=64, tier="realtime"),
        policy=policy,
    )
    # Only the first is tried, and it does not fit. The other comes due at 5,010 ms.
    story.when(finished("more", at=4001)).then(a(d.RequestEnded))
    assert next_due_us(story.state.policy, story.state) == 5_010_000
    story.when(tick(5009.999)).then_nothing()
    story.when(tick(5010)).then(a(d.RequestDispatched, id="small", starved=True))


def test_a_cap_that_the_policy_shortens_passes_at_once() -> None:
    story = busy(cap_ms=5000)
    story.when(tick(60))
    shorter = with_policy(overrides=(Override(tier="batch", key="starvation_cap_ms", value=50),))
    story.when(policy_is(shorter, at=61)).then_nothing()
    story.when(finished("runs", at=62)).then(a(d.RequestEnded), a(d.RequestDispatched, id="b0"))


# Room that is kept


def crowded() -> Story:
    """Return a story in which 4 of 10 blocks run, and a request of 9 has waited since 1 ms."""
    return given(
        ready(blocks=10, batch=8),
        arrived("runs", prompt=48, output=16),
        arrived("heavy", at=1, prompt=128, output=16),
        policy=with_policy(replica_lost_ms=60_000),
    )


def test_small_ones_flow_past_a_large_one_until_it_has_waited_half_its_cap() -> None:
    story = crowded()
    story.when(arrived("s0", at=2500)).then(a(d.RequestQueued), a(d.RequestDispatched, id="s0"))
    story.when(arrived("s1", at=2501)).then(
        a(d.RequestQueued),
        a(
            d.RoomKept,
            id="heavy",
            slot=0,
            waited_us=2_500_000,
            after_us=2_500_000,
            blocks_needed=9,
            blocks_free=4,
        ),
    )
    story.when(finished("s0", at=2600)).then(a(d.RequestEnded))
    story.when(finished("runs", at=2700)).then(
        a(d.RequestEnded), a(d.RequestDispatched, id="heavy", blocks=9)
    )
    story.when(finished("heavy", at=2800)).then(a(d.RequestEnded), a(d.RequestDispatched, id="s1"))


def test_a_higher_tier_may_have_the_room_until_the_cap_itself_is_reached() -> None:
    story = crowded().when(arrived("s1", at=2501))
    story.when(arrived("r0", at=4000, tier="realtime")).then(
        a(d.RequestQueued), a(d.RequestDispatched, id="r0")
    )
    story.when(arrived("r1", at=5001, tier="realtime")).then(a(d.RequestQueued))
    story.when(finished("r0", at=5002)).then(a(d.RequestEnded))
    story.when(finished("runs", at=5003)).then(
        a(d.RequestEnded), a(d.RequestDispatched, id="heavy", starved=True)
    )


def test_room_is_given_up_with_the_request_or_the_replica_that_it_is_kept_on() -> None:
    for fact in (cancel("heavy", at=2600), draining(at=2600), stopped(at=2600)):
        story = crowded().when(arrived("s1", at=2501))
        assert story.state.models["m"].room is not None
        story.when(fact)
        assert story.state.models["m"].room is None


def test_no_room_is_kept_where_no_pool_would_ever_do() -> None:
    story = crowded()
    story.when(draining(at=2600), ready(1, blocks=4, at=2601), arrived("s1", at=2602))
    assert story.state.requests["s1"].stage == "running"
    assert story.state.models["m"].room is None


def test_the_others_use_the_replicas_on_which_no_room_is_kept() -> None:
    story = crowded().when(arrived("s1", at=2501), ready(1, blocks=2, at=2502))
    assert story.state.requests["s1"].slot == 1


# Why they wait


def test_what_waits_below_a_higher_tier_waits_for_its_turn() -> None:
    story = given(ready(batch=1), arrived("runs"), arrived("b", at=10, tier="batch"))
    story.when(arrived("r", at=15, tier="realtime"))
    story.when(finished("runs", at=25)).then(
        a(d.RequestEnded),
        a(d.RequestDispatched, id="r", waits=(("slots", 10_000),)),
    )
    story.when(finished("r", at=32)).then(
        a(d.RequestEnded),
        # Slots from 10 to 15 and from 25 to 32; from 15 to 25 "r" stood before it.
        a(d.RequestDispatched, id="b", waits=(("slots", 12_000), ("turn", 10_000))),
    )


def test_where_there_is_no_replica_nobody_waits_for_a_turn() -> None:
    story = given(arrived("b", tier="batch"), arrived("r", tier="realtime"))
    story.when(cancel("b", at=9)).then(a(d.RequestEnded, waits=(("no-replica", 9000),)))
