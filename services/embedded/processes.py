"""Child processes under a watcher, and a supervisor that restarts them. Knows nothing of Headway.

No child outlives its holder, even after kill -9 (see watcher.py). A child that ended is started
again after a pause that grows, and the reason it gave last is kept for the operator.
"""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WATCHER = Path(__file__).with_name("watcher.py")
RESTART_S_MIN = 0.2
RESTART_S_MAX = 5.0
STEADY_S = 30.0
POLL_S = 0.2
LOG_TAIL_BYTES = 32 * 1024
# How a shell, and our watcher, tell an end by a signal.
SIGNAL_BASE = 128
LOG_BYTES_MAX = 64 * 1024 * 1024


class ChildError(RuntimeError):
    """A child process could not be started; the sentence says why."""


def lock_file(path: Path) -> int | None:
    """Return an open descriptor that holds the lock on `path`, or None if another one does.

    Raises:
        OSError: the file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


class Child:
    """One child process under its watcher.

    Args:
        argv: what to run.
        log: the file that its output is appended to; it is begun anew above 64 MiB.
        environ: variables beside those of this process.
        lock: a file that is locked for as long as the process or its watcher lives, whatever
            becomes of this process: what must run once only.
    """

    def __init__(
        self,
        argv: Sequence[str],
        log: Path,
        environ: Mapping[str, str] | None = None,
        lock: Path | None = None,
    ) -> None:
        self._lock = lock
        self._argv = list(argv)
        self._environ = {**os.environ, **(environ or {})}
        self._watcher: subprocess.Popen[bytes] | None = None
        # Where the log of this start begins.
        self._log_from = 0
        self.log = log
        self.pid = 0

    def start(self) -> None:
        """Start the process.

        Raises:
            ChildError: the log cannot be written, another process holds the lock, or the watcher
                did not come up.
        """
        locks = [self._take_lock(self._lock)] if self._lock else []
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            mode = "ab"
            if self.log.exists() and self.log.stat().st_size > LOG_BYTES_MAX:
                mode = "wb"
            with self.log.open(mode) as log:
                self._log_from = log.tell()
                self._watcher = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(WATCHER), *self._argv],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=self._environ,
                    # A Ctrl-C at the terminal reaches Headway alone, which stops its children.
                    start_new_session=True,
                    # The child inherits the open lock, and so holds it.
                    pass_fds=locks,
                )
        except OSError as error:
            raise ChildError(
                f"{self._argv[0]} cannot be started with its log in {self.log}: {error.strerror};"
                " is the directory writable, and the disk not full?"
            ) from error
        finally:
            for descriptor in locks:
                os.close(descriptor)
        assert self._watcher.stdout is not None  # noqa: S101 - it was asked for as a pipe
        line = self._watcher.stdout.readline()
        if not line:
            self._watcher.wait()
            raise ChildError(f"{self._argv[0]} was not started: {self.last_line()}")
        self.pid = int(line)

    def _take_lock(self, path: Path) -> int:
        try:
            descriptor = lock_file(path)
        except OSError as error:
            raise ChildError(f"{path} cannot be locked: {error.strerror}") from error
        if descriptor is None:
            raise ChildError(
                f"{self._argv[0]} is not started: another process holds {path}; stop that one"
            )
        return descriptor

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._watcher is not None and self.exit_code is None

    @property
    def exit_code(self) -> int | None:
        """Return the process's exit code (128 + n after signal n), or None while it runs."""
        code = None if self._watcher is None else self._watcher.poll()
        if code is not None and code < 0:
            self._end_what_its_watcher_left()
        return code

    def _end_what_its_watcher_left(self) -> None:
        """End the process after somebody killed its watcher; Linux does so by itself."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            self.pid = 0

    def terminate(self) -> None:
        """Ask the process to end; its watcher makes it, after a while."""
        if self.alive and self._watcher is not None:
            with contextlib.suppress(ProcessLookupError):
                self._watcher.terminate()

    def kill(self) -> None:
        """End the process at once, as kill -9 does."""
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, seconds: float) -> int | None:
        """Wait for the end, at most `seconds`; return the exit code, or None if it still runs."""
        if self._watcher is None:
            return None
        try:
            self._watcher.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return self.exit_code

    def close(self) -> None:
        """Let go of the process: it is stopped if it still runs."""
        if self._watcher is not None:
            for pipe in (self._watcher.stdin, self._watcher.stdout):
                if pipe is not None:
                    pipe.close()

    def last_lines(self, count: int) -> list[str]:
        """Return the last lines that are not empty of what it wrote since its last start."""
        try:
            with self.log.open("rb") as log:
                log.seek(max(self._log_from, self.log.stat().st_size - LOG_TAIL_BYTES))
                text = log.read().decode(errors="replace")
        except OSError:
            return []
        return [line for line in text.splitlines() if line.strip()][-count:]

    def last_line(self) -> str:
        """Return the last line of its log that is no part of a Java stack trace."""
        lines = self.last_lines(LOG_TAIL_BYTES)
        whole = [line for line in lines if not line.startswith(("\t", " "))]
        return (whole or lines or ["it wrote nothing to its log"])[-1]


@dataclass(frozen=True, slots=True)
class Status:
    """How one supervised process is."""

    name: str
    pid: int
    alive: bool
    restarts: int
    uptime_s: float
    last_exit: str | None


def _told(code: int | None) -> str:
    if code is not None and code > SIGNAL_BASE:
        return f"signal {code - SIGNAL_BASE}"
    return f"exit code {code}"


@dataclass(slots=True)
class _Kept:
    child: Child
    started_s: float = 0.0
    restarts: int = 0
    pause_s: float = RESTART_S_MIN
    start_at_s: float | None = None
    last_exit: str | None = None


@dataclass(slots=True)
class Supervisor:
    """Keeps named processes running.

    Args:
        tell: is called with a sentence for each end and each restart.
    """

    tell: Callable[[str], None]
    _kept: dict[str, _Kept] = field(default_factory=dict[str, _Kept])

    def start(
        self,
        name: str,
        argv: Sequence[str],
        log: Path,
        environ: Mapping[str, str] | None = None,
    ) -> Child:
        """Start a process and keep it running.

        Raises:
            ChildError: it could not be started at all.
        """
        return self.keep(name, Child(argv, log, environ))

    def keep(self, name: str, child: Child) -> Child:
        """Start `child`, if it does not run yet, and keep it running."""
        if not child.alive:
            child.start()
        self._kept[name] = _Kept(child, started_s=time.monotonic())
        return child

    def status(self) -> list[Status]:
        """Return how each process is, in the order in which they were started."""
        now_s = time.monotonic()
        return [
            Status(
                name=name,
                pid=kept.child.pid,
                alive=kept.child.alive,
                restarts=kept.restarts,
                uptime_s=now_s - kept.started_s if kept.child.alive else 0.0,
                last_exit=kept.last_exit,
            )
            for name, kept in self._kept.items()
        ]

    async def run(self) -> None:
        """Look after the processes until cancelled."""
        while True:
            for name, kept in list(self._kept.items()):
                self._look_after(name, kept)
            await asyncio.sleep(POLL_S)

    def _look_after(self, name: str, kept: _Kept) -> None:
        now_s = time.monotonic()
        if kept.start_at_s is not None:
            if now_s >= kept.start_at_s:
                self._restart(kept)
            return
        if kept.child.alive:
            return
        if now_s - kept.started_s > STEADY_S:
            kept.pause_s = RESTART_S_MIN
        code = kept.child.exit_code
        kept.last_exit = f"{_told(code)}: {kept.child.last_line()}"
        kept.start_at_s = now_s + kept.pause_s
        self.tell(f"{name} ended with {kept.last_exit}; it starts again in {kept.pause_s:g} s")
        kept.pause_s = min(kept.pause_s * 2, RESTART_S_MAX)

    def _restart(self, kept: _Kept) -> None:
        kept.child.close()
        kept.restarts += 1
        kept.started_s = time.monotonic()
        kept.start_at_s = None
        try:
            # Not in a thread: a start that outlived a cancelled `run` would be nobody's.
            kept.child.start()
        except ChildError as error:
            kept.start_at_s = kept.started_s + kept.pause_s
            kept.pause_s = min(kept.pause_s * 2, RESTART_S_MAX)
            self.tell(str(error))

    async def stop_all(self, seconds: float = 10.0) -> None:
        """Stop every process, the last started first; each has `seconds` before it is killed."""
        stopping = list(reversed(self._kept.values()))
        # What is forgotten first is not started again while the others stop.
        self._kept.clear()
        for kept in stopping:
            kept.child.terminate()
            if await asyncio.to_thread(kept.child.wait, seconds) is None:
                kept.child.kill()
                await asyncio.to_thread(kept.child.wait, seconds)
            kept.child.close()
