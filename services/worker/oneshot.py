"""A one-shot engine: the contract of engine.py for models that run whole batches. No torch.

A step runs one batch, as the cell formed it: it waits a little until all members have come, runs
the encoder over their texts, and reports every member. A batch with more texts than the engine
takes at once runs in several passes, shortest texts first. What fails, fails alone: when a pass
fails, its texts run one by one. There are no iterations to leave at, so a cancel reaches only what
does not run yet.
"""

import base64
import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from schemas.embeddings import Embedding
from services.worker.engine import (
    EngineInfo,
    Failed,
    Finished,
    LeaveCause,
    Left,
    Progress,
    Started,
    StepResult,
    Timings,
    Work,
    WorkKey,
)
from services.worker.latency import Clock

# The members of a batch are published together; one that cannot be read must not hold the others.
GATHER_US_MAX: Final = 50_000
_GATHER_LOOK_US: Final = 500


class Encoder(Protocol):
    """What makes vectors: MiniLM in torch, or a latency model."""

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        ...

    def ids(self, text: str) -> list[int]:
        """Return the token ids of a text.

        Raises:
            ValueError: it is no text that the model takes.
        """
        ...

    def encode(self, rows: Sequence[Sequence[int]]) -> list[bytes]:
        """Return for each row of token ids its vector, as little-endian float32."""
        ...


@dataclass(slots=True)
class _Member:
    """One request, from `add` to its report."""

    work: Work
    rows: list[list[int]]
    added_us: int
    leaving: LeaveCause | None = None
    vectors: list[bytes | None] = field(default_factory=list[bytes | None])
    fault: str = ""


class OneShotEngine:
    """The contract of engine.py over an encoder; `info.max_batch` counts texts of one pass."""

    def __init__(self, info: EngineInfo, encoder: Encoder, clock: Clock) -> None:
        self._info = info
        self._encoder = encoder
        self._clock = clock
        self._waiting: dict[WorkKey, _Member] = {}
        self._refused: dict[WorkKey, Failed] = {}
        # How many members of a batch were refused or left, so that nobody waits for them.
        self._gone: dict[int, int] = {}

    @property
    def info(self) -> EngineInfo:
        """What this engine is and has."""
        return self._info

    def warm_up(self) -> None:
        """Run one text, and a full batch of the longest."""
        row = self._encoder.ids("warm up")
        longest = [row[at % len(row)] for at in range(self._info.max_sequence_tokens)]
        self._encoder.encode([row])
        self._encoder.encode([longest] * self._info.max_batch)

    def add(self, work: Work) -> bool:
        """Take a request in; False when this id and attempt is already here."""
        key = work.key
        if key in self._waiting or key in self._refused:
            return False
        try:
            rows = self._rows(work)
        except ValueError as error:
            reason = f"Request {work.id!r} cannot be embedded: {error}"
            self._refused[key] = Failed(key, reason, retryable=False)
            self._miss(work)
        else:
            self._waiting[key] = _Member(work, rows, self._clock.now_us())
        return True

    def cancel(self, request_id: str, attempt: int | None = None) -> bool:
        """Let a request leave at the next boundary; whether there was one."""
        return self._ask_to_leave(request_id, attempt, "cancelled")

    def preempt(self, request_id: str, attempt: int | None = None) -> bool:
        """As `cancel`; there are no tokens to keep."""
        return self._ask_to_leave(request_id, attempt, "preempted")

    def grant(self, request_id: str, attempt: int, blocks: int) -> bool:
        """Take more blocks for a request: one pass never needs more than it began with."""
        del request_id, attempt, blocks
        return False

    @property
    def has_work(self) -> bool:
        """Whether the next step would have anything to do or to report."""
        return bool(self._waiting or self._refused)

    def progress(self) -> Sequence[Progress]:
        """Say of every request that it waits: one that runs is over before anybody can ask."""
        return [
            Progress(
                key,
                joined=False,
                prefilled_tokens=0,
                prompt_tokens=_tokens(member),
                output_tokens=0,
            )
            for key, member in self._waiting.items()
        ]

    def step(self) -> StepResult:
        """Run the oldest batch, once all of it has come; report what left and what failed."""
        began_us = self._clock.now_us()
        failed = list(self._refused.values())
        self._refused.clear()
        left = self._leave(began_us)
        batch = self._next_batch(began_us)
        if batch is None:
            if not failed and not left:
                self._clock.sleep_us(_GATHER_LOOK_US)
            return StepResult(left=left, failed=tuple(failed), kv_blocks_used=self._blocks())
        started = tuple(Started(member.work.key, _tokens(member)) for member in batch)
        joined_us = self._clock.now_us()
        texts = self._run(batch)
        ended_us = self._clock.now_us()
        finished: list[Finished] = []
        for member in batch:
            del self._waiting[member.work.key]
            if None in member.vectors:
                failed.append(Failed(member.work.key, member.fault, retryable=True))
            else:
                finished.append(self._finish(member, joined_us, ended_us))
        return StepResult(
            started=started,
            finished=tuple(finished),
            left=left,
            failed=tuple(failed),
            batch=texts,
            prefill_tokens=sum(_tokens(member) for member in batch),
            kv_blocks_used=self._blocks(),
            step_us=ended_us - began_us,
        )

    def check_integrity(self) -> None:
        """Assert that what waits fits into the budget, and that no batch is forgotten."""
        assert self._blocks() <= self._info.kv_blocks, "more is reserved than there is"  # noqa: S101 - the contract's own check
        numbers = {member.work.batch[0] for member in self._waiting.values() if member.work.batch}
        for number in self._gone:
            assert number in numbers, f"batch {number} is over and still counted"  # noqa: S101 - as above

    # Inside

    def _rows(self, work: Work) -> list[list[int]]:
        """Return the token ids of the request's texts.

        Raises:
            ValueError: it has none, or one is too long.
        """
        if not work.texts:
            raise ValueError("it brings no texts")
        rows = [self._encoder.ids(text) for text in work.texts]
        longest = max(len(row) for row in rows)
        if longest > self._info.max_sequence_tokens:
            raise ValueError(
                f"a text of it has {longest} tokens, and the context holds"
                f" {self._info.max_sequence_tokens}"
            )
        return rows

    def _ask_to_leave(self, request_id: str, attempt: int | None, cause: LeaveCause) -> bool:
        found = False
        for key, member in self._waiting.items():
            if key.id == request_id and attempt in (None, key.attempt):
                found = True
                # Who cancels does not want it later: a cancel outranks a preemption.
                member.leaving = "cancelled" if member.leaving == "cancelled" else cause
        return found

    def _leave(self, now_us: int) -> tuple[Left, ...]:
        gone = [member for member in self._waiting.values() if member.leaving is not None]
        left: list[Left] = []
        for member in gone:
            assert member.leaving is not None  # noqa: S101 - chosen for it above
            del self._waiting[member.work.key]
            self._miss(member.work)
            timings = Timings(now_us - member.added_us, 0, 0, None)
            left.append(Left(member.work.key, member.leaving, (), "", _tokens(member), timings))
        return tuple(left)

    def _miss(self, work: Work) -> None:
        if work.batch is not None:
            self._gone[work.batch[0]] = self._gone.get(work.batch[0], 0) + 1

    def _next_batch(self, now_us: int) -> list[_Member] | None:
        """Return the members of the oldest batch, or None while some are on their way."""
        if not self._waiting:
            self._gone.clear()
            return None
        first = next(iter(self._waiting.values()))
        if first.work.batch is None:
            return [first]
        number, size = first.work.batch
        members = [
            member
            for member in self._waiting.values()
            if member.work.batch is not None and member.work.batch[0] == number
        ]
        complete = len(members) + self._gone.get(number, 0) >= size
        # The topic keeps the order: what comes behind a batch says that all of it has come.
        followed = len(members) < len(self._waiting)
        late = now_us - first.added_us >= GATHER_US_MAX
        if not (complete or followed or late):
            return None
        self._gone.pop(number, None)
        return members

    def _run(self, batch: list[_Member]) -> int:
        """Encode all texts of the batch; return how many there were."""
        places = [(member, at) for member in batch for at in range(len(member.rows))]
        for member in batch:
            member.vectors = [None] * len(member.rows)
        places.sort(key=lambda place: len(place[0].rows[place[1]]))
        for first in range(0, len(places), self._info.max_batch):
            some = places[first : first + self._info.max_batch]
            if not self._encode(some) and len(some) > 1:
                for place in some:
                    self._encode([place])
        return len(places)

    def _encode(self, places: list[tuple[_Member, int]]) -> bool:
        """Fill in the vectors of one pass; return whether it gave any."""
        try:
            vectors = self._encoder.encode([member.rows[at] for member, at in places])
        except Exception as error:  # noqa: BLE001 - whatever the model raises, its requests fail and no others
            for member, _ in places:
                member.fault = f"the encoder failed: {error!r}"
            return False
        for (member, at), vector in zip(places, vectors, strict=True):
            if all(map(math.isfinite, array("f", vector))):
                member.vectors[at] = vector
            else:
                member.fault = "the encoder gave a number that is not finite"
        return True

    def _finish(self, member: _Member, joined_us: int, ended_us: int) -> Finished:
        vectors = [base64.b64encode(vector).decode() for vector in member.vectors if vector]
        return Finished(
            key=member.work.key,
            reason="embedded",
            text="",
            trailing_text="",
            prompt_tokens=_tokens(member),
            output_tokens=0,
            timings=Timings(joined_us - member.added_us, ended_us - joined_us, 0, None),
            embedding=Embedding(
                dimension=self._encoder.dimension,
                text_tokens=tuple(len(row) for row in member.rows),
                vectors_base64=tuple(vectors),
            ),
        )

    def _blocks(self) -> int:
        return sum(member.work.reserved_blocks for member in self._waiting.values())


def _tokens(member: _Member) -> int:
    return sum(len(row) for row in member.rows)
