"""Batches of one-shot models: who rides together, what is refused, and how windows are tuned."""

from dataclasses import replace

from schemas import decisions as d
from schemas.batches import BatchFormed, WindowOpened, WindowTuned
from schemas.policy import Override
from services.scheduler import waiting, windows
from services.scheduler.snapshot import encode_pieces, freeze, state_digest, thaw
from services.scheduler.step import step
from tests.spec.oneshot_story import ENCODER, FREE, STILL, batch_of, embedded, encoder, texts
from tests.spec.scheduler_story import (
    PROFILE,
    Story,
    a,
    arrived,
    cancel,
    given,
    heartbeat,
    policy_is,
    profile_is,
    ready,
    tick,
    us,
)

# Who rides together


def test_the_head_rides_with_those_whose_length_costs_little_padding() -> None:
    story = encoder(replace(STILL, batch_padding_pct_max=25))
    story.when(texts("a", 20), texts("long", 200), texts("b", 18), texts("c", 16), tick(150))
    formed = [item for item in story.decisions if isinstance(item, BatchFormed)]
    assert [item.members for item in formed] == [("a", "b", "c")]
    assert (formed[0].passed_over, formed[0].padding_pct) == (1, 10)  # 6 of 60
    story.when(embedded("a", "b", "c", at=200))
    assert batch_of(story).members == ("long",)


def test_two_replicas_take_the_short_and_the_long_ones_at_once() -> None:
    story = encoder().when(ready(1, life="L2", blocks=100))
    story.when(texts("a", 20), texts("long", 200), texts("b", 20), tick(150))
    formed = [item for item in story.decisions if isinstance(item, BatchFormed)]
    assert [(item.slot, item.members) for item in formed] == [(0, ("a", "b")), (1, ("long",))]


def test_a_batch_stays_within_the_memory_less_its_margin() -> None:
    # 10 blocks less 15% are 8: texts of 40 tokens take 3 blocks each.
    story = encoder(blocks=10).when(*(texts(name, 40) for name in "abc"), tick(150))
    formed = batch_of(story)
    assert (formed.members, formed.blocks, formed.blocks_allowed) == (("a", "b"), 6, 8)


def test_members_reserve_what_they_take_once_padded() -> None:
    story = encoder().when(texts("a", 30), texts("b", 40, 36), tick(150))
    assert batch_of(story).blocks == 9
    assert story.state.models["m"].replicas[0].running == {"a": 3, "b": 6}


def test_a_request_with_more_texts_than_a_batch_rides_alone_and_reserves_one_pass() -> None:
    story = encoder(replace(STILL, batch_texts_max=2)).when(texts("many", 16, 16, 16))
    formed = batch_of(story)
    assert (formed.why, formed.members, formed.texts, formed.blocks) == ("full", ("many",), 3, 2)


def test_texts_that_one_pass_can_never_hold_are_rejected_with_the_numbers() -> None:
    story = (
        encoder(blocks=10)
        .when(texts("big", 100, 100))
        .then(a(d.RequestEnded, outcome="rejected", reason="over-pool"))
    )
    (end,) = story.decisions
    assert isinstance(end, d.RequestEnded)
    # 7 blocks of 16 for each text; the pool of 160 tokens keeps 15% free.
    assert "224 tokens (2 texts padded to 100)" in end.detail
    assert "160" in end.detail
    assert "15%" in end.detail


def test_texts_that_came_before_the_replica_are_rejected_when_it_proves_too_small() -> None:
    story = given(texts("big", 100, 100), policy=FREE, profile=ENCODER).when(ready(blocks=10))
    end = story.decisions[-1]
    assert isinstance(end, d.RequestEnded)
    assert (end.outcome, end.reason) == ("rejected", "over-pool")
    assert "224 tokens" in end.detail


def test_a_batch_too_large_for_the_idle_replica_waits_for_the_larger_one() -> None:
    story = encoder(FREE, blocks=40).when(texts("first"))
    story.when(ready(1, life="L2", blocks=4))
    story.when(texts("wide", 100, 100, at=1)).then(
        a(d.RequestQueued),
        a(d.QueueBlocked, cause="kv", blocks_needed=14, blocks_free_max=3),
    )
    story.when(embedded("first", at=10))
    assert (batch_of(story).slot, batch_of(story).members) == (0, ("wide",))


# The door


def test_a_chat_to_an_encoder_and_texts_to_a_chat_model_are_the_wrong_kind() -> None:
    story = (
        encoder()
        .when(arrived("chat"))
        .then(a(d.RequestEnded, outcome="rejected", reason="wrong-kind"))
    )
    story.when(profile_is(replace(PROFILE, model="chatty")), texts("t", model="chatty"))
    end = story.decisions[-1]
    assert isinstance(end, d.RequestEnded)
    assert end.reason == "wrong-kind"
    assert "inference-request.v1" in end.detail


def test_a_text_beyond_the_context_is_refused_and_never_cut() -> None:
    encoder().when(texts("long", 5, 1001)).then(a(d.RequestEnded, reason="over-context"))


def test_the_same_id_again_adds_no_work() -> None:
    story = encoder().when(texts("a"), texts("a", at=1))
    assert isinstance(story.decisions[-1], d.DuplicateIgnored)
    story.when(tick(150))
    assert batch_of(story).texts == 1


# Tuning


def test_a_window_follows_the_load_within_its_bounds_and_says_by_which_numbers() -> None:
    tuned = replace(STILL, window_tunes=True, batch_texts_max=10, window_backlog_closes=None)
    story = encoder(tuned).when(texts("a"), texts("b", at=4)).when(tick(150))
    story.when(embedded("a", "b", at=160))
    # A text each 4 ms fills a batch of 10 in 40 ms.
    story.when(texts("c", at=164))
    (change,) = [item for item in story.decisions if isinstance(item, WindowTuned)]
    assert (change.old_ms, change.base_ms) == (150, 150)
    # The average of gaps: 4 ms, then one of 160 ms that counts a 32nd.
    assert change.gap_us == 4000 + (160_000 - 4000) // 32
    assert change.fill_us == 10 * change.gap_us
    assert change.new_ms == 89  # 88.75 rounded up
    opened = next(item for item in story.decisions if isinstance(item, WindowOpened))
    assert opened.due_us == us(164 + 89)


def test_a_window_is_never_shorter_than_the_work_and_never_beyond_its_bounds() -> None:
    tuned = replace(STILL, window_tunes=True, window_max_ms=60, window_backlog_closes=None)
    story = encoder(tuned).when(texts("a"), texts("b", at=1), tick(151))
    story.when(embedded("a", "b", at=251))
    story.when(texts("c", at=252))
    (change,) = [item for item in story.decisions if isinstance(item, WindowTuned)]
    assert (change.service_us, change.new_ms, change.max_ms) == (us(100), 60, 60)


def test_a_window_does_not_flap() -> None:
    tuned = replace(STILL, window_tunes=True, batch_texts_max=10, window_tune_pause_ms=1000)
    story = encoder(replace(tuned, window_backlog_closes=None))
    changes: list[tuple[int, int]] = []
    at = 0.0
    for number in range(400):
        # A text each 12 ms, give or take 4: the window of 120 ms is left alone.
        at += 12 + (4 if number % 2 else -4)
        story.when(texts(f"t-{number}", at=at))
        changes += [(item.old_ms, item.new_ms) for item in _tuned(story)]
        running = list(story.state.models["m"].replicas[0].running)
        if running:
            story.when(embedded(*running, at=at + 1))
            changes += [(item.old_ms, item.new_ms) for item in _tuned(story)]
    assert len(changes) <= 1, changes


def _tuned(story: Story) -> list[WindowTuned]:
    return [item for item in story.decisions if isinstance(item, WindowTuned)]


def test_a_new_base_in_the_policy_begins_the_tuning_again() -> None:
    tuned = replace(STILL, window_tunes=True, window_backlog_closes=None, batch_texts_max=4)
    story = encoder(tuned).when(texts("a"), texts("b", at=4), tick(150))
    story.when(embedded("a", "b", at=160), texts("c", at=164))
    assert _tuned(story)
    story.when(tick(300), embedded("c", at=310))
    story.when(policy_is(replace(tuned, version=2, window_ms=100), at=320), texts("d", at=330))
    (change,) = _tuned(story)
    assert (change.base_ms, change.old_ms) == (100, 100)


# Kinds that change


def test_a_model_that_becomes_one_shot_and_back_keeps_its_requests_and_its_books() -> None:
    story = given(ready(batch=4), policy=STILL)
    story.when(*(arrived(name, at=1) for name in "abcdef"), profile_is(ENCODER, at=2))
    assert story.state.models["m"].batching is not None
    assert story.state.models["m"].batching.texts_waiting == 2
    story.when(texts("t", at=3))
    story.when(profile_is(PROFILE, at=4))
    assert story.state.models["m"].batching is None
    assert story.state.windows == []


def test_a_full_batch_looks_at_no_more_than_fits() -> None:
    story = encoder(replace(FREE, batch_texts_max=2, batches_ahead_max=0)).when(texts("first"))
    story.when(*(texts(name, at=1) for name in "abcd"), embedded("first", at=5))
    assert (batch_of(story).members, batch_of(story).passed_over) == (("a", "b"), 0)


def test_a_state_that_was_stored_amid_windows_and_batches_goes_on_as_the_one_that_was_not() -> None:
    story = encoder(replace(STILL, window_backlog_closes=None))
    story.when(texts("a"), texts("b"), tick(150), texts("c", at=160, deadline=900, tier="normal"))
    again = thaw(b"".join(encode_pieces(freeze(story.state))))
    assert again.windows == story.state.windows
    for fact in (embedded("a", "b", at=230), texts("d", at=240), tick(310), tick(400)):
        assert step(again.policy, again, fact) == story.when(fact).decisions
    assert state_digest(again) == state_digest(story.state)


# Quotas and starvation


def test_a_tenant_s_running_quota_bounds_its_places_in_a_batch_and_the_rest_wait_for_it() -> None:
    one = Override(tenant="narrow", key="quota_running_requests", value=1)
    story = encoder(replace(STILL, overrides=(one,)))
    names = ("a", "b", "c")
    story.when(*(texts(name, tenant="narrow") for name in names), texts("other", tenant="wide"))
    story.when(tick(150))
    assert sorted(batch_of(story).members) == ["a", "other"]
    batching = story.state.models["m"].batching
    assert batching is not None
    # "b" is next, and its tenant is held back once a replica is free to take it.
    story.when(ready(1, at=160, life="L2"))
    assert [item.tenant for item in story.decisions if isinstance(item, d.TenantHeld)] == ["narrow"]
    assert (batching.requests_waiting, batching.texts_waiting) == (0, 0)
    assert story.state.models["m"].cause == "quota"
    # What it has waiting opens no window for others, and leaves none that is due for ever.
    story.when(texts("late", at=170, tenant="wide"))
    opened = next(item for item in story.decisions if isinstance(item, WindowOpened))
    assert opened.opened_us == us(170)
    story.when(embedded("a", "other", at=200))
    assert sorted(batch_of(story).members) == ["b", "late"]
    assert batching.of_tenant == {"narrow": (1, 1)}


def test_what_comes_and_goes_of_a_tenant_that_is_held_back_counts_for_no_batch() -> None:
    one = Override(tenant="narrow", key="quota_running_requests", value=1)
    story = encoder(replace(FREE, overrides=(one,))).when(ready(1, life="L2"))
    story.when(texts("first", tenant="narrow"), texts("b", tenant="narrow"))
    assert story.state.models["m"].cause == "quota"
    batching = story.state.models["m"].batching
    assert batching is not None
    story.when(texts("c", at=1, tenant="narrow"))
    assert (batching.texts_waiting, batching.of_tenant["narrow"]) == (0, (2, 2))
    story.when(cancel("b", at=2))
    assert (batching.texts_waiting, batching.of_tenant["narrow"]) == (0, (1, 1))
    story.when(embedded("first", at=3))
    assert batch_of(story).members == ("c",)
    assert batching.of_tenant == {}


def test_a_deadline_of_a_tenant_that_is_held_back_presses_nobody() -> None:
    one = Override(tenant="narrow", key="quota_running_requests", value=1)
    story = encoder(replace(FREE, overrides=(one,))).when(ready(1, life="L2"))
    story.when(texts("first", tenant="narrow"), texts("b", tenant="narrow", deadline=500))
    assert story.state.models["m"].cause == "quota"
    still = replace(STILL, version=2, overrides=(one,))
    story.when(policy_is(still, at=1), texts("c", at=2, tenant="wide"))
    opened = [item for item in story.decisions if isinstance(item, WindowOpened)]
    assert story.state.models["m"].cause in {"window", "quota"}
    assert all(item.due_us > us(2) for item in opened)


def test_the_head_of_a_starved_tier_rides_first_and_says_so() -> None:
    story = encoder(replace(FREE, batch_texts_max=1, batches_ahead_max=0)).when(texts("run"))
    story.when(texts("old", at=1))
    at = 1.0
    for number in range(8):
        at += 800
        story.when(heartbeat(at=at), texts(f"high-{number}", at=at, tier="normal"))
    story.when(embedded("run", at=at + 1))
    assert batch_of(story).members == ("old",)
    assert batch_of(story).starved
    dispatched = next(item for item in story.decisions if isinstance(item, d.RequestDispatched))
    assert dispatched.starved


def test_offline_items_that_wait_for_a_model_that_became_one_shot_have_the_window_of_batch() -> (
    None
):
    story = encoder().when(texts("a"), cancel("a"))
    state = story.state
    template = given(texts("x"), policy=STILL, profile=ENCODER).state.requests["x"]
    item = replace(template, id="item", line="offline", order=99)
    state.requests["item"] = item
    waiting.join(state, item)
    model = state.models["m"]
    assert model.batching is not None
    opened = windows.find(state, model, model.batching)
    assert isinstance(opened, WindowOpened)
    assert (opened.tier, opened.target_ms) == ("batch", 60_000)
