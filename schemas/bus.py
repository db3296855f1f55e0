"""The messages between cells, workers and producers that are neither facts nor requests. Pure.

Every effect of a decision carries the headers `headway-cell`, `headway-epoch`, `headway-seq` and
`headway-index`; a reader drops what is not above the last (seq, index) it has seen from that cell.
"""

import base64
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from schemas.batches import BatchPlace
from schemas.decisions import Outcome, Reason, Waits
from schemas.embeddings import Embedding
from schemas.facts import AnyWorkerFact, Usage
from schemas.ids import Source
from schemas.message import message
from schemas.policy import Tier

HEADER_CELL = "headway-cell"
HEADER_EPOCH = "headway-epoch"
HEADER_SEQ = "headway-seq"
HEADER_INDEX = "headway-index"
# On a request that was sent on from another cell: the broker's first stamp, µs.
HEADER_ARRIVED_US = "headway-arrived-us"
# Of a record that could not be decoded, this much goes into its dead letter.
DEAD_LETTER_BODY_BYTES_MAX = 512 * 1024
# Of a number in a header: what 64 bits hold.
_DIGITS_MAX = 18


def decision_id(headers: Mapping[str, bytes | None]) -> tuple[int, int, int] | None:
    """Return the (cell, seq, index) of the decision that a message follows from, or None.

    Raises:
        ValueError: the headers name a cell, but no decision of it: anybody can write headers.
    """
    if HEADER_CELL not in headers:
        return None
    return (
        header_number(headers, HEADER_CELL),
        header_number(headers, HEADER_SEQ),
        header_number(headers, HEADER_INDEX),
    )


def header_number(headers: Mapping[str, bytes | None], name: str) -> int:
    """Return the number, 0 or more, in the header `name`.

    Raises:
        ValueError: there is none.
    """
    value = headers.get(name) or b""
    if not value.isdigit() or len(value) > _DIGITS_MAX:
        raise ValueError(f"the header {name} is no number of at most {_DIGITS_MAX} digits")
    return int(value)


@message
class ChatTurn:
    """One turn of a chat, as the worker reads it."""

    role: Literal["system", "user", "assistant"]
    content: str


@message
class Work:
    """Run this request. Cell → worker, on headway.work.MODEL in the replica's slot.

    Exactly one of `prompt`, `messages` and `texts` is given. `blocks` are reserved for it.

    Attributes:
        texts: of an embedding request.
        batch: of a one-shot model: the worker runs the members of a batch together.
    """

    kind: Literal["work.v1"] = "work.v1"
    id: str
    attempt: int
    incarnation: str
    model: str
    tenant: str
    tier: Tier
    prompt: str | None
    messages: tuple[ChatTurn, ...] | None
    prompt_tokens: int
    max_output_tokens: int
    temperature: float
    seed: int
    blocks: int
    stream: bool
    texts: tuple[str, ...] | None = None
    batch: BatchPlace | None = None


@message
class WorkLeave:
    """Leave after the current iteration. Cell → worker."""

    kind: Literal["work-leave.v1"] = "work-leave.v1"
    id: str
    attempt: int
    incarnation: str
    cause: Literal["cancelled", "preempted"]


@message
class WorkerNotice:
    """Your life of this replica is not known here. Cell → worker.

    `rejoin`: drop everything and report ready under a new incarnation; otherwise stop.
    """

    kind: Literal["worker-notice.v1"] = "worker-notice.v1"
    incarnation: str
    rejoin: bool
    why: str


@message
class WorkerReport:
    """A worker's fact, and the outputs that it speaks of. Worker → cell.

    `texts` stand in the order of the fact's items, for work-finished and work-left; else empty.
    `embeddings` stand there in their place when the items are embedding requests that finished.
    """

    kind: Literal["worker-report.v1"] = "worker-report.v1"
    fact: AnyWorkerFact
    texts: tuple[str, ...] = ()
    embeddings: tuple[Embedding, ...] = ()


@message
class TokenPiece:
    """New output of one attempt: the tokens from `index` on, and the text they add.

    A reader that has seen index `index` + len(tokens) of this id already drops the piece: a retried
    attempt generates the same tokens again. `last` stands on the piece that ends the attempt.
    """

    id: str
    attempt: int
    index: int
    tokens: tuple[int, ...]
    text: str
    last: bool = False


@message
class Tokens:
    """What one iteration added to the streamed requests of a replica. Worker → clients."""

    kind: Literal["tokens.v1"] = "tokens.v1"
    model: str
    slot: int
    pieces: tuple[TokenPiece, ...]


@message
class Result:
    """The one outcome of a request. Cell → producers, on headway.results.

    Attributes:
        text: the output: whole when completed, as far as it got when cancelled, else None.
        embedding: the vectors, when it completed and is an embedding request; else null.
        wait_us, waits, run_us, ttft_us, e2e_us: as in the decision request-ended.
        retry_after_ms: when to send the same request again, after a refusal that will pass.
        cell, seq: where the ledger says so. policy_version, policy_digest: under which policy.
    """

    kind: Literal["result.v1"] = "result.v1"
    id: str
    model: str
    tenant: str
    tier: Tier
    outcome: Outcome
    reason: Reason
    detail: str
    text: str | None
    usage: Usage | None
    attempts: int
    replica: str | None
    wait_us: int
    waits: Waits
    run_us: int
    ttft_us: int | None
    e2e_us: int
    metadata: dict[str, str]
    retry_after_ms: int | None
    cell: int
    seq: int
    policy_version: int
    policy_digest: str
    embedding: Embedding | None = None


@message
class ResendAnswer:
    """What became of a request that was sent again under an id that is known; nothing runs twice.

    It is no second outcome: a reader that counts outcomes passes it over.

    Attributes:
        request_offset: of the resend in headway.requests: it answers that record.
        answer: `attached`, its outcome will come here; `recalled`, it has ended as told here;
            `refused`, the id has another body.
        outcome, reason, ended_us: as recorded, when it is recalled; its result.v1 was written here
            at about that time. text, embedding: its output, when there is one.
        cell, seq: where the ledger says so.
    """

    kind: Literal["resend-answer.v1"] = "resend-answer.v1"
    id: str
    model: str
    request_offset: int
    answer: Literal["attached", "recalled", "refused"]
    outcome: Outcome | None
    reason: Reason | None
    ended_us: int | None
    detail: str
    text: str | None
    cell: int
    seq: int
    embedding: Embedding | None = None


@message
class DeadLetter:
    """A record that could not be decoded. `body_base64` holds its bytes, or None for a null value.

    Bodies above 512 KiB are cut; `body_bytes` tells the whole size, and the source still has it.
    """

    kind: Literal["dead-letter.v1"] = "dead-letter.v1"
    topic: str
    partition: int
    offset: int
    reason: str
    body_bytes: int
    body_base64: str | None


def dead_letter(source: Source, raw: bytes | None, reason: str) -> DeadLetter:
    """Return the dead letter for the record at `source`, its value `raw`; a long one is cut."""
    topic, partition, offset = source
    body = None if raw is None else base64.b64encode(raw[:DEAD_LETTER_BODY_BYTES_MAX]).decode()
    return DeadLetter(
        topic=topic,
        partition=partition,
        offset=offset,
        reason=reason,
        body_bytes=len(raw or b""),
        body_base64=body,
    )


@message
class ModelDepth:
    """How many requests of one model wait and run, at the end of a second."""

    model: str
    waiting: int
    running: int


@message
class DepthSignal:
    """Queue depth per model of one cell, once a second, derived from its ledger.

    `known` is false while the processor has not yet read the ledger up to its end: unknown is
    never zero, so `models` is empty then.
    """

    kind: Literal["depth.v1"] = "depth.v1"
    cell: int
    at_us: int
    ledger_seq: int
    known: bool
    models: tuple[ModelDepth, ...]


@message
class DeviceSample:
    """One raw reading of a device. None is a reading that the device does not give."""

    kind: Literal["device-sample.v1"] = "device-sample.v1"
    node: str
    device: str
    at_us: int
    simulated: bool
    utilisation: Annotated[float, Field(ge=0, le=1)] | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_w: float | None
    temperature_c: float | None


@message
class SnapshotChunk:
    """Part `part` of `parts` of a cell's state. Owner → owners, compacted by (cell, slot, part).

    Attributes:
        seq, ledger_offset: the last entry and record that the state stands for.
        digest: over the whole state's bytes; a snapshot whose digest differs is ignored.
        body_base64: these bytes of the state's compressed JSON.
    """

    kind: Literal["snapshot-chunk.v1"] = "snapshot-chunk.v1"
    cell: int
    seq: int
    ledger_offset: int
    part: int
    parts: int
    digest: str
    body_base64: str
