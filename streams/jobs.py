"""Offline jobs in the shell: records of headway.batch.jobs become facts, decisions become messages.

Touches no network. Items pass through here and never into the core: a released one is read again
by the offset of its record and written to headway.requests as the request that it is from then on.
Whatever an item holds, its request can be judged there: one that would not fit or not be read is
sent without its body, so that it ends with an outcome like every other.
"""

import json
from dataclasses import replace
from typing import Any

from schemas import batch as m
from schemas import batch_decisions as b
from schemas import bus as messages
from schemas.batch_facts import JobControlAsked, JobFact, JobItemsArrived, JobSubmitted
from schemas.codec import BusMessage, CodecError, decode, encode
from schemas.edge import REQUEST_BYTES_MAX, Unreadable, read_request
from schemas.ids import RoutedBy
from schemas.ledger import Entry
from schemas.topics import BATCH_JOBS, BATCH_STATUS, REQUESTS
from services.bus import Headers, Record

# A producer may compress, so that records come in that are far larger than the topic's limit.
RECORD_BYTES_MAX = 4 * 1024 * 1024
# By which a request is known as an item's, beside its id.
LABEL_JOB, LABEL_ITEM, LABEL_CUSTOM_ID = "headway-job", "headway-item", "custom_id"
_RESERVED = ("kind", "id", "model", "tenant", "tier", "metadata")
# What a line of each of OpenAI's forms is here.
_KINDS: dict[m.Endpoint, str] = {
    "/v1/chat/completions": "inference-request.v1",
    "/v1/completions": "inference-request.v1",
    "/v1/embeddings": "embedding-request.v1",
}

# (topic, partition, key, value, headers beside the decision's).
Message = tuple[str, int, str, bytes, Headers]


def read_record(record: Record, at_us: int, routed_by: RoutedBy | None) -> JobFact | str:
    """Return the fact of a record of headway.batch.jobs, or what is wrong with it."""
    value = record.value or b""
    if len(value) > RECORD_BYTES_MAX:
        return f"it is {len(value)} bytes long; at most {RECORD_BYTES_MAX} are accepted"
    try:
        message = decode(record.value)
    except CodecError as error:
        return str(error)
    fact = _fact(message, record, at_us)
    if fact is None:
        return f"a {message.kind} does not belong on {record.topic}"
    return fact if routed_by is None else replace(fact, routed_by=routed_by)


def _fact(message: BusMessage, record: Record, at_us: int) -> JobFact | None:
    match message:
        case m.BatchJob():
            return JobSubmitted(
                at_us=at_us,
                job=message.job,
                model=message.model,
                tenant=message.tenant,
                endpoint=message.endpoint,
                items=message.items,
                digest=message.digest,
                label=message.label,
                offset=record.offset,
            )
        case m.BatchItems():
            total = 0
            for number, item in enumerate(message.items, start=message.first):
                total = m.add_sums(total, m.item_sum(number, item.custom_id, item.body))
            return JobItemsArrived(
                at_us=at_us,
                job=message.job,
                model=message.model,
                first=message.first,
                count=len(message.items),
                digest=m.sum_text(total),
                offset=record.offset,
                body_bytes=len(record.value or b""),
            )
        case m.BatchControl():
            return JobControlAsked(
                at_us=at_us,
                job=message.job,
                model=message.model,
                action=message.action,
                who=message.who,
                why=message.why,
                offset=record.offset,
            )
        case _:
            return None


def items_in(record: Record) -> tuple[m.BatchItem, ...] | None:
    """Return the items of a record, or None if it holds none."""
    try:
        message = decode(record.value)
    except CodecError:
        return None
    return message.items if isinstance(message, m.BatchItems) else None


def status_of(entry: Entry, decision: b.JobDecision) -> list[Message]:
    """Return what people are told by a decision about a job: its report, or its model's hold."""
    if isinstance(decision, b.JobMessageIgnored | b.JobMessageRouted):
        return []
    if isinstance(decision, b.ReleaseHeld):
        return [_hold(entry, decision.model, decision.cause, decision.room)]
    status = m.BatchStatus(
        job=decision.job,
        model=decision.model,
        cell=entry.cell,
        seq=entry.seq,
        at_us=entry.fact.at_us,
        report=decision.report,
    )
    told: list[Message] = [(BATCH_STATUS, entry.cell, f"job/{decision.job}", encode(status), [])]
    if isinstance(decision, b.ItemsReleased) and decision.held is not None:
        told.append(_hold(entry, decision.model, None, decision.room))
    return told


def _hold(entry: Entry, model: str, cause: m.HoldCause | None, room: b.Room) -> Message:
    hold = m.BatchHold(
        model=model,
        cell=entry.cell,
        seq=entry.seq,
        at_us=entry.fact.at_us,
        cause=cause,
        online=room.online,
        online_waiting=room.online_waiting,
        idle_us=room.idle_us,
        slots=room.slots,
        slots_free=room.slots_free,
        blocks=room.blocks,
        blocks_free=room.blocks_free,
    )
    return (BATCH_STATUS, entry.cell, f"model/{model}", encode(hold), [])


def released(
    entry: Entry, decision: b.ItemsReleased, items: tuple[m.BatchItem, ...] | None
) -> list[Message]:
    """Return the requests that the released items are from now on.

    `items` are those of the record, or None if it is gone: its topic's retention may have taken it
    while the job waited. Their requests then have no body, and are refused as such.
    """
    requests: list[Message] = []
    for place in range(decision.skip, decision.skip + decision.count):
        item = items[place] if items is not None and place < len(items) else None
        number = decision.first + place - decision.skip
        value = request_of(decision, number, item)
        requests.append((REQUESTS, entry.cell, decision.model, value, []))
    return requests


def request_of(decision: b.ItemsReleased, number: int, item: m.BatchItem | None) -> bytes:
    """Return the request of one item; without its body if that could not be sent or judged."""
    labels = {LABEL_JOB: decision.job, LABEL_ITEM: str(number)}
    head: dict[str, Any] = {
        "kind": _KINDS[decision.report.endpoint],
        "id": m.request_id(decision.job, number),
        "model": decision.model,
        "tenant": decision.report.tenant,
        "tier": m.ITEM_TIER,
    }
    if item is None:
        return _json(head | {"metadata": labels})
    labels[LABEL_CUSTOM_ID] = item.custom_id
    body = {name: value for name, value in item.body.items() if name not in _RESERVED}
    whole = _json(head | body | {"metadata": labels})
    if len(whole) > REQUEST_BYTES_MAX or isinstance(read_request(whole), Unreadable):
        return _json(head | {"metadata": labels})
    return whole


def routed(cell: int, decision: b.JobMessageRouted, raw: bytes | None) -> list[Message]:
    """Return the message as it is sent on to the cell that owns its model."""
    if raw is None or decision.to_cell == cell:
        return []
    return [(BATCH_JOBS, decision.to_cell, decision.model, raw, [])]


def sent_on_by(record: Record, cells: int) -> RoutedBy | None:
    """Return which decision of another cell sent the record on, or None for a producer's own."""
    try:
        found = messages.decision_id(dict(record.headers))
    except ValueError:
        return None
    if found is None or found[0] >= cells or found[0] == record.partition:
        return None
    return found


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
