"""What `headway batch` says of a job that waits: the rule that holds it back, and no other."""

from typing import get_args

import pytest

from schemas.batch import BatchHold, BatchStatus, JobReport, JobState, QuotaReason
from schemas.codec import decode, encode
from services.cli._batch_words import held_by, hold_sentence, state_sentence, status_json

HOLD = BatchHold(
    model="m",
    cell=0,
    seq=6,
    at_us=2,
    cause="online-waits",
    online=3,
    online_waiting=2,
    idle_us=0,
    slots=4,
    slots_free=1,
    blocks=40,
    blocks_free=9,
)


def status(
    state: JobState = "running", detail: str = "", waits_for: QuotaReason | None = None
) -> BatchStatus:
    report = JobReport(
        tenant="acme",
        endpoint="/v1/completions",
        label="a.jsonl",
        digest=None,
        offset=0,
        submitted_us=0,
        state=state,
        items=9,
        arrived=9,
        released=2,
        completed=1,
        rejected=0,
        expired=0,
        failed=0,
        cancelled=0,
        not_run=0,
        held=(("quota", 1_500_000),),
        ended_us=None,
        detail=detail,
        waits_for=waits_for,
    )
    return BatchStatus(job="j", model="m", cell=0, seq=5, at_us=1, report=report)


def test_a_full_queue_is_the_model_s_and_not_called_the_tenant_s_quota() -> None:
    told = status(detail="30 requests of m wait already", waits_for="queue-full")
    assert held_by(told, None) == "queue-full"
    assert hold_sentence(told, None) == (
        "it waits because as many requests of its model wait as may, whoever's they are: 30"
        " requests of m wait already"
    )
    assert status_json(told, None)["held_by"] == {
        "cause": "quota",
        "reason": "queue-full",
        "detail": "30 requests of m wait already",
    }


@pytest.mark.parametrize("rule", get_args(QuotaReason))
def test_each_rule_has_words_of_its_own_and_goes_before_what_holds_the_model(
    rule: QuotaReason,
) -> None:
    told = status(detail="2 and 3", waits_for=rule)
    sentence = hold_sentence(told, HOLD)
    assert sentence is not None
    assert sentence.endswith(": 2 and 3")
    assert ("tenant" in sentence) == rule.startswith("quota-")
    assert held_by(told, HOLD) == rule


def test_a_job_that_no_rule_holds_back_waits_for_what_its_model_waits_for() -> None:
    assert (held_by(status(), HOLD), held_by(status(), None)) == ("online-waits", "")
    assert hold_sentence(status(), None) is None
    assert hold_sentence(status(), HOLD) == (
        "it waits because online requests wait for the room: 3 online requests, 2 of them waiting;"
        " 1 of 4 slots and 9 of 40 KV blocks free"
    )


def test_why_a_job_was_rejected_is_no_wait() -> None:
    told = status("rejected", detail="2 jobs are remembered, and none has ended")
    assert (held_by(told, None), hold_sentence(told, None)) == ("", None)
    assert state_sentence(told).endswith(": 2 jobs are remembered, and none has ended")


def test_a_report_without_a_rule_is_written_as_it_was_before_there_was_one() -> None:
    assert b"waits_for" not in encode(status())
    with_rule = status(waits_for="queue-full")
    assert b'"waits_for":"queue-full"' in encode(with_rule)
    for one in (status(), with_rule):
        assert decode(encode(one)) == one
