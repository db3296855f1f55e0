"""Why a request waits at this moment, from its cell's whole state: turn and quota too. Pure.

What holds a model's queue back stands in the ledger as it changes. Whether one request waits for
its turn below higher tiers, or for its tenant's quota, depends on all the others that wait: the
core keeps that up as totals, which come to light with a dispatch or an end. So the story of a
request that still waits takes them from the cell's state, as it is recovered from the ledger.
"""

from dataclasses import dataclass

from schemas.decisions import Cause, Waits
from services.scheduler.queue import LINES, RANKS, Lane, TierQueue
from services.scheduler.state import Model, Request, State
from services.scheduler.waits import as_waits, waited_us
from streams.story_parts import Present, Segment, Story, counted
from streams.story_waits import as_recorded


@dataclass(frozen=True, slots=True)
class Standing:
    """How a request that waits stands in its queue.

    Attributes:
        attempts: begun so far. at_us: up to when all is told.
        waits: of all its waits so far, by cause.
        cause: what holds it back now, since `since_us`.
        why: the numbers of a turn or a quota; "" where the queue's own cause tells.
    """

    attempts: int
    at_us: int
    waits: Waits
    cause: Cause
    since_us: int
    why: str


def standing_in(state: State, request_id: str, now_us: int) -> Standing | None:
    """Return how a request stands up to `now_us`, or None when it does not wait there."""
    request = state.requests.get(request_id)
    if request is None or request.stage != "waiting":
        return None
    model = state.models[request.model]
    of_tier = model.queue.tiers[request.line]
    lane = of_tier.lanes[request.tenant]
    at_us = max(state.now_us, now_us)
    cause, since_us = _cause(of_tier, lane)
    return Standing(
        attempts=request.attempt,
        at_us=at_us,
        waits=as_waits(waited_us(request, model, at_us)),
        cause=cause,
        since_us=max(since_us, request.since_us),
        why=_why(state, model, request, cause),
    )


def tell_standing(story: Story, standing: Standing) -> None:
    """Let the story of a request that waits go on up to `standing`, with its causes.

    Nothing is changed where it is of another moment of the request: it ran in between.
    """
    present = story.present
    if present is None or present.stage != "waiting" or standing.attempts != story.attempts:
        return
    if standing.at_us > story.until_us:
        story.segments.append(
            Segment(
                "wait", standing.cause, story.until_us, standing.at_us, story.attempts, standing.why
            )
        )
        story.until_us = standing.at_us
    story.recorded_wait_us = sum(us for _, us in standing.waits)
    story.unexplained_us = story.recorded_wait_us - story.wait_us
    story.segments = as_recorded(story.segments, standing.waits)
    if standing.cause != present.cause:
        story.present = Present("waiting", standing.cause, standing.why, standing.since_us)


# Inside


def _cause(of_tier: TierQueue, lane: Lane) -> tuple[Cause, int]:
    if lane.held_since_us >= 0:
        return "quota", lane.held_since_us
    return of_tier.cause or "turn", of_tier.cause_since_us


def _why(state: State, model: Model, request: Request, cause: Cause) -> str:
    if cause == "quota":
        name, tenant = request.model, request.tenant
        most = state.settings.at(name, None, tenant).quota_running_requests
        running = model.accounts[tenant].running
        return f"{counted(running, 'request')} of {tenant} run, and its quota for {name} is {most}"
    if cause != "turn":
        return ""
    above = LINES[: RANKS[request.line]]
    waiting = {line: model.queue.tiers[line].waiting for line in above}
    told = ", ".join(f"{count} {line}" for line, count in waiting.items() if count)
    return f"requests of higher tiers wait for the same room: {told}" if told else ""
