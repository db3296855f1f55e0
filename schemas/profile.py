"""The measured resource profile of a model. Pure; a value, published on headway.config.

The core reads from it what a request may reserve; the fleet level reads the rest. A figure that
has not been measured is None: unknown is never zero.
"""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from schemas.ids import ModelName
from schemas.message import message

Count = Annotated[int, Field(ge=1)]


@message
class Profile:
    """What one model needs and gives.

    Attributes:
        model: the name that requests use.
        version: grows by one with each change of this model's profile.
        layers, kv_heads, head_size, kv_dtype_bytes: the shape of the KV cache.
        max_sequence_tokens: prompt and output together.
        serves: "generative" models answer token by token; a "one-shot" one (an encoder, say) runs
            batches of whole requests, and keeps no KV: its shape is that of its attention.
        work_slots: partitions of the model's work topic, so the most replicas it can have.
        tokenizer: "smollm2" and "minilm" count exactly, as those models do; "bytes" counts one
            token per `bytes_per_token`.
        weights_bytes, cold_start_ms, decode_tokens_per_s: measured, or None when unknown.
        latency_budget_ms: what one iteration may take, or None.
    """

    # People write these: a misspelt name or a number in quotes is refused, not ignored.
    __pydantic_config__ = ConfigDict(extra="forbid", strict=True)

    kind: Literal["profile.v1"] = "profile.v1"
    model: ModelName
    version: Annotated[int, Field(ge=1)] = 1
    layers: Count
    kv_heads: Count
    head_size: Count
    kv_dtype_bytes: Count
    max_sequence_tokens: Count
    serves: Literal["generative", "one-shot"] = "generative"
    work_slots: Annotated[int, Field(ge=1, le=1024)] = 8
    tokenizer: Literal["smollm2", "minilm", "bytes"] = "bytes"
    bytes_per_token: Count = 4
    weights_bytes: Count | None = None
    cold_start_ms: Count | None = None
    decode_tokens_per_s: Annotated[float, Field(gt=0)] | None = None
    latency_budget_ms: Count | None = None


def kv_bytes_per_token(profile: Profile) -> int:
    """Return the KV bytes of one token: 2 (K and V) × layers × KV heads × head size × dtype."""
    return 2 * profile.layers * profile.kv_heads * profile.head_size * profile.kv_dtype_bytes


SMOLLM2_135M = Profile(
    model="smollm2-135m",
    layers=30,
    kv_heads=3,
    head_size=64,
    kv_dtype_bytes=4,
    max_sequence_tokens=8192,
    tokenizer="smollm2",
)

# Texts of more than 256 tokens are beyond what it was made for, though it has 512 positions.
MINILM_L6 = Profile(
    model="all-minilm-l6-v2",
    serves="one-shot",
    layers=6,
    kv_heads=12,
    head_size=32,
    kv_dtype_bytes=4,
    max_sequence_tokens=256,
    tokenizer="minilm",
)
