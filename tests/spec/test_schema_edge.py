"""The edge: any bytes become a request, a cancel, a refusal or an unreadable record; never a crash.

Bad inputs that a cell must survive stand in tests/cases/bad_inputs.jsonl; they go through a real
broker elsewhere, and through the edge alone here.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from schemas.edge import (
    DEPTH_MAX,
    DETAIL_CHARS_MAX,
    REQUEST_BYTES_MAX,
    Refused,
    Unreadable,
    read_request,
)
from schemas.export import SCHEMAS
from schemas.requests import Cancel, InferenceRequest

BASE: dict[str, Any] = {
    "kind": "inference-request.v1",
    "id": "a",
    "model": "smollm2-135m",
    "tenant": "acme",
    "prompt": "hi",
}
BAD_INPUTS = Path(__file__).parents[1] / "cases" / "bad_inputs.jsonl"
SCHEMA = Draft202012Validator(SCHEMAS["inference-request.v1"].json_schema())


def _raw(**fields: Any) -> bytes:
    return json.dumps(BASE | fields).encode()


def _with(text: str) -> bytes:
    """Return the base request with `text`, a field in raw JSON, at its end."""
    return json.dumps(BASE).encode()[:-1] + f", {text}}}".encode()


def test_a_well_formed_request_is_itself() -> None:
    request = read_request(_raw(tier="realtime", deadline_ms=0, temperature=1, metadata={"k": ""}))
    assert request == InferenceRequest(
        kind="inference-request.v1",
        id="a",
        model="smollm2-135m",
        tenant="acme",
        tier="realtime",
        prompt="hi",
        temperature=1.0,
        deadline_ms=0,
        metadata={"k": ""},
    )


def test_a_chat_is_a_request() -> None:
    request = read_request(_raw(prompt=None, messages=[{"role": "user", "content": ""}]))
    assert isinstance(request, InferenceRequest)
    assert request.messages is not None
    assert [turn.role for turn in request.messages] == ["user"]


def test_a_cancel_needs_no_model() -> None:
    assert read_request(b'{"kind":"cancel.v1","id":"x"}') == Cancel(kind="cancel.v1", id="x")


def test_an_id_may_hold_newlines_and_quotes() -> None:
    nasty = "a\n'; DROP TABLE ledger; --\"\\\u0000\U0001f600"
    request = read_request(_raw(id=nasty))
    assert isinstance(request, InferenceRequest)
    assert request.id == nasty


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (None, "the record has no value"),
        (b"", "the record is not JSON: Expecting value"),
        (b'{"id":"a",', "the record is not JSON: Expecting property name"),
        (_raw() + b"}", "the record is not JSON: Extra data"),
        (b"\xef\xbb\xbf{}", "the record is not JSON: Unexpected UTF-8 BOM"),
        (json.dumps(BASE).encode("utf-16"), "the record is not UTF-8: byte 0 is wrong"),
        (bytes.fromhex("7b226964223a22ff22"), "the record is not UTF-8: byte 7 is wrong"),
        # A surrogate spelt out in UTF-8 is not UTF-8.
        (b'{"id":"\xed\xa0\x80"}', "the record is not UTF-8"),
        (b"[1,2,3]", "the record is JSON, but not an object"),
        (b'"text"', "the record is JSON, but not an object"),
        (b"null", "the record is JSON, but not an object"),
        (b"NaN", "the record is JSON, but not an object"),
        (b"[" * 10_000, "the record is nested deeper than 64 levels"),
        (b'{"a":' * 100_000, "the record is nested deeper than 64 levels"),
        (_with('"x": ' + "[" * 500 + "]" * 500), "the record is nested deeper than 64 levels"),
        (
            b"{}",
            "the kind is not known; it should be inference-request.v1 or embedding-request.v1",
        ),
        (_raw(kind="inference-request.v99"), "the kind is not known"),
        (_raw(kind=["inference-request.v1"]), "the kind is not known"),
        (_raw(kind=None), "the kind is not known"),
        (b'{"kind":"inference-request.v1","prompt":"hi"}', "there is no usable id"),
        (_raw(id=""), "there is no usable id; it should be a string of 1 to 256 characters"),
        (_raw(id=7), "there is no usable id"),
        (_raw(id=None), "there is no usable id"),
        (_raw(id="x" * 257), "there is no usable id"),
        (_raw(id="x" * 200_000), "there is no usable id"),
        (_raw(id="\ud800"), "there is no usable id; it holds half of a surrogate pair"),
        (b'{"kind":"cancel.v1"}', "there is no usable id"),
        # A cancel is no request: an outcome for its id would be a second one.
        (
            b'{"kind":"cancel.v1","id":"a","why":"late"}',
            "the cancel is not acceptable: why is not a field of cancel.v1",
        ),
        (
            b'{"kind":"cancel.v1","id":"a","model":7}',
            "the cancel is not acceptable: model should be a string, not 7",
        ),
    ],
)
def test_what_names_no_request_is_unreadable(raw: bytes | None, reason: str) -> None:
    answer = read_request(raw)
    assert isinstance(answer, Unreadable)
    assert answer.reason.startswith(reason)


@pytest.mark.parametrize(
    ("raw", "detail"),
    [
        (_raw(max_output_tokens=-5), "max_output_tokens should be at least 1, not -5"),
        (
            _raw(max_output_tokens=99_999_999),
            "max_output_tokens should be at most 1000000, not 99999999",
        ),
        (_raw(max_output_tokens=10**40), "max_output_tokens should be at most 1000000"),
        (_raw(max_output_tokens=True), "max_output_tokens should be a whole number, not true"),
        (_raw(max_output_tokens="4"), 'max_output_tokens should be a whole number, not "4"'),
        (
            _raw(max_output_tokens=4.0),
            "max_output_tokens should be a whole number, written without a decimal point, not 4.0",
        ),
        (_with('"max_output_tokens": 1e400'), "max_output_tokens holds a number that is not fini"),
        (_with(f'"max_output_tokens": {"1" * 5_000}'), "max_output_tokens holds a number that"),
        (_with('"deadline_ms": NaN'), "deadline_ms holds a number that is not finite; it should"),
        (_with('"temperature": -Infinity'), "temperature holds a number that is not finite"),
        (_with('"x": [{"y": [1, NaN]}]'), "x holds a number that is not finite"),
        (_raw(temperature=5.1), "temperature should be at most 5, not 5.1"),
        (_raw(deadline_ms=604_800_001), "deadline_ms should be at most 604800000, not 604800001"),
        (_raw(stream=1), "stream should be true or false, not 1"),
        (
            _raw(tier="platinum"),
            "tier should be 'realtime', 'critical', 'normal' or 'batch', not \"platinum\"",
        ),
        (_raw(tenant=""), "tenant should not be empty"),
        (
            _raw(model="two words"),
            'model should hold only A-Z, a-z, 0-9 and . _ -, not "two words"',
        ),
        (_raw(model="m\n"), "model should hold only"),
        (_raw(prompt=""), "prompt should not be empty"),
        (_raw(prompt=None), "give a prompt or messages; there is neither"),
        (
            _raw(messages=[{"role": "user", "content": "hi"}]),
            "give either prompt or messages; there are both",
        ),
        (_raw(prompt=None, messages=[]), "messages should not be empty"),
        (_raw(prompt=None, messages=[3]), "messages.0 should be an object, not 3"),
        (
            _raw(prompt=None, messages=[{"role": "robot", "content": ""}]),
            "messages.0.role should be 'system', 'user' or 'assistant', not \"robot\"",
        ),
        (
            _raw(prompt=None, messages=[{"role": "user"}]),
            "messages.0.content is required",
        ),
        (_raw(metadata=None), "metadata should be an object, not null"),
        (_raw(metadata={"a": 1}), "metadata.a should be a string, not 1"),
        (_with('"metadata": {"a": 1, "a": "x"}'), "metadata holds a name twice, and one of its"),
        (_raw(metadata={"": "x"}), "a name in metadata should not be empty"),
        (_raw(metadata={str(i): "" for i in range(17)}), "metadata should have at most 16 items"),
        (_raw(max_tokens=4), "max_tokens is not a field of inference-request.v1"),
        (
            _raw(tier=1, stream=1),
            "tier should be 'realtime', 'critical', 'normal' or 'batch', not 1; stream should",
        ),
        (_raw(prompt="half \udfff"), "prompt holds half of a surrogate pair; it should be valid"),
        (_raw(metadata={"\ud800": ""}), "metadata holds half of a surrogate pair"),
        (_raw(**{"\ud800": 1}), "? holds half of a surrogate pair"),
    ],
)
def test_a_fault_in_a_request_refuses_it_by_name(raw: bytes, detail: str) -> None:
    answer = read_request(raw)
    assert isinstance(answer, Refused)
    assert answer.id == "a"
    assert answer.tenant in ("acme", None)
    assert answer.detail.startswith(detail)


def test_a_request_without_a_model_is_refused_for_no_model() -> None:
    raw = b'{"kind":"inference-request.v1","id":"a","prompt":"hi"}'
    assert read_request(raw) == Refused(id="a", model="", tenant=None, detail="model is required")


@pytest.mark.parametrize(
    ("given_model", "model"),
    [(7, ""), (None, ""), ("x" * 200, "x" * 128), ("a b", "a b"), ("\ud800!", "?!")],
)
def test_a_refusal_names_the_model_as_far_as_it_can(given_model: Any, model: str) -> None:
    answer = read_request(_raw(model=given_model))
    assert isinstance(answer, Refused)
    assert answer.model == model


@pytest.mark.parametrize(
    ("given_tenant", "tenant"), [(7, None), ("", None), ("t" * 129, "t" * 128), ("acme", "acme")]
)
def test_a_refusal_names_the_tenant_as_far_as_it_can(given_tenant: Any, tenant: str | None) -> None:
    answer = read_request(_raw(tenant=given_tenant, prompt=""))
    assert isinstance(answer, Refused)
    assert answer.tenant == tenant


def test_a_refusal_says_five_things_at_most_and_is_short() -> None:
    answer = read_request(_raw(**{f"{'x' * 300}{i}": 1 for i in range(100)}))
    assert isinstance(answer, Refused)
    assert len(answer.detail) == DETAIL_CHARS_MAX
    few = read_request(_raw(**{f"x{i}": 1 for i in range(100)}))
    assert isinstance(few, Refused)
    assert few.detail.count("is not a field") == 5


def test_a_field_that_comes_late_in_a_crowded_record_is_not_called_missing() -> None:
    crowd = {f"x{i}": 1 for i in range(1_000)}
    answer = read_request(json.dumps(crowd | BASE).encode())
    assert isinstance(answer, Refused)
    assert answer.detail.startswith("x0 is not a field")


@pytest.mark.parametrize("place", ["field", "turn", "turns", "metadata"])
def test_a_crowd_of_faults_is_told_of_by_the_first_few(place: str) -> None:
    crowd = {f"x{i}": 1 for i in range(20_000)}
    fields: dict[str, Any] = {
        "field": crowd,
        "turn": {"prompt": None, "messages": [{"role": "user", "content": "", **crowd}]},
        "turns": {"prompt": None, "messages": [1] * 20_000},
        "metadata": {"metadata": crowd},
    }[place]
    answer = read_request(_raw(**fields))
    assert isinstance(answer, Refused)
    assert answer.detail


def test_depth_up_to_the_limit_is_looked_into() -> None:
    # The object itself is the first level.
    at_limit = _with('"x": ' + "[" * (DEPTH_MAX - 1) + "]" * (DEPTH_MAX - 1))
    assert isinstance(read_request(at_limit), Refused)
    above = _with('"x": ' + "[" * DEPTH_MAX + "]" * DEPTH_MAX)
    assert isinstance(read_request(above), Unreadable)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=())),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
NAMES = st.sampled_from(sorted(InferenceRequest.model_fields)) | st.text(max_size=3)


def _survives(raw: bytes | None) -> None:
    answer = read_request(raw)
    match answer:
        case Refused():
            assert 0 < len(answer.id) <= 256
            assert answer.detail
            (answer.id + answer.model + (answer.tenant or "") + answer.detail).encode()
        case Unreadable():
            assert answer.reason
            answer.reason.encode()
        case _:
            answer.model_dump_json()


@given(st.binary())
@example(b"\xed\xa0\x80")
def test_no_bytes_make_it_raise(raw: bytes) -> None:
    _survives(raw)


@given(JSON_VALUES)
def test_no_json_makes_it_raise(value: Any) -> None:
    _survives(json.dumps(value).encode())


@given(st.dictionaries(NAMES, JSON_VALUES, max_size=5))
def test_no_field_makes_it_raise(fields: dict[str, Any]) -> None:
    _survives(_raw(**fields))


@given(st.integers(0, len(_raw()) - 1), st.integers(0, 255))
@settings(max_examples=500)
def test_no_changed_byte_makes_it_raise(position: int, byte: int) -> None:
    raw = bytearray(_raw())
    raw[position] = byte
    _survives(bytes(raw))


FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "id": st.text(max_size=2) | st.just("x" * 256) | st.just("x" * 257) | st.integers(),
        "model": st.sampled_from(["m", "", "a b", "é", 1, None]),
        "tenant": st.text(max_size=2) | st.none(),
        "tier": st.sampled_from(["normal", "Normal", None, 1]),
        "prompt": st.text(max_size=2) | st.none() | st.integers(),
        "messages": st.none()
        | st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "robot"])},
                optional={"content": st.text(max_size=1) | st.none(), "name": st.just("x")},
            ),
            max_size=2,
        ),
        "max_output_tokens": st.sampled_from([None, 0, 1, 1_000_000, 1_000_001, True, "1"]),
        "temperature": st.sampled_from([0, 0.5, 5, 5.01, -0.1, None, True]),
        "deadline_ms": st.sampled_from([None, 0, -1, 604_800_000, 604_800_001]),
        "stream": st.sampled_from([True, False, None, 0]),
        "metadata": st.none()
        | st.dictionaries(st.text(max_size=1) | st.just("k" * 65), st.text(max_size=1), max_size=3),
        "extra": st.none(),
    },
)


@given(FIELDS)
@settings(max_examples=400)
def test_the_edge_and_the_json_schema_accept_the_same_requests(fields: dict[str, Any]) -> None:
    value = BASE | fields
    accepted = isinstance(read_request(json.dumps(value).encode()), InferenceRequest)
    assert accepted == SCHEMA.is_valid(value)


# What the owner needs of the edge for each case of the file; the cell itself does the rest.
ALLOWED: dict[str, tuple[type[Any], ...]] = {
    "unknown-model": (InferenceRequest,),
    "deadline-in-the-past": (InferenceRequest,),
    "prompt-of-5-MB": (InferenceRequest, Refused),
    "id-with-newline-and-quote": (InferenceRequest,),
    "same-id-twice-different-body": (InferenceRequest,),
    "cancel-of-unknown": (Cancel,),
    "tombstone": (Unreadable,),
}


def _case_raw(case: dict[str, Any]) -> bytes | None:
    if case.get("raw_null"):
        return None
    if "raw_hex" in case:
        return bytes.fromhex(case["raw_hex"])
    if "raw_repeat" in case:
        part = case["raw_repeat"]
        return f"{part['prefix']}{part['char'] * part['times']}{part['suffix']}".encode()
    return case["raw"].encode()


def test_every_listed_bad_input_gets_its_answer() -> None:
    for line in BAD_INPUTS.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        expected = ALLOWED.get(case["name"])
        if expected is None:
            ends = {"dead-letter": Unreadable, "rejected": Refused}
            expected = tuple(cls for word, cls in ends.items() if word in case["expect"])
        _survives(_case_raw(case))
        assert isinstance(read_request(_case_raw(case)), expected), case["name"]


@pytest.mark.parametrize("fault", [{}, {"tier": "urgent"}])
def test_a_request_too_long_to_be_sent_on_is_refused_where_it_is_read(
    fault: dict[str, Any],
) -> None:
    long = _raw(prompt="x" * REQUEST_BYTES_MAX, **fault)
    read = read_request(long)
    detail = f"the request is {len(long)} bytes long; at most {REQUEST_BYTES_MAX} are accepted"
    assert read == Refused(id="a", model="", tenant="acme", detail=detail)
    fits = _raw(prompt="x" * (REQUEST_BYTES_MAX - len(_raw(prompt=""))))
    assert isinstance(read_request(fits), InferenceRequest)


def test_a_cancel_too_long_to_be_sent_on_is_unreadable() -> None:
    read = read_request(json.dumps({"kind": "cancel.v1", "id": "a"}).encode().ljust(5_000_000))
    assert isinstance(read, Unreadable)
    assert read.reason.startswith("the cancel is 5000000 bytes long")
