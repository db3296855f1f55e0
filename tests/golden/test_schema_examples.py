"""One golden message per kind: it decodes, re-encodes to the same bytes, and never changes again.

schemas/examples/LANDED.sha256 has the form of `sha256sum`; a new example adds a line to it. A kind
whose message must change gets a new version, with a new example, and the old one stays.
"""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from schemas import codec
from schemas.edge import read_request
from schemas.export import SCHEMAS
from schemas.facts import RequestArrived
from schemas.ids import cell_of
from schemas.ledger import Entry
from schemas.policy import Policy, policy_digest
from schemas.requests import Cancel, InferenceRequest

EXAMPLES = Path(__file__).parents[2] / "schemas" / "examples"
LANDED = EXAMPLES / "LANDED.sha256"
# The chain of the line before the ledger example.
CHAIN_BEFORE = "5f0c3d9be1a72846"
# Worked out by hand: 30 prompt and 64 output tokens in blocks of 16.
BLOCKS = 6


def _raw(kind: str) -> bytes:
    return (EXAMPLES / f"{kind}.json").read_bytes().removesuffix(b"\n")


def _json(kind: str) -> dict[str, Any]:
    return json.loads(_raw(kind))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_an_example_decodes_and_encodes_to_the_same_bytes(kind: str) -> None:
    raw = _raw(kind)
    if SCHEMAS[kind].group == "entry":
        line = codec.decode_line(raw)
        again, chain = codec.encode_entry(line.entry, CHAIN_BEFORE)
        assert (again, chain) == (raw, line.chain)
        assert codec.chain_of(raw, CHAIN_BEFORE) == line.chain
        assert codec.split_record(raw + b"\n" + raw) == [raw, raw]
        return
    adapter = SCHEMAS[kind].adapter()
    message = adapter.validate_json(raw)
    assert isinstance(message, SCHEMAS[kind].cls)
    assert adapter.dump_json(message) == raw
    if SCHEMAS[kind].group == "bus":
        assert codec.decode(raw) == message
        assert codec.encode(message) == raw
    elif SCHEMAS[kind].group == "fact":
        entry = replace(codec.decode_line(_raw("ledger-entry.v1")).entry, fact=message)
        line, _ = codec.encode_entry(entry, CHAIN_BEFORE)
        assert b'"fact":' + raw + b"," in line
        assert codec.decode_line(line).entry == entry
    elif SCHEMAS[kind].group == "decision":
        assert codec.encode_decisions((message,)) == b"[" + raw + b"]"
    else:
        assert read_request(raw) == message


@pytest.mark.parametrize("kind", SCHEMAS)
def test_an_example_validates_against_its_schema(kind: str) -> None:
    Draft202012Validator(SCHEMAS[kind].json_schema()).validate(_json(kind))


def test_every_kind_has_an_example_and_nothing_else_lies_there() -> None:
    names = {path.name for path in EXAMPLES.iterdir()} - {LANDED.name}
    # A kind that is no longer written keeps its example, so there may be more than kinds.
    assert names >= {f"{kind}.json" for kind in SCHEMAS}
    assert all(name.endswith(".json") for name in names)


def test_an_example_that_has_landed_never_changes() -> None:
    lines = LANDED.read_text(encoding="ascii").splitlines()
    landed = {name: sha256 for sha256, name in (line.split("  ") for line in lines)}
    assert list(landed) == sorted(landed)
    for path in sorted(EXAMPLES.glob("*.json")):
        assert path.name in landed, f"add the line of `sha256sum {path.name}` to {LANDED.name}"
    for name, sha256 in landed.items():
        now = hashlib.sha256((EXAMPLES / name).read_bytes()).hexdigest()
        assert now == sha256, f"{name} has landed; give the changed message a new version instead"


def test_the_examples_tell_one_story() -> None:
    """The same request, worked out by hand, through all of its messages."""
    request, arrived = _json("inference-request.v1"), _json("request-arrived.v1")
    dispatched, work = _json("request-dispatched.v1"), _json("work.v1")
    ended, result = _json("request-ended.v1"), _json("result.v1")
    everywhere = (request, arrived, dispatched, work, ended, result)
    assert {message["id"] for message in everywhere} == {"chat-000417"}
    assert arrived["body_digest"] == codec.digest(_raw("inference-request.v1"))
    assert arrived["body_bytes"] == len(_raw("inference-request.v1"))
    assert cell_of(request["model"], 4) == result["cell"] == 2
    assert {message["blocks"] for message in (dispatched, work, ended)} == {BLOCKS}
    assert dispatched["seed"] == work["seed"]
    assert ended["wait_us"] == 1_800 + 41_200 == sum(us for _, us in ended["waits"])
    assert ended["e2e_us"] == ended["wait_us"] + ended["run_us"] == 1_247_000
    assert ended["ttft_us"] == ended["wait_us"] + ended["usage"]["first_token_us"] == 133_500
    assert ended["output_digest"] == codec.digest(result["text"].encode())
    for name in ("outcome", "reason", "wait_us", "waits", "run_us", "ttft_us", "e2e_us", "usage"):
        assert result[name] == ended[name]


def test_the_examples_carry_the_digest_of_the_policy_example() -> None:
    policy = SCHEMAS["policy.v1"].adapter().validate_json(_raw("policy.v1"))
    assert isinstance(policy, Policy)
    assert _json("policy-activated.v1")["policy"] == _json("policy.v1")
    assert _json("result.v1")["policy_digest"] == policy_digest(policy)
    assert _json("ledger-entry.v1")["policy_digest"] == policy_digest(policy)


def test_the_ledger_example_holds_the_arrival_of_the_request() -> None:
    entry = codec.decode_line(_raw("ledger-entry.v1")).entry
    assert isinstance(entry, Entry)
    assert isinstance(entry.fact, RequestArrived)
    raw = json.dumps(asdict(entry.fact), separators=(",", ":")).encode()
    assert raw == _raw("request-arrived.v1")
    assert entry.source == ("headway.requests", entry.cell, entry.fact.offset)


def test_a_request_with_defaults_left_out_is_the_same_as_one_with_them() -> None:
    short = b'{"kind":"inference-request.v1","id":"a","model":"m","prompt":"hi"}'
    request = read_request(short)
    assert isinstance(request, InferenceRequest)
    assert read_request(request.model_dump_json().encode()) == request
    assert isinstance(read_request(b'{"kind":"cancel.v1","id":"never-seen"}'), Cancel)
