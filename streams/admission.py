"""The edge: raw records become facts, or facts that say why they could not. Touches no network.

Here time is stamped, prompts are counted, and digests are taken. Nothing that is read can raise:
what cannot be decoded becomes a message-unreadable fact, whose decision is a dead letter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from schemas import bus as messages
from schemas.codec import BusMessage, CodecError, decode, digest, encode
from schemas.edge import Asked, Refused, Unreadable, read_request
from schemas.embeddings import EmbeddingRequest
from schemas.facts import (
    CancelAsked,
    EmbeddingSize,
    Fact,
    MessageUnreadable,
    PolicyActivated,
    ProfileSet,
    RequestArrived,
    RequestRefused,
    RoutedBy,
    WorkFinished,
    WorkLeft,
)
from schemas.ids import Source
from schemas.policy import Policy
from schemas.policy_set import PolicySet, refusal, unreadable_because
from schemas.profile import Profile
from schemas.requests import Cancel, ChatMessage
from schemas.topics import BATCH_JOBS, CONFIG, REQUESTS
from services.batches import fault_of, raw_value
from services.bus import Record
from streams import jobs


class Countable(Protocol):
    """What has tokens: a prompt, or a chat."""

    @property
    def prompt(self) -> str | None:
        """Plain text, if it is that."""
        ...

    @property
    def messages(self) -> Sequence[ChatMessage] | None:
        """The turns of a chat, if it is that."""
        ...


class Text(NamedTuple):
    """One text of an embedding request."""

    prompt: str
    messages: None = None


CountTokens = Callable[[Countable], int]
CREATE_TIME = 0
# An entry must fit into a ledger record, its decisions beside the fact; texts are in neither.
FACT_BYTES_MAX = 1024 * 1024


@dataclass(slots=True)
class Read:
    """A fact, the record that it was read from, and the payload that came with it, decoded."""

    fact: Fact
    source: Source
    raw: bytes | None
    payload: Asked | messages.WorkerReport | None = None


class Edge:
    """Makes facts of records, for one cell.

    Args:
        cells: of the deployment.
        counter_of: gives the function that counts a request's prompt tokens, for a profile.

    Attributes:
        profiles: of the models, as the core knows them; the owner keeps it up to date.
        ahead_us: how far the ledger's clock is ahead of the broker's stamps; the owner's to keep.
        policy: in force once all that was read so far is on the ledger.
    """

    def __init__(self, cells: int, counter_of: Callable[[Profile], CountTokens]) -> None:
        self.profiles: dict[str, Profile] = {}
        self.ahead_us = 0
        self.policy = Policy()
        self._cells = cells
        self._counter_of = counter_of
        self._counters: dict[str, tuple[Profile, CountTokens]] = {}

    def read(self, record: Record, at_us: int) -> Read | None:
        """Return the record's fact, or None for a config tombstone, which asks for nothing."""
        source = (record.topic, record.partition, record.offset)
        fault = fault_of(record)
        if fault is not None:
            return Read(unreadable(record, at_us, fault), source, raw_value(record))
        if record.topic == CONFIG and record.value is None:
            return None
        if record.topic == REQUESTS:
            fact, payload = self._request(record, at_us)
        elif record.topic == BATCH_JOBS:
            fact, payload = self._job(record, at_us), None
        elif record.topic == CONFIG:
            fact, payload = self._config(record, at_us), None
        else:
            fact, payload = self._report(record, at_us)
        return Read(fact, source, record.value, payload)

    def _request(self, record: Record, at_us: int) -> tuple[Fact, Asked | None]:
        raw = record.value
        routed_by, arrived_us = self._sent_on(record) or (None, self._stamp_us(record, at_us))
        arrived_us = min(arrived_us, at_us)
        asked = read_request(raw)
        if isinstance(asked, Unreadable):
            return unreadable(record, at_us, asked.reason), None
        if isinstance(asked, Cancel):
            fact: Fact = CancelAsked(
                at_us=at_us,
                id=asked.id,
                model=asked.model,
                offset=record.offset,
                routed_by=routed_by,
            )
            return fact, None
        body_digest = digest(raw or b"")
        if isinstance(asked, Refused):
            fact = RequestRefused(
                at_us=at_us,
                id=asked.id,
                model=asked.model,
                tenant=asked.tenant,
                arrived_us=arrived_us,
                offset=record.offset,
                body_digest=body_digest,
                detail=asked.detail,
                routed_by=routed_by,
            )
            return fact, None
        embeds = isinstance(asked, EmbeddingRequest)
        tokens = self._text_tokens(asked) if embeds else [self._count(asked.model, asked)]
        fact = RequestArrived(
            at_us=at_us,
            id=asked.id,
            model=asked.model,
            tenant=asked.tenant,
            tier=asked.tier,
            arrived_us=arrived_us,
            offset=record.offset,
            prompt_tokens=sum(tokens),
            max_output_tokens=None if embeds else asked.max_output_tokens,
            deadline_ms=asked.deadline_ms,
            stream=False if embeds else asked.stream,
            body_digest=body_digest,
            body_bytes=len(raw or b""),
            metadata=tuple(asked.metadata.items()),
            routed_by=routed_by,
            embedding=EmbeddingSize(texts=len(asked.input), longest_tokens=max(tokens))
            if embeds
            else None,
        )
        return fact, asked

    def _text_tokens(self, asked: EmbeddingRequest) -> list[int]:
        """Return the tokens of each text, up to the first that is too long: it ends the request."""
        profile = self.profiles.get(asked.model)
        tokens: list[int] = []
        for text in asked.input:
            tokens.append(self._count(asked.model, Text(text)))
            if profile is not None and tokens[-1] > profile.max_sequence_tokens:
                break
        return tokens

    def _sent_on(self, record: Record) -> tuple[RoutedBy, int] | None:
        """Return which decision of another cell sent the record on, and the first stamp, µs.

        None for what a producer wrote, whatever headers it has: clients pass on those of what
        they have read, an outcome of ours too, and such a request is as good as any other.
        """
        headers = dict(record.headers)
        try:
            routed_by = messages.decision_id(headers)
            first_us = messages.header_number(headers, messages.HEADER_ARRIVED_US)
        except ValueError:
            return None
        if routed_by is None or routed_by[0] >= self._cells or routed_by[0] == record.partition:
            return None
        return routed_by, first_us

    def _stamp_us(self, record: Record, at_us: int) -> int:
        """Return the broker's stamp by the ledger's clock, never later than `at_us`.

        A stamp that the producer made (the topic is not set to LogAppendTime) is not trusted.
        """
        if record.timestamp_type == CREATE_TIME:
            return at_us
        return min(record.timestamp * 1000 + self.ahead_us, at_us)

    def _count(self, model: str, asked: Countable) -> int:
        profile = self.profiles.get(model)
        if profile is None:
            return 0
        known = self._counters.get(model)
        if known is None or known[0] is not profile:
            known = self._counters[model] = (profile, self._counter_of(profile))
        return known[1](asked)

    def _job(self, record: Record, at_us: int) -> Fact:
        found = jobs.read_record(record, at_us, jobs.sent_on_by(record, self._cells))
        return unreadable(record, at_us, found) if isinstance(found, str) else found

    def _config(self, record: Record, at_us: int) -> Fact:
        try:
            message = decode(record.value)
        except CodecError as error:
            return unreadable(record, at_us, unreadable_because(record.value) or str(error))
        raw = record.value or b""
        if len(raw) > FACT_BYTES_MAX:
            return unreadable(record, at_us, f"it is longer than {FACT_BYTES_MAX} bytes")
        if isinstance(message, Profile):
            return ProfileSet(at_us=at_us, profile=message)
        if not isinstance(message, PolicySet):
            reason = unreadable_because(raw) or _does_not_belong(message, record)
            return unreadable(record, at_us, reason)
        refused = refusal(self.policy, message, record.key, raw)
        if refused is not None:
            return unreadable(record, at_us, refused)
        self.policy = message.policy
        return PolicyActivated(
            at_us=at_us,
            policy=message.policy,
            who=message.who,
            why=message.why,
            based_on=message.based_on,
        )

    def _report(self, record: Record, at_us: int) -> tuple[Fact, messages.WorkerReport | None]:
        try:
            message = decode(record.value)
        except CodecError as error:
            return unreadable(record, at_us, str(error)), None
        if _fact_bytes(record, message) > FACT_BYTES_MAX:
            reason = f"without texts it is longer than {FACT_BYTES_MAX} bytes"
            return unreadable(record, at_us, reason), None
        if isinstance(message, messages.WorkerReport):
            return _reported(record, message, at_us), message
        return unreadable(record, at_us, _does_not_belong(message, record)), None


def _does_not_belong(message: BusMessage, record: Record) -> str:
    return f"a {message.kind} does not belong on {record.topic}"


def _reported(record: Record, report: messages.WorkerReport, at_us: int) -> Fact:
    fact = report.fact
    if not isinstance(fact, WorkFinished | WorkLeft):
        return replace(fact, at_us=at_us)
    outputs = len(report.embeddings or report.texts)
    if outputs != len(fact.items):
        reason = f"{len(fact.items)} items came with {outputs} texts"
        return unreadable(record, at_us, reason)
    if report.tokens and len(report.tokens) != len(fact.items):
        reason = f"{len(fact.items)} items came with the tokens of {len(report.tokens)}"
        return unreadable(record, at_us, reason)
    return replace(fact, at_us=at_us, offset=record.offset)


def _fact_bytes(record: Record, message: BusMessage) -> int:
    """Return about how long the fact of a message is, and no less."""
    whole = len(record.value or b"")
    if whole <= FACT_BYTES_MAX or not isinstance(message, messages.WorkerReport):
        return whole
    return len(encode(replace(message, texts=(), tokens=(), embeddings=())))


def unreadable(record: Record, at_us: int, reason: str) -> MessageUnreadable:
    """Return the fact that a record was of no use, and why."""
    return MessageUnreadable(
        at_us=at_us,
        topic=record.topic,
        partition=record.partition,
        offset=record.offset,
        reason=reason,
        body_bytes=len(raw_value(record) or b""),
    )
