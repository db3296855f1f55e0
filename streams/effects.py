"""What the world sees of a decision: one message on another topic, derived from the entry alone.

Derived, never stored: after a crash the same entry gives the same message again, with the payload
read once more from its source. Each message carries the decision's id in its headers, so a reader
drops one that it has seen. Touches no network itself; payloads come through `Sources`.
"""

from dataclasses import dataclass, replace
from typing import Protocol, cast, get_args

from schemas import batch_decisions as b
from schemas import bus as messages
from schemas import decisions as d
from schemas.batch import BatchItem
from schemas.batches import BatchFormed, WindowOpened, WindowTuned
from schemas.codec import encode
from schemas.edge import Asked
from schemas.embeddings import Embedding, EmbeddingRequest
from schemas.facts import WorkFinished, WorkLeft
from schemas.ids import replica_name
from schemas.ledger import Entry
from schemas.topics import (
    BATCH_JOBS,
    DEAD_LETTER,
    REQUESTS,
    RESULTS,
    WORKER_EVENTS,
    work_topic,
)
from streams import jobs

# A record of headway.results takes 16 MiB, with its key and headers. A worker's report of as much
# makes an outcome that is longer, and one that came compressed may hold more.
RESULT_BYTES_MAX = 16 * 1024 * 1024 - 64 * 1024
# What is left of such a text: as JSON a character may take six bytes.
CUT_TEXT_CHARS = RESULT_BYTES_MAX // 8

Headers = list[tuple[str, bytes]]


@dataclass(slots=True, frozen=True)
class Output:
    """What a worker's report holds of one request.

    Its text, and its token ids if it resumes; or its vectors, and then the text is None.
    """

    text: str | None
    tokens: tuple[int, ...] = ()
    embedding: Embedding | None = None


class Sources(Protocol):
    """Where payloads are read again by their source offset, in the partition of the cell."""

    async def request(self, offset: int) -> Asked | None:
        """Return the request at `offset` of headway.requests, or None if it is gone."""
        ...

    async def outputs(self, offset: int) -> dict[str, Output] | None:
        """Return the outputs, by request id, of the report at `offset`, or None if it is gone."""
        ...

    async def items(self, offset: int) -> tuple[BatchItem, ...] | None:
        """Return a job's items at `offset` of headway.batch.jobs, or None if they are gone."""
        ...

    async def raw(self, topic: str, partition: int, offset: int) -> bytes | None:
        """Return the raw value of any input record, or None if it is null, gone or out of reach."""
        ...


@dataclass(slots=True)
class Effect:
    """One message to publish, and the (seq, index) of the decision that it follows from."""

    topic: str
    partition: int
    key: bytes
    value: bytes
    headers: Headers
    seq: int
    index: int


# Decisions that the world sees nothing of, but in the ledger.
SILENT: tuple[type, ...] = (
    d.RequestQueued,
    d.CancelIgnored,
    d.QueueBlocked,
    d.TenantHeld,
    d.RoomKept,
    d.AttemptLost,
    d.RequestReturned,
    d.RequestPreempted,
    d.ReplicaAdmitted,
    d.ReplicaLost,
    WindowTuned,
    WindowOpened,
    BatchFormed,
)
# Told apart by class, without a look at each: most decisions are silent, and there are thousands.
_SILENT = frozenset(SILENT)
_JOB = frozenset(get_args(b.JobDecision))


async def effects_of(entry: Entry, sources: Sources, cells: int) -> list[Effect]:
    """Return the messages that the entry's decisions ask for, in their order.

    Raises:
        whatever `sources` raises when the bus does not answer.
    """
    effects: list[Effect] = []
    of_entry = _headers(entry)
    for index, decision in enumerate(entry.decisions):
        if type(decision) in _SILENT:
            continue
        if type(decision) in _JOB:
            found = await _of_job(entry, cast("b.JobDecision", decision), sources)
        else:
            found = await _messages(entry, decision, sources, cells)
        for topic, partition, key, value, extra in found:
            headers = [*of_entry, (messages.HEADER_INDEX, b"%d" % index), *extra]
            effects.append(Effect(topic, partition, key.encode(), value, headers, entry.seq, index))
    return effects


_Message = tuple[str, int, str, bytes, Headers]


async def _messages(
    entry: Entry, decision: d.Decision, sources: Sources, cells: int
) -> list[_Message]:
    if isinstance(decision, d.RequestDispatched):
        work = await _work(decision, sources)
        passed = f"{decision.incarnation} {decision.number}".encode()
        extra = [(messages.HEADER_DISPATCH, passed)]
        return [(work_topic(decision.model), decision.slot, decision.id, work, extra)]
    if isinstance(decision, d.RequestEnded | d.DuplicateIgnored):
        told = await _told(entry, decision, sources)
        return [(RESULTS, entry.cell, decision.id, told, [])]
    if isinstance(decision, d.LeaveAsked | d.ReservationGrown | d.ReplicaTurnedAway):
        key, message = _to_worker(decision)
        return [(work_topic(decision.model), decision.slot, key, encode(message), [])]
    if isinstance(decision, d.RequestRouted):
        return await _routed(entry.cell, decision, sources, cells)
    if isinstance(decision, d.MessageDeadLettered):
        source = (decision.topic, decision.partition, decision.offset)
        letter = messages.dead_letter(source, await sources.raw(*source), decision.reason)
        key = f"{decision.topic}/{decision.partition}/{decision.offset}"
        return [(DEAD_LETTER, entry.cell, key, encode(letter), [])]
    raise TypeError(f"no effect is defined for the decision {decision.kind}")


async def _of_job(entry: Entry, decision: b.JobDecision, sources: Sources) -> list[_Message]:
    if isinstance(decision, b.JobMessageRouted):
        raw = await sources.raw(BATCH_JOBS, entry.cell, decision.offset)
        return jobs.routed(entry.cell, decision, raw)
    told = jobs.status_of(entry, decision)
    if isinstance(decision, b.ItemsReleased):
        items = await sources.items(decision.offset)
        return [*jobs.released(entry, decision, items), *told]
    return told


def _to_worker(
    decision: d.LeaveAsked | d.ReservationGrown | d.ReplicaTurnedAway,
) -> tuple[str, messages.WorkLeave | messages.WorkGrant | messages.WorkerNotice]:
    """Return what a worker is told besides work, and under which key."""
    if isinstance(decision, d.ReplicaTurnedAway):
        notice = messages.WorkerNotice(
            incarnation=decision.incarnation, rejoin=decision.rejoin, why=decision.why
        )
        return replica_name(decision.model, decision.slot), notice
    if isinstance(decision, d.ReservationGrown):
        return decision.id, messages.WorkGrant(
            id=decision.id,
            attempt=decision.attempt,
            incarnation=decision.incarnation,
            blocks=decision.blocks,
        )
    return decision.id, messages.WorkLeave(
        id=decision.id,
        attempt=decision.attempt,
        incarnation=decision.incarnation,
        cause=decision.cause,
    )


async def _work(decision: d.RequestDispatched, sources: Sources) -> bytes:
    found = await sources.request(decision.offset)
    # The topic's retention may have taken the payload while the request waited. The worker then
    # finds neither prompt nor messages and reports a failure, so the request still has an outcome.
    embeds = isinstance(found, EmbeddingRequest)
    asked = None if embeds else found
    turns = asked.messages if asked else None
    work = messages.Work(
        id=decision.id,
        attempt=decision.attempt,
        incarnation=decision.incarnation,
        model=decision.model,
        tenant=decision.tenant,
        tier=decision.tier,
        prompt=asked.prompt if asked else None,
        messages=None
        if turns is None
        else tuple(messages.ChatTurn(role=t.role, content=t.content) for t in turns),
        prompt_tokens=decision.prompt_tokens,
        max_output_tokens=decision.max_output_tokens,
        temperature=asked.temperature if asked else 0.0,
        seed=decision.seed,
        blocks=decision.blocks,
        stream=asked.stream if asked else False,
        number=decision.number,
        grows=decision.blocks < decision.blocks_full,
        resume_tokens=await _kept_tokens(decision, sources),
        texts=found.input if embeds else None,
        batch=decision.batch,
    )
    return encode(work)


async def _kept_tokens(decision: d.RequestDispatched, sources: Sources) -> tuple[int, ...]:
    """Return the tokens that the attempt goes on from, or none if they are gone.

    Without them it generates the same ones again, from the first on, and readers drop those.
    """
    output = await _output(decision.id, decision.resume_offset, sources)
    if output is None or len(output.tokens) != decision.resume_tokens:
        return ()
    return output.tokens


async def _output(request_id: str, offset: int, sources: Sources) -> Output | None:
    if offset < 0:
        return None
    outputs = await sources.outputs(offset)
    return None if outputs is None else outputs.get(request_id)


async def _told(
    entry: Entry, decision: d.RequestEnded | d.DuplicateIgnored, sources: Sources
) -> bytes:
    if isinstance(decision, d.RequestEnded):
        return await _result(entry, decision, sources)
    return await _answer(entry, decision, sources)


async def _answer(entry: Entry, decision: d.DuplicateIgnored, sources: Sources) -> bytes:
    match decision.answer:
        case "attached":
            detail = f"it is known and {decision.stage}; its outcome will come once"
        case "recalled":
            detail = f"it has ended as {decision.outcome} ({decision.reason}); nothing ran again"
        case "refused":
            detail = "another request has this id already; send this one under an id of its own"
    output = await _output(decision.id, decision.output_offset, sources)
    answer = messages.ResendAnswer(
        id=decision.id,
        model=decision.model,
        request_offset=decision.offset,
        answer=decision.answer,
        outcome=decision.outcome,
        reason=decision.reason,
        ended_us=decision.ended_us,
        detail=detail,
        text=output.text if output else None,
        cell=entry.cell,
        seq=entry.seq,
        embedding=output.embedding if output else None,
    )
    return encode(answer)


async def _result(entry: Entry, decision: d.RequestEnded, sources: Sources) -> bytes:
    output = await _output(decision.id, decision.output_offset, sources)
    result = messages.Result(
        id=decision.id,
        model=decision.model,
        tenant=decision.tenant,
        tier=decision.tier,
        outcome=decision.outcome,
        reason=decision.reason,
        detail=decision.detail,
        text=output.text if output else None,
        usage=decision.usage,
        attempts=decision.attempts,
        replica=None if decision.slot is None else replica_name(decision.model, decision.slot),
        wait_us=decision.wait_us,
        waits=decision.waits,
        run_us=decision.run_us,
        ttft_us=decision.ttft_us,
        e2e_us=decision.e2e_us,
        metadata=dict(decision.metadata),
        retry_after_ms=decision.retry_after_ms,
        cell=entry.cell,
        seq=entry.seq,
        policy_version=entry.policy_version,
        policy_digest=entry.policy_digest,
        embedding=output.embedding if output else None,
    )
    value = encode(result)
    # Vectors are never cut: TEXTS_MAX of them are far from filling a record.
    text = result.text
    if text is None or len(value) <= RESULT_BYTES_MAX:
        return value
    cut = (
        f"the text is cut to {CUT_TEXT_CHARS} of its {len(text)} characters: the outcome would not"
        f" fit into a record; all of it is in {WORKER_EVENTS}/{entry.cell} at offset"
        f" {decision.output_offset}"
    )
    detail = f"{decision.detail}; {cut}" if decision.detail else cut
    return encode(replace(result, text=text[:CUT_TEXT_CHARS], detail=detail))


def outputs_in(report: messages.WorkerReport) -> dict[str, Output] | None:
    """Return the outputs, by request id, that a worker's report carries, or None if it has none."""
    fact = report.fact
    if not isinstance(fact, WorkFinished | WorkLeft):
        return None
    tokens = report.tokens or ((),) * len(fact.items)
    if report.embeddings:
        outputs = [Output(None, (), embedding) for embedding in report.embeddings]
    else:
        outputs = list(map(Output, report.texts, tokens))
    return {item.id: output for item, output in zip(fact.items, outputs, strict=False)}


async def _routed(
    cell: int, decision: d.RequestRouted, sources: Sources, cells: int
) -> list[_Message]:
    raw = await sources.raw(REQUESTS, cell, decision.offset)
    if raw is None:
        return []
    to_cells = [decision.to_cell] if decision.to_cell >= 0 else range(cells)
    extra = [(messages.HEADER_ARRIVED_US, str(decision.arrived_us).encode())]
    key = decision.model or decision.id
    return [(REQUESTS, to, key, raw, extra) for to in to_cells if to != cell]


def _headers(entry: Entry) -> Headers:
    """Return what the headers of all the entry's messages begin with; the index comes behind."""
    return [
        (messages.HEADER_CELL, b"%d" % entry.cell),
        (messages.HEADER_EPOCH, b"%d" % entry.epoch),
        (messages.HEADER_SEQ, b"%d" % entry.seq),
    ]
