"""The story of a request that waits says what holds this very one back: its turn, or its quota."""

from schemas.policy import Override
from services.cli._waterfall import headline, present_words, totals
from services.cli.explain import as_plain
from services.embedded.ports import free_port
from streams.story import Story, tell
from streams.story_sources import add_standing
from streams.story_standing import Standing, standing_in, tell_standing
from tests.spec.replay_ledger import HandMade, begun
from tests.spec.scheduler_story import arrived, finished, ready, us, with_policy


def story_of(request_id: str, made: HandMade, *, at: float) -> Story:
    story = tell(request_id, made.entries, us(at))
    assert story is not None
    standing = standing_in(made.state, request_id, us(at))
    assert standing is not None
    tell_standing(story, standing)
    return story


def test_below_a_higher_tier_it_waits_for_its_turn() -> None:
    made = begun(ready(at=1, batch=1), policy=with_policy(preemptible=False))
    made.tell(arrived("runs", at=2)).tell(arrived("low", at=3, tier="batch"))
    # From 10 ms on a higher one waits for the slot too.
    made.tell(arrived("high", at=10, tier="realtime"))
    story = story_of("low", made, at=25)
    assert story.waits() == [("slots", us(7)), ("turn", us(15))]
    assert story.unexplained_us == 0
    assert story.present is not None
    assert (story.present.cause, story.present.since_us) == ("turn", us(10))
    assert story.present.why == "requests of higher tiers wait for the same room: 1 realtime"
    assert headline(story) == "low to m: not over, waiting (turn) 22.0 ms after its arrival"
    assert present_words(story)[0].startswith("now    turn for 15.0 ms: requests of higher tiers")
    assert "waited 22.0 ms = slots 7.0 + turn 15.0; unexplained 0 µs" in totals(story)
    # The other one waits for the slot itself, as the queue does.
    first = story_of("high", made, at=25)
    assert (first.waits(), first.present and first.present.cause) == ([("slots", us(15))], "slots")


def test_a_request_whose_tenant_runs_as_many_as_it_may_waits_for_the_quota() -> None:
    policy = with_policy(overrides=(Override(tenant="x", key="quota_running_requests", value=1),))
    made = begun(ready(at=1), policy=policy)
    made.tell(arrived("runs", at=2, tenant="x")).tell(arrived("next", at=5, tenant="x"))
    made.tell(arrived("other", at=6, tenant="y"))
    story = story_of("next", made, at=20)
    assert story.waits() == [("quota", us(15))]
    assert story.present is not None
    assert story.present.cause == "quota"
    assert story.unexplained_us == 0
    made.tell(finished("runs", at=30))
    assert standing_in(made.state, "next", us(31)) is None


def test_the_quota_is_told_with_its_numbers_where_the_queue_waits_for_something_else() -> None:
    policy = with_policy(
        preemptible=False,
        overrides=(Override(tenant="x", key="quota_running_requests", value=1),),
    )
    made = begun(ready(at=1, batch=2), policy=policy)
    made.tell(arrived("runs", at=2, tenant="x")).tell(arrived("next", at=3, tenant="x"))
    made.tell(arrived("fills", at=4, tenant="y")).tell(arrived("waits", at=5, tenant="y"))
    story = story_of("next", made, at=9)
    assert story.present is not None
    assert (story.present.cause, story.present.since_us) == ("quota", us(3))
    assert story.present.why == "1 request of x run, and its quota for m is 1"
    assert story.waits() == [("quota", us(6))]


def test_a_standing_of_another_attempt_changes_nothing() -> None:
    made = begun(ready(at=1, batch=1))
    made.tell(arrived("runs", at=2)).tell(arrived("waits", at=3))
    story = tell("waits", made.entries, us(9))
    assert story is not None
    before = list(story.segments)
    tell_standing(story, Standing(1, us(50), (("turn", us(47)),), "turn", us(3), ""))
    assert (story.segments, story.until_us) == (before, us(9))


def test_a_standing_that_is_newer_lets_the_story_go_on_to_it() -> None:
    made = begun(ready(at=1, batch=1))
    made.tell(arrived("runs", at=2)).tell(arrived("waits", at=3))
    story = tell("waits", made.entries, us(9))
    standing = standing_in(made.state, "waits", us(14))
    assert story is not None
    assert standing is not None
    tell_standing(story, standing)
    assert (story.until_us, story.waits(), story.unexplained_us) == (us(14), [("slots", us(11))], 0)


async def test_where_the_ledger_cannot_be_read_the_story_says_so_and_keeps_the_queue_s_cause() -> (
    None
):
    made = begun(ready(at=1, batch=1), policy=with_policy(preemptible=False))
    made.tell(arrived("runs", at=2)).tell(arrived("low", at=3, tier="batch"))
    made.tell(arrived("high", at=10, tier="realtime"))
    for broker, fault in (
        (f"127.0.0.1:{free_port()}", "Kafka could not"),
        (None, "no Kafka of the deployment is known"),
    ):
        story = tell("low", made.entries, us(25))
        assert story is not None
        await add_standing(broker, story)
        assert story.present is not None
        assert story.present.cause == "slots", "its turn can not be told"
        *_, said = present_words(story)
        assert said.startswith(
            f"       what holds this very request back could not be read: {fault}"
        )
        assert said.endswith(str(as_plain(story)["standing_fault"]))
    # One that runs is held back by nothing.
    running = tell("runs", made.entries, us(25))
    assert running is not None
    await add_standing(None, running)
    assert running.standing_fault is None
    assert not any("could not be read" in line for line in present_words(running))
