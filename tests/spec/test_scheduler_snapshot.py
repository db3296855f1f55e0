"""A state as bytes and back: all that matters is kept, and bad bytes are an error in words."""

import json
from copy import deepcopy
from dataclasses import replace

import pytest

from schemas.codec import CodecError
from services.scheduler import due
from services.scheduler.snapshot import FORMAT, encode_pieces, freeze, state_digest, thaw
from services.scheduler.state import State
from services.scheduler.step import step
from tests.spec.scheduler_story import (
    PROFILE,
    Story,
    arrived,
    cancel,
    draining,
    failed,
    finished,
    given,
    left,
    profile_is,
    ready,
    starting,
    tick,
    with_policy,
)


def eventful() -> Story:
    """Return a story whose state has something in every part."""
    story = given(
        ready(1, batch=2),
        ready(0, batch=2, life="Lé"),
        starting(2),
        arrived("done", deadline=5),
        finished("done", at=1, slot=0, life="Lé"),
        profile_is(replace(PROFILE, model="idle")),
        policy=with_policy(look_ahead_requests=3),
    )
    for number in range(8):
        name = f"r{number}"
        story.when(
            arrived(
                name,
                at=2,
                sent=1,
                tenant=f"t{number % 2}",
                deadline=900 + number,
                metadata=(("ключ", "value"),),
            )
        )
    return story.when(
        draining(1, at=4),
        failed("r0", at=3, slot=0, life="Lé"),
        left("r1", at=5, slot=0, life="Lé", cause="preempted"),
        cancel("r2", at=6),
        tick(7),
    )


def raw(state: State) -> bytes:
    return b"".join(encode_pieces(freeze(state)))


def test_a_thawed_state_equals_the_one_that_was_stored() -> None:
    story = eventful()
    again = thaw(raw(story.state))
    assert state_digest(again) == state_digest(story.state)
    story.state.touched.clear()  # what may have become possible within the last step
    story.state.step_bytes = 0  # of it, too
    for state in (again, story.state):
        due.rebuild(state)  # without the dead items, which nothing depends on
    assert again == story.state
    assert again.settings.policy == again.policy == story.state.settings.policy


def test_a_thawed_state_decides_the_same_from_there_on() -> None:
    story = eventful()
    again = thaw(raw(story.state))
    for fact in (
        tick(103),
        finished("r1", at=104, slot=0, life="Lé", attempt=2),
        ready(2, at=105),
        arrived("r9", at=106),
        tick(5000),
        tick(9000),
    ):
        expected = story.when(fact).decisions
        assert step(again.policy, again, fact) == expected
    assert state_digest(again) == state_digest(story.state)


def test_what_was_frozen_is_not_changed_by_later_steps() -> None:
    story = eventful()
    frozen = freeze(story.state)
    before = b"".join(encode_pieces(frozen))
    story.when(tick(103), cancel("r5", at=104), tick(5000), ready(3, at=5001), tick(6400))
    assert b"".join(encode_pieces(frozen)) == before


def test_the_digest_names_what_is_remembered() -> None:
    one, other = eventful(), eventful()
    assert state_digest(one.state) == state_digest(other.state)
    other.when(tick(8))
    assert state_digest(one.state) != state_digest(other.state)


def test_a_large_state_is_written_in_several_short_lines() -> None:
    story = given(policy=with_policy(replica_lost_ms=80_000_000))
    for number in range(2500):
        story.when(arrived(f"r{number}", deadline=1 + number))
    lines = raw(story.state).splitlines()
    assert [json.loads(line)[0] for line in lines].count("requests") == 3
    again = thaw(raw(story.state))
    assert len(again.requests) == again.models["m"].queue.waiting == 2500
    # The heaps are made anew, and the first to expire is the first again.
    assert step(again.policy, again, tick(1.5))[0].id == "r0"  # pyright: ignore[reportAttributeAccessIssue] - a RequestEnded


def test_a_state_is_not_stored_in_the_middle_of_a_step() -> None:
    state = deepcopy(eventful().state)
    state.pending.append(cancel("r5"))
    with pytest.raises(AssertionError, match="between two facts"):
        freeze(state)


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"\xff",
        b"[",
        b"[]",
        b"7",
        b'["head",7]',
        b'["head",[]]',
        b'["head",[2]]',
        b'["head",[5,0,1,1,0,0,0,7]]',
        b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_snapshot_are_refused_in_words(broken: bytes) -> None:
    with pytest.raises(CodecError, match="snapshot cannot be read"):
        thaw(broken)


def test_another_format_is_named() -> None:
    head, *rest = raw(eventful().state).splitlines()
    name, items = json.loads(head)
    other = json.dumps([name, [FORMAT + 1, *items[1:]]]).encode()
    with pytest.raises(CodecError, match="has format 6, this version reads 5"):
        thaw(b"\n".join([other, *rest]))


def test_a_message_of_another_kind_in_its_place_is_named() -> None:
    head, models, *rest = raw(eventful().state).splitlines()
    name, items = json.loads(head)
    policy, profile = items[-1], json.loads(models)[1][0][0]
    wrong_head = json.dumps([name, [*items[:-1], profile]]).encode()
    with pytest.raises(CodecError, match="policy is another message"):
        thaw(b"\n".join([wrong_head, models, *rest]))
    name, items = json.loads(models)
    wrong_models = json.dumps([name, [[policy, *items[0][1:]], *items[1:]]]).encode()
    with pytest.raises(CodecError, match="profile of the snapshot is another message"):
        thaw(b"\n".join([head, wrong_models, *rest]))
