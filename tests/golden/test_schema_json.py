"""schemas/json is what the classes say, and says what a producer must know. Reads schemas/ only."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from schemas.export import DIALECT, SCHEMAS, files
from schemas.topics import TOPICS

ROOT = Path(__file__).parents[2]
JSON = ROOT / "schemas" / "json"
HOW = "run `.venv/bin/python -m schemas.export`"


def _committed(kind: str) -> dict[str, Any]:
    return json.loads((JSON / f"{kind}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_committed_schema_is_the_generated_one(kind: str) -> None:
    committed = (JSON / f"{kind}.json").read_text(encoding="utf-8")
    assert committed == SCHEMAS[kind].json_text(), f"schemas/json/{kind}.json is stale: {HOW}"


def test_no_schema_is_left_behind_by_a_kind_that_is_gone() -> None:
    assert sorted(path.name for path in JSON.iterdir()) == sorted(files())


def test_the_schema_of_the_policy_file_is_the_generated_one() -> None:
    committed = (JSON / "policy-file.json").read_text(encoding="utf-8")
    assert committed == files()["policy-file.json"], f"policy-file.json is stale: {HOW}"
    Draft202012Validator.check_schema(json.loads(committed))


def test_the_command_writes_the_same_folder(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "schemas.export", str(tmp_path / "json")]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    written = {path.name: path.read_bytes() for path in (tmp_path / "json").iterdir()}
    assert written == {path.name: path.read_bytes() for path in JSON.iterdir()}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_a_schema_is_valid_described_and_asks_for_its_kind(kind: str) -> None:
    schema = _committed(kind)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == DIALECT
    assert schema["title"] == kind
    assert schema["properties"]["kind"]["const"] == kind
    assert "kind" in schema["required"]
    assert schema["description"]


def test_what_headway_writes_has_every_field_and_what_it_reads_may_leave_defaults_out() -> None:
    for name, kind in SCHEMAS.items():
        schema = _committed(name)
        optional = set(schema["properties"]) - set(schema["required"])
        assert bool(optional) == (name in OUTSIDE - NOTHING_TO_LEAVE_OUT), name
        assert kind.written_outside == (name in OUTSIDE), name


OUTSIDE = {
    "inference-request.v1",
    "embedding-request.v1",
    "cancel.v1",
    "policy.v1",
    "profile.v1",
    "batch-job.v1",
    "batch-items.v1",
    "batch-control.v1",
}
NOTHING_TO_LEAVE_OUT = {"batch-items.v1"}


def test_every_kind_of_every_topic_has_a_schema() -> None:
    for topic in TOPICS:
        for kind in topic.kinds:
            assert kind in SCHEMAS, f"{topic.name} carries {kind}"


def test_every_field_of_a_producers_message_is_described() -> None:
    for kind in ("inference-request.v1", "embedding-request.v1", "cancel.v1"):
        for name, field in _committed(kind)["properties"].items():
            assert field["description"], f"{kind}: {name}"


def test_the_docstring_of_a_field_becomes_its_description() -> None:
    profile = _committed("profile.v1")
    assert profile["description"] == "What one model needs and gives."
    assert profile["properties"]["kv_heads"]["description"] == "the shape of the KV cache."
    assert "null" in profile["properties"]["weights_bytes"]["description"]
    blocked = _committed("queue-blocked.v1")["properties"]
    assert blocked["blocks_needed"]["description"] == "of the head."
    assert blocked["blocks_free_max"]["description"] == "of the ready replica with the most."


def test_a_ledger_line_has_its_chain() -> None:
    entry = _committed("ledger-entry.v1")
    assert entry["properties"]["chain"]["pattern"] == "^[0-9a-f]{16}$"
    assert "chain" in entry["required"]


BASE: dict[str, Any] = {"kind": "inference-request.v1", "id": "a", "model": "m"}
CHAT = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": "hi"},
        {"messages": CHAT},
        {"prompt": "hi", "messages": None},
        {"prompt": "hi", "tier": "batch", "metadata": {"a": "b"}, "max_output_tokens": 1_000_000},
    ],
)
def test_the_request_schema_accepts(fields: dict[str, Any]) -> None:
    Draft202012Validator(_committed("inference-request.v1")).validate(BASE | fields)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": None},
        {"prompt": "hi", "messages": CHAT},
        {"prompt": ""},
        {"messages": []},
        {"messages": [{"role": "robot", "content": "hi"}]},
        {"messages": [{"role": "user", "content": "hi", "name": "x"}]},
        {"prompt": "hi", "max_tokens": 3},
        {"prompt": "hi", "max_output_tokens": 0},
        {"prompt": "hi", "max_output_tokens": 1_000_001},
        {"prompt": "hi", "max_output_tokens": True},
        {"prompt": "hi", "temperature": 5.5},
        {"prompt": "hi", "deadline_ms": -1},
        {"prompt": "hi", "tier": "platinum"},
        {"prompt": "hi", "id": "x" * 257},
        {"prompt": "hi", "id": ""},
        {"prompt": "hi", "model": "two words"},
        {"prompt": "hi", "kind": "inference-request.v2"},
        {"prompt": "hi", "metadata": {str(i): "" for i in range(17)}},
        {"prompt": "hi", "metadata": {"": ""}},
        {"prompt": "hi", "stream": "yes"},
    ],
)
def test_the_request_schema_refuses(fields: dict[str, Any]) -> None:
    assert not Draft202012Validator(_committed("inference-request.v1")).is_valid(BASE | fields)


def test_the_examples_inside_the_request_schema_are_valid() -> None:
    schema = _committed("inference-request.v1")
    assert len(schema["examples"]) == 2
    for example in schema["examples"]:
        Draft202012Validator(schema).validate(example)
