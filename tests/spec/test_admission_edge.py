"""What the edge makes of records: the facts, and that nothing which is read can raise."""

import json
from dataclasses import replace
from typing import Any

import pytest
from aiokafka.structs import ConsumerRecord

from schemas import facts as f
from schemas.bus import WorkerReport
from schemas.codec import encode
from schemas.policy import Override, Policy
from schemas.policy_history import record_of
from schemas.profile import SMOLLM2_135M
from schemas.topics import CONFIG, REQUESTS, WORKER_EVENTS
from streams.admission import FACT_BYTES_MAX, Edge, Read

NOW_US = 5_000_000
STAMP_MS = 4_000
LOG_APPEND_TIME, CREATE_TIME = 1, 0
CANCEL = json.dumps({"kind": "cancel.v1", "id": "a"}).encode()
REQUEST = json.dumps(
    {"kind": "inference-request.v1", "id": "a", "model": SMOLLM2_135M.model, "prompt": "one"}
).encode()
Header = tuple[str, bytes | None]
SENT_ON: tuple[Header, ...] = (
    ("headway-cell", b"1"),
    ("headway-seq", b"20"),
    ("headway-index", b"3"),
)


def record(
    topic: str,
    value: bytes | None,
    headers: tuple[Header, ...] = (),
    stamp: int = LOG_APPEND_TIME,
) -> "ConsumerRecord[bytes, bytes]":
    size = len(value or b"")
    return ConsumerRecord(topic, 0, 7, STAMP_MS, stamp, b"key", value, None, 3, size, headers)  # pyright: ignore[reportArgumentType] - a header may be null, the client's type does not say so


def read(
    topic: str,
    value: bytes | None,
    headers: tuple[Header, ...] = (),
    stamp: int = LOG_APPEND_TIME,
) -> Read | None:
    edge = Edge(2, lambda _: lambda _: 11)
    edge.profiles[SMOLLM2_135M.model] = SMOLLM2_135M
    return edge.read(record(topic, value, headers, stamp), NOW_US)


def fact_of(
    topic: str,
    value: bytes | None,
    headers: tuple[Header, ...] = (),
    stamp: int = LOG_APPEND_TIME,
) -> f.Fact:
    found = read(topic, value, headers, stamp)
    assert found is not None
    assert found.source == (topic, 0, 7)
    return found.fact


def finished(**fields: object) -> WorkerReport:
    usage = f.Usage(prompt_tokens=1, output_tokens=1, queued_us=1, prefill_us=1, decode_us=1)
    done = f.WorkDone(id="a", attempt=1, finish_reason="stop", usage=usage, output_digest="0" * 16)
    fact = f.WorkFinished(model="m", slot=0, incarnation="x", items=(done,))
    return replace(WorkerReport(fact=fact, texts=("said",)), **fields)


def test_a_request_arrives_at_the_brokers_stamp_with_its_tokens_counted() -> None:
    fact = fact_of(REQUESTS, REQUEST)
    assert isinstance(fact, f.RequestArrived)
    assert (fact.at_us, fact.arrived_us, fact.offset) == (NOW_US, 4_000_000, 7)
    assert (fact.prompt_tokens, fact.body_bytes) == (11, len(REQUEST))
    assert fact.routed_by is None


def test_a_stamp_that_the_producer_made_is_not_trusted() -> None:
    fact = fact_of(REQUESTS, REQUEST, stamp=CREATE_TIME)
    assert isinstance(fact, f.RequestArrived)
    assert fact.arrived_us == NOW_US


def test_a_request_that_another_cell_sent_on_keeps_its_first_stamp() -> None:
    fact = fact_of(REQUESTS, REQUEST, (*SENT_ON, ("headway-arrived-us", b"3000000")))
    assert isinstance(fact, f.RequestArrived)
    assert (fact.arrived_us, fact.routed_by) == (3_000_000, (1, 20, 3))


@pytest.mark.parametrize("value", [REQUEST, CANCEL], ids=["request", "cancel"])
@pytest.mark.parametrize(
    "headers",
    [
        [("headway-cell", None)],
        [("headway-cell", b"")],
        [("headway-cell", b"-1"), *SENT_ON[1:]],
        [("headway-cell", b"2"), *SENT_ON[1:]],
        [("headway-cell", b"0"), *SENT_ON[1:], ("headway-arrived-us", b"3000000")],
        SENT_ON,
        [("headway-arrived-us", b"3000000")],
        [SENT_ON[0], ("headway-seq", b"9" * 19), SENT_ON[2]],
        [SENT_ON[0], ("headway-seq", b"1_0"), SENT_ON[2]],
        SENT_ON[:2],
        [*SENT_ON, ("headway-arrived-us", b"soon")],
        [*SENT_ON, ("headway-arrived-us", None)],
    ],
    ids=str,
)
def test_headers_that_no_other_cell_wrote_change_nothing(
    value: bytes, headers: list[Header]
) -> None:
    assert fact_of(REQUESTS, value, tuple(headers)) == fact_of(REQUESTS, value)


def test_a_tombstone_on_the_configuration_asks_for_nothing() -> None:
    assert read(CONFIG, None) is None


def a_set(version: int, **values: Any) -> tuple[bytes, bytes]:
    policy = Policy(version=version, **values)
    return record_of(policy, based_on=1, at_us=3, who="ann", why="to see")


def told(edge: Edge, key: bytes, value: bytes) -> f.Fact:
    found = edge.read(replace(record(CONFIG, value), key=key), NOW_US)
    assert found is not None
    return found.fact


def new_edge() -> Edge:
    return Edge(2, lambda _: lambda _: 11)


def test_a_policy_that_is_set_becomes_a_fact_with_who_and_why() -> None:
    fact = told(new_edge(), *a_set(2, name="other"))
    assert isinstance(fact, f.PolicyActivated)
    assert fact.policy == Policy(name="other", version=2)
    assert (fact.at_us, fact.who, fact.why, fact.based_on) == (NOW_US, "ann", "to see", 1)


def test_a_profile_becomes_a_fact() -> None:
    profile = replace(SMOLLM2_135M, version=2)
    assert fact_of(CONFIG, encode(profile)) == f.ProfileSet(at_us=NOW_US, profile=profile)


def test_of_two_policies_of_a_version_the_second_is_unreadable_even_in_the_same_batch() -> None:
    edge = new_edge()
    assert isinstance(told(edge, *a_set(2)), f.PolicyActivated)
    second = told(edge, *a_set(2, attempts_max=4))
    assert isinstance(second, f.MessageUnreadable)
    assert second.reason.startswith("version 2 is not above 2, which is in force")
    assert isinstance(told(edge, *a_set(3)), f.PolicyActivated)


def test_a_bad_policy_is_unreadable_with_the_key_the_bound_and_the_reason() -> None:
    _, value = a_set(2, attempts_max=9)
    for changed, reason in (
        (value.replace(b'"attempts_max":9', b'"attempts_max":0'), "attempts_max cannot be 0: it"),
        (value.replace(b'"attempts_max"', b'"attempt_max"'), '"attempt_max": there is no such key'),
        (encode(Policy()), "a policy is set by a policy-set.v1, which says who"),
        (encode(finished()), "a worker-report.v1 does not belong on headway.config"),
        (b"garbage", "the message is not JSON"),
        (b"[" * 100_000, "the message is not JSON"),
    ):
        fact = fact_of(CONFIG, changed)
        assert isinstance(fact, f.MessageUnreadable)
        assert fact.reason.startswith(reason)


def test_a_policy_that_is_too_long_for_the_ledger_is_unreadable() -> None:
    tenants = (f"tenant-{number:0100d}" for number in range(6_000))
    overrides = tuple(Override(tenant=name, key="attempts_max", value=4) for name in tenants)
    fact = told(new_edge(), *a_set(2, overrides=overrides))
    assert isinstance(fact, f.MessageUnreadable)
    assert fact.reason == "it is longer than 1048576 bytes"


def test_a_workers_fact_is_stamped_here_and_knows_where_its_texts_lie() -> None:
    fact = fact_of(WORKER_EVENTS, encode(finished()))
    assert isinstance(fact, f.WorkFinished)
    assert (fact.at_us, fact.offset) == (NOW_US, 7)


@pytest.mark.parametrize("texts", [(), ("said", "and more")], ids=len)
def test_a_report_with_a_text_too_few_or_too_many_is_unreadable(texts: tuple[str, ...]) -> None:
    fact = fact_of(WORKER_EVENTS, encode(finished(texts=texts)))
    assert isinstance(fact, f.MessageUnreadable)
    assert fact.reason == f"1 items came with {len(texts)} texts"


def test_long_texts_are_welcome_and_a_fact_too_long_for_the_ledger_is_not() -> None:
    long_text = "x" * (2 * FACT_BYTES_MAX)
    assert isinstance(fact_of(WORKER_EVENTS, encode(finished(texts=(long_text,)))), f.WorkFinished)
    stopped = f.ReplicaStopped(model="m", slot=0, incarnation="x", reason=long_text)
    fact = fact_of(WORKER_EVENTS, encode(WorkerReport(fact=stopped)))
    assert isinstance(fact, f.MessageUnreadable)
    assert fact.reason == "without texts it is longer than 1048576 bytes"


@pytest.mark.parametrize("topic", [CONFIG, WORKER_EVENTS])
def test_a_reason_does_not_quote_a_message_at_length(topic: str) -> None:
    value = json.dumps({"kind": "x" * 1_000_000}).encode()
    fact = fact_of(topic, value)
    assert isinstance(fact, f.MessageUnreadable)
    assert fact.reason == (
        "the message should be of a kind that is known here, not a string of 1000000 characters"
    )
    assert fact.body_bytes == len(value)


def test_a_message_of_another_topic_is_unreadable() -> None:
    fact = fact_of(WORKER_EVENTS, encode(Policy()))
    assert isinstance(fact, f.MessageUnreadable)
    assert fact.reason == "a policy.v1 does not belong on headway.worker.events"
