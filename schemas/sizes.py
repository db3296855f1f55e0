"""How much a request asks for and used: parts of facts. Pure."""

from typing import Annotated

from pydantic import Field

from schemas.message import message

# What a worker says is not trusted to be in range: a number outside is a dead letter, not a crash.
Number = Annotated[int, Field(ge=0, le=2**53)]


@message
class EmbeddingSize:
    """How large an embedding request is: its texts, and the tokens of the longest of them."""

    texts: int
    longest_tokens: int


@message
class Usage:
    """What an attempt used and how long its parts took, by the worker's monotonic clock.

    An embedding has no tokens of output: its one pass is the prefill.

    Attributes:
        queued_us: from reading the work to joining the batch.
        prefill_us: from joining to the first token.
        decode_us: from the first token to the last.
        first_token_us: from reading the work to the first token, or None if there was none.
    """

    prompt_tokens: Number
    output_tokens: Number
    queued_us: Number
    prefill_us: Number
    decode_us: Number
    first_token_us: Number | None = None
