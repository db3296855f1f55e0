"""What KV reservation by quantile admits, over reservation in full, on recorded traffic. No bus.

The pure core on a clock that jumps, with one replica that generates a token for each of its
requests in each iteration, under a standing backlog. Prompts and output lengths are the trace's, in
its order. What producers ask for at most is not in the traces: here all ask for the same, the next
power of two above the longest output of the trace, as producers do who cannot know.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from schemas import decisions as d
from schemas import facts as f
from schemas.facts import Fact
from schemas.figures import Figure
from schemas.policy import Policy
from schemas.profile import Profile
from services.lab.arrivals import Arrival
from services.lab.traces import read_trace
from services.scheduler.state import State
from services.scheduler.step import governing, step

TRACES_ENVIRONMENT: Final = "HEADWAY_TRACES"
_TRACES: Final = {"azure_code": "azure2023_code.csv.gz", "azure_conv": "azure2023_conv.csv.gz"}
_BLOCK_TOKENS: Final = 16
# 54 sequences of 2,048 tokens: what an 80 GB card has left beside a model of 14 GB.
_KV_BLOCKS: Final = 54 * 2048 // _BLOCK_TOKENS
_MAX_BATCH: Final = 4096
_BACKLOG: Final = 64
_ITERATION_US: Final = 10_000
_REQUESTS: Final = 2_000
_LIFE: Final = "life-1"
_MODEL: Final = "bench"
_USAGE: Final = {"prompt_tokens": 1, "queued_us": 0, "prefill_us": 0, "decode_us": 0}


@dataclass(slots=True)
class _Attempt:
    attempt: int
    prompt_tokens: int
    tokens: int
    wanted: int
    blocks: int
    grows: bool
    asked_blocks: int = 0
    leaving: bool = False

    @property
    def full(self) -> bool:
        return self.prompt_tokens + self.tokens > self.blocks * _BLOCK_TOKENS


def reservation_figures(*, quick: bool = False) -> list[Figure]:
    """`reservation.admitted_ratio` and `.preempted_share` of each trace in HEADWAY_TRACES.

    The share is of the requests that left at least once because KV ran out. Nothing is measured
    where the environment names no traces.
    """
    folder = os.environ.get(TRACES_ENVIRONMENT)
    if folder is None:
        return []
    figures: list[Figure] = []
    for name, file in _TRACES.items():
        trace = read_trace(Path(folder) / file)[: _REQUESTS // 4 if quick else _REQUESTS]
        full = Run(trace, Policy(name="full"))
        guessed = Run(trace, Policy(name="quantile", reservation="quantile"))
        full.to_the_end()
        guessed.to_the_end()
        ratio = guessed.mean_running / full.mean_running
        share = len(guessed.preempted) / len(trace)
        figures += [
            Figure(f"reservation.admitted_ratio.{name}", ratio, "ratio"),
            Figure(f"reservation.preempted_share.{name}", share, "share"),
        ]
    return figures


class Run:
    """The core and one replica over a trace.

    Attributes:
        preempted: ids that left at least once.
        used_max: most blocks reserved at once.
    """

    def __init__(self, trace: Sequence[Arrival], policy: Policy) -> None:
        longest = max(arrival.output_tokens for arrival in trace)
        self._limit = 1 << longest.bit_length()
        self._trace = trace
        self._state = State()
        self._running: dict[str, _Attempt] = {}
        self._waiting = self._next = self._now_us = 0
        self._running_sum = self._iterations = 0
        self.preempted: set[str] = set()
        self.used_max = 0
        self._tell(f.OwnerTookOver(at_us=0, cell=0, cells=1, epoch=1, owner="bench"))
        self._tell(f.PolicyActivated(at_us=0, policy=policy, who="bench", why="bench"))
        self._tell(f.ProfileSet(at_us=0, profile=_profile()))
        self._tell(_ready())

    @property
    def mean_running(self) -> float:
        """Requests on the replica, over the iterations with a backlog."""
        return self._running_sum / self._iterations

    def to_the_end(self) -> None:
        """Run until every request of the trace has ended."""
        while self._next < len(self._trace) or self._state.requests:
            while self._next < len(self._trace) and self._waiting < _BACKLOG:
                self._arrive()
            if self._waiting >= _BACKLOG // 2:
                self._running_sum += len(self._running)
                self._iterations += 1
            self._iterate()

    def _arrive(self) -> None:
        arrival = self._trace[self._next]
        self._waiting += 1
        self._tell(
            f.RequestArrived(
                at_us=self._now_us,
                id=str(self._next),
                model=_MODEL,
                arrived_us=self._now_us,
                offset=self._next,
                prompt_tokens=max(1, arrival.prompt_tokens),
                max_output_tokens=self._limit,
                body_digest="",
                body_bytes=0,
            )
        )
        self._next += 1

    def _iterate(self) -> None:
        """Generate a token for each request that has room for one, and report what came of it."""
        self._now_us += _ITERATION_US
        for fact in list(self._reports()):
            self._tell(fact)

    def _reports(self) -> Iterator[Fact]:
        who: dict[str, Any] = {
            "at_us": self._now_us,
            "model": _MODEL,
            "slot": 0,
            "incarnation": _LIFE,
        }
        growing: list[f.WorkBlocks] = []
        for key, item in list(self._running.items()):
            usage = f.Usage(**_USAGE, output_tokens=item.tokens + (not item.leaving))
            if item.leaving:
                del self._running[key]
                gone = f.WorkDeparture(id=key, attempt=item.attempt, cause="preempted", usage=usage)
                yield f.WorkLeft(**who, offset=1, items=(gone,))
                continue
            if item.full:
                continue
            item.tokens += 1
            if item.tokens >= item.wanted:
                del self._running[key]
                done = f.WorkDone(
                    id=key,
                    attempt=item.attempt,
                    finish_reason="stop",
                    usage=usage,
                    output_digest="",
                )
                yield f.WorkFinished(**who, offset=1, items=(done,))
            elif item.grows and _nearly_full(item):
                item.asked_blocks = item.blocks
                growing.append(
                    f.WorkBlocks(
                        id=key,
                        attempt=item.attempt,
                        output_tokens=item.tokens,
                        blocks=item.blocks,
                    )
                )
        if growing:
            yield f.WorkGrows(**who, items=tuple(growing))
        yield f.ReplicaHeartbeat(**who, running=0, kv_blocks_used=0, output_tokens=0)

    def _tell(self, fact: Fact) -> None:
        for decision in step(governing(self._state, fact), self._state, fact):
            self._take(decision)
        replicas = self._state.models[_MODEL].replicas if self._state.models else {}
        used = max((replica.blocks_used for replica in replicas.values()), default=0)
        self.used_max = max(self.used_max, used)

    def _take(self, decision: d.Decision) -> None:
        match decision:
            case d.RequestDispatched():
                self._waiting -= 1
                self._running[decision.id] = _Attempt(
                    decision.attempt,
                    decision.prompt_tokens,
                    decision.resume_tokens,
                    max(1, self._trace[int(decision.id)].output_tokens),
                    decision.blocks,
                    decision.blocks < decision.blocks_full,
                )
            case d.ReservationGrown():
                self._running[decision.id].blocks = decision.blocks
            case d.LeaveAsked():
                self._running[decision.id].leaving = True
            case d.RequestPreempted():
                self._waiting += 1
                self.preempted.add(decision.id)
            case d.RequestEnded() if decision.outcome == "rejected":
                self._waiting -= 1
            case _:
                pass


def _nearly_full(item: _Attempt) -> bool:
    near = item.prompt_tokens + item.tokens + _BLOCK_TOKENS > item.blocks * _BLOCK_TOKENS
    return near and item.asked_blocks != item.blocks


def _profile() -> Profile:
    return Profile(
        model=_MODEL,
        layers=32,
        kv_heads=32,
        head_size=128,
        kv_dtype_bytes=2,
        max_sequence_tokens=131_072,
    )


def _ready() -> f.ReplicaReady:
    return f.ReplicaReady(
        at_us=0,
        model=_MODEL,
        slot=0,
        incarnation=_LIFE,
        engine="simulated",
        dtype="none",
        device="none",
        kv_pool_bytes=0,
        kv_blocks=_KV_BLOCKS,
        block_tokens=_BLOCK_TOKENS,
        max_batch=_MAX_BATCH,
        max_sequence_tokens=131_072,
        weights_bytes=0,
    )
