"""A one-shot request's story: its window with the numbers, its batch, and no µs unexplained."""

from schemas.codec import encode_entry
from schemas.facts import Usage
from schemas.ledger import GENESIS_CHAIN
from streams.story import Story, tell
from streams.story_batches import parts_of
from streams.story_sources import Sieve
from tests.spec.oneshot_story import ENCODER, STILL, embedded, texts
from tests.spec.replay_ledger import HandMade, begun
from tests.spec.scheduler_story import policy_is, profile_is, ready, tick, us


def batched() -> HandMade:
    made = begun()
    made.tell(policy_is(STILL)).tell(profile_is(ENCODER)).tell(ready(blocks=100, batch=16))
    # A first batch shows that one takes 40 ms; then "c" must leave by 330 to be done by 370.
    made.tell(texts("first")).tell(tick(150)).tell(embedded("first", at=190))
    made.tell(texts("a", at=210)).tell(texts("b", 200, at=220))
    made.tell(texts("c", at=230, deadline=140))
    made.tell(tick(330)).tell(embedded("a", "c", at=450))
    return made


def story_of(request_id: str, made: HandMade) -> Story:
    story = tell(request_id, made.entries)
    assert story is not None
    return story


def test_the_wait_names_the_window_and_the_run_what_the_encoder_took() -> None:
    story = story_of("a", batched())
    labels = [(one.kind, one.label, one.us) for one in story.segments]
    assert labels == [
        ("wait", "window", us(120)),
        ("run", "encode", us(80)),
        ("run", "to and from the worker", us(40)),
    ]
    assert story.unexplained_us == 0
    why = story.segments[0].why
    assert "a window of 150 ms" in why
    assert "25% of the 60000 ms that tier batch aims at" in why
    assert "cut to 120 ms by a deadline and 40 ms of work" in why


def test_the_events_tell_when_the_window_is_due_and_who_left_with_whom() -> None:
    events = {event.what: event.detail for event in story_of("c", batched()).events}
    assert "due in 100 ms" in events["window opened"]
    assert "batch 1 of 2 requests and 2 of at most 16 texts left" in events["batch formed"]
    assert "deadline" in events["batch formed"]
    assert "1 were passed over" in events["batch formed"]


def test_the_sieve_keeps_what_the_story_needs_of_a_window_that_was_open_before() -> None:
    made = batched()
    sieve = Sieve("c")
    chain = GENESIS_CHAIN
    for entry in made.entries:
        raw, chain = encode_entry(entry, chain)
        sieve.feed(raw)
    from schemas.codec import decode_line  # noqa: PLC0415 - only this test reads lines

    story = tell("c", [decode_line(raw).entry for raw in sieve.lines])
    assert story is not None
    assert story.unexplained_us == 0
    assert [one.label for one in story.segments if one.kind == "wait"] == ["window"]


def test_a_resumed_run_tells_the_tokens_that_it_generated_and_those_that_it_computed_again() -> (
    None
):
    usage = Usage(
        prompt_tokens=30,
        output_tokens=91,
        queued_us=1,
        prefill_us=2,
        decode_us=3,
        first_token_us=None,
    )
    told = {label: why for label, _, why in parts_of(usage, 2, ())}
    assert (told["prefill"], told["decode"]) == ("32 tokens", "89 tokens")
