"""A producer's side of Headway: send requests, await their outcomes, follow their tokens.

Made for thousands of requests at once: one producer, one reader of headway.results, and one of
headway.tokens once somebody follows. Sending the same request again is safe (the same id never
runs twice), so an unanswered send is repeated. Every wait is bounded or the caller's to bound.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from pydantic_core import to_json

from schemas.bus import ResendAnswer, Result, TokenPiece, Tokens
from schemas.codec import BusMessage, CodecError, decode
from schemas.edge import Asked
from schemas.ids import cell_of
from schemas.requests import Cancel, InferenceRequest
from schemas.topics import REQUESTS, RESULTS, TOKENS
from services import bus
from services.gateway.stream import Assembly
from services.gateway.tail import Tail

# How long a send is repeated while the broker is away.
SEND_S_MAX = 30.0
SEND_RETRY_S = 0.2

log = logging.getLogger(__name__)


# How far before the recorded end of a request its outcome is looked for.
RECALL_MARGIN_MS = 60_000


class NoOutcomeError(RuntimeError):
    """The outcome did not come in time; the sentence says what is known."""


class IdTakenError(RuntimeError):
    """Another request has the id already; nothing ran."""


class Client:
    """An async context manager: `async with Client(bootstrap) as client: ...`.

    Raises on entry:
        bus.BusError: the broker is away, or Headway's topics are not there.
    """

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._producer: AIOKafkaProducer | None = None
        self._producer_lock = asyncio.Lock()
        self._waiting: dict[str, asyncio.Future[Result]] = {}
        # Where in headway.requests each of them was written; the answers that came before that was
        # known; and the outcomes that are being looked up.
        self._written: dict[str, int] = {}
        self._refused: dict[str, list[ResendAnswer]] = {}
        self._recalls: set[asyncio.Task[None]] = set()
        self._followed: dict[str, asyncio.Queue[TokenPiece]] = {}
        self._tokens: Tail | None = None
        self._tokens_lock = asyncio.Lock()
        self.cells = 0

    async def __aenter__(self) -> Self:
        """Look at the topics, note where answers will begin, and start."""
        self.cells = await bus.partition_count(self._bootstrap, REQUESTS)
        if not self.cells:
            raise bus.BusError(
                f"there is no topic {REQUESTS} on {self._bootstrap}: start Headway first"
                " (`headway up`)"
            )
        self._results = Tail(self._bootstrap, RESULTS, self.cells, self._on_result)
        await self._results.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop; requests that were sent go on without this client."""
        await self._results.stop()
        if self._tokens is not None:
            await self._tokens.stop()
        if self._producer is not None:
            await bus.stop_client(self._producer)
        for pending in (*self._waiting.values(), *self._recalls):
            pending.cancel()

    # Requests

    async def run(self, request: Asked, timeout_s: float | None = None) -> Result:
        """Send `request` and return its outcome.

        Raises:
            ValueError: this client waits for a request of that id already.
            bus.BusError: the broker did not take it.
            NoOutcomeError: no outcome within `timeout_s`.
            IdTakenError: the id belongs to a request with another body.
        """
        await self.submit(request)
        return await self.outcome(request.id, timeout_s)

    async def submit(self, request: Asked) -> str:
        """Send `request` and return its id; its outcome is kept for `outcome`.

        Raises:
            ValueError: this client waits for a request of that id already.
            bus.BusError: the broker did not take it within SEND_S_MAX.
        """
        if request.id in self._waiting:
            raise ValueError(f"a request with the id {request.id!r} is under way already")
        self._waiting[request.id] = asyncio.get_running_loop().create_future()
        try:
            value = request.model_dump_json(exclude_none=True).encode()
            cell = cell_of(request.model, self.cells)
            _, self._written[request.id] = await self._send(request.model, value, cell)
        except BaseException:
            self._forget(request.id)
            raise
        for answer in self._refused.pop(request.id, ()):
            self._on_answer(answer)
        return request.id

    async def outcome(self, request_id: str, timeout_s: float | None = None) -> Result:
        """Return the outcome of a request that this client submitted.

        Raises:
            KeyError: this client did not submit it, or its outcome was returned before.
            NoOutcomeError: no outcome within `timeout_s`; it can be asked for again.
            bus.BusError: headway.results is not read any more.
        """
        future = self._waiting[request_id]
        try:
            result = await self._results.wait(future, timeout_s)
        except TimeoutError as error:
            raise NoOutcomeError(self._no_outcome(request_id, timeout_s)) from error
        self._forget(request_id)
        return result

    async def follow(
        self, request: InferenceRequest, timeout_s: float | None = None, *, late: bool = False
    ) -> AsyncIterator[TokenPiece | Result]:
        """Send `request` and yield its output piece by piece, and its outcome at last.

        The pieces are the new ones only, whatever attempts they come from; together they are the
        outcome's text. `late`: it may be under way already, so what was generated so far comes
        first, from what headway.tokens still holds; it counts for the client's first follow.

        Raises:
            As `run`.
        """
        pieces: asyncio.Queue[TokenPiece] = asyncio.Queue()
        self._followed[request.id] = pieces
        assembly = Assembly()
        give_up_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            await self._read_tokens(late=late)
            await self.submit(request.model_copy(update={"stream": True}))
            future = self._waiting[request.id]
            while not future.done() or not pieces.empty():
                piece = await self._next_piece(pieces, future, give_up_s)
                if piece is None and not future.done():
                    raise NoOutcomeError(self._no_outcome(request.id, timeout_s))
                shown = assembly.add(piece) if piece else None
                if shown is not None:
                    yield shown
            result = future.result()
            rest = assembly.rest(result)
            if rest is not None:
                yield rest
            yield result
        finally:
            self._followed.pop(request.id, None)
            self._forget(request.id)

    async def cancel(self, request_id: str, model: str | None = None) -> tuple[int, int]:
        """Ask for a request to end; return the partition and offset of the cancel.

        Without its model, the cell that reads the cancel asks the others.

        Raises:
            bus.BusError: the broker did not take it.
        """
        asked = Cancel(kind="cancel.v1", id=request_id, model=model)
        cell = cell_of(model or request_id, self.cells)
        value = asked.model_dump_json(exclude_none=True).encode()
        return await self._send(model or request_id, value, cell)

    async def past_outcome(self, request_id: str, model: str, since_ms: int) -> Result | None:
        """Return the outcome that a request had since `since_ms` (Unix time), or None.

        Raises:
            bus.BusError: the broker did not answer.
        """
        partition = TopicPartition(RESULTS, cell_of(model, self.cells))
        async with bus.consuming(self._bootstrap, [partition]) as consumer:
            start, end = await _range_since(consumer, partition, since_ms)
            found: Result | None = None
            async for record in bus.read_range(consumer, partition, start, end):
                if record.key == request_id.encode():
                    message = _message(record)
                    found = message if isinstance(message, Result) else found
            return found

    # Inside

    def _forget(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)
        self._written.pop(request_id, None)
        self._refused.pop(request_id, None)

    def _on_result(self, record: bus.Record) -> None:
        future = self._waiting.get((record.key or b"").decode(errors="replace"))
        if future is None or future.done():
            return
        message = _message(record)
        if isinstance(message, Result):
            future.set_result(message)
        elif isinstance(message, ResendAnswer):
            self._on_answer(message)

    def _on_answer(self, answer: ResendAnswer) -> None:
        """Take in what became of a request of an id that was known already.

        That another client's request was refused says nothing of this one's.
        """
        future = self._waiting.get(answer.id)
        if future is None or future.done():
            return
        if answer.answer == "recalled":
            task = asyncio.create_task(self._recall(answer, future))
            self._recalls.add(task)
            task.add_done_callback(self._recalls.discard)
        elif answer.answer == "refused":
            written = self._written.get(answer.id)
            if written is None:
                self._refused.setdefault(answer.id, []).append(answer)
            elif written == answer.request_offset:
                future.set_exception(IdTakenError(f"{answer.id}: {answer.detail}"))

    async def _recall(self, answer: ResendAnswer, future: "asyncio.Future[Result]") -> None:
        """Give the waiter the outcome that is on record."""
        since_ms = max(0, (answer.ended_us or 0) // 1000 - RECALL_MARGIN_MS)
        try:
            found = await self.past_outcome(answer.id, answer.model, since_ms)
        except bus.BusError as error:
            if not future.done():
                future.set_exception(error)
            return
        if future.done():
            return
        if found is not None:
            future.set_result(found)
            return
        future.set_exception(
            NoOutcomeError(
                f"{answer.id} has ended before as {answer.outcome} ({answer.reason}), but its"
                f" outcome is no longer on {RESULTS}"
            )
        )

    def _on_tokens(self, record: bus.Record) -> None:
        if not self._followed or record.value is None:
            return
        if len(self._followed) == 1:
            # Of an hour of everybody's tokens only this one's are worth decoding.
            (followed,) = self._followed
            if to_json(followed) not in record.value:
                return
        try:
            message = decode(record.value)
        except CodecError as error:
            log.warning("a record of %s is skipped: %s", TOKENS, error)
            return
        if isinstance(message, Tokens):
            for piece in message.pieces:
                queue = self._followed.get(piece.id)
                if queue is not None:
                    queue.put_nowait(piece)

    async def _read_tokens(self, *, late: bool) -> None:
        async with self._tokens_lock:
            if self._tokens is None:
                tail = Tail(self._bootstrap, TOKENS, self.cells, self._on_tokens)
                await tail.start(from_the_beginning=late)
                self._tokens = tail

    async def _next_piece(
        self,
        pieces: "asyncio.Queue[TokenPiece]",
        future: "asyncio.Future[Result]",
        give_up_s: float | None,
    ) -> TokenPiece | None:
        """Return the next piece, or None when the outcome is there or the time is up.

        Raises:
            bus.BusError: what would tell either is not read any more.
        """
        if not pieces.empty():
            return pieces.get_nowait()
        left_s = None if give_up_s is None else max(0.0, give_up_s - time.monotonic())
        getting = asyncio.ensure_future(pieces.get())
        tails = [tail for tail in (self._results, self._tokens) if tail is not None]
        awaited = {getting, future, *(tail.ending for tail in tails)}
        await asyncio.wait(awaited, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
        if getting.done():
            return getting.result()
        getting.cancel()
        if not future.done():
            for tail in tails:
                tail.check()
        return None

    async def _send(self, key: str, value: bytes, partition: int) -> tuple[int, int]:
        give_up_s = time.monotonic() + SEND_S_MAX
        while True:
            producer: AIOKafkaProducer | None = None
            try:
                # Many sends wait for one producer to start, and each start is bounded by itself.
                async with asyncio.timeout(max(0.0, give_up_s - time.monotonic())):
                    producer = await self._started_producer()
                    sent = producer.send_and_wait(
                        REQUESTS, value, key=key.encode(), partition=partition
                    )
                    record = await bus.bounded(sent, "take a request")
            except TimeoutError as error:
                raise bus.BusError(
                    f"Kafka did not take a request within {SEND_S_MAX:g} s; is the broker up?"
                ) from error
            except (bus.BusError, KafkaError) as error:
                await self._drop(producer)
                if time.monotonic() > give_up_s:
                    raise bus.BusError(str(error)) from error
                await asyncio.sleep(SEND_RETRY_S)
            else:
                return record.partition, record.offset

    async def _started_producer(self) -> AIOKafkaProducer:
        async with self._producer_lock:
            if self._producer is None:
                producer = bus.new_producer(self._bootstrap)
                try:
                    await bus.bounded(producer.start(), "accept a producer")
                except BaseException:
                    await bus.stop_client(producer)
                    raise
                self._producer = producer
            return self._producer

    async def _drop(self, producer: AIOKafkaProducer | None) -> None:
        """Give a producer up that failed: an idempotent one may never write again."""
        if producer is not None and producer is self._producer:
            self._producer = None
            await bus.stop_client(producer)

    def _no_outcome(self, request_id: str, timeout_s: float | None) -> str:
        trouble = self._results.trouble
        why = f" ({trouble})" if trouble else ""
        return (
            f"no outcome of {request_id} within {timeout_s:g} s{why}; it may still come:"
            f" `headway explain {request_id}` tells where it stands"
        )


def _message(record: bus.Record) -> BusMessage | None:
    try:
        return decode(record.value)
    except CodecError as error:
        log.warning("a record of %s is skipped: %s", RESULTS, error)
        return None


async def _range_since(
    consumer: AIOKafkaConsumer, partition: TopicPartition, since_ms: int
) -> tuple[int, int]:
    """Return the offsets of the records written since `since_ms`: first, and one past the last."""
    ends = await bus.bounded(consumer.end_offsets([partition]), "tell an end offset")
    found = await bus.bounded(
        consumer.offsets_for_times({partition: since_ms}), "find an offset by time"
    )
    at = found.get(partition)
    return (ends[partition] if at is None else at.offset), ends[partition]
