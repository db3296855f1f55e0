"""How much KV a request gets: all it may need, or what is likely and then more."""

from dataclasses import replace

import pytest

from schemas import decisions as d
from schemas import facts as f
from services.scheduler.lengths import Histogram, Lengths, bucket_of, longest_of
from services.scheduler.snapshot import encode_pieces, freeze, thaw
from services.scheduler.step import step
from tests.spec.scheduler_story import (
    Story,
    a,
    arrived,
    cancel,
    finished,
    given,
    left,
    ready,
    stopped,
    us,
    with_policy,
)

QUANTILE = with_policy(
    reservation="quantile",
    reservation_quantile_pct=75,
    reservation_margin_pct=0,
    reservation_samples_min=4,
    reservation_growth_blocks=2,
)


def grows(
    request_id: str, *, at: float = 0, blocks: int, attempt: int = 1, output: int = 20
) -> f.WorkGrows:
    item = f.WorkBlocks(id=request_id, attempt=attempt, output_tokens=output, blocks=blocks)
    return f.WorkGrows(at_us=us(at), model="m", slot=0, incarnation="L1", items=(item,))


def seen_twelve_tokens(*, blocks: int = 10, policy: object = QUANTILE) -> Story:
    """Four outputs of 12 tokens were seen, on a replica of so many blocks."""
    story = given(ready(blocks=blocks), policy=policy)  # pyright: ignore[reportArgumentType] - a policy
    for n in range(4):
        story.when(arrived(f"s{n}", output=128), finished(f"s{n}"))
    return story


def test_all_is_reserved_until_enough_outputs_were_seen() -> None:
    story = given(ready(), policy=QUANTILE)
    for n in range(4):
        story.when(arrived(f"s{n}", output=128))
        story.then(a(d.RequestQueued), a(d.RequestDispatched, blocks=9, blocks_full=9, samples=0))
        story.when(finished(f"s{n}"))
    # 16 of the prompt and the 12 that 75 % keep to: 28 tokens.
    story.when(arrived("a", output=128))
    story.then(a(d.RequestQueued), a(d.RequestDispatched, blocks=2, blocks_full=9, samples=4))


def test_more_are_admitted_than_would_fit_in_full() -> None:
    story = seen_twelve_tokens()
    story.when(*[arrived(f"a{n}", output=128) for n in range(5)])
    assert len(story.state.models["m"].replicas[0].running) == 4  # places; 8 of 10 blocks


def test_the_margin_is_added_to_what_was_seen() -> None:
    policy = with_policy(
        reservation="quantile", reservation_samples_min=4, reservation_margin_pct=50
    )
    story = seen_twelve_tokens(policy=policy)
    story.when(arrived("a", output=128))  # 16 + 18 tokens
    story.then(a(d.RequestQueued), a(d.RequestDispatched, blocks=3))


def test_one_that_may_not_be_preempted_gets_all_it_may_need() -> None:
    policy = with_policy(reservation="quantile", reservation_samples_min=1, preemptible=False)
    story = seen_twelve_tokens(policy=policy)
    story.when(arrived("a", output=128)).then(a(d.RequestQueued), a(d.RequestDispatched, blocks=9))


def test_a_request_never_starts_where_all_it_may_need_would_not_fit() -> None:
    story = given(ready(0, blocks=8), ready(1, blocks=10), policy=QUANTILE)
    for n in range(4):
        story.when(arrived(f"s{n}", output=16), finished(f"s{n}"))
    story.when(arrived("a", output=128))
    story.then(a(d.RequestQueued), a(d.RequestDispatched, slot=1, blocks=2, blocks_full=9))


def test_a_request_that_fills_its_blocks_is_given_more() -> None:
    story = seen_twelve_tokens().when(arrived("a", output=128))
    story.when(grows("a", at=1, blocks=2)).then(
        a(
            d.ReservationGrown,
            id="a",
            slot=0,
            incarnation="L1",
            attempt=1,
            output_tokens=20,
            blocks=4,
            blocks_before=2,
            blocks_full=9,
            blocks_free=8,
        )
    )
    assert story.state.models["m"].replicas[0].blocks_used == 4
    # The same report again says nothing new.
    story.when(grows("a", at=2, blocks=2)).then_nothing()


def test_a_life_of_a_replica_that_is_not_known_is_given_nothing() -> None:
    story = seen_twelve_tokens().when(arrived("a", output=128))
    story.when(replace(grows("a", blocks=2), incarnation="L0")).then_nothing()


def test_no_more_is_given_than_it_may_ever_need() -> None:
    story = seen_twelve_tokens().when(arrived("a", output=40))  # 4 blocks in full
    story.when(grows("a", blocks=2)).then(a(d.ReservationGrown, blocks=4))
    story.when(grows("a", blocks=4)).then_nothing()


def test_what_is_left_is_given_when_it_is_less() -> None:
    story = seen_twelve_tokens(blocks=9).when(*[arrived(f"a{n}", output=128) for n in range(4)])
    story.when(grows("a0", blocks=2)).then(a(d.ReservationGrown, id="a0", blocks=3))


def test_the_youngest_leaves_when_no_block_is_left_and_returns_with_its_tokens() -> None:
    story = seen_twelve_tokens(blocks=9).when(*[arrived(f"a{n}", output=128) for n in range(4)])
    story.when(grows("a0", at=1, blocks=2), grows("a0", at=1, blocks=3))
    story.then(a(d.ReservationGrown, blocks=3), a(d.LeaveAsked, id="a3", cause="preempted"))
    leave = story.decisions[1]
    assert isinstance(leave, d.LeaveAsked)
    assert leave.preemption is not None
    assert (leave.preemption.for_id, leave.preemption.lacks) == ("a0", "kv")
    assert leave.preemption.candidates == 4
    # While one leaves, nobody else is asked.
    story.when(grows("a1", at=2, blocks=2)).then_nothing()
    story.when(left("a3", at=3, cause="preempted", output=9)).then(
        a(d.RequestPreempted, id="a3", output_tokens=9),
        a(d.ReservationGrown, id="a0", blocks=5),
        # The oldest had its share; no block is left for a1, and the youngest now is a2.
        a(d.LeaveAsked, id="a2"),
        a(d.QueueBlocked, cause="kv", head="a3"),
    )


def test_one_that_asked_for_more_before_the_state_was_stored_is_given_it_after() -> None:
    story = seen_twelve_tokens(blocks=9).when(*[arrived(f"a{n}", output=128) for n in range(4)])
    story.when(grows("a0", at=1, blocks=2), grows("a0", at=1, blocks=3))
    story.then(a(d.ReservationGrown, blocks=3), a(d.LeaveAsked, id="a3", cause="preempted"))
    story.when(grows("a1", at=2, blocks=2))
    again = thaw(b"".join(encode_pieces(freeze(story.state))))
    gone = left("a3", at=3, cause="preempted", output=9)
    assert step(again.policy, again, gone) == story.when(gone).decisions
    assert isinstance(story.decisions[1], d.ReservationGrown)


def test_the_lowest_tier_leaves_before_the_youngest() -> None:
    story = seen_twelve_tokens(blocks=9).when(
        arrived("b", output=128, tier="batch"),
        *[arrived(f"a{n}", output=128) for n in range(3)],
    )
    story.when(grows("a0", blocks=2), grows("a0", blocks=3))
    assert [x.id for x in story.decisions if isinstance(x, d.LeaveAsked)] == ["b"]


def test_one_that_nobody_makes_room_for_leaves_itself() -> None:
    story = seen_twelve_tokens(blocks=9).when(
        *[arrived(f"r{n}", output=128, tier="critical") for n in range(3)],
        arrived("a", output=128),
    )
    story.when(grows("a", blocks=2), grows("a", blocks=3)).then(
        a(d.ReservationGrown, blocks=3), a(d.LeaveAsked, id="a")
    )
    assert story.state.models["m"].claims == {}
    story.when(left("a", at=1, cause="preempted", output=30))
    # 30 tokens are beyond all that was seen: what is not known is reserved in full.
    story.then(a(d.RequestPreempted), a(d.QueueBlocked, cause="kv", blocks_needed=9))


def test_one_that_has_left_as_often_as_it_may_gets_all_it_may_need() -> None:
    policy = with_policy(reservation="quantile", reservation_samples_min=4, preemptions_max=1)
    story = seen_twelve_tokens(policy=policy)
    story.when(arrived("a", output=128), left("a", cause="preempted", output=1))
    assert [x.blocks for x in story.decisions if isinstance(x, d.RequestDispatched)] == [2, 9]


def test_one_that_leaves_or_has_gone_is_given_nothing() -> None:
    story = seen_twelve_tokens().when(arrived("a", output=128), cancel("a"))
    story.when(grows("a", blocks=2)).then_nothing()
    story.when(left("a"), grows("a", blocks=2)).then(a(d.RequestEnded))
    story = seen_twelve_tokens(blocks=9).when(*[arrived(f"a{n}", output=128) for n in range(4)])
    story.when(grows("a3", blocks=2), grows("a3", blocks=3), cancel("a3"))
    assert story.state.models["m"].growing == {}
    story.when(grows("a0", blocks=2), stopped())
    assert story.state.models["m"].growing == {}


def test_room_that_is_kept_for_a_higher_tier_is_not_given_to_a_lower_one() -> None:
    story = seen_twelve_tokens().when(
        *[arrived(f"b{n}", tier="batch", output=128) for n in range(4)]
    )
    # 2 of 10 blocks are free; the critical one wants 4 and the place of one that leaves.
    story.when(arrived("c", tier="critical", prompt=52, output=80))
    assert [x.id for x in story.decisions if isinstance(x, d.LeaveAsked)] == ["b3"]
    story.when(grows("b0", blocks=2)).then_nothing()
    story.when(left("b3", cause="preempted"))
    assert [x.id for x in story.decisions if isinstance(x, d.RequestDispatched)] == ["c"]


def test_a_claim_that_cannot_be_met_holds_nobody_up() -> None:
    story = seen_twelve_tokens().when(
        *[arrived(f"b{n}", tier="batch", output=128) for n in range(4)]
    )
    story.when(
        arrived("n", prompt=52, output=80), arrived("r", tier="realtime", prompt=52, output=12)
    )
    story.when(left("b3", cause="preempted"))
    story.when(grows("b0", blocks=2))
    assert story.state.models["m"].replicas[0].blocks_used <= 10


def test_buckets_are_exact_at_first_and_then_an_eighth_wide() -> None:
    assert [longest_of(bucket_of(n)) for n in (0, 1, 15, 16, 17, 100, 1000)] == [
        0,
        1,
        15,
        17,
        17,
        103,
        1023,
    ]
    for bucket in range(144):
        assert bucket_of(longest_of(bucket)) == bucket
        assert bucket_of(longest_of(bucket) + 1) == min(bucket + 1, 143)
    assert longest_of(bucket_of(10**9)) == 2**20 - 1


def test_a_quantile_is_of_those_longer_than_what_is_there_already() -> None:
    histogram = Histogram()
    for tokens in (2, 4, 6, 8, 10, 12, 14, 15, 100, 200):
        histogram.add(tokens, 1000)
    assert histogram.expected(80, beyond=0, samples_min=1) == (15, 10)
    assert histogram.expected(50, beyond=14, samples_min=1) == (103, 3)
    assert histogram.expected(50, beyond=300, samples_min=1) is None
    assert histogram.expected(50, beyond=0, samples_min=11) is None


def test_what_was_seen_long_ago_fades() -> None:
    histogram = Histogram()
    for tokens in [10] * 99 + [1] * 60:
        histogram.add(tokens, 100)
    # At a hundred all counts are halved: 99 tens and a one to 49 and none, then, with 51 more ones,
    # to 24 and 25; eight ones follow.
    assert (histogram.counts[10], histogram.counts[1], histogram.total) == (24, 33, 57)


def test_a_tenant_is_told_by_its_own_outputs_and_the_longest_silent_is_forgotten() -> None:
    lengths = Lengths()
    for tenant, tokens in (("x", 3), ("y", 9), ("x", 3), ("z", 7)):
        lengths.add(tenant, tokens, samples_max=100, tenants_max=2)
    assert list(lengths.tenants) == ["x", "z"]
    assert lengths.expected("x", 100, beyond=0, samples_min=2) == (3, 2)
    assert lengths.expected("y", 100, beyond=0, samples_min=2) == (9, 4)
    assert lengths.expected("z", 100, beyond=0, samples_min=5) is None


@pytest.mark.parametrize("pct", [1, 50, 100])
def test_a_quantile_holds_at_least_its_share(pct: int) -> None:
    histogram = Histogram()
    tokens = [7 * n % 900 for n in range(200)]
    for one in tokens:
        histogram.add(one, 1000)
    expected = histogram.expected(pct, beyond=0, samples_min=1)
    assert expected is not None
    assert sum(one <= expected.tokens for one in tokens) * 100 >= pct * 200
