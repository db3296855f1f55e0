"""A request's story names every part of its time, and the waits add up to what was recorded."""

from dataclasses import fields
from typing import get_args

import pytest

from schemas import decisions as d
from schemas import facts as f
from schemas.codec import decode_line
from services.cli._waterfall import headline, present_words
from streams.story import DECISIONS, SAID, Story, tell
from streams.story_sources import Sieve
from tests.spec.replay_ledger import HandMade, begun, takeover
from tests.spec.scheduler_story import (
    arrived,
    cancel,
    failed,
    finished,
    left,
    progressed,
    ready,
    refused,
    started,
    starting,
    tick,
    us,
    with_policy,
)


def story_of(request_id: str, made: HandMade) -> Story:
    story = tell(request_id, made.entries)
    assert story is not None
    return story


def segments(story: Story) -> list[tuple[str, str, float, float]]:
    return [(one.kind, one.label, one.from_us / 1000, one.to_us / 1000) for one in story.segments]


def whats(story: Story) -> list[str]:
    return [event.what for event in story.events]


def test_a_request_that_runs_at_once_waits_for_the_bus_alone() -> None:
    made = begun(ready(at=1))
    made.tell(arrived("a", at=10, sent=8)).tell(started("a", at=11)).tell(finished("a", at=20))
    story = story_of("a", made)
    # The usage says 3 ms to the first token and 1 ms from there on; 10 ms it was at the worker's.
    assert segments(story) == [
        ("wait", "transit", 8, 10),
        ("run", "prefill", 10, 13),
        ("run", "decode", 13, 14),
        ("run", "to and from the worker", 14, 20),
    ]
    assert whats(story) == [
        "arrived",
        "queued",
        "dispatched",
        "started",
        "first token",
        "completed",
    ]
    assert story.unexplained_us == 0
    assert (story.wait_us, story.run_us, story.e2e_us) == (us(2), us(10), us(12))
    assert story.ttft_us == us(2 + 3)


def test_each_blocking_cause_is_clipped_to_the_wait() -> None:
    # "big" holds 9 of 10 blocks from 2 ms on; a replica comes at 1 ms; "a" needs 2.
    made = begun(arrived("first", at=0), starting(at=1), ready(at=2))
    made.tell(arrived("big", at=3, prompt=16 * 6, output=16))
    made.tell(arrived("a", at=5))
    made.tell(finished("first", at=9))
    story = story_of("a", made)
    assert [one for one in segments(story) if one[0] == "wait"] == [("wait", "kv", 5, 9)]
    assert story.waits() == [("kv", us(4))]
    assert story.unexplained_us == 0
    kv = next(one for one in story.segments if one.label == "kv")
    assert "a needs 2 KV blocks, at most 1 are free" in kv.why
    # Decision 1 of the entry of its arrival (seq 7) says so.
    assert kv.decision == (0, 7, 1)


def test_a_cause_that_was_on_record_before_the_arrival_counts_from_the_arrival() -> None:
    made = begun(arrived("first", at=1), arrived("a", at=5), ready(at=8))
    story = story_of("a", made)
    assert [one for one in segments(story) if one[0] == "wait"] == [("wait", "no-replica", 5, 8)]
    assert story.unexplained_us == 0
    blocked = next(one for one in story.segments if one.label == "no-replica")
    assert blocked.decision == (0, 3, 1)


def test_causes_that_change_are_told_one_after_the_other() -> None:
    made = begun(arrived("a", at=1), starting(at=4), ready(at=9))
    story = story_of("a", made)
    assert segments(story)[:2] == [("wait", "no-replica", 1, 4), ("wait", "cold-start", 4, 9)]
    assert "held back: cold-start" in whats(story)
    assert story.waits() == [("no-replica", us(3)), ("cold-start", us(5))]
    assert story.unexplained_us == 0


def test_a_lost_attempt_and_its_back_off_have_their_parts() -> None:
    made = begun(ready(at=1), arrived("a", at=2))
    made.tell(failed("a", at=5)).tell(tick(105)).tell(finished("a", at=120, attempt=2))
    story = story_of("a", made)
    assert segments(story)[:2] == [
        ("run", "lost attempt 1", 2, 5),
        ("wait", "backoff", 5, 105),
    ]
    assert story.attempts == 2
    assert story.unexplained_us == 0
    assert whats(story)[:7] == [
        "arrived",
        "queued",
        "dispatched",
        "worker could not run it",
        "attempt lost",
        "waits again",
        "dispatched",
    ]


def test_a_cancelled_request_tells_who_asked_and_when_it_left() -> None:
    made = begun(ready(at=1), arrived("a", at=2)).tell(cancel("a", at=5)).tell(left("a", at=7))
    story = story_of("a", made)
    assert story.outcome == "cancelled"
    assert whats(story) == [
        "arrived",
        "queued",
        "dispatched",
        "cancel asked",
        "asked to leave",
        "first token",
        "cancelled",
    ]


def test_a_rejected_request_waited_for_the_bus_alone() -> None:
    made = begun().tell(arrived("a", at=7, sent=5, model="nope"))
    story = story_of("a", made)
    assert (story.outcome, story.reason) == ("rejected", "unknown-model")
    assert story.waits() == [("transit", us(2))]
    assert story.unexplained_us == 0


def test_a_refused_request_says_which_field() -> None:
    story = story_of("a", begun().tell(refused("a", at=5)))
    assert story.outcome == "rejected"
    assert "temperature" in story.detail


def test_an_expired_request_waited_until_its_deadline() -> None:
    made = begun(arrived("a", at=1, deadline=50)).tell(tick(51))
    story = story_of("a", made)
    assert story.outcome == "expired"
    assert story.waits() == [("no-replica", us(50))]
    assert story.unexplained_us == 0


def test_a_request_that_has_not_ended_is_told_up_to_the_last_entry() -> None:
    waiting = story_of("a", begun(arrived("a", at=1)).tell(tick(31)))
    assert (waiting.stage, waiting.over) == ("waiting", False)
    assert segments(waiting) == [("wait", "no-replica", 1, 31)]
    running = story_of("a", begun(ready(at=1), arrived("a", at=2)).tell(tick(32)))
    assert running.stage == "running"
    assert segments(running) == [("run", "running", 2, 32)]


def test_a_request_that_waits_is_told_up_to_now_with_what_holds_it_back_and_the_numbers() -> None:
    made = begun(ready(at=1, blocks=10), arrived("big", at=2, prompt=16 * 8, output=16))
    made.tell(arrived("a", at=5)).tell(tick(20))
    story = tell("a", made.entries, us(4_000))
    assert story is not None
    assert (story.over, story.until_us, story.newest_entry_us) == (False, us(4_000), us(20))
    assert [one for one in segments(story) if one[0] == "wait"] == [("wait", "kv", 5, 4_000)]
    assert story.wait_us == us(3_995)
    present = story.present
    assert present is not None
    assert (present.stage, present.cause, present.since_us) == ("waiting", "kv", us(5))
    assert present.why == ("1 waiting; a needs 2 KV blocks, at most 1 are free on a replica")
    told = "\n".join(present_words(story))
    assert "kv for 3995.0 ms: 1 waiting; a needs 2 KV blocks" in told
    assert "the newest entry of its cell is 3980.0 ms old" in told
    assert headline(story) == "a to m: not over, waiting (kv) 3995.0 ms after its arrival"


def test_now_is_never_before_the_newest_entry() -> None:
    story = tell("a", begun(arrived("a", at=1)).tell(tick(31)).entries, us(7))
    assert story is not None
    assert story.until_us == us(31)


def test_what_held_a_queue_back_last_is_the_present_cause() -> None:
    story = tell("a", begun(arrived("a", at=1), starting(at=4)).entries, us(9))
    assert story is not None
    assert story.present is not None
    assert (story.present.cause, story.present.since_us) == ("cold-start", us(4))
    assert segments(story) == [("wait", "no-replica", 1, 4), ("wait", "cold-start", 4, 9)]


def test_a_request_that_runs_tells_on_what_and_how_far_it_is() -> None:
    made = begun(ready(at=1), arrived("a", at=2))
    before = tell("a", made.entries, us(4))
    assert before is not None
    assert before.present is not None
    assert before.present.why == ("attempt 1 on m/0: 0 tokens so far; it has not joined a batch")
    made.tell(started("a", at=5)).tell(progressed("a", at=8))
    items = (f.WorkTokens(id="a", attempt=1, output_tokens=7),)
    made.tell(f.WorkProgressed(at_us=us(9), model="m", slot=0, incarnation="L1", items=items))
    story = tell("a", made.entries, us(30))
    assert story is not None
    assert story.present is not None
    assert (story.present.stage, story.present.cause) == ("running", None)
    assert story.present.why == "attempt 1 on m/0: 7 tokens so far"
    assert segments(story)[-1] == ("run", "running", 2, 30)
    assert whats(story)[-1] == "progressed"


def test_a_request_in_its_back_off_tells_why_and_for_how_long() -> None:
    made = begun(ready(at=1), arrived("a", at=2), failed("a", at=5))
    story = tell("a", made.entries, us(50))
    assert story is not None
    assert story.present is not None
    assert story.present.cause == "backoff"
    assert "tried again in 100 ms" in story.present.why
    assert segments(story)[-1] == ("wait", "backoff", 5, 50)


def test_a_request_that_is_over_has_no_present_and_no_now() -> None:
    made = begun(ready(at=1), arrived("a", at=2), finished("a", at=9))
    story = tell("a", made.entries, us(9_000))
    assert story is not None
    assert (story.over, story.present, story.until_us) == (True, None, us(9))
    assert present_words(story) == []


def test_the_start_of_an_attempt_stands_before_its_first_token_whenever_it_was_reported() -> None:
    # Reported 8 ms after the dispatch; the usage says that the first token came after 3 ms.
    made = begun(ready(at=1), arrived("a", at=2), started("a", at=10))
    made.tell(progressed("a", at=10)).tell(finished("a", at=20))
    story = story_of("a", made)
    assert whats(story)[3:] == ["started", "first token", "progressed", "completed"]
    at_ms = {event.what: (event.at_us - us(0)) / 1000 for event in story.events}
    assert (at_ms["dispatched"], at_ms["started"], at_ms["first token"]) == (2, 2, 5)
    times = [event.at_us for event in story.events]
    assert times == sorted(times)


def test_moments_at_the_same_time_stand_in_the_order_of_their_meaning() -> None:
    made = begun(ready(at=2), arrived("a", at=2), started("a", at=2))
    made.tell(progressed("a", at=2)).tell(finished("a", at=2))
    assert whats(story_of("a", made)) == [
        "arrived",
        "queued",
        "dispatched",
        "started",
        "first token",
        "progressed",
        "completed",
    ]


def test_the_sieve_goes_on_to_the_newest_entry_until_the_request_is_over() -> None:
    made = begun(arrived("a", at=1)).tell(tick(31))
    sieve = Sieve("a")
    for record in made.records:
        sieve.feed(record)
    kept = [decode_line(line).entry for line in sieve.finish()]
    assert kept[-1] == made.entries[-1]
    assert tell("a", kept) == story_of("a", made)


def test_a_request_that_was_sent_on_is_told_by_both_cells() -> None:
    # Of two cells, 0 owns the model m (MurmurHash2, as the producers' clients compute it).
    made = begun(cell=0, cells=2)
    other = HandMade(1)
    other.tell(takeover(cell=1, cells=2)).tell(arrived("a", at=3, sent=1))
    assert isinstance(other.entries[-1].decisions[0], d.RequestRouted)
    made.tell(arrived("a", at=6, sent=1, routed_by=(1, 1, 0)))
    for entries in ([*other.entries, *made.entries], [*made.entries, *other.entries]):
        story = tell("a", entries)
        assert story is not None
        assert story.cell == 0
        assert segments(story)[0] == ("wait", "transit", 1, 6)
        assert "routed" in whats(story)


def test_a_resend_is_part_of_the_story() -> None:
    made = begun(ready(at=1), arrived("a", at=2), finished("a", at=9), arrived("a", at=12))
    story = story_of("a", made)
    assert story.outcome == "completed"
    assert whats(story)[-1] == "sent again"


def test_an_id_that_is_used_again_after_it_was_forgotten_tells_the_last_life() -> None:
    made = begun(policy=with_policy(dedupe_window_ms=10))
    made.tell(ready(at=1)).tell(arrived("a", at=2)).tell(finished("a", at=9))
    made.tell(arrived("a", at=500)).tell(finished("a", at=509))
    story = story_of("a", made)
    assert (story.arrived_us, story.e2e_us) == (us(500), us(9))
    assert story.unexplained_us == 0


def test_a_request_that_was_passed_over_counts_it() -> None:
    made = begun(ready(at=1, blocks=10))
    made.tell(arrived("holds", at=2, prompt=16 * 6, output=16))
    made.tell(arrived("big", at=3, prompt=16 * 4, output=16)).tell(arrived("small", at=4))
    assert story_of("big", made).passed_over == 1
    assert "passed over: big (needs 5 blocks, 3 free)" in str(story_of("small", made).events)


def test_every_decision_that_names_a_request_has_its_place_in_the_story() -> None:
    naming = {kind for kind in get_args(d.Decision) if "id" in {one.name for one in fields(kind)}}
    assert d.RoomKept in naming
    assert naming == DECISIONS.keys() | SAID.keys()


def test_room_that_is_kept_for_a_request_is_told_with_the_numbers() -> None:
    policy = with_policy(starvation_cap_ms=100, room_kept_after_pct=50)
    made = begun(ready(at=1), policy=policy)
    # 8 of 10 blocks are taken; "a" needs 4, and waits for 50 ms, half of the cap.
    made.tell(arrived("large", at=2, prompt=100, output=28)).tell(arrived("a", at=3, output=48))
    made.tell(tick(53)).tell(arrived("small", at=54))
    story = story_of("a", made)
    (kept,) = [one for one in story.events if one.what == "room is kept"]
    assert kept.detail == (
        "nothing else goes to m/0: it has waited 51 ms, longer than 50 ms, and needs 4 KV blocks,"
        " 2 are free"
    )


def test_nobody_knows_an_unknown_request() -> None:
    assert tell("nobody", begun(ready(at=1)).entries) is None


@pytest.mark.parametrize("request_id", ["a", 'quo"te', "größe"])
def test_the_sieve_keeps_what_the_story_needs(request_id: str) -> None:
    made = begun(arrived("first", at=1), arrived("other", at=2), arrived(request_id, at=5))
    made.tell(tick(6)).tell(ready(at=8)).tell(finished("first", request_id, at=20))
    made.tell(arrived("after", at=30))
    sieve = Sieve(request_id)
    for record in made.records:
        sieve.feed(record)
    kept = [decode_line(line).entry for line in sieve.lines]
    assert tell(request_id, kept) is not None
    whole, sifted = story_of(request_id, made), tell(request_id, kept)
    assert sifted is not None
    assert sifted.segments == whole.segments
    assert sifted.events == whole.events
    assert len(kept) < len(made.entries)


def test_a_request_that_only_cancels_name_never_arrived() -> None:
    story = story_of("nobody", begun(cancel("nobody", at=5), cells=2, cell=1))
    assert story.stage == "unknown"
    assert (story.arrived_us, story.e2e_us) == (us(5), 0)
