"""The view `waiting`, at several moments of a recorded ledger, says what the core's state says."""

import asyncio
from pathlib import Path

import pytest

from schemas.topics import LEDGER
from services.recorder.engine import Engine
from services.scheduler.state import State
from services.scheduler.step import recover
from streams.story_standing import standing_in
from tests.contracts.store_recorded import CELL, ENTRIES, LINES, Recorded

pytestmark = pytest.mark.store


def expected(state: State) -> dict[str, str]:
    """Return what holds each waiting request back, as the core remembers it."""
    causes: dict[str, str] = {}
    for name, request in state.requests.items():
        if request.stage == "backoff":
            causes[name] = "backoff"
        elif request.stage == "waiting":
            standing = standing_in(state, name, state.now_us)
            assert standing is not None
            causes[name] = standing.cause
    return causes


async def test_at_each_moment_the_view_names_the_cause_of_each_request_that_waits(
    tmp_path: Path,
) -> None:
    engine = Engine(tmp_path)
    recorded = Recorded(engine)
    await recorded.resume()
    state, done = State(), 0
    seen: set[str] = set()
    # Where many wait, for different causes.
    moments = sorted(interesting(), key=lambda found: found[0])
    for end, causes in moments:
        value = b"\n".join(LINES[done:end])
        await recorded.record([((LEDGER, CELL, end), value)])
        for entry in ENTRIES[done:end]:
            recover(state, entry.fact, entry.decisions)
        done = end
        rows = recorded.ask("SELECT id, cause FROM waiting ORDER BY id")
        assert dict(rows) == causes == expected(state)
        seen.update(causes.values())
    assert seen >= {"turn", "quota", "slots", "backoff"}
    await asyncio.to_thread(engine.close)


def interesting() -> list[tuple[int, dict[str, str]]]:
    """Return some moments (entries up to which, what waits why), each with causes of its own."""
    state = State()
    found: dict[frozenset[str], tuple[int, dict[str, str]]] = {}
    for end, entry in enumerate(ENTRIES, start=1):
        recover(state, entry.fact, entry.decisions)
        causes = expected(state)
        kinds = frozenset(causes.values())
        if kinds and (kinds not in found or len(causes) > len(found[kinds][1])):
            found[kinds] = (end, causes)
    return list(found.values())
