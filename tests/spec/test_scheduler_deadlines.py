"""A deadline that cannot be met by measured times is refused at the door, if the policy says so."""

from schemas import decisions as d
from schemas.policy import Override
from tests.spec.scheduler_story import (
    Story,
    a,
    arrived,
    draining,
    finished,
    given,
    ready,
    stopped,
    with_policy,
)


def measured(*, refuse: bool = True, samples_min: int = 2) -> Story:
    """Return a story with one running and four waiting, of which one starts each 100 ms."""
    override = Override(tenant="x", key="refuse_hopeless", value=refuse)
    policy = with_policy(service_samples_min=samples_min, overrides=(override,))
    story = given(ready(batch=1), *[arrived(f"x{n}", tenant="x") for n in range(8)], policy=policy)
    for number in range(3):
        story.when(finished(f"x{number}", at=100 * number + 100))
    return story


def test_a_request_that_could_not_start_in_time_is_refused_with_the_estimate() -> None:
    story = measured()
    assert story.state.models["m"].service.interval_ns == 100_000_000
    # Four stand before it: it would start in 400 ms.
    story.when(arrived("late", tenant="x", at=300, deadline=400)).then(
        a(
            d.RequestEnded,
            outcome="rejected",
            reason="deadline-hopeless",
            # A prompt token took 3 ms / 16 and an output token 1 ms / 11, as the replica told.
            detail="4 requests go before it, one each 100000 µs as measured: it would start in"
            " 400 ms (and run for about 4 ms), but its deadline is in 400 ms",
            retry_after_ms=1,
        )
    )
    story.when(arrived("later", tenant="x", at=300, deadline=300)).then(
        a(d.RequestEnded, reason="deadline-hopeless", retry_after_ms=101)
    )
    story.when(arrived("in-time", tenant="x", at=300, deadline=401)).then(a(d.RequestQueued))


def test_without_the_key_or_a_deadline_nothing_is_refused() -> None:
    measured(refuse=False).when(arrived("x", tenant="x", at=300, deadline=1)).then(
        a(d.RequestQueued)
    )
    measured().when(arrived("x", tenant="x", at=300)).then(a(d.RequestQueued))
    measured().when(arrived("y", tenant="y", at=300, deadline=1)).then(a(d.RequestQueued))


def test_what_was_not_measured_often_enough_refuses_nothing() -> None:
    measured(samples_min=3).when(arrived("x", tenant="x", at=300, deadline=1)).then(
        a(d.RequestQueued)
    )


def test_where_no_replica_works_the_queue_off_nothing_is_known() -> None:
    story = measured().when(draining(at=301), stopped(at=302))
    story.when(arrived("x", tenant="x", at=303, deadline=1)).then(a(d.RequestQueued))


def test_a_tenant_that_comes_anew_waits_for_one_turn_of_each_other_only() -> None:
    policy = with_policy(refuse_hopeless=True, service_samples_min=2)
    story = given(
        ready(batch=1),
        *[arrived(f"x{n}", tenant="x") for n in range(8)],
        arrived("y0", tenant="y"),
        policy=policy,
    )
    for number in (0, 1, 2):
        at = 100 * number + 100
        running = next(iter(story.state.models["m"].replicas[0].running))
        story.when(finished(running, at=at))
    # Only x waits, and z would come after one of its requests; one of batch after all of them.
    story.when(arrived("z", tenant="z", at=300, deadline=150)).then(a(d.RequestQueued))
    story.when(arrived("b", tenant="z", tier="batch", at=300, deadline=500)).then(
        a(d.RequestEnded, reason="deadline-hopeless")
    )
