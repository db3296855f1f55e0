"""One entry of the ledger: a fact, the decisions that follow from it, and what they rest on. Pure.

A ledger record is a batch of entries, one JSON object a line (schemas/codec.py writes and reads
it). Each line ends in `chain`, a digest over the line and the chain before it, so that no byte of
a ledger can change unnoticed.
"""

from typing import Literal

from schemas.decisions import AnyDecision
from schemas.facts import AnyFact
from schemas.ids import Source
from schemas.message import message

# The chain before the first entry of a ledger.
GENESIS_CHAIN = "0" * 16


@message
class Entry:
    """One element of the ledger.

    Attributes:
        cell: the ledger partition. seq: 0, 1, 2, … without a gap.
        epoch: of the owner that appended it; an entry of an older epoch behind a takeover is void.
        source: (topic, partition, offset) of the record that the fact was read from, or None.
        policy_version, policy_digest: the policy that the decisions were made under.
    """

    kind: Literal["ledger-entry.v1"] = "ledger-entry.v1"
    cell: int
    seq: int
    epoch: int
    source: Source | None
    policy_version: int
    policy_digest: str
    fact: AnyFact
    decisions: tuple[AnyDecision, ...]
