"""What producers write to headway.requests. Pure; the contract with every other language.

Validation is strict: a number is a number, never a boolean or a string, and a field that is not
listed is refused, so that a misspelt limit is not silently ignored. A message without a usable
`id` or with an unknown `kind` goes to the dead-letter topic, and so does a cancel with any fault;
any other fault in a field of a request ends it with the outcome `rejected` and the field's name.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints, model_validator

from schemas.ids import ModelName, RequestId, TenantName
from schemas.policy import Tier

METADATA_PAIRS_MAX = 16
DEADLINE_MS_MAX = 7 * 24 * 3600 * 1000

# What `_one_input` checks, in the words of JSON Schema.
_ONE_INPUT: list[JsonValue] = [
    {
        "required": ["prompt"],
        "properties": {"prompt": {"type": "string"}, "messages": {"type": "null"}},
    },
    {
        "required": ["messages"],
        "properties": {"messages": {"type": "array"}, "prompt": {"type": "null"}},
    },
]
_EXAMPLES: list[JsonValue] = [
    {
        "kind": "inference-request.v1",
        "id": "invoice-2041",
        "model": "smollm2-135m",
        "prompt": "The capital of France is",
    },
    {
        "kind": "inference-request.v1",
        "id": "chat-88-turn-1",
        "model": "smollm2-135m",
        "messages": [{"role": "user", "content": "What is a queue?"}],
        "max_output_tokens": 64,
        "stream": True,
    },
]

MetadataKey = Annotated[str, StringConstraints(min_length=1, max_length=64)]
MetadataValue = Annotated[str, StringConstraints(max_length=512)]


class ChatMessage(BaseModel):
    """One turn of a chat."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    role: Literal["system", "user", "assistant"] = Field(description="Who speaks.")
    content: str = Field(description="What is said; may be empty.")


class InferenceRequest(BaseModel):
    """One request for generated text: either `prompt` or `messages`, never both.

    Write it to headway.requests as a JSON object in UTF-8, with the model's name as the record's
    key. Exactly one record with the same `id` comes back on headway.results. Whole numbers are
    written without a decimal point; a field that is not listed here is refused.
    """

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        frozen=True,
        title="inference-request.v1",
        json_schema_extra={"oneOf": _ONE_INPUT, "examples": _EXAMPLES},
    )

    kind: Literal["inference-request.v1"] = Field(description="The message's kind and version.")
    id: RequestId = Field(
        description="Chosen by the producer; unique per model. The same id never runs twice."
    )
    model: ModelName = Field(description="The model that shall answer.")
    tenant: TenantName | None = Field(
        default=None, description="Who is charged; the policy's default tenant when left out."
    )
    tier: Tier | None = Field(
        default=None,
        description="Urgency, highest first; the policy's default tier when left out.",
    )
    prompt: Annotated[str, StringConstraints(min_length=1)] | None = Field(
        default=None, description="Plain text to continue."
    )
    # It fails fast: an account of a million wrong turns would take gigabytes.
    messages: (
        Annotated[tuple[ChatMessage, ...], Field(min_length=1, strict=False, fail_fast=True)] | None
    ) = Field(
        default=None, description="A chat, oldest turn first; the model's own template is applied."
    )
    max_output_tokens: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None, description="At most this many tokens are generated; KV is reserved for them."
    )
    temperature: Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)] = Field(
        default=0.0, description="0 always takes the likeliest token."
    )
    deadline_ms: Annotated[int, Field(ge=0, le=DEADLINE_MS_MAX)] | None = Field(
        default=None,
        description="Milliseconds from the arrival at the broker within which the request must"
        " have started; it expires in the queue at that moment.",
    )
    stream: bool = Field(
        default=False, description="Whether tokens are also written to headway.tokens as they come."
    )
    metadata: Annotated[dict[MetadataKey, MetadataValue], Field(max_length=METADATA_PAIRS_MAX)] = (
        Field(
            default_factory=dict,
            description="The producer's own labels: recorded, and returned with the outcome.",
        )
    )

    @model_validator(mode="after")
    def _one_input(self) -> "InferenceRequest":
        if self.prompt is None and self.messages is None:
            raise ValueError("give a prompt or messages; there is neither")
        if self.prompt is not None and self.messages is not None:
            raise ValueError("give either prompt or messages; there are both")
        return self


class Cancel(BaseModel):
    """Ask for a request to end now, wherever it is. Write it to headway.requests.

    With the model's name in `model` and as the record's key it reaches the owning cell at once;
    without it, the cell that reads it asks the others.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, title="cancel.v1")

    kind: Literal["cancel.v1"] = Field(description="The message's kind and version.")
    id: RequestId = Field(description="The request that shall end.")
    model: ModelName | None = Field(default=None, description="The request's model, when known.")
