"""What workers report of attempts, remembered. Pure; part of evolve.

A report of an attempt that does not run now, or of a life that is not known, changes nothing. What
has to be answered is put behind what waits for an answer.
"""

from schemas import facts as f
from services.scheduler import running
from services.scheduler.hearing import current, hear, time_passed
from services.scheduler.state import State


def started(state: State, fact: f.WorkStarted) -> None:
    """Remember that a replica spoke: what joined its batch runs already here."""
    time_passed(state, fact.at_us)
    hear(state, fact)


def progressed(state: State, fact: f.WorkProgressed) -> None:
    """Remember how far the running attempts have got."""
    time_passed(state, fact.at_us)
    if hear(state, fact):
        requests = state.requests
        for item in current(state, fact):
            request = requests[item.id]
            request.output_tokens = max(request.output_tokens, item.output_tokens)


def grows(state: State, fact: f.WorkGrows) -> None:
    """Remember who needs more KV blocks."""
    time_passed(state, fact.at_us)
    if hear(state, fact):
        running.ask_to_grow(state, fact, current(state, fact))


def finished(state: State, fact: f.WorkFinished) -> None:
    """Remember which attempts are to be answered as ended."""
    time_passed(state, fact.at_us)
    if hear(state, fact):
        state.pending.extend((item, fact.offset) for item in current(state, fact))


def left(state: State, fact: f.WorkLeft) -> None:
    """Remember which attempts are to be answered as gone."""
    time_passed(state, fact.at_us)
    if hear(state, fact):
        state.pending.extend((item, fact.offset) for item in current(state, fact))


def failed(state: State, fact: f.WorkFailed) -> None:
    """Remember which attempts could not be run."""
    time_passed(state, fact.at_us)
    if hear(state, fact):
        state.pending.extend(current(state, fact))
