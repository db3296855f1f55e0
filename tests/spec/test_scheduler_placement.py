"""Which request goes where: first fit, look-ahead, tiers, the turns of tenants, the returned."""

from schemas import decisions as d
from schemas.decisions import Decision
from tests.spec.scheduler_story import (
    Story,
    a,
    arrived,
    draining,
    failed,
    finished,
    given,
    left,
    policy_is,
    ready,
    tick,
    with_policy,
)


def dispatched(decisions: tuple[Decision, ...]) -> list[str]:
    return [item.id for item in decisions if isinstance(item, d.RequestDispatched)]


def drain_order(story: Story, *, at: float = 1000) -> list[str]:
    """Return the order in which one replica that runs one at a time takes what waits."""
    order = dispatched(story.when(ready(at=at, batch=1)).decisions)
    while story.state.requests:
        running = order[-1]
        attempt = story.state.requests[running].attempt
        order += dispatched(story.when(finished(running, at=at, attempt=attempt)).decisions)
    return order


def test_a_dispatch_says_where_why_and_with_what() -> None:
    story = given(ready(), arrived("a", prompt=20, output=30, offset=1))
    asked = arrived("b", at=2, sent=1, prompt=17, output=16, tier="batch", tenant="t", offset=41)
    story.when(asked)
    assert story.decisions[1] == d.RequestDispatched(
        id="b",
        model="m",
        tenant="t",
        tier="batch",
        slot=0,
        incarnation="L1",
        attempt=1,
        blocks=3,  # 33 tokens in blocks of 16
        blocks_free=6,  # of 10, less the 4 of the first: 50 tokens
        running=1,
        wait_us=1000,
        waits=(("transit", 1000),),
        passed_over=(),
        starved=False,
        cost=17 + 4 * 16,
        weight=1,
        quantum=64,
        offset=41,
        max_output_tokens=16,
        prompt_tokens=17,
        seed=1908338681,
        blocks_full=3,
        samples=0,
        number=2,
        resume_tokens=0,
        resume_offset=-1,
    )


def test_the_first_slot_that_fits_is_taken_whatever_order_they_came_in() -> None:
    story = given(ready(2), ready(1), ready(3))
    story.when(arrived("a")).then(a(d.RequestQueued), a(d.RequestDispatched, slot=1))
    story.when(arrived("b")).then(a(d.RequestQueued), a(d.RequestDispatched, slot=1))


def test_a_replica_without_room_is_skipped() -> None:
    story = given(ready(0, blocks=3), ready(1))
    story.when(arrived("a")).then(a(d.RequestQueued), a(d.RequestDispatched, slot=0))
    story.when(arrived("b")).then(a(d.RequestQueued), a(d.RequestDispatched, slot=1))


def test_a_replica_without_a_free_place_in_its_batch_is_skipped() -> None:
    story = given(ready(0, batch=1), ready(1), arrived("a"))
    story.when(arrived("b")).then(a(d.RequestQueued), a(d.RequestDispatched, slot=1))


def test_blocks_are_counted_in_the_replicas_own_size() -> None:
    story = given(ready(0, blocks=10, block_tokens=10))
    story.when(arrived("a", prompt=16, output=16)).then(
        a(d.RequestQueued), a(d.RequestDispatched, blocks=4)
    )


def test_the_last_block_can_be_taken_and_not_one_more() -> None:
    story = given(ready(), arrived("a", prompt=64, output=64))  # 8 of 10 blocks
    story.when(arrived("b")).then(a(d.RequestQueued), a(d.RequestDispatched, blocks_free=2))
    story.when(arrived("c", prompt=1, output=1)).then(
        a(d.RequestQueued), a(d.QueueBlocked, cause="kv", blocks_needed=1, blocks_free_max=0)
    )


def test_small_requests_pass_a_large_one_that_does_not_fit_beside_what_runs() -> None:
    story = given(ready(), arrived("runs", prompt=40, output=40))  # 5 of 10 blocks
    story.when(arrived("large", prompt=80, output=64)).then(  # needs 9
        a(d.RequestQueued),
        a(
            d.QueueBlocked,
            cause="kv",
            head="large",
            blocks_needed=9,
            blocks_free_max=5,
            slots_free=3,
            replicas_ready=1,
        ),
    )
    story.when(arrived("small"))
    story.then(
        a(d.RequestQueued),
        a(
            d.RequestDispatched,
            id="small",
            passed_over=(d.PassedOver(id="large", blocks_needed=9, blocks_free_max=5),),
        ),
    )


def test_only_so_many_are_tried_beyond_the_first() -> None:
    policy = with_policy(look_ahead_requests=2)
    large = [arrived(name, prompt=80, output=64) for name in ("x", "y")]
    story = given(ready(), arrived("runs", prompt=40, output=40), *large, policy=policy)
    story.when(arrived("small")).then(a(d.RequestQueued))
    story.when(policy_is(with_policy(look_ahead_requests=3))).then(
        a(d.RequestDispatched, id="small")
    )


def test_a_full_batch_is_the_cause_slots_and_nobody_is_tried() -> None:
    story = given(ready(batch=1), arrived("a")).when(arrived("b"))
    story.then(
        a(d.RequestQueued),
        a(d.QueueBlocked, cause="slots", blocks_needed=0, blocks_free_max=0, slots_free=0),
    )


def test_higher_tiers_go_first() -> None:
    story = given(
        arrived("b1", tier="batch"),
        arrived("n1", tier="normal"),
        arrived("c1", tier="critical"),
        arrived("r1", tier="realtime"),
        arrived("r2", tier="realtime"),
    )
    assert drain_order(story) == ["r1", "r2", "c1", "n1", "b1"]


def test_the_look_ahead_reaches_into_the_lower_tiers() -> None:
    story = given(
        ready(),
        arrived("runs", prompt=40, output=40),
        arrived("large", prompt=80, output=64, tier="realtime"),
        policy=with_policy(preemptible=False),
    )
    story.when(arrived("small", tier="batch")).then(
        a(d.RequestQueued), a(d.RequestDispatched, id="small")
    )


def test_tenants_of_a_tier_take_turns() -> None:
    story = given(
        *[arrived(f"x{n}", tenant="x") for n in range(4)],
        arrived("y0", tenant="y"),
        arrived("y1", tenant="y"),
        arrived("z0", tenant="z"),
    )
    assert drain_order(story) == ["x0", "y0", "z0", "x1", "y1", "x2", "x3"]


def test_the_turns_of_one_tier_do_not_move_those_of_another() -> None:
    story = given(
        arrived("x0", tenant="x"),
        arrived("x1", tenant="x"),
        arrived("y0", tenant="y"),
        arrived("rx", tenant="x", tier="realtime"),
    )
    assert drain_order(story) == ["rx", "x0", "y0", "x1"]


def test_the_look_ahead_walks_in_turns_too() -> None:
    policy = with_policy(look_ahead_requests=3)
    large = [arrived(f"x{n}", tenant="x", prompt=80, output=64) for n in range(5)]
    story = given(ready(), arrived("runs", prompt=40, output=40), *large, policy=policy)
    story.when(arrived("y0", tenant="y")).then(
        a(d.RequestQueued),
        a(
            d.RequestDispatched,
            id="y0",
            passed_over=(d.PassedOver(id="x0", blocks_needed=9, blocks_free_max=5),),
        ),
    )


def test_a_request_that_ran_before_stands_ahead_of_younger_ones() -> None:
    story = given(
        ready(batch=2, life="L0"),
        arrived("a"),
        arrived("b"),
        arrived("c"),
        arrived("d"),
        draining(life="L0"),
        failed("b", life="L0"),
        failed("a", at=1, life="L0"),
        tick(101),
    )
    assert drain_order(story) == ["a", "b", "c", "d"]


def test_a_preempted_request_does_not_pass_an_older_one_that_came_back_too() -> None:
    story = given(ready(batch=2, life="L0"), arrived("a"), arrived("b"), draining(life="L0"))
    story.when(left("b", cause="preempted", life="L0"), left("a", cause="preempted", life="L0"))
    assert drain_order(story) == ["a", "b"]


def test_a_returned_request_waits_for_its_tenants_turn() -> None:
    story = given(
        ready(batch=1, life="L0"),
        arrived("x0", tenant="x"),
        arrived("y0", tenant="y"),
        arrived("x1", tenant="x"),
        draining(life="L0"),
        failed("x0", life="L0"),
        tick(100),
    )
    assert drain_order(story) == ["y0", "x0", "x1"]
