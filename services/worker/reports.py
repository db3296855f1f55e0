"""What one iteration of an engine becomes on the bus: facts for the cell, tokens for clients. Pure.

One report speaks of all the requests of an iteration, so the ledger holds an entry per iteration
and kind, not per request; several where one would be longer than an entry or a record may be.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypedDict, TypeVar

from schemas.bus import TokenPiece, Tokens, WorkerReport
from schemas.codec import digest
from schemas.facts import (
    ReplicaHeartbeat,
    ReplicaReady,
    Usage,
    WorkBlocks,
    WorkDeparture,
    WorkDone,
    WorkFailed,
    WorkFault,
    WorkFinished,
    WorkGrows,
    WorkLeft,
    WorkProgressed,
    WorkRef,
    WorkStarted,
    WorkTokens,
)
from services.worker.engine import EngineInfo, Finished, Left, Progress, StepResult, WorkKey

# What one report holds at most: its fact goes into a ledger entry, its texts into one record, and a
# character takes up to four bytes there.
ITEMS_MAX = 256
TEXT_CHARS_MAX = 1024 * 1024
# About what a token's id takes in a report.
TOKEN_CHARS = 8

T = TypeVar("T")


class Who(TypedDict):
    """The fields by which every worker's fact says who speaks."""

    model: str
    slot: int
    incarnation: str


@dataclass(frozen=True, slots=True)
class Life:
    """Which life of which replica speaks."""

    model: str
    slot: int
    incarnation: str

    def who(self) -> Who:
        """Return the fields by which a fact says who speaks."""
        return {"model": self.model, "slot": self.slot, "incarnation": self.incarnation}


def ready(life: Life, info: EngineInfo) -> WorkerReport:
    """Return the report that the replica takes work, with its budget."""
    fact = ReplicaReady(
        **life.who(),
        engine=info.engine,
        dtype=info.dtype,
        device=info.device,
        kv_pool_bytes=info.kv_pool_bytes,
        kv_blocks=info.kv_blocks,
        block_tokens=info.block_tokens,
        max_batch=info.max_batch,
        max_sequence_tokens=info.max_sequence_tokens,
        weights_bytes=info.weights_bytes,
    )
    return WorkerReport(fact=fact)


def heartbeat(
    life: Life, last: StepResult, output_tokens: int, *, read: int, held: Sequence[int]
) -> WorkerReport:
    """Return the report that the replica lives.

    `read` is the last dispatch number that it has read, `held` those of the work that it has.
    """
    fact = ReplicaHeartbeat(
        **life.who(),
        running=len(held),
        kv_blocks_used=last.kv_blocks_used,
        output_tokens=output_tokens,
        read=read,
        held=tuple(sorted(held)),
    )
    return WorkerReport(fact=fact)


def progressed(life: Life, progress: Sequence[Progress]) -> WorkerReport:
    """Return the report of how far the running requests have got."""
    items = tuple(
        WorkTokens(id=p.key.id, attempt=p.key.attempt, output_tokens=p.output_tokens)
        for p in progress
    )
    return WorkerReport(fact=WorkProgressed(**life.who(), items=items))


def reports_of(life: Life, result: StepResult) -> list[WorkerReport]:
    """Return the facts of one iteration, in the order in which they happened."""
    who = life.who()
    reports: list[WorkerReport] = []
    for started in _shares(result.started, lambda _: 0):
        refs = tuple(WorkRef(id=s.key.id, attempt=s.key.attempt) for s in started)
        reports.append(WorkerReport(fact=WorkStarted(**who, items=refs)))
    for growing in _shares(result.growing, lambda _: 0):
        wants = tuple(
            WorkBlocks(
                id=g.key.id, attempt=g.key.attempt, output_tokens=g.output_tokens, blocks=g.blocks
            )
            for g in growing
        )
        reports.append(WorkerReport(fact=WorkGrows(**who, items=wants)))
    for gone in _shares(result.left, _left_chars):
        departures = tuple(_departure(left) for left in gone)
        texts = tuple(left.text for left in gone)
        tokens = tuple(left.token_ids if left.cause == "preempted" else () for left in gone)
        reports.append(
            WorkerReport(
                fact=WorkLeft(**who, items=departures),
                texts=texts,
                tokens=tokens if any(tokens) else (),
            )
        )
    for failed in _shares(result.failed, lambda _: 0):
        faults = tuple(
            WorkFault(id=f.key.id, attempt=f.key.attempt, reason=f.reason, retryable=f.retryable)
            for f in failed
        )
        reports.append(WorkerReport(fact=WorkFailed(**who, items=faults)))
    for ended in _shares(result.finished, _output_chars):
        fact = WorkFinished(**who, items=tuple(_done(finished) for finished in ended))
        # An engine is one-shot or generative, so its outputs are all of one kind.
        embeddings = tuple(one.embedding for one in ended if one.embedding is not None)
        texts = () if embeddings else tuple(finished.text for finished in ended)
        reports.append(WorkerReport(fact=fact, texts=texts, embeddings=embeddings))
    return reports


def _left_chars(left: Left) -> int:
    return len(left.text) + TOKEN_CHARS * len(left.token_ids)


def _shares(items: Sequence[T], chars: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the items in order, in shares that a report can carry; `chars` measures a text."""
    share: list[T] = []
    share_chars = 0
    for item in items:
        if share and (len(share) == ITEMS_MAX or share_chars + chars(item) > TEXT_CHARS_MAX):
            yield share
            share, share_chars = [], 0
        share.append(item)
        share_chars += chars(item)
    if share:
        yield share


def tokens_of(life: Life, result: StepResult, streamed: set[WorkKey]) -> Tokens | None:
    """Return what the iteration added to the streamed requests, or None if nothing."""
    pieces: dict[WorkKey, TokenPiece] = {}
    for token in result.tokens:
        if token.key in streamed:
            before = pieces.get(token.key)
            pieces[token.key] = TokenPiece(
                id=token.key.id,
                attempt=token.key.attempt,
                index=before.index if before else token.index,
                tokens=(*(before.tokens if before else ()), token.token_id),
                text=(before.text if before else "") + token.text,
            )
    for finished in result.finished:
        if finished.key in streamed:
            before = pieces.get(finished.key)
            pieces[finished.key] = TokenPiece(
                id=finished.key.id,
                attempt=finished.key.attempt,
                index=before.index if before else finished.output_tokens,
                tokens=before.tokens if before else (),
                text=(before.text if before else "") + finished.trailing_text,
                last=True,
            )
    if not pieces:
        return None
    return Tokens(model=life.model, slot=life.slot, pieces=tuple(pieces.values()))


def _output_chars(finished: Finished) -> int:
    if finished.embedding is None:
        return len(finished.text)
    return sum(len(vector) for vector in finished.embedding.vectors_base64)


def _done(finished: Finished) -> WorkDone:
    timings = finished.timings
    output = finished.text
    if finished.embedding is not None:
        output = "".join(finished.embedding.vectors_base64)
    return WorkDone(
        id=finished.key.id,
        attempt=finished.key.attempt,
        finish_reason=finished.reason,
        usage=Usage(
            prompt_tokens=finished.prompt_tokens,
            output_tokens=finished.output_tokens,
            queued_us=timings.queued_us,
            prefill_us=timings.prefill_us,
            decode_us=timings.decode_us,
            first_token_us=timings.first_token_us,
        ),
        output_digest=digest(output.encode()),
    )


def _departure(left: Left) -> WorkDeparture:
    timings = left.timings
    return WorkDeparture(
        id=left.key.id,
        attempt=left.key.attempt,
        cause=left.cause,
        usage=Usage(
            prompt_tokens=left.prompt_tokens,
            output_tokens=len(left.token_ids),
            queued_us=timings.queued_us,
            prefill_us=timings.prefill_us,
            decode_us=timings.decode_us,
            first_token_us=timings.first_token_us,
        ),
    )
