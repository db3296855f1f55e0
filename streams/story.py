"""What happened to one request, told from the ledger's entries. Pure.

Every part of a request's time has a name here: the waits by the cause that was on record at that
moment, the runs by what the worker reported. The waits are put together from the queue's blocking
causes alone, so that their sum can be held against the wait that the core recorded: what is left
over is `unexplained_us`, and it is 0 in a sound ledger.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Any, Literal

from schemas import decisions as d
from schemas import facts as f
from schemas.batches import BatchFormed, WindowOpened
from schemas.decisions import CAUSES
from schemas.ids import replica_name
from schemas.ledger import Entry
from streams import story_words as words
from streams.story_batches import BATCHED, batch_numbers, due_numbers, parts_of, window_numbers
from streams.story_parts import (
    TO_AND_FROM_WORKER,
    DecisionId,
    Event,
    Present,
    Segment,
    Stage,
    Story,
    counted,
    numbers,
)
from streams.story_waits import as_recorded

__all__ = ["Event", "Present", "Segment", "Stage", "Story", "tell"]

NOT_ON_RECORD = "not on record"


def tell(request_id: str, entries: Iterable[Entry], now_us: int = 0) -> Story | None:
    """Return the story of a request, or None when no entry speaks of it.

    Args:
        request_id: whose story.
        entries: in the order of each cell's ledger; those that name the request, the ones that say
            what held its model's queue back, from the last before its arrival on, and the newest of
            its cell.
        now_us: up to when the story of a request is told that has not ended; without it, up to the
            newest entry. What held a queue back then holds it still: a change would be on record.
    """
    teller = _Teller(request_id)
    for entry in entries:
        teller.read(entry)
    return teller.finish(now_us)


class _Teller:
    """Reads entries; keeps what is open: the present stage, and since when."""

    def __init__(self, request_id: str) -> None:
        self._id = request_id
        self._story = Story(request_id)
        self._now_us: dict[int, int] = {}
        self._blocked: dict[str, tuple[d.QueueBlocked, DecisionId]] = {}
        self._windows: dict[str, WindowOpened] = {}
        self._since_us = 0
        self._at: DecisionId = (0, 0, 0)
        self._arrival: tuple[str, int] | None = None
        # Of the present attempt.
        self._tokens, self._kept_tokens = 0, 0
        self._started_event: int | None = None
        self._first_token_told = False
        # Of the run that is open, once its worker has reported its end.
        self._usage: f.Usage | None = None

    def finish(self, now_us: int) -> Story | None:
        story = self._story
        if not story.events:
            return None
        if self._arrival is None:
            # Only cancels, or only a part of the ledger: nothing to count the time from.
            story.arrived_us = story.until_us = story.events[0].at_us
        elif story.stage != "ended":
            story.newest_entry_us = self._now_us.get(story.cell, max(self._now_us.values()))
            story.until_us = max(story.newest_entry_us, self._since_us, now_us)
            story.present = self._present()
            if story.stage in ("waiting", "backoff"):
                self._close_wait(story.until_us)
            elif story.stage == "running":
                self._segment("run", "running", story.until_us)
        else:
            story.newest_entry_us = self._now_us[story.cell]
        # They stand in the order of their meaning, which holds where times are equal.
        story.events.sort(key=lambda event: event.at_us)
        return story

    def _present(self) -> Present:
        story, since_us = self._story, self._since_us
        match story.stage:
            case "waiting":
                cause, why, decision = self._cause()
                return Present("waiting", cause, why, since_us, decision)
            case "backoff":
                lost = [event for event in story.events if event.what == "attempt lost"]
                return Present("backoff", "backoff", lost[-1].detail, since_us)
            case "running":
                joined = "" if self._started_event is not None else "; it has not joined a batch"
                why = f"attempt {story.attempts} on {story.replica}: {self._so_far()}"
                return Present("running", None, why + joined, since_us)
            case _:
                last = story.events[-1]
                return Present(story.stage, None, f"{last.what}: {last.detail}", since_us)

    def _cause(self) -> tuple[str, str, DecisionId | None]:
        """Return what holds the request's queue back, the numbers compared, and which one says."""
        blocked = self._blocked.get(self._story.model)
        if blocked is None:
            return NOT_ON_RECORD, "", None
        decision, decision_id = blocked
        window = self._windows.get(decision.model) if decision.cause == "window" else None
        return decision.cause, numbers(decision) + window_numbers(window), decision_id

    def read(self, entry: Entry) -> None:
        cell = entry.cell
        now_us = max(self._now_us.get(cell, 0), entry.fact.at_us)
        self._now_us[cell] = now_us
        events_before = len(self._story.events)
        self._at = (cell, entry.seq, -1)
        tell_fact = _FACTS.get(type(entry.fact))
        if tell_fact is not None:
            tell_fact(self, entry.fact, now_us)
        for index, decision in enumerate(entry.decisions):
            self._at = (cell, entry.seq, index)
            if isinstance(decision, d.QueueBlocked):
                self._queue_blocked(decision, now_us)
                continue
            if isinstance(decision, WindowOpened):
                self._window_opened(decision, now_us)
                continue
            if isinstance(decision, BatchFormed) and self._id in decision.members:
                self._event(now_us, BATCHED, batch_numbers(decision))
            if isinstance(decision, d.RequestDispatched):
                self._count_passed_over(decision)
            elif isinstance(decision, d.LeaveAsked):
                self.made_way_for(decision, now_us)
            if getattr(decision, "id", None) == self._id:
                self._decided(decision, now_us)
        policy = (entry.policy_version, entry.policy_digest)
        if len(self._story.events) > events_before and policy not in self._story.policies:
            self._story.policies.append(policy)

    # Facts

    def arrived(self, fact: f.RequestArrived | f.RequestRefused, now_us: int) -> None:
        if fact.id != self._id:
            return
        via = "" if fact.routed_by is None else f", sent on by cell {fact.routed_by[0]}"
        if isinstance(fact, f.RequestArrived):
            detail = f"{counted(fact.prompt_tokens, 'prompt token')}, {fact.body_bytes} bytes{via}"
        else:
            detail = f"{fact.detail}{via}"
        self._event(fact.arrived_us, "arrived", detail)
        self._arrival = (fact.model, fact.arrived_us)
        if self._story.stage in ("unknown", "routed"):
            self._begin(now_us)

    def cancel_asked(self, fact: f.CancelAsked, now_us: int) -> None:
        if fact.id == self._id:
            self._event(now_us, "cancel asked", "")

    def started(self, fact: f.WorkStarted, now_us: int) -> None:
        for item in fact.items:
            if item.id == self._id:
                name = replica_name(fact.model, fact.slot)
                if item.attempt == self._story.attempts:
                    self._started_event = len(self._story.events)
                self._event(now_us, "started", f"attempt {item.attempt} joined {name}'s batch")

    def progressed(self, fact: f.WorkProgressed, now_us: int) -> None:
        for item in fact.items:
            if item.id == self._id and item.attempt == self._story.attempts:
                first, self._tokens = not self._tokens, item.output_tokens
                if first:
                    self._event(now_us, "progressed", self._so_far())

    def _so_far(self) -> str:
        return f"{counted(self._tokens, 'token')} so far"

    def reported(self, fact: f.WorkFinished | f.WorkLeft, _now_us: int) -> None:
        for item in fact.items:
            if item.id == self._id and item.attempt == self._story.attempts:
                self._usage = item.usage

    def failed(self, fact: f.WorkFailed, now_us: int) -> None:
        for item in fact.items:
            if item.id == self._id:
                self._event(now_us, "worker could not run it", item.reason)

    # Decisions

    def _decided(self, decision: d.Decision, now_us: int) -> None:
        said = SAID.get(type(decision))
        if said is None:
            DECISIONS[type(decision)](self, decision, now_us)
        else:
            self._event(now_us, said[0], said[1](decision))

    def queued(self, decision: d.RequestQueued, now_us: int) -> None:
        self._begin_again(now_us)
        story = self._story
        story.cell = self._at[0]
        story.model, story.tenant, story.tier = decision.model, decision.tenant, decision.tier
        story.prompt_tokens = decision.prompt_tokens
        story.max_output_tokens = decision.max_output_tokens
        story.stage = "waiting"
        self._since_us = now_us
        detail = f"{decision.ahead} ahead; tier {decision.tier}, tenant {decision.tenant}"
        if decision.deadline_us is not None:
            detail += f"; must start within {(decision.deadline_us - now_us) / 1000:g} ms"
        self._event(now_us, "queued", detail)

    def routed(self, decision: d.RequestRouted, now_us: int) -> None:
        to = "every other cell" if decision.to_cell < 0 else f"cell {decision.to_cell}"
        self._event(now_us, "routed", f"belongs to another cell: sent on to {to}")
        if self._story.stage == "unknown" and self._arrival is not None:
            self._story.stage = "routed"

    def dispatched(self, decision: d.RequestDispatched, now_us: int) -> None:
        story = self._story
        self._close_wait(now_us)
        story.stage = "running"
        story.attempts = decision.attempt
        story.replica = replica_name(decision.model, decision.slot)
        self._check(decision.wait_us, decision.waits)
        self._usage = None
        self._tokens, self._started_event = 0, None
        self._kept_tokens = decision.resume_tokens
        what, detail = words.dispatch_words(decision)
        self._event(now_us, what, detail)

    def lost(self, decision: d.AttemptLost, now_us: int) -> None:
        self._segment("run", f"lost attempt {decision.attempt}", now_us, decision.why)
        self._story.stage = "backoff"
        detail = f"{decision.why}; tried again in {decision.backoff_ms} ms"
        self._event(now_us, "attempt lost", detail)

    def returned(self, _decision: d.RequestReturned, now_us: int) -> None:
        self._close_wait(now_us)
        self._story.stage = "waiting"
        self._event(now_us, "waits again", "its back-off is over")

    def preempted(self, decision: d.RequestPreempted, now_us: int) -> None:
        self._close_run(now_us)
        self._story.stage = "waiting"
        self._event(now_us, "preempted", words.preemption_words(decision))

    def made_way_for(self, decision: d.LeaveAsked, now_us: int) -> None:
        """Tell that another was asked to leave for this request."""
        why = decision.preemption
        if why is not None and why.for_id == self._id:
            self._event(now_us, "another asked to leave", f"{decision.id}, {words.compared(why)}")

    def ended(self, decision: d.RequestEnded, now_us: int) -> None:
        self._begin_again(now_us)
        story = self._story
        story.cell = self._at[0]
        story.model, story.tenant, story.tier = decision.model, decision.tenant, decision.tier
        if story.stage == "running":
            self._close_run(now_us)
        elif story.stage in ("waiting", "backoff"):
            self._close_wait(now_us)
        story.stage = "ended"
        story.until_us = now_us
        story.prompt_tokens = decision.prompt_tokens
        story.max_output_tokens = decision.max_output_tokens
        story.attempts = decision.attempts
        story.outcome, story.reason, story.detail = (
            decision.outcome,
            decision.reason,
            decision.detail,
        )
        story.usage, story.ttft_us = decision.usage, decision.ttft_us
        self._check(decision.wait_us, decision.waits)
        self._event(now_us, decision.outcome, decision.detail)

    # Segments

    def _begin(self, now_us: int) -> None:
        story = self._story
        story.segments.clear()
        if self._arrival is not None:
            story.model, story.arrived_us = self._arrival
        self._since_us = story.arrived_us
        self._segment("wait", "transit", now_us, "from the broker to the cell")

    def _begin_again(self, now_us: int) -> None:
        """Forget an earlier life: an id may be used again once it is no longer remembered."""
        if self._story.stage == "ended":
            self._first_token_told = False
            arrived = self._story.events[-1:]
            self._story = Story(self._id, events=arrived)
            self._begin(now_us)

    def _queue_blocked(self, decision: d.QueueBlocked, now_us: int) -> None:
        if decision.model == self._story.model and self._story.stage == "waiting":
            self._close_wait(now_us)
            self._event(now_us, f"held back: {decision.cause}", numbers(decision))
        self._blocked[decision.model] = (decision, self._at)

    def _window_opened(self, decision: WindowOpened, now_us: int) -> None:
        if decision.model == self._story.model and self._story.stage == "waiting":
            self._event(now_us, "window opened", due_numbers(decision, now_us))
        self._windows[decision.model] = decision

    def _close_wait(self, now_us: int) -> None:
        if self._story.stage == "backoff":
            self._segment("wait", "backoff", now_us, "the pause before the next attempt")
            return
        cause, why, decision_id = self._cause()
        self._segment("wait", cause, now_us, why, decision_id)

    def _close_run(self, now_us: int) -> None:
        """Part a run by the worker's own durations; the bus has what is left over."""
        usage = self._usage
        if usage is None:
            self._segment("run", "running", now_us)
            return
        if usage.first_token_us is not None and not self._first_token_told:
            self._first_token_told = True
            first_us = self._since_us + usage.first_token_us
            detail = f"{(first_us - self._story.arrived_us) / 1000:.1f} ms after the arrival"
            event = Event(min(first_us, now_us), *self._at, "first token", detail)
            joined_us = self._since_us + usage.queued_us
            words.put_first_token(self._story.events, self._started_event, event, joined_us)
        for label, us, why in parts_of(usage, self._kept_tokens, self._story.events):
            self._segment("run", label, min(self._since_us + us, now_us), why)
        self._segment("run", TO_AND_FROM_WORKER, now_us, "over the bus, both ways")

    def _segment(
        self,
        kind: Literal["wait", "run"],
        label: str,
        to_us: int,
        why: str = "",
        decision: DecisionId | None = None,
    ) -> None:
        if to_us > self._since_us:
            attempt = self._story.attempts
            self._story.segments.append(
                Segment(kind, label, self._since_us, to_us, attempt, why, decision)
            )
        self._since_us = to_us

    def _check(self, recorded_wait_us: int, waits: d.Waits) -> None:
        known = sum(
            segment.us
            for segment in self._story.segments
            if segment.kind == "wait" and segment.label in CAUSES
        )
        self._story.recorded_wait_us = recorded_wait_us
        self._story.unexplained_us = recorded_wait_us - known
        self._story.segments = as_recorded(self._story.segments, waits)

    def _count_passed_over(self, decision: d.RequestDispatched) -> None:
        if any(one.id == self._id for one in decision.passed_over):
            self._story.passed_over += 1

    def _event(self, at_us: int, what: str, detail: str) -> None:
        cell, seq, index = self._at
        self._story.events.append(
            Event(at_us, cell, seq, None if index < 0 else index, what, detail)
        )


_FACTS: dict[type, Callable[[_Teller, Any, int], None]] = {
    f.RequestArrived: _Teller.arrived,
    f.RequestRefused: _Teller.arrived,
    f.CancelAsked: _Teller.cancel_asked,
    f.WorkStarted: _Teller.started,
    f.WorkProgressed: _Teller.progressed,
    f.WorkFinished: _Teller.reported,
    f.WorkLeft: _Teller.reported,
    f.WorkFailed: _Teller.failed,
}
DECISIONS: dict[type, Callable[[_Teller, Any, int], None]] = {
    d.RequestQueued: _Teller.queued,
    d.RequestRouted: _Teller.routed,
    d.RequestDispatched: _Teller.dispatched,
    d.AttemptLost: _Teller.lost,
    d.RequestReturned: _Teller.returned,
    d.RequestPreempted: _Teller.preempted,
    d.RequestEnded: _Teller.ended,
}
# Decisions that change nothing of its time: what happened, and the words for it.
SAID: dict[type, tuple[str, Callable[[Any], str]]] = {
    d.DuplicateIgnored: ("sent again", words.resend_words),
    d.CancelIgnored: ("cancel ignored", attrgetter("why")),
    d.RoomKept: ("room is kept", words.room_words),
    d.LeaveAsked: ("asked to leave", words.leave_words),
    d.ReservationGrown: ("given more KV blocks", words.growth_words),
}
