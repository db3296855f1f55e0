"""The embedded ClickHouse engine: chDB on a directory of which this process is the one owner.

May touch its directory and chDB; knows neither HTTP nor Kafka nor a table. Every call gets a
connection of its own (1 to 2 ms): settings cannot leak from one query to the next, and neither can
the partial rows that chDB leaves behind on a connection whose query failed after output had begun.
Calls may run side by side, each in a thread of its own.
"""

import contextlib
import os
import re
import tempfile
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chdb

from services.recorder.limits import RecorderLimits
from services.recorder.statement import Head, read_statement

ERROR_UNKNOWN = 1002
ERROR_READONLY = 164
ERROR_NOT_IMPLEMENTED = 48

_CODE = re.compile(r"Code: (\d+)\. DB::Exception")
_IDENTIFIER = re.compile(r"^[A-Za-z_][A-Za-z0-9_]*$")
_CONFIG = "engine.xml"
# Where the data of an insert lie until they are in.
_INSERTS = "inserts"
# The engine's own readonly mode leaves these: they write files, stop others, or reach into Python.
_READONLY_ALSO_REFUSED = re.compile(
    r"\b(?:INTO\s+OUTFILE|KILL\s+(?:QUERY|MUTATION)|python\s*\()", re.IGNORECASE
)
# Small caches and few background threads: the recorder shares a small machine.
_SERVER_SETTINGS = {
    "mark_cache_size": 16_777_216,
    "primary_index_cache_size": 16_777_216,
    "index_mark_cache_size": 4_194_304,
    "query_condition_cache_size": 4_194_304,
    "compiled_expression_cache_size": 4_194_304,
    "text_index_tokens_cache_size": 1_048_576,
    "text_index_header_cache_size": 1_048_576,
    "text_index_postings_cache_size": 1_048_576,
    "vector_similarity_index_cache_size": 1_048_576,
    "parquet_metadata_cache_size": 1_048_576,
    "iceberg_metadata_files_cache_size": 1_048_576,
    "unique_key_index_cache_size_bytes": 1_048_576,
    "max_thread_pool_size": 200,
    "max_thread_pool_free_size": 8,
    "background_pool_size": 2,
    "background_schedule_pool_size": 2,
}


class EngineError(RuntimeError):
    """The engine refused a query; the text is its own, from `Code: N.` on."""

    def __init__(self, text: str) -> None:
        found = _CODE.search(text)
        self.code = int(found[1]) if found else ERROR_UNKNOWN
        super().__init__(text[found.start() :].strip() if found else text.strip())


class EngineInUseError(RuntimeError):
    """Another process owns the directory, or it cannot be used; the sentence says what to do."""


@dataclass(frozen=True, slots=True)
class Call:
    """How to run one query.

    Attributes:
        output_format: of the result, where the query does not say FORMAT itself.
        params: bound parameters by name, in ClickHouse's escaped text form.
        settings: of this query alone.
        database: to run in, or None for the default one.
        before: statements to run first on the same connection: a session's SET and USE.
        readonly: nothing may be changed by it.
    """

    output_format: str = "TabSeparated"
    params: Mapping[str, str] = field(default_factory=dict[str, str])
    settings: Mapping[str, str] = field(default_factory=dict[str, str])
    database: str | None = None
    before: tuple[str, ...] = ()
    readonly: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole result and what it took."""

    body: bytes
    rows_read: int = 0
    bytes_read: int = 0
    rows_written: int = 0
    bytes_written: int = 0


class Engine:
    """The engine on one directory.

    Raises:
        EngineInUseError: another process holds the directory, or it cannot be used.
    """

    def __init__(self, directory: Path, limits: RecorderLimits | None = None) -> None:
        self.limits = limits or RecorderLimits()
        self.directory = directory.absolute()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            config = self.directory / _CONFIG
            config.write_text(_config(self.limits))
            self._inserts = self.directory / _INSERTS
            self._inserts.mkdir(exist_ok=True)
        except OSError as error:
            raise EngineInUseError(
                f"the directory {directory} of the embedded ClickHouse cannot be used:"
                f" {error.strerror}; choose another with --state or HEADWAY_STATE"
            ) from error
        self._target = f"{self.directory}?config-file={config}"
        self._opening = threading.Lock()
        try:
            # While this one is open, the engine stays up between the calls' own connections.
            self._anchor = chdb.connect(self._target)
        except Exception as error:
            raise EngineInUseError(
                f"the embedded ClickHouse in {directory} could not be opened; if another recorder"
                f" runs on it, stop that one or choose another --state. It said: {error}"
            ) from error
        # Only its owner may tidy a directory up.
        for left_over in self._inserts.iterdir():
            left_over.unlink()

    def close(self) -> None:
        """Stop the engine. No call may be under way."""
        self._anchor.close()

    def execute(self, sql: str | bytes, call: Call | None = None) -> Answer:
        """Run a statement and return its whole result.

        Raises:
            EngineError: the engine refused it.
        """
        call = call or Call()
        with self._connection(sql, call) as connection:
            result = connection.query(sql, call.output_format, params=dict(call.params))
            return Answer(
                result.bytes() or b"",
                result.rows_read(),
                result.bytes_read(),
                result.rows_written(),
                result.bytes_written(),
            )

    def stream(self, sql: str | bytes, call: Call) -> Iterator[bytes]:
        """Yield the result of a SELECT in pieces, each of whole blocks of its format.

        Raises:
            EngineError: the engine refused it, before or after the first piece.
        """
        with self._connection(sql, call) as connection:
            pieces = connection.send_query(sql, call.output_format, params=dict(call.params))
            try:
                for piece in pieces:
                    yield piece.bytes()
            finally:
                pieces.close()

    def insert(self, head: Head, data_format: str, data: bytes, call: Call) -> Answer:
        """Insert `data`, by way of a file.

        chDB's own streaming insert is not used: it reports rows as written when storing them, or a
        view on the table, has failed.

        Raises:
            EngineError: the engine refused it; whole blocks of the data may be stored.
        """
        with self._data_file(data) as path:
            source = f"FROM INFILE {quote_string(str(path))}"
            sql = f"{head.insert} {source} {head.settings} FORMAT {data_format}"
            return self.execute(sql, call)

    @contextlib.contextmanager
    def _data_file(self, data: bytes) -> Generator[Path, None, None]:
        # No ending of the name may look like a compression to the engine.
        descriptor, name = tempfile.mkstemp(dir=self._inserts)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            yield Path(name)
        except OSError as error:
            raise EngineError(
                f"Code: 243. DB::Exception: The data could not be written to {self._inserts}:"
                f" {error.strerror}; free some space. (NOT_ENOUGH_SPACE)"
            ) from error
        finally:
            Path(name).unlink(missing_ok=True)

    @contextlib.contextmanager
    def _connection(self, sql: str | bytes, call: Call) -> Generator[Any, None, None]:
        if call.readonly:
            _refuse_what_readonly_leaves(sql)
        connection = None
        try:
            with self._opening:
                connection = chdb.connect(self._target)
            for statement in _preparation(self.limits, call):
                connection.query(statement, "TabSeparated")
            yield connection
        except (RuntimeError, ValueError) as error:  # chDB raises both for what a query did wrong
            if isinstance(error, EngineError):
                raise
            raise EngineError(str(error)) from error
        finally:
            if connection is not None:
                with self._opening:
                    connection.close()


def _preparation(limits: RecorderLimits, call: Call) -> Iterator[str]:
    base = {
        "async_insert": "0",
        "max_memory_usage": str(limits.query_bytes),
        "max_execution_time": str(limits.query_s),
        "max_threads": "2",
        "max_insert_threads": "1",
        # Larger ones go on in files: slow, where otherwise the query would be refused.
        "max_bytes_before_external_sort": str(limits.query_bytes // 4),
        "max_bytes_before_external_group_by": str(limits.query_bytes // 4),
        # Native is written as it was parsed; more memory for less latency is not what we want here.
        "input_format_parallel_parsing": "0",
        "output_format_parallel_formatting": "0",
    }
    yield "SET " + _assignments(base)
    yield from call.before
    if call.database is not None:
        yield f"USE {quote_identifier(call.database)}"
    if call.settings:
        yield "SET " + _assignments(call.settings)
    if call.readonly:
        yield "SET readonly = 1"


def _assignments(settings: Mapping[str, str]) -> str:
    for name in settings:
        if not _IDENTIFIER.match(name):
            raise EngineError(
                f"Code: 115. DB::Exception: Unknown setting {name!r}: not a name. (UNKNOWN_SETTING)"
            )
    return ", ".join(f"{name} = {quote_string(value)}" for name, value in settings.items())


def _refuse_what_readonly_leaves(sql: str | bytes) -> None:
    plain = read_statement(sql if isinstance(sql, bytes) else sql.encode()).plain
    found = _READONLY_ALSO_REFUSED.search(plain)
    if found:
        raise EngineError(
            f"Code: {ERROR_READONLY}. DB::Exception: Cannot execute {found[0]!r} in readonly mode."
            " (READONLY)"
        )


def quote_string(value: str) -> str:
    """Return `value` as a string literal of ClickHouse's SQL."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def quote_identifier(name: str) -> str:
    """Return `name` as an identifier of ClickHouse's SQL."""
    escaped = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"`{escaped}`"


def _config(limits: RecorderLimits) -> str:
    settings = _SERVER_SETTINGS | {"max_server_memory_usage": limits.engine_bytes}
    lines = "".join(f"  <{name}>{value}</{name}>\n" for name, value in settings.items())
    return f"<clickhouse>\n{lines}</clickhouse>\n"
