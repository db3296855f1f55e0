"""The one entry point of the core: a fact in, decisions out. Pure.

Live scheduling, audit replay, what-if and simulation are this same loop. Recovery is `recover`,
which remembers what was decided instead of deciding again.
"""

from schemas.decisions import Decision
from schemas.facts import Fact, PolicyActivated
from schemas.policy import Policy
from services.scheduler.decide import decide, next_due_us
from services.scheduler.evolve import evolve
from services.scheduler.state import State

__all__ = ["UnboundedStepError", "decide", "evolve", "governing", "next_due_us", "recover", "step"]

# A fact brings at most a few decisions for each request and replica that it can concern.
_DECISIONS_PER_THING_MAX = 8
_DECISIONS_BASE_MAX = 64


class UnboundedStepError(AssertionError):
    """A step did not come to rest: a decision was taken that does not change the answer."""


def governing(state: State, fact: Fact) -> Policy:
    """Return the policy under which `fact` is decided: the active one, or the one it activates."""
    return fact.policy if isinstance(fact, PolicyActivated) else state.policy


def step(policy: Policy, state: State, fact: Fact) -> tuple[Decision, ...]:
    """Remember `fact` and return every decision that now follows, each one remembered too.

    Raises:
        UnboundedStepError: the rules contradict each other; it is a defect of the core.
    """
    evolve(state, fact)
    decision = decide(policy, state)
    if decision is None:
        return ()
    limit = _bound(state)
    decisions: list[Decision] = []
    while decision is not None:
        decisions.append(decision)
        if len(decisions) > limit:
            raise UnboundedStepError(f"more than {limit} decisions from one {fact.kind}")
        evolve(state, decision)
        decision = decide(policy, state)
    return tuple(decisions)


def recover(state: State, fact: Fact, decisions: tuple[Decision, ...]) -> None:
    """Remember a recorded fact and what was decided then, whatever the policy says now."""
    evolve(state, fact)
    for decision in decisions:
        evolve(state, decision)


def _bound(state: State) -> int:
    things = len(state.requests) + len(state.pending) + len(state.heard)
    return _DECISIONS_BASE_MAX + _DECISIONS_PER_THING_MAX * things
