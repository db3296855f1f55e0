"""The store that the recorder writes to: ClickHouse, embedded in this process or a server.

One interface over both. Blocks its caller: call it from a thread. Knows no table and no topic.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from services.recorder.engine import Call, Engine, EngineError
from services.recorder.native import Column, encode_block
from services.recorder.server import connect, without_password
from services.recorder.statement import Head

ANSWER_S_MAX = 60
# ClickHouse's codes for "a value cannot be read": the rows are at fault, not the store.
_DATA_CODES = frozenset({6, 26, 27, 32, 33, 38, 41, 53, 69, 70, 72, 117, 321, 349, 407, 469})
_MEMORY_CODE = 241

# An insert of a token that the table has had within its window is not done again.
INSERT_SETTINGS = {
    "async_insert": "0",
    "insert_deduplicate": "1",
    "deduplicate_blocks_in_dependent_materialized_views": "1",
}

Params = Mapping[str, str | int]


class StoreError(RuntimeError):
    """The store did not do what was asked.

    Attributes:
        data_at_fault: the rows were refused; asking again would not help.
        too_large: it would have taken more memory than it may; fewer rows might do.
    """

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.data_at_fault = code in _DATA_CODES
        self.too_large = code == _MEMORY_CODE


class Store(Protocol):
    """Where the recorder's rows go."""

    def query(self, sql: str, params: Params | None = None) -> list[list[Any]]:
        """Return the rows of a SELECT.

        Raises:
            StoreError: the store refused, or did not answer.
        """
        ...

    def command(self, sql: str) -> None:
        """Run a statement that has no rows.

        Raises:
            StoreError: the store refused, or did not answer.
        """
        ...

    def insert(self, table: str, columns: Mapping[str, Column], token: str) -> None:
        """Insert rows, given as columns; the same `token` again inserts nothing.

        Raises:
            StoreError: the store refused, or did not answer: then the rows may be in, or not.
        """
        ...

    def close(self) -> None:
        """Let go of the store."""
        ...


class EmbeddedStore:
    """The engine in this process, without HTTP between."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def query(self, sql: str, params: Params | None = None) -> list[list[Any]]:
        """Return the rows of a SELECT; see Store."""
        call = Call(
            output_format="JSONCompact",
            params={name: str(value) for name, value in (params or {}).items()},
            settings={"output_format_json_quote_64bit_integers": "0"},
        )
        try:
            answer = self._engine.execute(sql, call)
        except EngineError as error:
            raise StoreError(str(error), error.code) from error
        rows: list[list[Any]] = json.loads(answer.body)["data"]
        return rows

    def command(self, sql: str) -> None:
        """Run a statement; see Store."""
        try:
            self._engine.execute(sql)
        except EngineError as error:
            raise StoreError(str(error), error.code) from error

    def insert(self, table: str, columns: Mapping[str, Column], token: str) -> None:
        """Insert rows; see Store."""
        settings = INSERT_SETTINGS | {"insert_deduplication_token": token}
        head = Head(f"INSERT INTO {table} ({', '.join(columns)})")
        try:
            self._engine.insert(head, "Native", encode_block(columns), Call(settings=settings))
        except EngineError as error:
            raise StoreError(str(error), error.code) from error

    def close(self) -> None:
        """Do nothing: who made the engine closes it."""


class ServerStore:
    """A ClickHouse server at `url`: http(s)://user:password@host:port/database."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None

    def query(self, sql: str, params: Params | None = None) -> list[list[Any]]:
        """Return the rows of a SELECT; see Store."""
        result = self._ask(lambda client: client.query(sql, parameters=dict(params or {})))
        return [list(row) for row in result.result_rows]

    def command(self, sql: str) -> None:
        """Run a statement; see Store."""
        self._ask(lambda client: client.command(sql))

    def insert(self, table: str, columns: Mapping[str, Column], token: str) -> None:
        """Insert rows; see Store."""
        settings = INSERT_SETTINGS | {"insert_deduplication_token": token}
        block = encode_block(columns)
        self._ask(
            lambda client: client.raw_insert(
                table, list(columns), insert_block=block, settings=settings, fmt="Native"
            )
        )

    def close(self) -> None:
        """Close the client."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _ask(self, ask: Callable[[Any], Any]) -> Any:
        from clickhouse_connect.driver.exceptions import (  # noqa: PLC0415 - 100 MB, not when embedded
            ClickHouseError,
        )
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 - comes with the client

        try:
            if self._client is None:
                self._client = connect(self._url, ANSWER_S_MAX)
            return ask(self._client)
        except (ClickHouseError, HTTPError, OSError) as error:
            lines = str(error).strip().splitlines()
            # A client whose connection was cut is not used again.
            self.close()
            raise StoreError(
                f"ClickHouse at {without_password(self._url)}: {lines[0] if lines else error!r}",
                getattr(error, "code", None),
            ) from error
