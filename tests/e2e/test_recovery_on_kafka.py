"""Recovery from snapshot and ledger, and replay of a real ledger in fresh processes."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from schemas.bus import SnapshotChunk
from schemas.codec import CodecError, decode, encode
from schemas.policy import Policy
from schemas.topics import LEDGER, SNAPSHOTS
from services import bus
from services.scheduler.snapshot import state_digest
from streams import snapshots
from streams.recovery import HEADER_SNAPSHOTS, best_snapshot, recover_cell
from streams.replay_sources import export
from streams.snapshots import Pointer, read_pointers
from tests.e2e.deployment import CELLS, Deployment

SNAPSHOT_ENTRIES = 60
ROUNDS_MAX = 60


async def _run_traffic(deployment: Deployment, name: str, rounds: int) -> list[str]:
    ids: list[str] = []
    for number in range(rounds):
        ids += await deployment.send_many(
            [deployment.request(f"{name}-{number}-{n}") for n in range(20)]
        )
        await deployment.outcomes(ids)
    return ids


async def _run_traffic_until_both_slots_hold_a_snapshot(deployment: Deployment) -> list[str]:
    """Snapshots are written beside the traffic, and a busy machine takes its time for them."""
    ids: list[str] = []
    for number in range(ROUNDS_MAX):
        ids += await _run_traffic(deployment, f"first-{number}", 1)
        if len(await deployment.snapshot_pointers()) == snapshots.SLOTS:
            return ids
    raise AssertionError(f"no two snapshots came of {len(ids)} requests; {deployment.log_tails()}")


async def _check_a_torn_one_is_passed_over(deployment: Deployment, pointers: list[Pointer]) -> None:
    """Put a snapshot first of which a part is missing, as after a crash in its midst."""
    pointer = pointers[0]
    torn = SnapshotChunk(
        cell=deployment.cell_number,
        seq=pointer.seq,
        ledger_offset=0,
        part=0,
        parts=2,
        digest="0" * 16,
        body_base64="AAAA",
    )
    async with bus.producing(deployment.bootstrap) as producer:
        for chunk in (torn, torn):
            sent = await producer.send_and_wait(
                SNAPSHOTS, encode(chunk), key=b"torn", partition=deployment.cell_number
            )
    broken = Pointer(sent.offset, sent.offset, pointer.seq, pointer.slot)
    async with bus.consuming(
        deployment.bootstrap, [TopicPartition(SNAPSHOTS, deployment.cell_number)]
    ) as consumer:
        with pytest.raises(CodecError, match="is not whole: 1 of 2 parts"):
            await snapshots.read(consumer, deployment.cell_number, broken)
        found = await best_snapshot(consumer, deployment.cell_number, [broken, *pointers], 0)
    assert found is not None
    assert found[0].position.next_seq == pointers[0].seq + 1


async def _check_that_void_and_foreign_records_at_the_end_change_nothing(
    deployment: Deployment, pointers: list[Pointer]
) -> None:
    """Append as a superseded owner does, naming a snapshot that is gone, and as nobody should."""
    ledger = TopicPartition(LEDGER, deployment.cell_number)
    gone = Pointer(1_000_000, 1_000_000, pointers[0].seq + 1, pointers[0].slot)
    async with bus.consuming(deployment.bootstrap, [ledger]) as consumer:
        first = [record async for record in bus.read_range(consumer, ledger, 0, 1)]
    async with bus.producing(deployment.bootstrap) as producer:
        for value, headers in (
            (first[0].value, [(HEADER_SNAPSHOTS, gone.text().encode())]),
            (b"no entry at all", [("headway-published", b"999999999")]),
        ):
            await producer.send_and_wait(
                LEDGER, value, partition=deployment.cell_number, headers=headers
            )
    recovered = await recover_cell(deployment.bootstrap, deployment.cell_number)
    entries = await deployment.entries()
    assert recovered.entries < len(entries)
    assert recovered.published_seq < len(entries)
    assert state_digest(recovered.state) == await _fold_all(deployment)
    # The next snapshot takes the slot of the one that is gone, not of the one that is good.
    assert recovered.pointers == pointers


async def test_a_cell_recovers_from_its_snapshot_to_the_state_that_the_whole_ledger_tells(
    deployment: Deployment,
) -> None:
    await deployment.set_policy(replace(Policy(), version=2, snapshot_entries=SNAPSHOT_ENTRIES))
    deployment.start_cell()
    deployment.start_worker()
    await deployment.wait_for_replicas()
    ids = await _run_traffic_until_both_slots_hold_a_snapshot(deployment)
    deployment.kill("cell")
    deployment.kill("worker-0")
    pointers = await deployment.snapshot_pointers()
    assert len(pointers) == snapshots.SLOTS
    recovered = await recover_cell(deployment.bootstrap, deployment.cell_number)
    entries = await deployment.entries()
    assert recovered.entries < len(entries)
    assert recovered.shell.position.next_seq == len(entries)
    from_start = await _fold_all(deployment)
    assert state_digest(recovered.state) == from_start
    await _check_a_torn_one_is_passed_over(deployment, pointers)
    await _check_that_void_and_foreign_records_at_the_end_change_nothing(deployment, pointers)
    deployment.start_cell()
    deployment.start_worker()
    more = await _run_traffic(deployment, "second", 1)
    await deployment.check_record([*ids, *more])


async def _fold_all(deployment: Deployment) -> str:
    """Return the digest of the state that every entry from the first on adds up to."""
    from services.scheduler.state import State  # noqa: PLC0415 - only here
    from services.scheduler.step import recover  # noqa: PLC0415 - only here

    state = State()
    for entry in await deployment.entries():
        recover(state, entry.fact, entry.decisions)
    return state_digest(state)


def _replay(path: Path, hash_seed: int) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "services.cli", "replay"),
            *("--verify", "--from", "file", "--file", str(path), "--json"),
        ],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, json.loads(done.stdout or "{}"), done.stdout + done.stderr


async def test_a_real_ledger_replays_alike_under_any_hash_seed_and_an_altered_one_fails(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.start_cell()
    deployment.start_worker()
    await deployment.wait_for_replicas()
    await _run_traffic(deployment, "seeded", 3)
    deployment.kill("cell")
    path = tmp_path / "ledger.ndjson"
    count = await export(deployment.bootstrap, range(CELLS), path)
    assert count > 60
    told = [_replay(path, hash_seed) for hash_seed in range(4)]
    assert [code for code, _, _ in told] == [0, 0, 0, 0]
    assert len({report["digest"] for _, report, _ in told}) == 1
    lines = path.read_bytes().splitlines()
    at = next(
        number
        for number, line in enumerate(lines)
        if number > 20 and b'"kind":"request-dispatched.v1"' in line
    )
    seq = json.loads(lines[at])["seq"]
    lines[at] = lines[at].replace(b'"wait_us":', b'"wait_us":1', 1)
    path.write_bytes(b"\n".join(lines) + b"\n")
    code, _, text = _replay(path, 0)
    assert code == 1
    assert f"seq {seq}" in text


def test_pointers_that_are_not_four_numbers_are_left_out() -> None:
    good = Pointer(3, 5, 99, 1)
    assert read_pointers(f"{good.text()};1:2:3;a:b:c:d;") == [good]


def test_a_chunk_survives_the_codec() -> None:
    chunk = SnapshotChunk(
        cell=1, seq=2, ledger_offset=3, part=0, parts=1, digest="d" * 16, body_base64=""
    )
    assert decode(encode(chunk)) == chunk
