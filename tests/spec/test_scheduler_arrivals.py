"""What happens to a request at the door: queued, rejected, expired, routed or a duplicate."""

from dataclasses import replace

from schemas import decisions as d
from schemas import facts as f
from schemas.ids import cell_of
from tests.spec.scheduler_story import (
    PROFILE,
    a,
    arrived,
    cancel,
    failed,
    finished,
    given,
    ready,
    refused,
    stopped,
    tick,
    us,
    with_policy,
)

# By the murmur2 of their names: of three cells, "m" belongs to 2 and "other" to 1.
CELLS = 3


def test_a_request_is_queued_with_everything_it_asked_for() -> None:
    asked = arrived("a", at=10, sent=8, prompt=20, output=30, tier="batch", tenant="t")
    story = given().when(replace(asked, deadline_ms=500))
    story.then(
        a(d.RequestQueued),
        a(d.QueueBlocked, model="m", cause="no-replica", head="a", waiting=1),
    )
    assert story.decisions[0] == d.RequestQueued(
        id="a",
        model="m",
        tenant="t",
        tier="batch",
        prompt_tokens=20,
        max_output_tokens=30,
        deadline_us=508_000,  # it counts from the broker's stamp
        ahead=0,
        preemptible=True,
        quota_us=0,
    )


def test_what_a_request_leaves_out_comes_from_the_policy() -> None:
    policy = with_policy(
        default_tier="critical", default_tenant="nobody", default_output_tokens_max=77
    )
    given(policy=policy).when(arrived("a", output=None)).then(
        a(
            d.RequestQueued,
            tier="critical",
            tenant="nobody",
            max_output_tokens=77,
            deadline_us=None,
        ),
        a(d.QueueBlocked),
    )


def test_the_default_output_limit_is_cut_to_what_the_context_leaves() -> None:
    given().when(arrived("a", prompt=990, output=None)).then(
        a(d.RequestQueued, max_output_tokens=10), a(d.QueueBlocked)
    )


def test_a_request_counts_those_ahead_of_it() -> None:
    story = given(arrived("a"), arrived("b")).when(arrived("c"))
    story.then(a(d.RequestQueued, id="c", ahead=2))


def test_an_unknown_model_is_rejected_with_the_names_that_are_known() -> None:
    given().when(arrived("a", at=5, sent=3, model="mm", output=9)).then(
        a(
            d.RequestEnded,
            id="a",
            outcome="rejected",
            reason="unknown-model",
            detail="no model is named 'mm'; known models: m",
            attempts=0,
            slot=None,
            wait_us=2000,
            waits=(("transit", 2000),),
            run_us=0,
            e2e_us=2000,
            max_output_tokens=9,
            tenant="default",
            tier="normal",
            keep_until_us=600_005_000,
        )
    )


def test_where_no_model_is_known_the_rejection_says_so() -> None:
    given(profile=None).when(arrived("a")).then(
        a(d.RequestEnded, detail="no model is named 'm'; known models: none", waits=())
    )


def test_a_request_larger_than_the_context_is_rejected() -> None:
    given().when(arrived("a", prompt=990, output=11)).then(
        a(
            d.RequestEnded,
            outcome="rejected",
            reason="over-context",
            detail="asks for 1001 tokens (990 prompt and 11 output), but the context of m"
            " holds 1000",
        )
    )
    given().when(arrived("a", prompt=990, output=10)).then(a(d.RequestQueued), a(d.QueueBlocked))


def test_a_prompt_that_fills_the_context_alone_is_rejected_even_without_a_limit() -> None:
    given().when(arrived("a", prompt=1000, output=None)).then(
        a(d.RequestEnded, reason="over-context", max_output_tokens=0)
    )


def test_a_request_larger_than_every_pool_is_rejected_at_the_door() -> None:
    # Two pools: 10 × 16 = 160 and 12 × 16 = 192 tokens.
    story = given(ready(0), ready(1, blocks=12))
    story.when(arrived("a", prompt=100, output=93)).then(
        a(
            d.RequestEnded,
            outcome="rejected",
            reason="over-pool",
            detail="needs KV for 193 tokens (100 prompt and 93 output), but the largest KV pool"
            " holds 192",
        )
    )
    story.when(arrived("b", prompt=100, output=92)).then(
        a(d.RequestQueued), a(d.RequestDispatched, id="b", slot=1, blocks=12)
    )


def test_a_pool_that_is_away_still_counts_since_it_may_come_back() -> None:
    given(ready(0), stopped(0)).when(arrived("a", prompt=100, output=61)).then(
        a(d.RequestEnded, reason="over-pool")
    )
    given(ready(0), stopped(0)).when(arrived("a", prompt=100, output=60)).then(
        a(d.RequestQueued), a(d.QueueBlocked, cause="no-replica")
    )


def test_a_waiting_request_larger_than_the_first_pool_is_rejected_when_that_one_is_ready() -> None:
    story = given(arrived("big", at=1, prompt=100, output=61), arrived("small", at=1))
    story.when(ready(at=3)).then(
        a(d.ReplicaAdmitted),
        a(
            d.RequestEnded,
            id="big",
            outcome="rejected",
            reason="over-pool",
            detail="needs KV for 161 tokens (100 prompt and 61 output), but the largest KV pool"
            " holds 160",
            wait_us=2000,
            waits=(("no-replica", 2000),),
        ),
        a(d.RequestDispatched, id="small"),
    )


def test_a_full_queue_rejects_and_says_what_to_do() -> None:
    story = given(arrived("a"), arrived("b"), policy=with_policy(queued_requests_max=2))
    story.when(arrived("c")).then(
        a(
            d.RequestEnded,
            outcome="rejected",
            reason="queue-full",
            detail="2 requests of m wait already, the most that policy 'changed' allows",
            retry_after_ms=100,
        )
    )


def test_running_requests_do_not_fill_the_queue() -> None:
    story = given(ready(), arrived("a"), arrived("b"), policy=with_policy(queued_requests_max=1))
    story.when(arrived("c")).then(a(d.RequestQueued), a(d.RequestDispatched))


def test_a_deadline_of_zero_expires_at_the_door() -> None:
    given(ready()).when(arrived("a", at=4, deadline=0)).then(
        a(
            d.RequestEnded,
            outcome="expired",
            reason="deadline",
            detail="its deadline of 0 ms had passed when it reached the cell",
        )
    )


def test_a_deadline_that_passed_on_the_way_expires_at_the_door() -> None:
    given(ready()).when(arrived("a", at=50, sent=20, deadline=30)).then(
        a(d.RequestEnded, outcome="expired", wait_us=30_000, waits=(("transit", 30_000),))
    )
    given(ready()).when(arrived("a", at=49, sent=20, deadline=30)).then(
        a(d.RequestQueued), a(d.RequestDispatched, waits=(("transit", 29_000),))
    )


def test_the_deadline_is_held_against_the_cells_clock_even_when_that_ran_ahead() -> None:
    given(tick(100)).when(arrived("a", at=50, deadline=40)).then(
        a(d.RequestEnded, outcome="expired", e2e_us=50_000)
    )


# Duplicates


def test_a_resend_is_ignored_while_the_first_waits() -> None:
    given(arrived("a")).when(arrived("a")).then(
        a(d.DuplicateIgnored, id="a", same_body=True, stage="waiting")
    )


def test_a_resend_with_another_body_is_ignored_and_says_so() -> None:
    given(arrived("a", body="b0")).when(arrived("a", body="b1")).then(
        a(d.DuplicateIgnored, same_body=False, stage="waiting")
    )


def test_a_resend_is_ignored_while_the_first_runs() -> None:
    story = given(ready(), arrived("a"))
    story.when(arrived("a")).then(a(d.DuplicateIgnored, same_body=True, stage="running"))
    story.when(arrived("a", body="b1")).then(a(d.DuplicateIgnored, same_body=False))


def test_a_resend_is_ignored_while_the_first_backs_off() -> None:
    story = given(ready(), arrived("a"), failed("a"))
    story.when(arrived("a")).then(a(d.DuplicateIgnored, stage="waiting"))


def test_a_resend_is_ignored_after_the_first_has_ended() -> None:
    story = given(ready(), arrived("a"), finished("a", at=1))
    story.when(arrived("a", at=2)).then(a(d.DuplicateIgnored, same_body=True, stage="ended"))
    story.when(arrived("a", at=2, body="b1")).then(a(d.DuplicateIgnored, same_body=False))


def test_a_rejected_id_is_a_duplicate_too() -> None:
    story = given(arrived("a", prompt=2000))
    story.when(arrived("a")).then(a(d.DuplicateIgnored, stage="ended"))


def test_an_ended_id_is_forgotten_after_the_dedupe_window() -> None:
    story = given(
        ready(), arrived("a"), finished("a", at=10), policy=with_policy(dedupe_window_ms=100)
    )
    story.when(arrived("a", at=109.999)).then(a(d.DuplicateIgnored))
    story.when(arrived("a", at=110)).then(a(d.RequestQueued), a(d.RequestDispatched, attempt=1))


def test_only_so_many_ended_ids_are_remembered_and_the_oldest_goes_first() -> None:
    facts = [arrived(name, prompt=2000) for name in ("a", "b", "c")]
    story = given(*facts, policy=with_policy(dedupe_ids_max=2))
    story.when(arrived("b")).then(a(d.DuplicateIgnored))
    story.when(arrived("c")).then(a(d.DuplicateIgnored))
    story.when(arrived("a")).then(a(d.RequestQueued), a(d.QueueBlocked))


# Refused and unreadable


def test_a_refused_request_ends_with_the_name_of_the_field() -> None:
    given().when(refused("a", at=3)).then(
        a(
            d.RequestEnded,
            id="a",
            outcome="rejected",
            reason="bad-field",
            detail="temperature: should be at most 5",
            tenant="default",
            tier="normal",
            prompt_tokens=0,
            max_output_tokens=0,
            metadata=(),
        )
    )


def test_a_refused_resend_of_a_known_request_does_not_end_it() -> None:
    story = given(arrived("a"))
    story.when(refused("a", body="b1")).then(
        a(d.DuplicateIgnored, same_body=False, stage="waiting")
    )
    story = given(refused("a"))
    story.when(refused("a")).then(a(d.DuplicateIgnored, same_body=True, stage="ended"))


def test_a_refused_request_without_a_model_ends_where_it_is() -> None:
    given(cell=1, cells=CELLS).when(refused("a", model="")).then(a(d.RequestEnded))


def test_an_unreadable_record_goes_to_the_dead_letters_with_its_reason() -> None:
    fact = f.MessageUnreadable(
        at_us=us(1), topic="t", partition=2, offset=3, reason="no JSON", body_bytes=4
    )
    story = given().when(fact)
    assert story.decisions == (
        d.MessageDeadLettered(topic="t", partition=2, offset=3, reason="no JSON"),
    )


# Routing


def test_the_cells_of_the_two_models_are_as_the_tests_say() -> None:
    assert cell_of("m", CELLS) == 2
    assert cell_of("other", CELLS) == 1


def test_a_request_of_another_cells_model_is_routed_there() -> None:
    story = given(cell=1, cells=CELLS).when(arrived("a", at=5, sent=3, offset=42))
    assert story.decisions == (
        d.RequestRouted(id="a", model="m", to_cell=2, arrived_us=3000, offset=42),
    )
    assert not story.state.requests


def test_a_request_of_a_model_unknown_here_is_routed_to_where_it_would_be_known() -> None:
    given(cell=0, cells=CELLS).when(arrived("a", model="other")).then(
        a(d.RequestRouted, model="other", to_cell=1)
    )


def test_a_refused_request_is_routed_too() -> None:
    given(cell=1, cells=CELLS).when(refused("a")).then(a(d.RequestRouted, to_cell=2))


def test_a_routed_request_is_taken_at_the_owner() -> None:
    given(cell=2, cells=CELLS).when(arrived("a", routed_by=(1, 9, 0))).then(
        a(d.RequestQueued), a(d.QueueBlocked)
    )


def test_a_message_is_routed_only_once_even_if_it_is_wrong_here() -> None:
    story = given(cell=1, cells=CELLS)
    story.when(arrived("a", routed_by=(2, 9, 0))).then(a(d.RequestQueued), a(d.QueueBlocked))
    story.when(refused("b", routed_by=(2, 9, 0))).then(a(d.RequestEnded, reason="bad-field"))
    story.when(arrived("c", model="other", routed_by=(0, 9, 0))).then(
        a(d.RequestEnded, reason="unknown-model")
    )
    story.when(cancel("d", routed_by=(0, 9, 1))).then(a(d.CancelIgnored, why="unknown"))


def test_a_takeover_with_more_cells_finds_the_owners_anew() -> None:
    story = given(cell=0, cells=2)
    # Of two cells "m" belongs to 0, of three to 2.
    story.when(arrived("a")).then(a(d.RequestQueued), a(d.QueueBlocked))
    story.when(f.OwnerTookOver(at_us=us(1), cell=0, cells=CELLS, epoch=2, owner="next"))
    story.when(arrived("b", at=1)).then(a(d.RequestRouted, to_cell=2))


def test_a_changed_profile_changes_the_context_and_keeps_the_queue() -> None:
    story = given(arrived("a"))
    story.when(f.ProfileSet(at_us=0, profile=replace(PROFILE, max_sequence_tokens=40)))
    story.when(arrived("b", prompt=20, output=21)).then(a(d.RequestEnded, reason="over-context"))
    story.when(ready()).then(a(d.ReplicaAdmitted), a(d.RequestDispatched, id="a"))
