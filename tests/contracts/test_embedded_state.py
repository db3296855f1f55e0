"""The state directory has one holder, and tells other commands where that one serves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from services.embedded.state import (
    ENDPOINTS,
    Endpoints,
    StateDir,
    StateError,
    running_endpoints,
)
from services.settings import SettingsError, load

# Holds the directory named by its argument until it is killed.
HOLDER = """
import os, sys, time
from pathlib import Path
from services.embedded.state import Endpoints, StateDir
held = StateDir(Path(sys.argv[1]))
held.publish(Endpoints("127.0.0.1:9092", None, os.getpid()))
print("held", flush=True)
time.sleep(600)
"""


def a_holder(path: Path) -> "subprocess.Popen[str]":
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_holder_is_refused_and_told_who_the_first_is(tmp_path: Path) -> None:
    held = StateDir(tmp_path)
    with pytest.raises(StateError, match=rf"Headway runs already on .*process {os.getpid()}\)"):
        StateDir(tmp_path)
    held.release()
    StateDir(tmp_path).release()


def test_other_commands_find_where_the_holder_serves(tmp_path: Path) -> None:
    held = StateDir(tmp_path)
    told = Endpoints("127.0.0.1:9092", "http://127.0.0.1:8123", os.getpid(), {"broker": 17})
    held.publish(told)
    assert running_endpoints(tmp_path) == told
    held.release()
    assert running_endpoints(tmp_path) is None


def test_what_a_killed_holder_left_behind_is_not_believed(tmp_path: Path) -> None:
    holder = a_holder(tmp_path)
    told = running_endpoints(tmp_path)
    assert told is not None
    assert told.pid == holder.pid
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / ENDPOINTS).exists()
    assert running_endpoints(tmp_path) is None
    StateDir(tmp_path).release()


def test_damaged_endpoints_are_no_endpoints(tmp_path: Path) -> None:
    held = StateDir(tmp_path)
    for damaged in ("", "{", "[]", '{"kafka": 1}', "null"):
        (tmp_path / ENDPOINTS).write_text(damaged)
        assert running_endpoints(tmp_path) is None
    held.release()


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="choose another with --state"):
        StateDir(tmp_path / "file" / "state")


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    held = StateDir(tmp_path)
    # Writing to the draft reaches a device that is always full.
    (tmp_path / f"{ENDPOINTS}.draft").symlink_to("/dev/full")
    if Path("/dev/full").exists():
        with pytest.raises(StateError, match="No space left on device; make room there"):
            held.publish(Endpoints("127.0.0.1:9092", None, os.getpid()))
    held.release()


def test_the_flag_wins_over_the_environment_and_the_environment_over_the_default() -> None:
    home = {"HOME": "/home/somebody"}
    assert load(None, home).state_dir == Path("/home/somebody/.local/share/headway")
    assert load(None, home).cache_dir == Path("/home/somebody/.cache/headway")
    assert load(None, {**home, "XDG_DATA_HOME": "/d"}).state_dir == Path("/d/headway")
    assert load(None, {**home, "HEADWAY_STATE": "/s"}).state_dir == Path("/s")
    assert load("/flag", {**home, "HEADWAY_STATE": "/s"}).state_dir == Path("/flag")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HEADWAY_KAFKA", "localhost"),
        ("HEADWAY_KAFKA", "localhost:9092,other"),
        ("HEADWAY_KAFKA", ":9092"),
        ("HEADWAY_CLICKHOUSE", "localhost:8123"),
        ("HEADWAY_CLICKHOUSE", "http://"),
    ],
)
def test_an_address_that_cannot_be_one_is_refused(variable: str, value: str) -> None:
    with pytest.raises(SettingsError, match=variable):
        load(None, {"HOME": "/home/somebody", variable: value})
