"""Recorded ledgers: what was decided then is decided again now, byte for byte, in any process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from schemas.codec import decode_line
from schemas.decisions import Decision
from schemas.facts import Fact
from services.scheduler.snapshot import state_digest
from services.scheduler.state import State
from services.scheduler.step import governing, recover, step
from streams.replay import Report, Verifier
from tests.golden.scheduler_ledger_maker import ALTERED, RECORDED, altered_lines

ROOT = Path(__file__).parents[2]
CELL = 2

# What a fresh process runs: only the hash seed differs between two of them.
REPLAY = f"""
import sys
from streams.replay import Verifier
verifier = Verifier({CELL})
for line in sys.stdin.buffer.read().splitlines():
    verifier.feed(line)
report = verifier.report()
print(report.digest, report.entries, report.mismatch_count, report.stopped)
"""


def recorded_lines(path: Path = RECORDED) -> list[bytes]:
    return path.read_bytes().splitlines()


def verified(lines: list[bytes]) -> Report:
    verifier = Verifier(CELL)
    for line in lines:
        verifier.feed(line)
    return verifier.report()


def test_the_recorded_ledger_holds_every_kind_of_fact_and_decision() -> None:
    entries = [decode_line(line).entry for line in recorded_lines()]
    facts = {type(entry.fact) for entry in entries}
    decisions = {type(decision) for entry in entries for decision in entry.decisions}
    assert facts == set(get_args(Fact))
    assert decisions == set(get_args(Decision))


@pytest.mark.parametrize("hash_seed", range(4))
def test_the_recorded_ledger_replays_byte_for_byte_in_a_fresh_process(hash_seed: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", REPLAY],
        input=RECORDED.read_bytes(),
        capture_output=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)},
    )
    expected = verified(recorded_lines())
    count = len(recorded_lines())
    assert done.stdout.decode().split() == [expected.digest, str(count), "0", "None"]


def test_a_recovery_from_the_record_gives_the_state_that_deciding_again_gives() -> None:
    remembered = State()
    decided = State()
    for line in recorded_lines():
        entry = decode_line(line).entry
        recover(remembered, entry.fact, entry.decisions)
        step(governing(decided, entry.fact), decided, entry.fact)
        assert remembered.policy_digest == entry.policy_digest
    assert state_digest(remembered) == state_digest(decided)


def test_an_altered_decision_is_found_and_its_seq_is_named() -> None:
    # All chains are right: only deciding again can tell.
    _, seq = altered_lines(recorded_lines())
    report = verified(recorded_lines(ALTERED))
    assert not report.sound
    assert report.mismatch_count == 1
    assert report.mismatches[0].seq == seq
    assert "blocks_free is recorded as" in report.mismatches[0].sentence()
    assert f"seq {seq}" in report.mismatches[0].sentence()


def test_the_altered_ledger_is_sound_but_for_that_one_entry() -> None:
    original, altered = recorded_lines(), recorded_lines(ALTERED)
    _, seq = altered_lines(original)
    assert altered[:seq] == original[:seq]
    assert altered[seq] != original[seq]
    assert verified(original[: len(altered)]).sound


@pytest.mark.parametrize(
    ("was", "is_now"),
    [
        (b'"kind":"work-finished.v1"', b'"output_digest":"0123456789abcdef"'),
        (b'"kind":"request-arrived.v1"', b'"body_digest":"0123456789abcdef"'),
    ],
)
def test_one_altered_byte_of_a_fact_is_found_by_the_chain(was: bytes, is_now: bytes) -> None:
    lines = recorded_lines()
    seq = next(i for i, line in enumerate(lines) if i > 20 and was in line and is_now in line)
    # Everywhere in the entry, so that the decisions still follow from the fact.
    lines[seq] = lines[seq].replace(is_now[-17:], is_now[-17:-2] + b'e"')
    report = verified(lines)
    assert not report.sound
    assert report.mismatches[0].seq == seq
    assert "altered" in report.mismatches[0].sentence()


def test_a_missing_entry_is_named() -> None:
    lines = recorded_lines()
    del lines[40]
    report = verified(lines)
    assert not report.sound
    assert report.mismatches[0].seq == 40
