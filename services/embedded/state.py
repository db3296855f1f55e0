"""The state directory of a running `headway up`: one holder at a time, and where it serves.

Other commands find the running parts through endpoints.json, which is written whole or not at all,
and believed only while its holder lives.
"""

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

ENDPOINTS = "endpoints.json"
LOCK = "lock"
LOCK_TRIES = 10
LOCK_PAUSE_S = 0.02


class StateError(RuntimeError):
    """The state directory cannot be used; the sentence says why and what to do."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a running deployment serves.

    Attributes:
        kafka: bootstrap servers.
        clickhouse: URL of the ClickHouse HTTP interface, or None while there is none.
        pid: of the process that holds the directory.
        processes: pids of its parts by name.
    """

    kafka: str
    clickhouse: str | None
    pid: int
    processes: dict[str, int] = field(default_factory=dict[str, int])


class StateDir:
    """Holds the state directory for as long as this process lives, or until `release`.

    Raises:
        StateError: another process holds it, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock: IO[str] = (path / LOCK).open("a+")
        except OSError as error:
            raise StateError(
                f"the state directory {path} cannot be used: {error.strerror}; choose another with"
                " --state or HEADWAY_STATE"
            ) from error
        if not self._take_lock():
            self._lock.seek(0)
            holder = self._lock.read().strip() or "unknown"
            self._lock.close()
            raise StateError(
                f"Headway runs already on {path} (process {holder}); stop that one, or choose"
                " another directory with --state"
            )
        self._write_pid()

    def _take_lock(self) -> bool:
        # Other commands look at the lock for an instant (see running_endpoints): try again.
        for _ in range(LOCK_TRIES):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(LOCK_PAUSE_S)
            else:
                return True
        return False

    def _write_pid(self) -> None:
        try:
            self._lock.seek(0)
            self._lock.truncate()
            self._lock.write(str(os.getpid()))
            self._lock.flush()
        except OSError as error:
            raise StateError(
                f"the state directory {self.path} cannot be written: {error.strerror}; make room"
                " there, or choose another with --state"
            ) from error

    def publish(self, endpoints: Endpoints) -> None:
        """Tell other commands where this deployment serves.

        Raises:
            StateError: the file cannot be written.
        """
        draft = self.path / f"{ENDPOINTS}.draft"
        try:
            draft.write_text(json.dumps(asdict(endpoints)))
            draft.replace(self.path / ENDPOINTS)
        except OSError as error:
            raise StateError(
                f"the state directory {self.path} cannot be written: {error.strerror}; make room"
                " there, or choose another with --state"
            ) from error

    def release(self) -> None:
        """Let the next one in."""
        (self.path / ENDPOINTS).unlink(missing_ok=True)
        self._lock.close()


def running_endpoints(path: Path) -> Endpoints | None:
    """Return where the deployment that holds `path` serves, or None if none runs there.

    What a holder left behind that was killed is not believed.
    """
    try:
        told = Endpoints(**json.loads((path / ENDPOINTS).read_text()))
        lock = (path / LOCK).open("r")
    except (OSError, ValueError, TypeError):
        return None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return told
    return None
