"""OpenAI's batch files, line by line: what a line asks for, and how its result is written. Pure.

Format: platform.openai.com/docs/api-reference/batch. A line that is not of that form makes the
whole file unfit, and is told by its number. What a line asks for is judged later, by the cell, as
every request is: a field that Headway does not know ends that item as rejected, by name.
"""

import json
from dataclasses import dataclass
from typing import Any, cast, get_args

from schemas.batch import CUSTOM_ID_CHARS_MAX, BatchItem, Endpoint
from schemas.bus import Result
from schemas.ids import NAME_CHARS_MAX
from services.gateway.vectors import vectors_of

LINE_BYTES_MAX = 3 * 1024 * 1024
ENDPOINTS: tuple[Endpoint, ...] = get_args(Endpoint)

# Fields with which OpenAI's clients fill a body, and the values that change nothing here.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "n": (1, None),
    "top_p": (1, 1.0, None),
    "stream": (False, None),
    "frequency_penalty": (0, 0.0, None),
    "presence_penalty": (0, 0.0, None),
    "logprobs": (False, None),
    "echo": (False, None),
    "best_of": (1, None),
    "stop": (None, [], ()),
    "encoding_format": ("float", None),
}
# Labels without an effect on the answer.
_IGNORED = ("user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key")
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens")


class LineError(ValueError):
    """A line that is not of OpenAI's batch format; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a batch file: its endpoint, its model, and the item that it asks for."""

    endpoint: Endpoint
    model: str
    item: BatchItem


def read_line(raw: bytes) -> Line:
    """Return what one line asks for.

    Raises:
        LineError: it is not of the format.
    """
    value = _parse(raw)
    custom_id = value.get("custom_id")
    if not isinstance(custom_id, str) or not 0 < len(custom_id) <= CUSTOM_ID_CHARS_MAX:
        raise LineError(f"custom_id should be a text of 1 to {CUSTOM_ID_CHARS_MAX} characters")
    if value.get("method") != "POST":
        raise LineError("method should be POST")
    url = value.get("url")
    if url not in ENDPOINTS:
        raise LineError(f"url should be one of {', '.join(ENDPOINTS)}")
    body = value.get("body")
    if not isinstance(body, dict):
        raise LineError("body should be an object")
    fields = cast("dict[str, Any]", body)
    model = fields.get("model")
    if not isinstance(model, str) or not 0 < len(model) <= NAME_CHARS_MAX:
        raise LineError("body.model should name a model")
    return Line(url, model, BatchItem(custom_id=custom_id, body=_translated(fields, url)))


def _parse(raw: bytes) -> dict[str, Any]:
    if len(raw) > LINE_BYTES_MAX:
        raise LineError(f"it is {len(raw)} bytes long; at most {LINE_BYTES_MAX} are accepted")
    try:
        value = json.loads(raw)
        # Half of a surrogate pair passes the parser, and no encoder of ours.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeDecodeError as error:
        raise LineError(f"it is not UTF-8: byte {error.start} is wrong") from error
    except UnicodeEncodeError as error:
        raise LineError("it holds half of a surrogate pair") from error
    except RecursionError as error:
        raise LineError("it is nested too deep") from error
    except ValueError as error:
        raise LineError(f"it is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise LineError("it is not a JSON object")
    return cast("dict[str, Any]", value)


def _translated(fields: dict[str, Any], endpoint: Endpoint) -> dict[str, Any]:
    """Return the body in the words of an inference request; what has no word there stays as it is.

    The cell refuses a field that it does not know, by name, so nothing is dropped in silence.
    """
    body: dict[str, Any] = {}
    for name, value in fields.items():
        if name == "model" or name in _IGNORED or _changes_nothing(name, value):
            continue
        if name in _OUTPUT_LIMITS:
            if value is not None:
                body.setdefault("max_output_tokens", value)
        elif name == "messages":
            body["messages"] = _plain_turns(value)
        elif name == "temperature" and value is None:
            continue
        elif name == "prompt" and endpoint == "/v1/completions":
            body["prompt"] = _one_text(value)
        else:
            body[name] = value
    return body


def _changes_nothing(name: str, value: Any) -> bool:
    return name in _NEUTRAL and any(
        value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
        for neutral in _NEUTRAL[name]
    )


def _one_text(value: Any) -> Any:
    return cast("Any", value[0]) if isinstance(value, list) and len(value) == 1 else value  # pyright: ignore[reportUnknownArgumentType] - any JSON


def _plain_turns(value: Any) -> Any:
    """Return the turns with contents given in parts of text put together; else as they are."""
    if not isinstance(value, list):
        return value
    turns = cast("list[Any]", value)
    return [_plain_turn(turn) for turn in turns]


def _plain_turn(turn: Any) -> Any:
    if not isinstance(turn, dict):
        return turn
    fields = dict(cast("dict[str, Any]", turn))
    if fields.get("role") == "developer":
        fields["role"] = "system"
    content = fields.get("content")
    if isinstance(content, list):
        parts = cast("list[Any]", content)
        texts = [_text_of(part) for part in parts]
        if all(isinstance(text, str) for text in texts):
            fields["content"] = "".join(cast("list[str]", texts))
    fields.pop("name", None)
    return fields


def _text_of(part: Any) -> Any:
    if not isinstance(part, dict):
        return None
    fields = cast("dict[str, Any]", part)
    return fields.get("text") if fields.get("type") == "text" else None


def result_line(custom_id: str, endpoint: Endpoint, result: Result) -> dict[str, Any]:
    """Return the line that tells the outcome of an item."""
    line: dict[str, Any] = {
        "id": f"batch_req_{result.cell}_{result.seq}_{result.id.rpartition('/')[2]}",
        "custom_id": custom_id,
        "response": None,
        "error": None,
    }
    if result.outcome != "completed":
        line["error"] = {"code": result.reason, "message": f"{result.outcome}: {result.detail}"}
        return line
    try:
        body = _vectors(result) if endpoint == "/v1/embeddings" else _body(endpoint, result)
    except ValueError as error:
        line["error"] = {"code": "output-unusable", "message": str(error)}
        return line
    line["response"] = {"status_code": 200, "request_id": result.id, "body": body}
    return line


def missing_line(job: str, number: int, custom_id: str, code: str, why: str) -> dict[str, Any]:
    """Return the line of an item that has no result, and never will."""
    return {
        "id": f"batch_req_{job}_{number}",
        "custom_id": custom_id,
        "response": None,
        "error": {"code": code, "message": why},
    }


def _body(endpoint: Endpoint, result: Result) -> dict[str, Any]:
    usage = result.usage
    prompt = usage.prompt_tokens if usage else 0
    output = usage.output_tokens if usage else 0
    text = result.text or ""
    counted = {
        "prompt_tokens": prompt,
        "completion_tokens": output,
        "total_tokens": prompt + output,
    }
    choice: dict[str, Any] = {"index": 0, "finish_reason": result.reason, "logprobs": None}
    if endpoint == "/v1/completions":
        return {
            "id": result.id,
            "object": "text_completion",
            "model": result.model,
            "choices": [{**choice, "text": text}],
            "usage": counted,
        }
    return {
        "id": result.id,
        "object": "chat.completion",
        "model": result.model,
        "choices": [{**choice, "message": {"role": "assistant", "content": text}}],
        "usage": counted,
    }


def _vectors(result: Result) -> dict[str, Any]:
    """Return OpenAI's list of embeddings, in the order of the texts.

    Raises:
        ValueError: there are none, or they are not what the outcome says.
    """
    embedding = result.embedding
    if embedding is None:
        raise ValueError("the item was embedded, and its outcome does not hold the vectors")
    tokens = sum(embedding.text_tokens)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": index, "embedding": vector}
            for index, vector in enumerate(vectors_of(embedding))
        ],
        "model": result.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
