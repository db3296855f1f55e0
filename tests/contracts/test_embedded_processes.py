"""No child outlives its holder, however that one ends; and a supervised child is started again."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from services.embedded.processes import Child, ChildError, Supervisor

LIVES_ON = [sys.executable, "-c", "import time; print('begun', flush=True); time.sleep(600)"]
ENDS_BADLY = [sys.executable, "-c", "raise SystemExit('the dog ate the weights')"]
IGNORES_SIGTERM = [
    sys.executable,
    "-c",
    """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('begun', flush=True)
time.sleep(600)
""",
]
WAIT_S_MAX = 30.0

# Starts a child that lives on, and the embedded broker if told to; prints their pids and stays.
HOLDER = """
import json, os, sys, time
from pathlib import Path
import psutil
from services.embedded.broker import Broker
from services.embedded.processes import Child
from services.settings import load
directory = Path(sys.argv[1])
if sys.argv[2] == "broker":
    broker = Broker(load(), directory / "kafka")
    broker.start()
    pids = [broker.pid]
else:
    child = Child([sys.executable, "-c", "import time; time.sleep(600)"], directory / "child.log")
    child.start()
    pids = [child.pid]
print(json.dumps(pids + [child.pid for child in psutil.Process().children()]), flush=True)
time.sleep(600)
"""


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def until(holds: Callable[[], bool]) -> bool:
    until_s = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < until_s:
        if holds():
            return True
        time.sleep(0.02)
    return False


async def until_async(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S_MAX):
        while not holds():  # noqa: ASYNC110 - another process's doing: nothing here signals it
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("what", ["child", pytest.param("broker", marks=pytest.mark.broker)])
def test_kill_9_of_the_holder_leaves_no_orphan(what: str, tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path), what], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    pids: list[int] = json.loads(holder.stdout.readline())
    assert len(pids) == 2
    assert all(runs(pid) for pid in pids)
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert until(lambda: not any(runs(pid) for pid in pids))


def test_kill_9_of_the_watcher_ends_the_child(tmp_path: Path) -> None:
    child = Child(LIVES_ON, tmp_path / "child.log")
    child.start()
    pid = child.pid
    watcher = psutil.Process(pid).ppid()
    assert watcher != os.getpid()
    os.kill(watcher, signal.SIGKILL)
    assert until(lambda: not child.alive)
    assert until(lambda: not runs(pid))
    child.close()


def test_the_watcher_stays_small(tmp_path: Path) -> None:
    child = Child(LIVES_ON, tmp_path / "child.log")
    child.start()
    watcher = psutil.Process(psutil.Process(child.pid).ppid())
    assert watcher.num_threads() == 1
    assert watcher.memory_info().rss < 32 * 2**20
    child.close()
    assert until(lambda: not child.alive)


def test_a_child_that_ignores_sigterm_can_still_be_killed(tmp_path: Path) -> None:
    child = Child(IGNORES_SIGTERM, tmp_path / "child.log")
    child.start()
    assert until(lambda: child.last_lines(1) == ["begun"])
    child.terminate()
    assert child.wait(0.3) is None
    child.kill()
    assert child.wait(WAIT_S_MAX) == 128 + signal.SIGKILL
    child.close()


def test_output_and_exit_code_of_a_child_are_kept(tmp_path: Path) -> None:
    child = Child(ENDS_BADLY, tmp_path / "child.log")
    child.start()
    assert child.wait(WAIT_S_MAX) == 1
    assert child.last_line() == "the dog ate the weights"
    child.close()


def test_the_log_of_an_earlier_start_is_not_told_as_this_one_s(tmp_path: Path) -> None:
    (tmp_path / "child.log").write_text("Address already in use\n")
    child = Child([sys.executable, "-c", ""], tmp_path / "child.log")
    child.start()
    child.wait(WAIT_S_MAX)
    assert child.last_lines(10) == []
    assert child.last_line() == "it wrote nothing to its log"
    child.close()


def test_a_java_stack_trace_is_told_by_its_cause(tmp_path: Path) -> None:
    trace = "Caused by: java.net.BindException: taken\\n\\tat a.b(C.java:1)\\n\\t... 18 more"
    child = Child([sys.executable, "-c", f"print('{trace}')"], tmp_path / "child.log")
    child.start()
    child.wait(WAIT_S_MAX)
    assert child.last_line() == "Caused by: java.net.BindException: taken"
    child.close()


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    child = Child(["no-such-program"], tmp_path / "child.log")
    child.start()
    assert child.wait(WAIT_S_MAX) == 127
    assert child.last_line() == "no-such-program cannot be run: No such file or directory"
    child.close()


def test_a_log_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ChildError, match="is the directory writable"):
        Child(LIVES_ON, tmp_path / "file" / "child.log").start()


def test_a_lock_is_held_for_as_long_as_the_child_lives(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    first = Child(LIVES_ON, tmp_path / "first.log", lock=lock)
    first.start()
    second = Child(LIVES_ON, tmp_path / "second.log", lock=lock)
    with pytest.raises(ChildError, match="another process holds"):
        second.start()
    first.kill()
    assert first.wait(WAIT_S_MAX) == 128 + signal.SIGKILL
    second.start()
    assert second.alive
    first.close()
    second.close()


@pytest.fixture
async def supervised() -> AsyncIterator[tuple[Supervisor, list[str]]]:
    told: list[str] = []
    supervisor = Supervisor(told.append)
    looking = asyncio.create_task(supervisor.run())
    yield supervisor, told
    looking.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await looking
    await supervisor.stop_all()


async def test_a_killed_child_is_started_again_and_told(
    supervised: tuple[Supervisor, list[str]], tmp_path: Path
) -> None:
    supervisor, told = supervised
    first = supervisor.start("cell", LIVES_ON, tmp_path / "cell.log").pid
    await until_async(lambda: (tmp_path / "cell.log").read_text() == "begun\n")
    os.kill(first, signal.SIGKILL)
    await until_async(lambda: supervisor.status()[0].restarts == 1)
    (status,) = supervisor.status()
    assert status.alive
    assert status.pid != first
    assert status.last_exit == "signal 9: begun"
    assert told == ["cell ended with signal 9: begun; it starts again in 0.2 s"]


async def test_a_child_that_keeps_ending_is_started_again_ever_later(
    supervised: tuple[Supervisor, list[str]], tmp_path: Path
) -> None:
    supervisor, told = supervised
    supervisor.start("worker", ENDS_BADLY, tmp_path / "worker.log")
    await until_async(lambda: len(told) == 3)
    assert told == [
        f"worker ended with exit code 1: the dog ate the weights; it starts again in {pause} s"
        for pause in ("0.2", "0.4", "0.8")
    ]


async def test_everything_is_stopped_the_last_started_first(tmp_path: Path) -> None:
    order = tmp_path / "order"
    says_its_end = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        "    open(sys.argv[1], 'a').write(sys.argv[2]); sys.exit()\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('begun', flush=True)\n"
        "time.sleep(600)"
    )
    supervisor = Supervisor(lambda _sentence: None)
    logs = {name: tmp_path / f"{name}.log" for name in "abc"}
    for name, log in logs.items():
        supervisor.start(name, [sys.executable, "-c", says_its_end, str(order), name], log)
    await until_async(lambda: all(log.read_text() == "begun\n" for log in logs.values()))
    pids = [status.pid for status in supervisor.status()]
    await supervisor.stop_all()
    assert order.read_text() == "cba"
    assert not any(runs(pid) for pid in pids)
    assert supervisor.status() == []
