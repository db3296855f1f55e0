"""What the cell's edge makes of one raw record of headway.requests. Pure; it never raises.

Three ways lead out of here besides a well-formed message. A record that names no request that
could be answered is unreadable and goes to the dead-letter topic. A request that names its id but
breaks another rule is refused: it ends with the outcome `rejected` and a sentence. A cancel that
breaks a rule is unreadable too, for it is no request: an outcome for its id would be a second one.

The happy path is one pass of the validator. All that follows a fault works on the parsed value,
bounded: pydantic's own account of a hostile 4 MB record takes seconds and gigabytes.
"""

import json
import math
from typing import Annotated, Any, cast

from pydantic import Field, TypeAdapter, ValidationError

from schemas.embeddings import EmbeddingRequest
from schemas.faults import sentence
from schemas.ids import NAME_CHARS_MAX, REQUEST_ID_CHARS_MAX
from schemas.message import message
from schemas.requests import Cancel, InferenceRequest

# A well-formed message is three levels deep. What is deeper than this is not looked into.
DEPTH_MAX = 64
# What is sent on, to a worker or another cell, gains a little on the way, and must still fit into a
# record of those topics. A producer may compress, so that records come in that are far larger.
REQUEST_BYTES_MAX = 4 * 1024 * 1024 - 64 * 1024
DETAIL_CHARS_MAX = 500
FAULTS_MAX = 5
# Entries of one object that are looked at to say what is wrong; more than any object may have.
_ENTRIES_MAX = 64
# Longer whole numbers are above every limit, and slow to convert.
_DIGITS_MAX = 300

Asked = InferenceRequest | EmbeddingRequest

_CLASSES: dict[str, type[Asked] | type[Cancel]] = {
    "inference-request.v1": InferenceRequest,
    "embedding-request.v1": EmbeddingRequest,
    "cancel.v1": Cancel,
}
_ANY_REQUEST: TypeAdapter[Asked | Cancel] = TypeAdapter(
    Annotated[Asked | Cancel, Field(discriminator="kind")]
)


@message
class Refused:
    """A request with a usable id, and why it is not acceptable.

    Attributes:
        model, tenant: as given, cut to 128 characters; "" and None when they are not strings.
        detail: names the field and what is allowed.
    """

    id: str
    model: str
    tenant: str | None
    detail: str


@message
class Unreadable:
    """A record that no outcome can answer, and why."""

    reason: str


def read_request(raw: bytes | None) -> Asked | Cancel | Refused | Unreadable:
    """Return what the record's value `raw` is; any bytes give an answer."""
    if raw is None:
        return Unreadable(reason="the record has no value")
    try:
        asked = _ANY_REQUEST.validate_json(raw)
    except ValidationError:
        asked = _explain_fault(raw)
    if len(raw) <= REQUEST_BYTES_MAX or isinstance(asked, Unreadable):
        return asked
    size = f"{len(raw)} bytes long; at most {REQUEST_BYTES_MAX} are accepted"
    if isinstance(asked, Cancel):
        return Unreadable(reason=f"the cancel is {size}")
    # Without the model it is not sent on: it would not fit, so the cell that reads it answers.
    return Refused(id=asked.id, model="", tenant=asked.tenant, detail=f"the request is {size}")


def _explain_fault(raw: bytes) -> Refused | Unreadable:
    value = _parse(raw)
    if isinstance(value, Unreadable):
        return value
    kind, request_id = value.get("kind"), value.get("id")
    if not isinstance(kind, str) or kind not in _CLASSES:
        return Unreadable(reason=f"the kind is not known; it should be {' or '.join(_CLASSES)}")
    if not isinstance(request_id, str) or not 0 < len(request_id) <= REQUEST_ID_CHARS_MAX:
        limits = f"a string of 1 to {REQUEST_ID_CHARS_MAX} characters"
        return Unreadable(reason=f"there is no usable id; it should be {limits}")
    if not _is_utf8(request_id):
        return Unreadable(reason="there is no usable id; it holds half of a surrogate pair")
    detail = _clean(_blemish(value) or _broken_rules(kind, value), DETAIL_CHARS_MAX)
    if kind == "cancel.v1":
        return Unreadable(reason=f"the cancel is not acceptable: {detail}")
    return Refused(
        id=request_id,
        model=_clean(value.get("model"), NAME_CHARS_MAX),
        tenant=_clean(value.get("tenant"), NAME_CHARS_MAX) or None,
        detail=detail,
    )


def _parse(raw: bytes) -> dict[str, Any] | Unreadable:
    """Return the record's JSON object, of bounded depth.

    Python's own parser lets lone surrogates and endless numbers pass, so that the id of a request
    that holds some is known and it can be answered.
    """
    try:
        value = json.loads(raw.decode(), parse_int=_whole_number)
    except UnicodeDecodeError as error:
        return Unreadable(reason=f"the record is not UTF-8: byte {error.start} is wrong")
    except RecursionError:
        return _too_deep()
    except ValueError as error:
        return Unreadable(reason=f"the record is not JSON: {error}")
    if not isinstance(value, dict):
        return Unreadable(reason="the record is JSON, but not an object")
    level: list[Any] = [value]
    for _ in range(DEPTH_MAX):
        level = [inner for outer in level for inner in _containers(outer)]
    return _too_deep() if level else cast("dict[str, Any]", value)


def _whole_number(digits: str) -> int | float:
    return int(digits) if len(digits) <= _DIGITS_MAX else math.inf


def _too_deep() -> Unreadable:
    return Unreadable(reason=f"the record is nested deeper than {DEPTH_MAX} levels")


def _containers(value: Any) -> list[Any]:
    return [inner for inner in _items(value) if isinstance(inner, dict | list)]


def _items(value: Any) -> list[Any]:
    if isinstance(value, dict):
        entries = cast("dict[str, Any]", value)
        return [*entries, *entries.values()]
    return cast("list[Any]", value) if isinstance(value, list) else []


def _is_utf8(text: str) -> bool:
    """Say whether `text` can be encoded; half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _clean(text: Any, chars_max: int) -> str:
    """Return at most `chars_max` characters of `text` in a form that can be encoded, or ""."""
    return text[:chars_max].encode(errors="replace").decode() if isinstance(text, str) else ""


def _blemish(value: dict[str, Any]) -> str | None:
    """Return a sentence on a field that no JSON of ours may hold, or None."""
    for name, field in value.items():
        level: list[Any] = [name, field]
        while level:
            for inner in level:
                if isinstance(inner, float) and not math.isfinite(inner):
                    return f"{name} holds a number that is not finite; it should be a finite number"
                if isinstance(inner, str) and not _is_utf8(inner):
                    return f"{name} holds half of a surrogate pair; it should be valid Unicode"
            level = [inner for outer in level for inner in _items(outer)]
    return None


def _broken_rules(kind: str, value: dict[str, Any]) -> str:
    """Return a sentence on the first fields that break a rule of the message's kind."""
    known_first = {name: value[name] for name in _CLASSES[kind].model_fields if name in value}
    try:
        _ANY_REQUEST.validate_json(json.dumps(_shorten(known_first | value, levels=3)))
    except ValidationError as error:
        faults = error.errors(include_url=False)
        paths = [fault["loc"][1:] for fault in faults]
        # A list of which an element is wrong also counts as too short; only the element is.
        inner = {path[:end] for path in paths for end in range(1, len(path))}
        told = [sentence(fault, kind) for fault in faults if fault["loc"][1:] not in inner]
        return "; ".join(told[:FAULTS_MAX])
    # Python's parser keeps the last of two equal names, the validator looks at both.
    return "metadata holds a name twice, and one of its values is not acceptable"


def _shorten(value: Any, levels: int) -> Any:
    """Return `value` with at most 64 entries an object: enough that a fault stays one."""
    if isinstance(value, dict) and levels:
        entries = list(cast("dict[str, Any]", value).items())[:_ENTRIES_MAX]
        return {name: _shorten(inner, levels - 1) for name, inner in entries}
    if isinstance(value, list) and levels:
        return [_shorten(inner, levels - 1) for inner in cast("list[Any]", value)]
    return value
