"""The contract of an engine: what the bus loop may ask of it, and what it gets back.

Plain data and a protocol, without torch and without I/O. Every engine (SmolLM2 in torch, the
simulated one) keeps to it, and tests/contracts/test_engine_contract.py holds all of them to it.
An engine is synchronous and driven by `step()`: one iteration of the batch per call. It is used
from one thread at a time; `add`, `cancel` and `preempt` take effect at the next iteration.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from schemas.embeddings import Embedding

BLOCK_TOKENS = 16
"""Tokens in one KV block. Part of the product's contract, so not tunable."""

FinishReason = Literal["stop", "length", "embedded"]
LeaveCause = Literal["cancelled", "preempted"]


class WorkKey(NamedTuple):
    """One attempt at one request: two attempts of the same id never share state."""

    id: str
    attempt: int


class Turn(Protocol):
    """One turn of a chat; schemas' own chat messages are turns."""

    @property
    def role(self) -> str:
        """Who speaks."""
        ...

    @property
    def content(self) -> str:
        """What is said."""
        ...


class Message(NamedTuple):
    """A turn as plain data."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt at one request, as the cell dispatched it.

    Exactly one of `prompt` (raw text, continued as it stands), `messages` (rendered with the
    model's chat template) and `texts` (to embed, on a one-shot engine) is given.

    Attributes:
        id: The request's id.
        attempt: Which attempt of the request this is, from 1.
        max_output_tokens: The most tokens the request may produce over all its attempts.
        reserved_blocks: KV blocks that the cell reserved: the engine never takes more.
        grows: Whether they may be too few for the whole output. The engine says when more are
            needed (`StepResult.growing`), and the request pauses while it has none left.
        temperature: 0 takes the most likely token; otherwise logits are divided by it.
        seed: With equal seed, prompt and temperature the text is the same, whatever the batch.
        stream: Whether the tokens are wanted one by one; without it `StepResult.tokens` may
            leave this request's tokens out.
        resume_tokens: Token ids already produced by an earlier attempt. Their KV is computed
            again and they are not emitted again; they count towards `max_output_tokens`.
        output_tokens: Produce exactly this many (resumed ones included) and ignore stop tokens.
            For trace replays and benches.
        prompt_tokens: For engines that have no tokenizer: how long to take the prompt to be.
        batch: On a one-shot engine, the number of the batch that it rides in, and how many
            requests ride in it; None rides alone.
        patient: Whether it gives way to others: its prompt advances in small pieces, so that who
            comes meanwhile does not wait long for the end of an iteration, and it rests while the
            prompt of another advances, a few iterations in a row at most.
    """

    id: str
    attempt: int
    max_output_tokens: int
    reserved_blocks: int
    prompt: str | None = None
    messages: tuple[Turn, ...] | None = None
    temperature: float = 0.0
    seed: int = 0
    stream: bool = True
    resume_tokens: tuple[int, ...] = ()
    output_tokens: int | None = None
    prompt_tokens: int | None = None
    grows: bool = False
    texts: tuple[str, ...] | None = None
    batch: tuple[int, int] | None = None
    patient: bool = False

    @property
    def key(self) -> WorkKey:
        """The attempt's identity inside the engine."""
        return WorkKey(self.id, self.attempt)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine is and has: the body of the worker's `ready` report.

    `kv_pool_bytes` is the budget; `kv_blocks` is how many whole blocks of `block_tokens` tokens
    fit into it. `max_sequence_tokens` bounds prompt plus output of one request.
    """

    model: str
    engine: str
    dtype: str
    device: str
    kv_pool_bytes: int
    kv_bytes_per_token: int
    kv_blocks: int
    block_tokens: int
    max_batch: int
    max_sequence_tokens: int
    weights_bytes: int


@dataclass(frozen=True, slots=True)
class Started:
    """The request joined the batch in this step."""

    key: WorkKey
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class Token:
    """One produced token.

    `index` counts the request's output tokens from 0, resumed ones included. `text` is what this
    token completes: empty while a character is still incomplete, always valid UTF-8.
    """

    key: WorkKey
    index: int
    token_id: int
    text: str


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations on the engine's clock, of this attempt alone.

    `queued_us` from `add` to joining the batch (or to leaving before that), `prefill_us` from
    joining to the first new token, `decode_us` from there to the last, `first_token_us` from `add`
    to the first new token, or None if there was none.
    """

    queued_us: int
    prefill_us: int
    decode_us: int
    first_token_us: int | None


@dataclass(frozen=True, slots=True)
class Finished:
    """The request is complete. `text` is everything it produced, resumed tokens included.

    A stop token ends the text; it is neither in `text` nor counted in `output_tokens`.
    `trailing_text` is the part of `text` that no `Token` carried: what an incomplete last
    character became. A stream ends with it, so that its pieces add up to `text`.
    `embedding` is what a one-shot engine gives instead of text.
    """

    key: WorkKey
    reason: FinishReason
    text: str
    trailing_text: str
    prompt_tokens: int
    output_tokens: int
    timings: Timings
    embedding: Embedding | None = None


@dataclass(frozen=True, slots=True)
class Left:
    """The request left before its end; `token_ids` resumes it elsewhere (resumed ones included)."""

    key: WorkKey
    cause: LeaveCause
    token_ids: tuple[int, ...]
    text: str
    prompt_tokens: int
    timings: Timings


@dataclass(frozen=True, slots=True)
class Failed:
    """The request cannot be served; `reason` is a sentence. Nothing else is affected.

    `retryable` when the request is sound, so that another replica might serve it.
    """

    key: WorkKey
    reason: str
    retryable: bool


@dataclass(frozen=True, slots=True)
class Growing:
    """The request has filled its `blocks` KV blocks, or will within one, and needs more.

    Said once for each number of blocks.
    """

    key: WorkKey
    output_tokens: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a request is: for heartbeats and for hand-overs."""

    key: WorkKey
    joined: bool
    prefilled_tokens: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one iteration did, each part in the order in which it happened.

    `batch` counts the sequences in the batch, `prefill_tokens` the prompt tokens processed,
    `decode_tokens` the tokens produced, `kv_blocks_used` the blocks still reserved after the step,
    `step_us` how long it took on the engine's clock.
    """

    started: tuple[Started, ...] = ()
    tokens: tuple[Token, ...] = ()
    finished: tuple[Finished, ...] = ()
    left: tuple[Left, ...] = ()
    failed: tuple[Failed, ...] = ()
    growing: tuple[Growing, ...] = ()
    batch: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    kv_blocks_used: int = 0
    step_us: int = 0


class Engine(Protocol):
    """What runs the model. See the module's docstring for the rules of use."""

    @property
    def info(self) -> EngineInfo:
        """What this engine is and has."""
        ...

    def warm_up(self) -> None:
        """Run the model once at the sizes to come; `ready` is reported only after it."""
        ...

    def add(self, work: Work) -> bool:
        """Take a request in. It joins the batch at an iteration boundary, in the order of adding.

        Returns False, and changes nothing, when this id and attempt is already here. Work that
        cannot be served is reported as failed by the next step; this never raises.
        """
        ...

    def cancel(self, request_id: str, attempt: int | None = None) -> bool:
        """Let a request (every attempt of it, or one) leave at the next boundary.

        Returns whether there was one.
        """
        ...

    def preempt(self, request_id: str, attempt: int | None = None) -> bool:
        """As `cancel`, but the request leaves with its tokens kept for a later attempt."""
        ...

    def grant(self, request_id: str, attempt: int, blocks: int) -> bool:
        """Let a request in the batch have `blocks` KV blocks in all; whether it has them now.

        False, and nothing is changed, when it is not there or has as many. When the pool has not
        that many left, the request leaves as if it were preempted.
        """
        ...

    def step(self) -> StepResult:
        """Run one iteration: leaves, joins, one pass of the model, finishes."""
        ...

    @property
    def has_work(self) -> bool:
        """Whether the next step would have anything to do or to report.

        False while all there is has paused for want of blocks.
        """
        ...

    def progress(self) -> Sequence[Progress]:
        """How far every request in the engine is, in the order of adding."""
        ...

    def check_integrity(self) -> None:
        """Assert that the KV pool and the batch agree; raises AssertionError naming what does not.

        Cheap enough for every step of a test and for an idle worker.
        """
        ...
