"""Texts in, vectors out: what producers ask a one-shot model for, and what comes back. Pure.

The same strictness as schemas/requests.py: a field that is not listed is refused. A text is never
cut: one that is longer than the model's context ends the request with the outcome `rejected`.
"""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    WithJsonSchema,
)

from schemas.ids import ModelName, RequestId, TenantName
from schemas.message import message
from schemas.policy import Tier
from schemas.requests import DEADLINE_MS_MAX, METADATA_PAIRS_MAX, MetadataKey, MetadataValue

TEXTS_MAX = 64
# More than any context of an encoder takes; a text without end would keep the edge counting.
TEXT_CHARS_MAX = 65_536

_TEXTS: dict[str, JsonValue] = {
    "anyOf": [
        {"type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX},
        {
            "type": "array",
            "minItems": 1,
            "maxItems": TEXTS_MAX,
            "items": {"type": "string", "minLength": 1, "maxLength": TEXT_CHARS_MAX},
        },
    ],
}
_EXAMPLES: list[JsonValue] = [
    {
        "kind": "embedding-request.v1",
        "id": "page-17",
        "model": "all-minilm-l6-v2",
        "input": ["A queue grows when work arrives faster than it leaves.", "What is a queue?"],
    },
]


def _as_list(given: Any) -> Any:
    """Take one text for a list of one."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list | tuple):
        raise ValueError(f"input should be a text or a list of 1 to {TEXTS_MAX} texts")  # noqa: TRY004 - only a ValueError becomes a sentence of the validator
    return given


class EmbeddingRequest(BaseModel):
    """One request for vectors: one for each text of `input`, in its order.

    Write it to headway.requests as a JSON object in UTF-8, with the model's name as the record's
    key, to a model that serves one-shot. Exactly one record with the same `id` comes back on
    headway.results; its field `embedding` holds the vectors.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        title="embedding-request.v1",
        json_schema_extra={"examples": _EXAMPLES},
    )

    kind: Literal["embedding-request.v1"] = Field(description="The message's kind and version.")
    id: RequestId = Field(
        description="Chosen by the producer; unique per model. The same id never runs twice."
    )
    model: ModelName = Field(description="The encoder that shall answer.")
    tenant: TenantName | None = Field(
        default=None, description="Who is charged; the policy's default tenant when left out."
    )
    tier: Tier | None = Field(
        default=None,
        description="Urgency, highest first; the policy's default tier when left out.",
    )
    input: Annotated[
        tuple[Annotated[str, StringConstraints(min_length=1, max_length=TEXT_CHARS_MAX)], ...],
        Field(min_length=1, max_length=TEXTS_MAX, strict=False, fail_fast=True),
        BeforeValidator(_as_list),
        WithJsonSchema(_TEXTS),
    ] = Field(description="A text, or a list of texts, each at most the model's context long.")
    deadline_ms: Annotated[int, Field(ge=0, le=DEADLINE_MS_MAX)] | None = Field(
        default=None,
        description="Milliseconds from the arrival at the broker within which the request must"
        " have started; its batch leaves in time for that, and it expires in the queue then.",
    )
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=METADATA_PAIRS_MAX)] = (
        Field(
            default_factory=dict,
            description="The producer's own labels: recorded, and returned with the outcome.",
        )
    )


@message
class Embedding:
    """The vectors of one request's texts, in the order of its texts.

    Base64 of little-endian float32, because a JSON list of them is three times as long and ten
    times as slow to read: in Python `numpy.frombuffer(base64.b64decode(text), "<f4")`.

    Attributes:
        dimension: numbers in each vector; each vector has the length 1 unless its model says
            otherwise.
        text_tokens: of each text, as the model counts them.
        vectors_base64: one for each text: 4 × `dimension` bytes.
    """

    dimension: int
    dtype: Literal["float32"] = "float32"
    text_tokens: tuple[int, ...]
    vectors_base64: tuple[str, ...]
