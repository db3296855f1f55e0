"""What a story says of a run: given, asked to leave, left, gone on. Pure; words for people only.

May touch decisions and the parts of a story. Must not decide anything or look at a clock.
"""

from dataclasses import replace

from schemas.decisions import DuplicateIgnored, RequestDispatched
from schemas.ids import replica_name
from schemas.room import LeaveAsked, Preemption, RequestPreempted, ReservationGrown, RoomKept
from streams.story_parts import Event, counted


def dispatch_words(decision: RequestDispatched) -> tuple[str, str]:
    """Return what happened at a dispatch, and the numbers that were compared."""
    detail = (
        f"attempt {decision.attempt} to {replica_name(decision.model, decision.slot)}:"
        f" {decision.blocks} KV blocks of {decision.blocks_free} free, {decision.running} running"
        " there"
    )
    if decision.blocks < decision.blocks_full:
        detail += (
            f"; all it may need is {decision.blocks_full}, and so many are likely by"
            f" {counted(decision.samples, 'output')} that were seen"
        )
    if decision.passed_over:
        passed = ", ".join(
            f"{one.id} (needs {one.blocks_needed} blocks, {one.blocks_free_max} free)"
            for one in decision.passed_over
        )
        detail += f"; passed over: {passed}"
    if not decision.resume_tokens:
        return "dispatched", detail
    return "resumed", f"{detail}; goes on after {counted(decision.resume_tokens, 'token')}"


def growth_words(decision: ReservationGrown) -> str:
    """Return the numbers of more blocks."""
    return (
        f"{decision.blocks} instead of {decision.blocks_before}, {decision.blocks_free} were free;"
        f" after {counted(decision.output_tokens, 'token')}"
    )


def leave_words(decision: LeaveAsked) -> str:
    """Return when and why a request is asked to leave."""
    words = f"after the current iteration: {decision.cause}"
    why = decision.preemption
    return words if why is None else f"{words} for {why.for_id}, {compared(why)}"


def resend_words(decision: DuplicateIgnored) -> str:
    """Return what became of the same id when it was sent again."""
    body = "the same body" if decision.same_body else "another body"
    return f"ignored ({body}): it was {decision.stage}"


def room_words(decision: RoomKept) -> str:
    """Return what is kept free for a request, and why."""
    return (
        f"nothing else goes to {replica_name(decision.model, decision.slot)}: it has waited"
        f" {decision.waited_us / 1000:g} ms, longer than {decision.after_us / 1000:g} ms, and needs"
        f" {decision.blocks_needed} KV blocks, {decision.blocks_free} are free"
    )


def preemption_words(decision: RequestPreempted) -> str:
    """Return where a request left and what it keeps."""
    times = "once" if decision.preemptions == 1 else f"{decision.preemptions} times"
    kept = counted(decision.output_tokens, "token")
    left = replica_name(decision.model, decision.slot)
    return f"left {left} with {kept} kept; {times} so far"


def compared(why: Preemption) -> str:
    """Return the numbers that were compared when a request was asked to leave for another."""
    lacks = (
        f"{why.blocks_needed} KV blocks, {why.blocks_free} are free"
        if why.lacks == "kv"
        else "a place in the batch"
    )
    return (
        f"of tier {why.for_tier} lacks {lacks}; the one of tier {why.tier} that leaves has"
        f" {why.blocks} blocks and {why.tokens_lost} tokens to compute again, one of"
        f" {why.candidates} that may leave"
    )


def put_first_token(
    events: list[Event], started_at: int | None, first: Event, joined_us: int
) -> None:
    """Put the first token behind the start of its attempt, event number `started_at`.

    Its time is known from the worker's durations alone, and the start's from the report, which
    came later over the bus: so the start takes its time, `joined_us`, from the durations too.
    """
    if started_at is None:
        events.append(first)
        return
    started = events[started_at]
    at_us = min(started.at_us, joined_us, first.at_us)
    events[started_at : started_at + 1] = [replace(started, at_us=at_us), first]
