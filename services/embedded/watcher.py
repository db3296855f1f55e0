"""The parent of one child process, so that no orphan outlives Headway. Standard library only.

Run as a file, `python -I -S watcher.py COMMAND…`, so that it starts in a few milliseconds and
stays small. Whoever starts it holds the other end of its standard input: when that closes (the
holder ended, even by kill -9), the child is asked to stop and then made to. On Linux the child also
dies with the watcher itself (PDEATHSIG follows the thread that spawned it, so this process has
just one). The first line of standard output is the child's pid.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

# How often it looks whether its holder still lives; the child's end wakes it at once.
POLL_S = 0.5
STOP_S_MAX = 10.0
PR_SET_PDEATHSIG = 1
NOT_FOUND = 127
SIGNAL_BASE = 128


def _spawn(argv: list[str]) -> int:
    libc = ctypes.CDLL(None) if sys.platform == "linux" else None
    watcher = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    # The child: nothing but exec may happen here.
    if libc is not None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != watcher:
            os._exit(NOT_FOUND)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    devnull = os.open(os.devnull, os.O_RDONLY)
    os.dup2(devnull, 0)
    # Standard output carries the pid line only; the child writes to the log, which is our stderr.
    os.dup2(2, 1)
    try:
        os.execvp(argv[0], argv)  # noqa: S606 - the command comes from Headway, never from input
    except OSError as error:
        os.write(2, f"{argv[0]} cannot be run: {error.strerror}\n".encode())
        os._exit(NOT_FOUND)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else SIGNAL_BASE - code


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _wake_on_signals(stop_asked: list[int]) -> int:
    """Note the requests to stop; return the end of a pipe that becomes readable on any signal."""
    wake, woken = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: stop_asked.append(received))
    # A handler, though it does nothing: without one, the end of the child would not wake us.
    signal.signal(signal.SIGCHLD, lambda _received, _frame: None)
    return wake


def watch(argv: list[str]) -> int:
    """Run the command until it ends or the holder of our standard input does; return its code."""
    holder = os.getppid()
    stop_asked: list[int] = []
    wake = _wake_on_signals(stop_asked)
    pid = _spawn(argv)
    # A holder that is gone already reads no pid; the closed standard input tells it below.
    with contextlib.suppress(OSError):
        os.write(1, f"{pid}\n".encode())
    kill_at_s: float | None = None
    inputs = [wake, 0]
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return _exit_code(status)
        readable, _, _ = select.select(inputs, [], [], POLL_S)
        if wake in readable:
            os.read(wake, 4096)
        if 0 in readable and not os.read(0, 4096):
            inputs = [wake]
            stop_asked.append(signal.SIGTERM)
        if os.getppid() != holder:
            stop_asked.append(signal.SIGTERM)
        if stop_asked and kill_at_s is None:
            _kill(pid, signal.SIGTERM)
            kill_at_s = time.monotonic() + STOP_S_MAX
        if kill_at_s is not None and time.monotonic() > kill_at_s:
            _kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(watch(sys.argv[1:]))
