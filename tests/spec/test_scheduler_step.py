"""The loop itself: it comes to rest, recovery only remembers, and nothing decides behind it."""

import pytest

from schemas import decisions as d
from services.scheduler import step as step_module
from services.scheduler.decide import decide
from services.scheduler.snapshot import state_digest
from services.scheduler.state import Model, State
from services.scheduler.step import (
    UnboundedStepError,
    evolve,
    governing,
    recover,
    step,
)
from tests.spec.scheduler_story import (
    PROFILE,
    a,
    arrived,
    finished,
    given,
    policy_is,
    ready,
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
