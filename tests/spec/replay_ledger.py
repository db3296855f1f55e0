"""Ledgers made by hand for tests of replay and stories: the real core, the real codec, no bus."""

from dataclasses import dataclass, field, replace

from schemas import facts as f
from schemas.codec import decode_line, encode_entry
from schemas.decisions import Decision
from schemas.facts import Fact
from schemas.ledger import GENESIS_CHAIN, Entry
from schemas.policy import Policy
from services.scheduler.state import State
from services.scheduler.step import governing, step
from tests.spec.scheduler_story import PROFILE, policy_is


@dataclass
class HandMade:
    """One cell's ledger in the making; a record a call of `tell`."""

    cell: int = 0
    state: State = field(default_factory=State)
    records: list[bytes] = field(default_factory=list[bytes])
    entries: list[Entry] = field(default_factory=list[Entry])
    chain: str = GENESIS_CHAIN

    def tell(self, *facts: Fact) -> "HandMade":
        """Append one record with an entry for each fact."""
        lines: list[bytes] = []
        for fact in facts:
            decisions = step(governing(self.state, fact), self.state, fact)
            entry = self.entry_of(fact, decisions, len(self.entries))
            raw, self.chain = encode_entry(entry, self.chain)
            lines.append(raw)
            self.entries.append(entry)
        self.records.append(b"\n".join(lines))
        return self

    def entry_of(self, fact: Fact, decisions: tuple[Decision, ...], seq: int) -> Entry:
        return Entry(
            cell=self.cell,
            seq=seq,
            epoch=self.state.epoch,
            source=None,
            policy_version=self.state.policy.version,
            policy_digest=self.state.policy_digest,
            fact=fact,
            decisions=decisions,
        )

    def lines(self) -> list[bytes]:
        return [line for record in self.records for line in record.split(b"\n")]


def takeover(epoch: int = 1, *, cell: int = 0, cells: int = 1, at_us: int = 0) -> f.OwnerTookOver:
    return f.OwnerTookOver(at_us=at_us, cell=cell, cells=cells, epoch=epoch, owner=f"o{epoch}")


def begun(*facts: Fact, policy: Policy | None = None, cell: int = 0, cells: int = 1) -> HandMade:
    """Return a ledger that began: a takeover, a policy, a profile, then a record for each fact."""
    made = HandMade(cell)
    made.tell(takeover(cell=cell, cells=cells), policy_is(policy or Policy()))
    made.tell(f.ProfileSet(at_us=0, profile=PROFILE))
    for fact in facts:
        made.tell(fact)
    return made


def chained(lines: list[bytes], first: int, changed: Entry) -> list[bytes]:
    """Return `lines` with the entry at `first` changed and every chain behind it made right."""
    chain = decode_line(lines[first - 1]).chain
    fresh = lines[:first]
    for entry in (changed, *(decode_line(line).entry for line in lines[first + 1 :])):
        raw, chain = encode_entry(entry, chain)
        fresh.append(raw)
    return fresh


def with_decisions(entry: Entry, *decisions: Decision) -> Entry:
    return replace(entry, decisions=decisions)
