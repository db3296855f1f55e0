"""The loop itself: it comes to rest, recovery only remembers, and nothing decides behind it."""

from dataclasses import replace

import pytest

from schemas import decisions as d
from schemas.codec import encode_decisions
from schemas.policy import Override
from services.scheduler import step as step_module
from services.scheduler.decide import decide
from services.scheduler.snapshot import state_digest
from services.scheduler.state import Model, State
from services.scheduler.step import (
    UnboundedStepError,
    evolve,
    governing,
    next_due_us,
    recover,
    step,
)
from tests.spec.scheduler_story import (
    PROFILE,
    a,
    arrived,
    failed,
    finished,
    given,
    left,
    policy_is,
    ready,
    stopped,
    tick,
    with_policy,
)


def test_at_rest_there_is_nothing_to_decide_and_asking_changes_nothing() -> None:
    story = given(ready(), arrived("a"), arrived("b", prompt=200, output=200))
    before = state_digest(story.state)
    assert decide(story.state.policy, story.state) is None
    assert state_digest(story.state) == before


def test_a_policy_governs_the_fact_that_activates_it() -> None:
    state = State()
    fact = policy_is(with_policy(version=4))
    assert governing(state, fact).version == 4
    assert governing(state, tick(1)).version == 1
    step(governing(state, fact), state, fact)
    assert governing(state, tick(1)).version == 4


def test_recovery_keeps_what_was_decided_even_if_the_policy_would_decide_otherwise() -> None:
    live = given(policy=with_policy(default_tier="batch"))
    live.when(arrived("a"))
    recovered = given(policy=with_policy(default_tier="realtime")).state
    recover(recovered, arrived("a"), live.decisions)
    assert recovered.requests["a"].tier == "batch"


def test_recovery_gives_the_live_state() -> None:
    live = given()
    recovered = given().state
    for fact in (ready(), arrived("a"), arrived("b"), finished("a", at=3), tick(5000)):
        recover(recovered, fact, live.when(fact).decisions)
    assert state_digest(recovered) == state_digest(live.state)


def test_a_decision_that_changes_nothing_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    state = given(ready()).state

    def never_rests(_policy: object, _state: object) -> d.Decision:
        return d.QueueBlocked(
            model="m",
            cause="kv",
            head="a",
            waiting=1,
            blocks_needed=1,
            blocks_free_max=0,
            replicas_ready=0,
            slots_free=0,
        )

    monkeypatch.setattr(step_module, "decide", never_rests)
    # 64, and 8 for the one replica that is known.
    with pytest.raises(UnboundedStepError, match="more than 72 decisions from one clock-ticked"):
        step(state.policy, state, tick(1))


def test_an_event_of_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(KeyError):
        evolve(State(), "something")  # pyright: ignore[reportArgumentType] - what the test is about


def test_a_model_in_which_nothing_waits_is_passed_over() -> None:
    state = State(models={"m": Model(PROFILE, 0)}, touched={"m": None})
    assert decide(state.policy, state) is None


def test_a_step_under_a_crowd_stays_within_its_bound() -> None:
    story = given(*[arrived(f"r{number}", prompt=1, output=1) for number in range(500)])
    story.when(ready(blocks=1000, batch=1000))
    kinds = [type(item) for item in story.decisions]
    assert kinds == [d.ReplicaAdmitted, *[d.RequestDispatched] * 500]
    story.when(ready(life="L2", blocks=1000, batch=1000, at=1))
    assert len(story.decisions) == 502
    story.when(tick(101)).then(
        *[a(d.RequestReturned) for _ in range(500)],
        *[a(d.RequestDispatched, attempt=2) for _ in range(500)],
    )


def test_a_crowd_that_expires_at_once_ends_over_several_entries_none_too_long() -> None:
    crowd = 9_000
    live = given(*(arrived(f"r{n}", deadline=100) for n in range(crowd)))
    recovered = given(*(arrived(f"r{n}", deadline=100) for n in range(crowd))).state
    live.when(arrived("late", at=0))
    recover(recovered, arrived("late", at=0), live.decisions)
    # The first fact behind the deadlines also brings what can run now.
    entries = []
    for fact in (ready(at=200), tick(200), tick(200)):
        entries.append(live.when(fact).decisions)
        recover(recovered, fact, live.decisions)
        assert sum(len(encode_decisions((one,))) for one in live.decisions) < 8 * 2**20
    ended = [one.id for entry in entries for one in entry if isinstance(one, d.RequestEnded)]
    assert ended == [f"r{n}" for n in range(crowd)]
    assert all(len(entry) > 10 for entry in entries)
    # Nothing runs before all that is overdue has ended, and then it does.
    last = entries[-1][-1]
    assert isinstance(last, d.RequestDispatched)
    assert last.id == "late"
    assert state_digest(recovered) == state_digest(live.state)


def test_what_a_step_left_over_is_due_at_once() -> None:
    live = given(*(arrived(f"r{n}", deadline=100) for n in range(5_000)))
    live.when(tick(200))
    assert next_due_us(live.state.policy, live.state) == 200_000
    live.when(tick(200))
    assert next_due_us(live.state.policy, live.state) is None
    assert not live.state.requests


def test_long_metadata_makes_a_step_end_sooner() -> None:
    long = tuple((f"k{n}", "\x01" * 512) for n in range(16))
    live = given(*(replace(arrived(f"r{n}", deadline=100), metadata=long) for n in range(300)))
    live.when(tick(200))
    assert 10 < len(live.decisions) < 300
    assert sum(len(encode_decisions((one,))) for one in live.decisions) < 8 * 2**20


def test_what_a_lost_replica_took_with_it_is_answered_over_several_entries() -> None:
    long = tuple((f"k{n}", "\x01" * 512) for n in range(16))
    live = given(
        ready(blocks=1000, batch=1000),
        *(replace(arrived(f"r{n}"), metadata=long) for n in range(300)),
        policy=with_policy(attempts_max=1),
    )
    recovered = given(
        ready(blocks=1000, batch=1000),
        *(replace(arrived(f"r{n}"), metadata=long) for n in range(300)),
        policy=with_policy(attempts_max=1),
    ).state
    # The second fact speaks of what the first has not answered yet; that counts once.
    facts = (stopped(at=1), ready(life="L2", at=2), finished("r299", at=3), *(tick(4),) * 4)
    ended: list[str] = []
    for fact in facts:
        live.when(fact)
        recover(recovered, fact, live.decisions)
        assert sum(len(encode_decisions((one,))) for one in live.decisions) < 8 * 2**20
        ended += [one.id for one in live.decisions if isinstance(one, d.RequestEnded)]
    assert ended == [f"r{n}" for n in range(300)]
    assert not live.state.pending
    assert not live.state.requests
    assert state_digest(recovered) == state_digest(live.state)


def test_a_report_that_comes_twice_while_the_first_is_being_answered_counts_once() -> None:
    long = tuple((f"k{n}", "\x01" * 512) for n in range(16))
    names = [f"r{n}" for n in range(200)]
    live = given(
        ready(blocks=1000, batch=1000), *(replace(arrived(name), metadata=long) for name in names)
    )
    for fact in (finished(*names, at=1), failed(*names, at=2), left(*names, at=2), tick(3)):
        live.when(fact)
    live.when(tick(4), tick(5))
    assert not live.state.requests
    assert set(live.state.ended) == set(names)


def test_a_first_replica_with_a_tiny_pool_rejects_a_crowd_over_several_entries() -> None:
    live = given(*(arrived(f"r{n}", prompt=300) for n in range(5_000)))
    live.when(ready(), tick(1))
    ended = [one.reason for one in live.decisions if isinstance(one, d.RequestEnded)]
    assert ended == ["over-pool"] * 5_000


def test_the_settings_are_those_of_the_policy_in_force() -> None:
    night = with_policy(overrides=(Override(model="m", key="queued_requests_max", value=1),))
    story = given(policy=with_policy()).when(policy_is(night))
    assert story.state.settings.policy is story.state.policy is night
    assert story.state.settings.at("m", "normal", "acme").queued_requests_max == 1
