"""Where `explain` finds the entries of one request: the recorder's store, or Kafka's ledger.

Reads only. A ledger may hold millions of entries and a story needs a few hundred, so lines are
looked through as bytes and only those that matter are decoded.
"""

import re
import time
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from schemas.codec import CodecError, decode_line
from schemas.ledger import Entry
from services import bus
from streams.recovery import RecoveryError, recover_cell
from streams.replay_sources import as_bytes, cells_of, records_of
from streams.story import Story, tell
from streams.story_standing import standing_in, tell_standing

_TEXT = TypeAdapter(str)
_BLOCKED = re.compile(rb'"kind":"(queue-blocked|window-opened)\.v1","model":"([^"]*)"')
_HEAD = re.compile(rb'^\{"kind":"[^"]*","cell":\d+,"seq":(\d+),"epoch":(\d+),')

OnRecords = Callable[[int, int], None]


class Sieve:
    """Keeps the lines of one cell's ledger that tell of one request.

    Those are the lines that name it and, from the last before it on, those that say what held a
    queue back: a cause, or a batch window; until it has ended, the newest line too. Void records
    (see schemas/continuity.py) are left out by the same rule, read off the first line of each
    record.

    Attributes:
        lines: what is kept. named: whether any of it names the request.
    """

    def __init__(self, request_id: str) -> None:
        self._needle = b'"id":' + _TEXT.dump_json(request_id)
        self._blocked: dict[tuple[bytes, bytes], tuple[int, bytes]] = {}
        self._seen = 0
        self._epoch = 0
        self._next_seq = 0
        self._done = False
        self._newest = b""
        self.lines: list[bytes] = []
        self.named = False

    def feed(self, value: bytes) -> None:
        """Take the next record of the ledger."""
        head = _HEAD.match(value)
        if head is None:
            return
        seq, epoch = int(head[1]), int(head[2])
        if epoch < self._epoch or seq < self._next_seq:
            self._epoch = max(self._epoch, epoch)
            return
        lines = value.split(b"\n")
        self._epoch, self._next_seq = epoch, seq + len(lines)
        self._newest = lines[-1]
        for line in lines:
            self._sift(line)

    def finish(self) -> list[bytes]:
        """Return what is kept, once the ledger is read to its end."""
        if self.named and not self._done and self.lines[-1] is not self._newest:
            self.lines.append(self._newest)
        return self.lines

    def _sift(self, line: bytes) -> None:
        self._seen += 1
        if self._needle in line:
            if not self.named:
                self.named = True
                self.lines.extend(raw for _, raw in sorted(set(self._blocked.values())))
            self.lines.append(line)
            self._done = b'"kind":"request-ended.v1",' + self._needle in line
            return
        blocked = _BLOCKED.findall(line)
        if not blocked:
            return
        if self.named and not self._done:
            self.lines.append(line)
        else:
            self._blocked.update(dict.fromkeys(blocked, (self._seen, line)))


async def story_from_kafka(
    bootstrap: str, request_id: str, on_records: OnRecords | None = None
) -> Story | None:
    """Return the story of a request as Kafka's ledgers tell it, or None if they do not name it.

    Raises:
        SourceError: Headway's topics are not there. bus.BusError: the broker did not answer.
    """
    entries: list[Entry] = []
    for cell in range(await cells_of(bootstrap)):
        sieve = Sieve(request_id)
        count = 0
        async for value in records_of(bootstrap, cell):
            sieve.feed(value)
            count += 1
            if on_records is not None:
                on_records(cell, count)
        if sieve.named:
            entries.extend(_decoded(sieve.finish()))
    story = tell(request_id, entries, _now_us())
    if story is not None:
        await add_standing(bootstrap, story)
    return story


async def add_standing(bootstrap: str | None, story: Story) -> None:
    """Let the story of a request that waits say what holds this very one back.

    Its cell's state is recovered for that, as an owner's that takes over. Where that cannot be, or
    no broker is known, the story tells what holds the queue back, and why it cannot say more.
    """
    if story.present is None or story.present.stage != "waiting":
        return
    if bootstrap is None:
        story.standing_fault = "no Kafka of the deployment is known here"
        return
    try:
        state = (await recover_cell(bootstrap, story.cell)).state
    except (RecoveryError, bus.BusError) as error:
        story.standing_fault = str(error)
        return
    standing = standing_in(state, story.id, _now_us())
    if standing is not None:
        tell_standing(story, standing)


def story_from_store(client: Any, request_id: str) -> Story | None:
    """Return the story of a request as the recorder's store tells it, or None.

    Args:
        client: a clickhouse_connect client.
        request_id: whose story.

    Raises:
        whatever the client raises when the store does not answer.
    """
    named = client.query(_STORE_RANGE, parameters={"id": request_id}).result_rows
    needle = '"id":' + _TEXT.dump_json(request_id).decode()
    entries: list[Entry] = []
    for cell, first, last_named, over in named:
        bounds = {"needle": needle, "cell": cell, "first": first, "last": last_named}
        if not over:
            newest = client.query(_STORE_NEWEST, parameters={"cell": cell}).result_rows
            bounds["last"] = newest[0][0]
        rows = client.query(_STORE_LINES, parameters=bounds).result_rows
        entries.extend(_decoded([as_bytes(row[0]) for row in rows]))
    return tell(request_id, entries, _now_us())


# A request's first and last entries bring decisions about it, so the index over those finds it.
_STORE_RANGE = """
SELECT cell, min(seq), max(seq), argMax(kind, (seq, index)) = 'request-ended.v1'
FROM decision_rows WHERE request_id = {id:String}
GROUP BY cell ORDER BY cell
"""
_STORE_NEWEST = "SELECT max(seq) FROM ledger WHERE cell = {cell:Int32}"
# Before the request's first entry, the last word on each queue; then all that concerns it, and the
# last one: of a request that lives, the newest of its cell.
_STORE_LINES = """
WITH blocked AS (
    SELECT seq, model, kind FROM decision_rows
    WHERE cell = {cell:Int32} AND kind IN ('queue-blocked.v1', 'window-opened.v1')
    AND seq <= {last:Int64}
)
SELECT raw FROM ledger FINAL
WHERE cell = {cell:Int32} AND (
    (seq BETWEEN {first:Int64} AND {last:Int64} AND position(raw, {needle:String}) > 0)
    OR seq = {last:Int64}
    OR seq IN (SELECT seq FROM blocked WHERE seq >= {first:Int64})
    OR seq IN (SELECT max(seq) FROM blocked WHERE seq < {first:Int64} GROUP BY model, kind)
)
ORDER BY seq
"""


def _now_us() -> int:
    return time.time_ns() // 1_000


def _decoded(lines: list[bytes]) -> list[Entry]:
    entries: list[Entry] = []
    for raw in lines:
        try:
            entries.append(decode_line(raw).entry)
        except CodecError:
            # A line that only looks like one of ours; `replay --verify` is what judges a ledger.
            continue
    return entries
