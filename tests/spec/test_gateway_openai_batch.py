"""Lines of OpenAI's batch files: what they ask for, and how their outcomes are written."""

import base64
import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from schemas.batch import BatchItem, Endpoint
from schemas.batch_decisions import ItemsReleased
from schemas.bus import Result
from schemas.codec import decode
from schemas.embeddings import Embedding
from services.gateway.batch_file import FileError, check
from services.gateway.openai_batch import LineError, read_line, result_line
from streams.jobs import request_of

EXAMPLES = Path(__file__).parents[2] / "schemas" / "examples"
READ_RELEASED = TypeAdapter(ItemsReleased)
# Numbers that float32 holds exactly.
VECTORS = ((0.5, -1.25), (0.0, 2.0))


def line(url: str, **body: Any) -> bytes:
    value = {"custom_id": "a", "method": "POST", "url": url, "body": {"model": "m"} | body}
    return json.dumps(value).encode()


def released(endpoint: Endpoint) -> ItemsReleased:
    example = READ_RELEASED.validate_json((EXAMPLES / "items-released.v1.json").read_bytes())
    report = replace(example.report, endpoint=endpoint, tenant="acme")
    return replace(example, job="j", model="m", report=report)


def embedded(*vectors: str) -> Result:
    example = decode((EXAMPLES / "result.v1.json").read_bytes())
    assert isinstance(example, Result)
    found = Embedding(dimension=2, text_tokens=(3, 4), vectors_base64=vectors)
    return replace(
        example, id="batch/j/2", model="m", outcome="completed", cell=1, seq=9, embedding=found
    )


def test_a_line_of_texts_becomes_an_embedding_request_of_the_batch_tier() -> None:
    asked = read_line(line("/v1/embeddings", input=["x", "y"], encoding_format="float", user="u"))
    assert asked.item.body == {"input": ["x", "y"]}
    assert json.loads(request_of(released(asked.endpoint), 2, asked.item)) == {
        "kind": "embedding-request.v1",
        "id": "batch/j/2",
        "model": "m",
        "tenant": "acme",
        "tier": "batch",
        "input": ["x", "y"],
        "metadata": {"headway-job": "j", "headway-item": "2", "custom_id": "a"},
    }


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/completions"])
def test_a_line_of_a_prompt_or_a_chat_becomes_an_inference_request(endpoint: Endpoint) -> None:
    item = BatchItem(custom_id="a", body={"prompt": "x"})
    assert json.loads(request_of(released(endpoint), 0, item))["kind"] == "inference-request.v1"


def test_an_item_that_is_gone_keeps_the_kind_of_its_job() -> None:
    assert json.loads(request_of(released("/v1/embeddings"), 0, None))["kind"] == (
        "embedding-request.v1"
    )


def test_vectors_are_written_as_openai_s_list_of_embeddings() -> None:
    one, other = (base64.b64encode(struct.pack("<2f", *pair)).decode() for pair in VECTORS)
    told = result_line("a", "/v1/embeddings", embedded(one, other))
    assert told == {
        "id": "batch_req_1_9_2",
        "custom_id": "a",
        "response": {
            "status_code": 200,
            "request_id": "batch/j/2",
            "body": {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": 0, "embedding": [0.5, -1.25]},
                    {"object": "embedding", "index": 1, "embedding": [0.0, 2.0]},
                ],
                "model": "m",
                "usage": {"prompt_tokens": 7, "total_tokens": 7},
            },
        },
        "error": None,
    }


@pytest.mark.parametrize("vectors", [("AAAA",), None])
def test_an_outcome_without_usable_vectors_is_an_error_and_no_empty_list(
    vectors: tuple[str, ...] | None,
) -> None:
    result = embedded(*vectors) if vectors else replace(embedded(), embedding=None)
    told = result_line("a", "/v1/embeddings", result)
    assert told["response"] is None
    assert told["error"]["code"] == "output-unusable"


def test_an_endpoint_that_is_not_served_is_told_with_those_that_are() -> None:
    with pytest.raises(LineError, match="/v1/embeddings"):
        read_line(line("/v1/images/generations"))


@pytest.mark.parametrize(("asked", "where"), [(None, "line 1: body.model"), ("a b", "--model")])
def test_a_file_for_a_model_that_cannot_be_is_refused_before_it_is_sent(
    tmp_path: Path, asked: str | None, where: str
) -> None:
    file = tmp_path / "job.jsonl"
    named = {"custom_id": "x", "method": "POST", "url": "/v1/completions"}
    file.write_text(json.dumps(named | {"body": {"model": "a b", "prompt": "hello"}}))
    with pytest.raises(FileError, match=f"{where}: 'a b' is no model's name"):
        check(file, asked)
