"""ClickHouse's engine inside this process: one directory, one holder, a fresh handle for each call.

May touch its directory and nothing else. Knows neither HTTP nor Headway's tables.

chDB allows any number of handles on the one engine of a process; `SET`, `USE` and the read-only
state belong to a handle, and handles run side by side. So every call gets a handle of its own:
settings cannot leak into the next call, and neither can what a failed query had put out already
(a handle on which a query failed may hand its rows to the next one). Opening one takes about 2 ms.
A long query of a person therefore never makes an insert wait for its turn.
"""

import contextlib
import fcntl
import re
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

import chdb

LOCK_NAME: Final = "headway.lock"
_CODE: Final = re.compile(r"Code: (\d+)\.")
_SETTING_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# The engine's own code for an error that carries none.
UNKNOWN_EXCEPTION: Final = 1002
UNKNOWN_SETTING: Final = 115


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the engine may use.

    Attributes:
        server_memory_bytes: of the whole engine; it counts the process's resident memory.
        query_memory_bytes: of one query.
        threads: of one query, and of the background merges.
        cache_bytes: of marks; there is no cache of uncompressed blocks.
        query_s_max: after which a query is ended, unless it asks for another limit.
    """

    server_memory_bytes: int = 640 * 1024 * 1024
    query_memory_bytes: int = 192 * 1024 * 1024
    threads: int = 1
    cache_bytes: int = 16 * 1024 * 1024
    query_s_max: int = 60

    def connection_string(self, path: Path) -> str:
        """Return what opens a handle on `path` under these limits."""
        options = {
            "max_server_memory_usage": self.server_memory_bytes,
            "mark_cache_size": self.cache_bytes,
            "index_mark_cache_size": self.cache_bytes,
            "uncompressed_cache_size": 0,
            "background_pool_size": max(2, self.threads),
            "max_threads": self.threads,
            "max_insert_threads": 1,
            "max_memory_usage": self.query_memory_bytes,
            # A row that was sent is stored when the call returns; tokens tell a repeated insert.
            "async_insert": 0,
        }
        return f"{path}?" + "&".join(f"{name}={value}" for name, value in options.items())


class EngineError(RuntimeError):
    """The engine refused or failed; `code` is ClickHouse's number of the error."""

    def __init__(self, text: str) -> None:
        at = text.find("Code: ")
        self.text = text[at:].strip() if at >= 0 else text.strip()
        found = _CODE.search(self.text)
        self.code = int(found.group(1)) if found else UNKNOWN_EXCEPTION
        if not found:
            self.text = f"Code: {self.code}. DB::Exception: {self.text}"
        super().__init__(self.text)


class EngineInUseError(RuntimeError):
    """Another process holds the directory, or it cannot be used; the sentence says what to do."""


@dataclass(frozen=True, slots=True)
class Call:
    """What goes with a statement.

    Attributes:
        database: in which names without one are looked up.
        settings: by name, as text; `readonly` is set last, so that it cannot refuse the others.
        params: bound parameters by name, in ClickHouse's escaped form.
    """

    database: str = ""
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    params: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Answer:
    """What a statement gave back: its bytes, and what was read and written for it."""

    body: bytes
    read_rows: int = 0
    read_bytes: int = 0
    written_rows: int = 0
    elapsed_s: float = 0.0


class Engine:
    """ClickHouse's engine on the directory `path`, for as long as it is open.

    Raises:
        EngineInUseError: another process holds the directory, or it cannot be written.
    """

    def __init__(self, path: Path, limits: EngineLimits | None = None) -> None:
        self.path = path
        self.limits = limits or EngineLimits()
        self._lock = _hold(path)
        self._connection_string = self.limits.connection_string(path / "data")
        try:
            # Keeps the engine alive between calls.
            self._keeper: Any = chdb.connect(self._connection_string)
        except RuntimeError as error:
            self._lock.close()
            raise EngineInUseError(
                f"ClickHouse's engine cannot open {path}: {error}; if the disk has room and the"
                " directory is yours, its data may be damaged: choose another state directory"
            ) from error

    def close(self) -> None:
        """Close the engine and give the directory free."""
        self._keeper.close()
        self._lock.close()

    def query(self, sql: str, form: str = "TabSeparated", call: Call | None = None) -> Answer:
        """Run one statement and return all that it gives, in the output format `form`.

        Raises:
            EngineError: the engine refused it, or failed.
        """
        with self._handle(call or Call()) as handle:
            result: Any = _run(
                lambda: handle.query(sql, form, params=dict((call or Call()).params))
            )
            return Answer(
                result.bytes() if result.size() else b"",
                result.rows_read(),
                result.bytes_read(),
                elapsed_s=result.elapsed(),
            )

    def stream(self, sql: str, form: str, call: Call) -> Iterator[bytes]:
        """Run one query and yield what it gives, block by block, in constant memory.

        Only for formats without a head or foot, in which blocks may stand behind each other.

        Raises:
            EngineError: the engine refused it, or failed on the way.
        """
        with self._handle(call) as handle:
            result = _run(lambda: handle.send_query(sql, form, params=dict(call.params)))
            try:
                while (chunk := _run(result.fetch)) is not None:
                    if body := chunk.bytes():
                        yield body
            finally:
                result.close()

    def insert(self, sql: str, form: str, body: bytes, call: Call) -> Answer:
        """Insert `body`, which is in the input format `form`; `sql` is the statement without it.

        Raises:
            EngineError: the engine refused it; nothing of it is stored if it was one block.
        """
        with self._handle(call) as handle:
            inserter = _run(lambda: handle.send_insert(sql, form))
            try:
                _run(lambda: inserter.append(body))
                result = _run(inserter.finish)
            except EngineError:
                with contextlib.suppress(RuntimeError):
                    inserter.cancel()
                raise
            return Answer(b"", written_rows=result.rows_written, elapsed_s=result.elapsed)

    @contextlib.contextmanager
    def _handle(self, call: Call) -> Generator[Any, None, None]:
        handle = _run(lambda: chdb.connect(self._connection_string))
        try:
            if call.database:
                name = call.database.replace("`", "``")
                _run(lambda: handle.query(f"USE `{name}`"))
            settings = {"max_execution_time": str(self.limits.query_s_max)} | dict(call.settings)
            if statement := set_statement(settings):
                _run(lambda: handle.query(statement))
            if "readonly" in settings:
                only = quoted(settings["readonly"])
                _run(lambda: handle.query(f"SET readonly = {only}"))
            yield handle
        finally:
            handle.close()


def set_statement(settings: Mapping[str, str]) -> str:
    """Return the SET statement for all settings but `readonly`, or nothing to say.

    Raises:
        EngineError: a name could not be one of a setting.
    """
    for name in settings:
        if not _SETTING_NAME.fullmatch(name):
            raise EngineError(f"Code: {UNKNOWN_SETTING}. DB::Exception: {name!r} names no setting")
    parts = [f"{name} = {quoted(value)}" for name, value in settings.items() if name != "readonly"]
    return "SET " + ", ".join(parts) if parts else ""


def quoted(text: str) -> str:
    """Return `text` as a string literal of ClickHouse."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _run(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except RuntimeError as error:  # what every failure of chDB is
        raise EngineError(str(error)) from error


def _hold(path: Path) -> IO[str]:
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = (path / LOCK_NAME).open("a+")
    except OSError as error:
        raise EngineInUseError(
            f"the directory {path} for ClickHouse cannot be used: {error.strerror}; choose another"
            " state directory with --state or HEADWAY_STATE"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise EngineInUseError(
            f"another process holds the ClickHouse data in {path}; stop that recorder, or choose"
            " another state directory with --state"
        ) from error
    return lock
