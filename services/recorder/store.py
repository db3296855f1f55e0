"""Where rows go: the engine in this process, or a ClickHouse server. Knows no topic and no kind.

Both take the same Arrow bytes, one block an insert, under a token by which ClickHouse itself tells
a repeated insert. Calls block: they belong into a thread.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol
from urllib.parse import unquote, urlsplit

import clickhouse_connect
from clickhouse_connect.driver.exceptions import ClickHouseError

from services.recorder.chdb_engine import Call, Engine, EngineError

INSERT_FORMAT: Final = "ArrowStream"
_HTTP_PORT: Final = 8123
_INSERT_SETTINGS: Final = {"async_insert": "0", "insert_deduplicate": "1"}
_CONNECT_S_MAX: Final = 5
_CALL_S_MAX: Final = 60


class StoreError(RuntimeError):
    """ClickHouse refused or did not answer; whether an insert was stored is not known."""


class Store(Protocol):
    """What the recorder needs of a ClickHouse."""

    def command(self, sql: str) -> None:
        """Run a statement that gives nothing back.

        Raises:
            StoreError: it was refused, or ClickHouse did not answer.
        """
        ...

    def rows(self, sql: str, params: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """Return the rows of a query; integers of any width are ints.

        Raises:
            StoreError: it was refused, or ClickHouse did not answer.
        """
        ...

    def insert(self, table: str, columns: Sequence[str], arrow: bytes, token: str) -> None:
        """Store one Arrow stream of one block, once for each token.

        Raises:
            StoreError: it was refused, or it is not known whether it was stored.
        """
        ...

    def close(self) -> None:
        """Give up what the store holds; the engine itself stays open."""
        ...


class EmbeddedStore:
    """The engine in this process."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def command(self, sql: str) -> None:
        """See Store."""
        try:
            self._engine.query(sql)
        except EngineError as error:
            raise StoreError(error.text) from error

    def rows(self, sql: str, params: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """See Store."""
        try:
            answer = self._engine.query(sql, "JSONEachRow", Call(params=params or {}))
        except EngineError as error:
            raise StoreError(error.text) from error
        return [json.loads(line) for line in answer.body.splitlines()]

    def insert(self, table: str, columns: Sequence[str], arrow: bytes, token: str) -> None:
        """See Store."""
        call = Call(settings={**_INSERT_SETTINGS, "insert_deduplication_token": token})
        sql = f"INSERT INTO {table} ({', '.join(f'`{name}`' for name in columns)})"
        try:
            self._engine.insert(sql, INSERT_FORMAT, arrow, call)
        except EngineError as error:
            raise StoreError(error.text) from error

    def close(self) -> None:
        """See Store."""


class ServerStore:
    """A ClickHouse server at a URL such as http://user:password@host:8123/database."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._access: dict[str, Any] = {
            "interface": parts.scheme,
            "host": parts.hostname,
            "port": parts.port or _HTTP_PORT,
            "username": unquote(parts.username or "default"),
            "password": unquote(parts.password or ""),
            "database": parts.path.strip("/") or "default",
        }
        self._client: Any = None

    def command(self, sql: str) -> None:
        """See Store."""
        try:
            self._connected().command(sql)
        except (ClickHouseError, OSError) as error:
            raise self._failed(error) from error

    def rows(self, sql: str, params: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
        """See Store."""
        try:
            body: bytes = self._connected().raw_query(
                sql, parameters=dict(params or {}), fmt="JSONEachRow"
            )
        except (ClickHouseError, OSError) as error:
            raise self._failed(error) from error
        return [json.loads(line) for line in body.splitlines()]

    def insert(self, table: str, columns: Sequence[str], arrow: bytes, token: str) -> None:
        """See Store."""
        settings = {**_INSERT_SETTINGS, "insert_deduplication_token": token}
        try:
            self._connected().raw_insert(
                table, columns, arrow, settings=settings, fmt=INSERT_FORMAT
            )
        except (ClickHouseError, OSError) as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """See Store."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> Any:
        if self._client is None:
            self._client = clickhouse_connect.get_client(
                **self._access,
                autogenerate_session_id=False,
                connect_timeout=_CONNECT_S_MAX,
                send_receive_timeout=_CALL_S_MAX,
                # A repeat is the sink's own decision: it looks first at what was stored.
                query_retries=0,
            )
        return self._client

    def _failed(self, error: Exception) -> StoreError:
        # A client whose connection broke half way is not used again.
        self.close()
        where = f"{self._access['host']}:{self._access['port']}"
        return StoreError(f"ClickHouse at {where}: {error}")
