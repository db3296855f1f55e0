"""A command whose reader leaves ends quietly, with the exit code of what it did."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.spec.replay_ledger import begun, chained, with_decisions
from tests.spec.scheduler_story import arrived, ready

END_S_MAX = 60.0


def run(*arguments: str, stdout: int) -> tuple[int, str]:
    """Return the exit code and the standard error of a command that writes to `stdout`."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("HEADWAY_")}
    done = subprocess.run(
        [sys.executable, "-m", "services.cli", *arguments],
        env=environ,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=END_S_MAX,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.fixture
def pipe_without_a_reader() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def ledger(tmp_path: Path, *, altered: bool) -> str:
    made = begun(ready(at=1), arrived("a", at=2))
    lines = made.lines()
    if altered:
        entry = made.entries[4]
        lines = chained(lines, 4, with_decisions(entry, entry.decisions[0]))
    path = tmp_path / "ledger.ndjson"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


def test_a_command_whose_reader_has_left_ends_with_0_and_says_nothing(
    pipe_without_a_reader: int,
) -> None:
    assert run("topics", "--json", stdout=pipe_without_a_reader) == (0, "")


def test_what_came_out_wrong_is_told_though_the_reader_has_left(
    pipe_without_a_reader: int, tmp_path: Path
) -> None:
    told = run("replay", "--file", ledger(tmp_path, altered=True), stdout=pipe_without_a_reader)
    assert told[0] == 1
    assert "cell 0, seq 4, decision 1" in told[1]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no full device")
def test_an_output_that_cannot_be_written_is_told_in_a_sentence(tmp_path: Path) -> None:
    path = ledger(tmp_path, altered=False)
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        code, said = run("replay", "--file", path, stdout=full)
    finally:
        os.close(full)
    assert code == 1
    assert said.strip() == "Error: the output cannot be written: No space left on device"
