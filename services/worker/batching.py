"""The engine around an executor: queue, batch, KV reservations, text and reports. No torch.

Everything an engine does apart from running the model: it plans each iteration (plan.py), reserves
blocks (blocks.py), hands the executor the slices to run, and turns the tokens that come back into
reports. The executor (SmolLM2 in torch, or a latency model) only ever sees slices, so the
two engines cannot differ in how they batch.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple, Protocol

from services.worker.acceptance import RunningText, accept
from services.worker.blocks import BlockPool, PoolExceededError
from services.worker.engine import (
    EngineInfo,
    Failed,
    Finished,
    FinishReason,
    Growing,
    LeaveCause,
    Left,
    Progress,
    Started,
    StepResult,
    Timings,
    Token,
    Work,
    WorkKey,
)
from services.worker.latency import Clock
from services.worker.plan import Bounds, Running, StepPlan, Waiting, plan_step
from services.worker.tokenizer import ModelTokenizer


class Slice(NamedTuple):
    """Run the next `tokens` ids of `text`; with `yields` the token after them is wanted."""

    text: RunningText
    tokens: int
    yields: bool


class Fault(NamedTuple):
    """One slice gave no usable result; a sentence."""

    reason: str


class Executor(Protocol):
    """What runs slices. It keeps KV for each key from its first slice until `drop`."""

    def run(self, slices: Sequence[Slice]) -> Sequence[Sequence[int] | Fault]:
        """Run one iteration: for each slice the tokens it yields, at least one if it `yields`.

        An exception fails every request of the iteration, and none besides.
        """
        ...

    def warm_up(self) -> None:
        """Run once at the sizes to come."""
        ...


class BatchingEngine:
    """The contract of engine.py over an executor. `pool` is shared with the executor."""

    def __init__(
        self,
        info: EngineInfo,
        *,
        executor: Executor,
        tokenizer: ModelTokenizer,
        pool: BlockPool[WorkKey],
        bounds: Bounds,
        clock: Clock,
    ) -> None:
        self._info = info
        self._executor = executor
        self._tokenizer = tokenizer
        self._pool = pool
        self._bounds = bounds
        self._clock = clock
        self._waiting: dict[WorkKey, RunningText] = {}
        self._running: dict[WorkKey, RunningText] = {}
        self._refused: dict[WorkKey, Failed] = {}
        # Steps in a row in which patient work sat out.
        self._rests = 0
        self._complete: dict[WorkKey, RunningText] = {}

    @property
    def info(self) -> EngineInfo:
        """What this engine is and has."""
        return self._info

    def warm_up(self) -> None:
        """Run the model once at the sizes to come."""
        self._executor.warm_up()

    @property
    def has_work(self) -> bool:
        """Whether the next step would have anything to do or to report."""
        if self._waiting or self._refused or self._complete:
            return True
        return any(
            text.leaving is not None or text.prefill_left or text.room(self._info.block_tokens) > 0
            for text in self._running.values()
        )

    def add(self, work: Work) -> bool:
        """Take a request in; False when this id and attempt is already here."""
        key = work.key
        if any(
            key in held for held in (self._waiting, self._running, self._refused, self._complete)
        ):
            return False
        try:
            text = accept(work, self._info, self._tokenizer, added_us=self._clock.now_us())
        except ValueError as error:
            self._refused[key] = Failed(key, str(error), retryable=False)
            return True
        if text.output_tokens >= text.limit:
            self._complete[key] = text
        else:
            self._waiting[key] = text
        return True

    def cancel(self, request_id: str, attempt: int | None = None) -> bool:
        """Let a request leave at the next boundary; whether there was one."""
        return self._ask_to_leave(request_id, attempt, "cancelled")

    def preempt(self, request_id: str, attempt: int | None = None) -> bool:
        """As `cancel`, with the tokens kept for a later attempt."""
        return self._ask_to_leave(request_id, attempt, "preempted")

    def grant(self, request_id: str, attempt: int, blocks: int) -> bool:
        """Let a request in the batch have `blocks` KV blocks in all; whether it has them now."""
        text = self._running.get(WorkKey(request_id, attempt))
        if text is None or blocks <= text.blocks:
            return False
        try:
            self._pool.extend(text.key, blocks - text.blocks)
        except PoolExceededError:
            # The cell counts every block, so this is no cell's grant. The tokens are kept.
            text.leaving = text.leaving or "preempted"
            return False
        text.blocks = blocks
        return True

    def _ask_to_leave(self, request_id: str, attempt: int | None, cause: LeaveCause) -> bool:
        found = False
        for key, text in chain(self._waiting.items(), self._running.items()):
            if key.id == request_id and attempt in (None, key.attempt):
                found = True
                # Who cancels does not want it resumed: a cancel outranks a preemption.
                text.leaving = "cancelled" if text.leaving == "cancelled" else cause
        return found

    def progress(self) -> Sequence[Progress]:
        """How far every request in the engine is, in the order of adding."""
        return [
            Progress(
                text.key,
                text.joined_us is not None,
                min(text.context, text.prompt_tokens),
                text.prompt_tokens,
                text.output_tokens,
            )
            for text in chain(self._running.values(), self._waiting.values())
        ]

    def step(self) -> StepResult:
        """Run one iteration: leaves, joins, one pass of the model, finishes."""
        began_us = self._clock.now_us()
        failed = list(self._refused.values())
        self._refused.clear()
        started: list[Started] = []
        finished: list[Finished] = []
        for text in self._complete.values():
            text.joined_us = began_us
            started.append(Started(text.key, text.prompt_tokens))
            finished.append(self._finish(text, "length"))
        self._complete.clear()

        plan = plan_step(
            self._bounds,
            list(self._waiting_views()),
            self._running_views(),
            self._pool.unreserved,
            self._rests,
        )
        self._rests = self._rests + 1 if plan.rests else 0
        left = tuple(self._leave(key) for key in plan.leave)
        for key in plan.join:
            text = self._waiting.pop(key)
            self._pool.reserve(key, text.blocks)
            text.joined_us = began_us
            self._running[key] = text
            started.append(Started(key, text.prompt_tokens))

        batch = len(self._running)
        tokens: list[Token] = []
        produced = 0
        slices = self._slices(plan)
        for piece, outcome in zip(slices, self._execute(slices), strict=True):
            if isinstance(outcome, Failed):
                failed.append(outcome)
                self._release(piece.text.key)
            else:
                produced += self._take(piece, outcome, tokens, finished)
        return StepResult(
            started=tuple(started),
            tokens=tuple(tokens),
            finished=tuple(finished),
            left=left,
            failed=tuple(failed),
            growing=tuple(self._growing()),
            batch=batch,
            prefill_tokens=sum(chunk.tokens for chunk in plan.prefill),
            decode_tokens=produced,
            kv_blocks_used=self._pool.reserved,
            step_us=self._clock.now_us() - began_us,
        )

    def _growing(self) -> Iterator[Growing]:
        """Those that have one block left or less and may need more, each once for its blocks."""
        block_tokens = self._info.block_tokens
        for text in self._running.values():
            if (
                text.asked_blocks != text.blocks
                and text.may_need_more(block_tokens)
                and len(text.ids) + block_tokens > text.blocks * block_tokens
            ):
                text.asked_blocks = text.blocks
                yield Growing(text.key, text.output_tokens, text.blocks)

    def _waiting_views(self) -> Iterator[Waiting]:
        """Those that could join in this step, and those that leave: never the whole queue."""
        heads = islice((t for t in self._waiting.values() if not t.leaving), self._bounds.max_batch)
        leavers = (t for t in self._waiting.values() if t.leaving)
        for text in chain(leavers, heads):
            blocks = text.work.reserved_blocks
            leaving = text.leaving is not None
            yield Waiting(text.key, blocks, text.prefill_left, leaving, text.work.patient)

    def _running_views(self) -> list[Running]:
        return [
            Running(
                key,
                text.blocks,
                text.prefill_left,
                text.leaving is not None,
                text.room(self._info.block_tokens) < 1,
                text.work.patient,
            )
            for key, text in self._running.items()
        ]

    def _slices(self, plan: StepPlan) -> list[Slice]:
        slices = [Slice(self._running[key], 1, yields=True) for key in plan.decode]
        slices += [Slice(self._running[key], tokens, last) for key, tokens, last in plan.prefill]
        return slices

    def _execute(self, slices: list[Slice]) -> list[Sequence[int] | Failed]:
        if not slices:
            return []
        try:
            outcomes = self._executor.run(slices)
        except Exception as error:  # noqa: BLE001 - whatever the model raised, the worker goes on
            return [
                Failed(
                    piece.text.key,
                    f"The iteration that ran request {piece.text.key.id!r} failed: {error!r}.",
                    retryable=True,
                )
                for piece in slices
            ]
        return [
            Failed(piece.text.key, outcome.reason, retryable=True)
            if isinstance(outcome, Fault)
            else outcome
            for piece, outcome in zip(slices, outcomes, strict=True)
        ]

    def _take(
        self, piece: Slice, ids: Sequence[int], tokens: list[Token], finished: list[Finished]
    ) -> int:
        """Book what a slice yielded; how many tokens the request got."""
        text = piece.text
        text.context += piece.tokens
        if not piece.yields:
            return 0
        now_us = self._clock.now_us()
        if text.first_us is None:
            text.first_us = now_us
        produced = 0
        for token in ids:
            if text.work.output_tokens is None and token in self._tokenizer.stop_ids:
                finished.append(self._finish(text, "stop"))
                return produced
            index = text.output_tokens
            text.ids.append(token)
            text.last_us = now_us
            produced += 1
            added = text.decoder.add(token)
            text.text.append(added)
            if text.work.stream:
                tokens.append(Token(text.key, index, token, added))
            if index + 1 == text.limit:
                reason: FinishReason = (
                    "length" if text.limit == text.work.max_output_tokens else "stop"
                )
                finished.append(self._finish(text, reason))
                return produced
        # Several tokens in one iteration: all but the last are in the KV pool by now.
        text.context = len(text.ids) - 1
        return produced

    def _finish(self, text: RunningText, reason: FinishReason) -> Finished:
        trailing = text.decoder.finish()
        text.text.append(trailing)
        self._release(text.key)
        return Finished(
            text.key,
            reason,
            "".join(text.text),
            trailing,
            text.prompt_tokens,
            text.output_tokens,
            self._timings(text),
        )

    def _leave(self, key: WorkKey) -> Left:
        text = self._running.get(key) or self._waiting[key]
        self._release(key)
        self._waiting.pop(key, None)
        return Left(
            key,
            text.leaving or "cancelled",
            tuple(text.ids[text.prompt_tokens :]),
            "".join(text.text),
            text.prompt_tokens,
            self._timings(text),
        )

    def _release(self, key: WorkKey) -> None:
        self._running.pop(key, None)
        if self._pool.holds(key):
            self._pool.free(key)

    def _timings(self, text: RunningText) -> Timings:
        now_us = self._clock.now_us()
        if text.joined_us is None:
            return Timings(now_us - text.added_us, 0, 0, None)
        queued_us = text.joined_us - text.added_us
        if text.first_us is None or text.last_us is None:
            return Timings(queued_us, (text.first_us or now_us) - text.joined_us, 0, None)
        return Timings(
            queued_us,
            text.first_us - text.joined_us,
            text.last_us - text.first_us,
            text.first_us - text.added_us,
        )

    def check_integrity(self) -> None:
        """Assert that the KV pool and the batch agree; raises AssertionError."""
        self._pool.check_integrity()
        held = {key: text.blocks for key, text in self._running.items()}
        assert self._pool.reserved == sum(held.values()), (  # noqa: S101 - this is its purpose
            f"The pool has {self._pool.reserved} reserved blocks and the batch {held}."
        )
        assert len(held) <= self._bounds.max_batch, (  # noqa: S101 - same
            f"The batch holds {len(held)} sequences of at most {self._bounds.max_batch}."
        )
        assert not held.keys() & self._waiting.keys(), (  # noqa: S101 - same
            "A request is both waiting and running."
        )
