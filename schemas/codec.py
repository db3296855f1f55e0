"""Bytes to messages and back. Pure; the one module that knows the wire's form.

Encoding is canonical: fields in the order of their declaration, no white space, UTF-8. The same
value gives the same bytes in every process, which is what replay compares.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from schemas.batch import BatchControl, BatchHold, BatchItems, BatchJob, BatchStatus
from schemas.bus import (
    DeadLetter,
    DepthSignal,
    DeviceSample,
    ResendAnswer,
    Result,
    SnapshotChunk,
    Tokens,
    Work,
    WorkerNotice,
    WorkerReport,
    WorkGrant,
    WorkLeave,
)
from schemas.decisions import Decision
from schemas.faults import sentence
from schemas.ledger import Entry
from schemas.policy import Policy
from schemas.policy_set import PolicySet
from schemas.profile import Profile

_CHAIN_PREFIX = b',"chain":"'
_CHAIN_CHARS = 16
_FAULTS_COUNTED_MAX = 1_000
_FAULTS_TOLD_MAX = 5
_TOLD_CHARS_MAX = 500
_CHAIN_TAIL_BYTES = len(_CHAIN_PREFIX) + _CHAIN_CHARS + 2

BusMessage = (
    Work
    | WorkGrant
    | WorkLeave
    | WorkerNotice
    | WorkerReport
    | Tokens
    | Result
    | ResendAnswer
    | DeadLetter
    | DepthSignal
    | DeviceSample
    | SnapshotChunk
    | BatchJob
    | BatchItems
    | BatchControl
    | BatchStatus
    | BatchHold
    | Policy
    | PolicySet
    | Profile
)
_BUS: TypeAdapter[BusMessage] = TypeAdapter(
    Annotated[BusMessage, Field(discriminator="kind")],
)
_ENTRY: TypeAdapter[Entry] = TypeAdapter(Entry)
# An entry as pydantic writes it. The serializer of its own class writes each fact and decision: to
# find the class in the union of all takes as long as all the rest.
_ENTRY_FORM = (
    b'{"kind":"ledger-entry.v1","cell":%d,"seq":%d,"epoch":%d,"source":%b,"policy_version":%d'
    b',"policy_digest":%b,"fact":%b,"decisions":%b}'
)


class CodecError(ValueError):
    """Bytes that are not the message they should be; the text says what is wrong."""


@dataclass(slots=True, frozen=True)
class Line:
    """One decoded line of a ledger record: the entry, its chain, and its bytes as recorded."""

    entry: Entry
    chain: str
    raw: bytes


def encode(message: BusMessage) -> bytes:
    """Return the message's canonical JSON."""
    return _dump_of(type(message))(message)


def decode(raw: bytes | None) -> BusMessage:
    """Return the message in `raw`.

    Raises:
        CodecError: `raw` is null, is not JSON, has an unknown kind, or a field is wrong.
    """
    if raw is None:
        raise CodecError("the record has no value")
    try:
        return _BUS.validate_json(raw)
    except ValidationError as error:
        raise CodecError(explain(error)) from error


def encode_decisions(decisions: tuple[Decision, ...]) -> bytes:
    """Return the canonical JSON array of the decisions of one entry."""
    return b"[" + b",".join([_dump_of(type(one))(one) for one in decisions]) + b"]"


def encode_entry(entry: Entry, chain_before: str) -> tuple[bytes, str]:
    """Return the entry's ledger line and its chain, which the next entry continues."""
    fact, source = entry.fact, b"null"
    if entry.source is not None:
        topic, partition, offset = entry.source
        source = b"[%b,%d,%d]" % (_dump_of(str)(topic), partition, offset)
    body = _ENTRY_FORM % (
        entry.cell,
        entry.seq,
        entry.epoch,
        source,
        entry.policy_version,
        _dump_of(str)(entry.policy_digest),
        _dump_of(type(fact))(fact),
        encode_decisions(entry.decisions),
    )
    chain = _chain(chain_before, body)
    return body[:-1] + _CHAIN_PREFIX + chain.encode() + b'"}', chain


def decode_line(raw: bytes) -> Line:
    """Return the entry of one ledger line. The chain is read, not checked: see `chain_of`.

    Raises:
        CodecError: the line is not a ledger entry.
    """
    tail = raw[-_CHAIN_TAIL_BYTES:]
    if not tail.startswith(_CHAIN_PREFIX) or not tail.endswith(b'"}'):
        raise CodecError("the ledger line does not end in its chain digest")
    body = raw[:-_CHAIN_TAIL_BYTES] + b"}"
    try:
        entry = _ENTRY.validate_json(body)
    except ValidationError as error:
        raise CodecError(explain(error)) from error
    return Line(entry, told_chain(raw), raw)


def told_chain(raw: bytes) -> str:
    """Return the chain that the ledger line `raw` ends in; nothing of sense if it is not one."""
    return raw[-_CHAIN_CHARS - 2 : -2].decode(errors="replace")


def chain_of(raw: bytes, chain_before: str) -> str:
    """Return the chain that the ledger line `raw` must carry after `chain_before`."""
    return _chain(chain_before, raw[:-_CHAIN_TAIL_BYTES] + b"}")


def split_record(value: bytes | None) -> list[bytes]:
    """Return the ledger lines of one ledger record.

    Raises:
        CodecError: the record has no value.
    """
    if not value:
        raise CodecError("the ledger record has no value")
    return value.split(b"\n")


def digest(data: bytes) -> str:
    """Return 16 hex characters that name `data` (BLAKE2b, 8 bytes)."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def explain(error: ValidationError) -> str:
    """Return one sentence that names the first wrong fields and what is wrong with each.

    It is cut where it quotes too much: names and kinds may be as long as the message.
    """
    if error.error_count() > _FAULTS_COUNTED_MAX:
        # Pydantic would build an account of each first: minutes and gigabytes, for a hostile value.
        return f"{error.error_count()} fields are wrong"
    # What was given is quoted of a few: of many, that would be most of a large message, again.
    few = error.error_count() <= _FAULTS_TOLD_MAX
    faults = error.errors(include_url=False, include_input=few)[:_FAULTS_TOLD_MAX]
    told = "; ".join(sentence(fault) for fault in faults)
    return told if len(told) <= _TOLD_CHARS_MAX else told[: _TOLD_CHARS_MAX - 1] + "…"


@cache
def _dump_of(cls: type) -> Callable[[Any], bytes]:
    """Return what writes values of exactly this class."""
    return TypeAdapter(cls).serializer.to_json


def _chain(before: str, body: bytes) -> str:
    return hashlib.blake2b(before.encode() + body, digest_size=8).hexdigest()
