"""The codec: canonical bytes, errors in words, and a chain that no changed byte escapes."""

import types
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from schemas import codec
from schemas.export import SCHEMAS
from schemas.facts import ClockTicked
from schemas.ledger import GENESIS_CHAIN, Entry
from schemas.policy import Policy

MESSAGES = [kind for kind in SCHEMAS if SCHEMAS[kind].group in ("fact", "decision", "bus")]
LEDGER_LINE = (
    (Path(__file__).parents[2] / "schemas" / "examples" / "ledger-entry.v1.json")
    .read_bytes()
    .removesuffix(b"\n")
)
# The chain of the line before that example.
CHAIN_BEFORE = "5f0c3d9be1a72846"

TEXT = st.text(max_size=8)


def _is_short(text: str) -> bool:
    return len(text) <= 128


def _bounded(kind: type[Any], constraints: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    """Return values of a number or string that pydantic's constraints allow."""
    limits: dict[str, Any] = {}
    for constraint in constraints:
        for part in constraint.metadata if isinstance(constraint, FieldInfo) else [constraint]:
            found = {name: getattr(part, name, None) for name in LIMITS}
            limits |= {name: value for name, value in found.items() if value is not None}
    if kind is str:
        if "pattern" in limits:
            return st.from_regex(limits["pattern"], fullmatch=True).filter(_is_short)
        return st.text(
            st.characters(codec="utf-8"), min_size=limits.get("min_length", 0), max_size=8
        )
    if kind is float:
        return st.floats(limits.get("ge", 0.5), limits.get("le", 1e9))
    return st.integers(limits.get("ge", 0), limits.get("le", 2**53))


def _annotated(args: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if args[0] in (int, float, str):
        return _bounded(args[0], args[1:])
    if get_origin(args[0]) is tuple and get_args(args[0])[-1] is Ellipsis:
        return st.lists(_values(get_args(args[0])[0]), min_size=1, max_size=3).map(tuple)
    return _values(args[0])


def _tuple(args: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if args[-1] is Ellipsis:
        return st.lists(_values(args[0]), max_size=2).map(tuple)
    return st.tuples(*[_values(arg) for arg in args])


def _union(args: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    return st.one_of([_values(arg) for arg in args])


LIMITS = ("ge", "le", "min_length", "pattern")
PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**53), 2**53),
    float: st.floats(allow_nan=False, allow_infinity=False),
    str: TEXT,
    bool: st.booleans(),
    type(None): st.none(),
}
GENERIC: dict[Any, Callable[[tuple[Any, ...]], st.SearchStrategy[Any]]] = {
    Annotated: _annotated,
    Literal: st.sampled_from,
    Union: _union,
    types.UnionType: _union,
    tuple: _tuple,
    dict: lambda _: st.dictionaries(TEXT, TEXT, max_size=2),
}


def _values(hint: Any) -> st.SearchStrategy[Any]:
    """Return values of a field of that type."""
    build = GENERIC.get(get_origin(hint))
    if build is not None:
        return build(get_args(hint))
    return PLAIN[hint] if hint in PLAIN else _messages(hint)


def _messages(cls: type[Any]) -> st.SearchStrategy[Any]:
    """Return messages of the class, every field filled."""
    hints = get_type_hints(cls, include_extras=True)
    return st.builds(cls, **{field.name: _values(hints[field.name]) for field in fields(cls)})


STRATEGIES = {kind: _messages(SCHEMAS[kind].cls) for kind in MESSAGES}
ENTRIES = _messages(Entry)
ENTRY = Entry(
    cell=0,
    seq=0,
    epoch=1,
    source=None,
    policy_version=1,
    policy_digest="0" * 16,
    fact=ClockTicked(at_us=1),
    decisions=(),
)


@pytest.mark.parametrize("kind", MESSAGES)
@given(data=st.data())
@settings(max_examples=20)
def test_a_message_comes_back_equal_and_in_the_same_bytes(kind: str, data: st.DataObject) -> None:
    message = data.draw(STRATEGIES[kind])
    adapter = SCHEMAS[kind].adapter()
    raw = adapter.dump_json(message)
    back = adapter.validate_json(raw)
    assert back == message
    assert adapter.dump_json(back) == raw
    assert b"\n" not in raw
    match SCHEMAS[kind].group:
        case "bus":
            assert codec.encode(message) == raw
            assert codec.decode(raw) == message
        case "fact":
            line, _ = codec.encode_entry(replace(ENTRY, fact=message), GENESIS_CHAIN)
            assert b'"fact":' + raw + b"," in line
        case _:
            assert codec.encode_decisions((message, message)) == b"[" + raw + b"," + raw + b"]"


@given(ENTRIES, st.sampled_from([GENESIS_CHAIN, CHAIN_BEFORE]))
@settings(max_examples=50)
def test_an_entry_comes_back_equal_with_its_chain(entry: Entry, before: str) -> None:
    raw, chain = codec.encode_entry(entry, before)
    line = codec.decode_line(raw)
    assert line == codec.Line(entry, chain, raw)
    assert codec.chain_of(raw, before) == chain
    assert codec.split_record(raw) == [raw]


def _is_noticed(raw: bytes) -> bool:
    try:
        line = codec.decode_line(raw)
    except codec.CodecError:
        return True
    return codec.chain_of(raw, CHAIN_BEFORE) != line.chain


def test_the_untouched_line_passes_the_chain() -> None:
    assert not _is_noticed(LEDGER_LINE)


@pytest.mark.parametrize("flip", [0x01, 0x20, 0x80])
def test_the_chain_notices_any_changed_byte(flip: int) -> None:
    for position in range(len(LEDGER_LINE)):
        raw = bytearray(LEDGER_LINE)
        raw[position] ^= flip
        assert _is_noticed(bytes(raw)), f"byte {position}"


@given(st.data())
@settings(max_examples=200)
def test_the_chain_notices_bytes_cut_out_or_put_in(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(LEDGER_LINE) - 1))
    end = data.draw(st.integers(start, len(LEDGER_LINE)))
    put_in = data.draw(st.binary(max_size=4))
    raw = LEDGER_LINE[:start] + put_in + LEDGER_LINE[end:]
    assert raw == LEDGER_LINE or _is_noticed(raw)


def test_the_chain_depends_on_the_line_before() -> None:
    assert codec.chain_of(LEDGER_LINE, GENESIS_CHAIN) != codec.chain_of(LEDGER_LINE, CHAIN_BEFORE)


def test_the_bytes_of_an_entry_are_as_written_here() -> None:
    entry = Entry(
        cell=0,
        seq=0,
        epoch=1,
        source=None,
        policy_version=1,
        policy_digest="0" * 16,
        fact=ClockTicked(at_us=5),
        decisions=(),
    )
    raw, chain = codec.encode_entry(entry, GENESIS_CHAIN)
    assert raw == (
        b'{"kind":"ledger-entry.v1","cell":0,"seq":0,"epoch":1,"source":null,"policy_version":1,'
        b'"policy_digest":"0000000000000000","fact":{"kind":"clock-ticked.v1","at_us":5},'
        b'"decisions":[],"chain":"' + chain.encode() + b'"}'
    )


@pytest.mark.parametrize(
    ("raw", "sentence"),
    [
        (None, "the record has no value"),
        (b"", "the message is not JSON: EOF while parsing a value"),
        (b"\xff", "the message is not JSON: "),
        (b"[]", "the message should be an object, not a list"),
        (b"{}", "the message has no kind"),
        (
            b'{"kind":"work.v9"}',
            'the message should be of a kind that is known here, not "work.v9"',
        ),
        (b'{"kind":"work-leave.v1","id":"a","attempt":1}', "incarnation is required"),
        (
            b'{"kind":"profile.v1","model":"a b"}',
            # Of more than five faults, what was given is not quoted.
            "model should hold only A-Z, a-z, 0-9 and . _ -; layers is required; kv_heads",
        ),
        (b"[" * 10_000, "the message is not JSON: recursion limit exceeded"),
    ],
)
def test_what_is_no_message_is_an_error_in_words(raw: bytes | None, sentence: str) -> None:
    with pytest.raises(codec.CodecError) as caught:
        codec.decode(raw)
    assert str(caught.value).startswith(sentence)


def test_five_wrong_fields_are_told_and_a_crowd_is_counted() -> None:
    items = ",".join(["1"] * 2_000)
    raw = f'{{"kind":"tokens.v1","model":"m","slot":0,"pieces":[{items}]}}'.encode()
    with pytest.raises(codec.CodecError, match=r"^2000 fields are wrong$"):
        codec.decode(raw)
    with pytest.raises(codec.CodecError) as caught:
        codec.decode(raw.replace(items.encode(), b"1,2,3,4,5,6"))
    assert str(caught.value).count("pieces.") == 5


@pytest.mark.parametrize("raw", [b"", b"{}", LEDGER_LINE[:-1], LEDGER_LINE + b"\n"])
def test_a_line_without_its_chain_is_an_error(raw: bytes) -> None:
    with pytest.raises(codec.CodecError, match="does not end in its chain digest"):
        codec.decode_line(raw)


def test_a_line_that_is_no_entry_is_an_error_that_names_the_field() -> None:
    with pytest.raises(codec.CodecError, match='seq should be a whole number, not "no"'):
        codec.decode_line(LEDGER_LINE.replace(b'"seq":88213', b'"seq":"no"'))


@pytest.mark.parametrize("value", [None, b""])
def test_a_ledger_record_without_a_value_is_an_error(value: bytes | None) -> None:
    with pytest.raises(codec.CodecError, match="the ledger record has no value"):
        codec.split_record(value)


def test_a_record_is_split_into_its_lines() -> None:
    assert codec.split_record(b"{}\n[]") == [b"{}", b"[]"]


def test_a_digest_is_16_hex_characters_of_blake2b() -> None:
    # `printf '' | b2sum -l 64` and `printf 'abc' | b2sum -l 64`
    assert codec.digest(b"") == "e4a6a0577479b2b4"
    assert codec.digest(b"abc") == "d8bb14d833d59559"


def test_a_fault_of_a_value_is_explained_with_its_path() -> None:
    with pytest.raises(ValidationError) as caught:
        SCHEMAS["policy.v1"].adapter().validate_json(b'{"tier_latency_target_ms": [0, 1, 1, 1]}')
    assert codec.explain(caught.value) == ("tier_latency_target_ms.0 should be at least 1, not 0")


def test_a_policy_is_a_bus_message() -> None:
    assert codec.decode(codec.encode(Policy(name="quiet"))) == Policy(name="quiet")
