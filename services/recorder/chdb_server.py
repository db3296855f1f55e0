"""The embedded engine behind ClickHouse's HTTP interface, on 127.0.0.1, for clients as they are.

`clickhouse_connect.get_client(host=…, port=…)`, curl and BI tools work against it as against a
server. Differences from one: no users, no external data, no temporary tables; a session keeps what
SET and USE said. Knows no table and no topic; queries run in threads, so the event loop stays live.
"""

import asyncio
import json
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler
from multidict import CIMultiDict

from services.recorder.engine import (
    ERROR_NOT_IMPLEMENTED,
    ERROR_READONLY,
    Answer,
    Call,
    Engine,
    EngineError,
)
from services.recorder.http_query import Compressor, HttpQuery, decompress, read_query
from services.recorder.statement import Statement, read_statement

HOST = "127.0.0.1"
SESSIONS_MAX = 1_000
# Formats whose blocks may simply follow each other; any other has to be built whole.
_STREAMED = frozenset(
    {
        "Native",
        "TabSeparated",
        "TSV",
        "TabSeparatedRaw",
        "TSVRaw",
        "CSV",
        "RowBinary",
        "JSONEachRow",
        "JSONCompactEachRow",
    }
)
# An error within the first bytes of a result still becomes an HTTP error.
HELD_BACK_BYTES = 4 * 1024 * 1024
_TIMEZONE = "UTC"
_STATUS = {
    **dict.fromkeys((6, 27, 36, 53, 62, 457), 400),
    ERROR_READONLY: 403,
    **dict.fromkeys((46, 47, 60, 73, 81, 115), 404),
    ERROR_NOT_IMPLEMENTED: 501,
}

StatusSource = Callable[[], Awaitable[dict[str, Any]]]


class PortTakenError(RuntimeError):
    """The port is in use; the sentence says what to do."""


class ChdbServer:
    """Serves one engine.

    Args:
        engine: which the server only uses; whoever made it closes it, after `stop`.
        status: gives what /headway/status tells, or None where there is nothing to tell.
    """

    def __init__(self, engine: Engine, status: StatusSource | None = None) -> None:
        self._engine = engine
        self._status = status
        self._threads = ThreadPoolExecutor(engine.limits.query_threads, "clickhouse-query")
        self._sessions: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._runner: web.AppRunner | None = None
        self.port = 0

    async def start(self, port: int = 0) -> int:
        """Serve on `port`, or on a free one if it is 0; return which.

        Raises:
            PortTakenError: another process listens there.
        """
        app = web.Application(
            client_max_size=self._engine.limits.body_bytes, middlewares=[_refuse_browsers]
        )
        app.router.add_get("/ping", _ok)
        app.router.add_get("/replicas_status", _ok)
        app.router.add_get("/headway/status", self._tell_status)
        app.router.add_route("*", "/", self._handle)
        # aiohttp would undo one compressed frame, a client may send several: we undo them.
        self._runner = web.AppRunner(
            app, auto_decompress=False, access_log=None, shutdown_timeout=1.0
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, HOST, port)
        try:
            await site.start()
        except OSError as error:
            await self.stop()
            raise PortTakenError(
                f"the recorder cannot listen on {HOST}:{port}: {error.strerror}; choose another"
                " with --port"
            ) from error
        self.port = int(self._runner.addresses[0][1])
        return self.port

    async def stop(self) -> None:
        """Answer what is under way and stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        await asyncio.to_thread(self._threads.shutdown)

    async def _tell_status(self, request: web.Request) -> web.Response:
        del request
        return web.json_response({} if self._status is None else await self._status())

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        began_s = time.perf_counter()
        query_id = request.query.get("query_id") or str(uuid.uuid4())
        try:
            query = await self._read(request)
            if not query.sql.strip():
                return web.Response(text="Ok.\n")
            statement = read_statement(query.sql)
            call = self._call_of(query, statement)
            if statement.kind == "select" and call.output_format in _STREAMED:
                return await self._stream(request, query, call, query_id, began_s)
            answer = await self._run(query, statement, call)
            self._remember(query, statement)
        except EngineError as error:
            return _failure(error, query_id)
        except web.HTTPRequestEntityTooLarge as error:
            return _failure(
                EngineError(f"Code: 241. DB::Exception: {error.text} (MEMORY_LIMIT_EXCEEDED)"),
                query_id,
            )
        headers = _headers(query_id, answer, began_s)
        if statement.has_result:
            _describe(headers, call.output_format)
        body = answer.body
        if query.encoding and body:
            compressor = Compressor(query.encoding)
            body = compressor.add(body) + compressor.end()
            headers["Content-Encoding"] = query.encoding
        return web.Response(body=body, headers=headers)

    async def _read(self, request: web.Request) -> HttpQuery:
        fields = dict(request.query.items())
        if request.content_type == "multipart/form-data":
            form = await request.post()
            for name, value in form.items():
                if not isinstance(value, str):
                    raise EngineError(
                        f"Code: {ERROR_NOT_IMPLEMENTED}. DB::Exception: The embedded ClickHouse"
                        " takes no external data; insert it into a table first. (NOT_IMPLEMENTED)"
                    )
                fields[name] = value
            body = b""
        else:
            body = decompress(
                await request.read(),
                request.headers.get("Content-Encoding"),
                self._engine.limits.body_bytes,
            )
        return read_query(request.method, fields, request.headers, body)

    def _call_of(self, query: HttpQuery, statement: Statement) -> Call:
        if statement.makes_temporary:
            raise EngineError(
                f"Code: {ERROR_NOT_IMPLEMENTED}. DB::Exception: The embedded ClickHouse keeps no"
                " temporary tables; use a subquery, or a table of the Memory engine."
                " (NOT_IMPLEMENTED)"
            )
        before = () if query.session_id is None else self._sessions.get(query.session_id, ())
        bounds = {"max_result_bytes": str(self._engine.limits.result_bytes)}
        output_format = statement.format or query.default_format
        streamed = statement.kind == "select" and output_format in _STREAMED
        return Call(
            output_format=output_format,
            params=query.params,
            settings=query.settings if streamed else bounds | query.settings,
            database=query.database,
            before=before,
            readonly=query.readonly,
        )

    async def _run(self, query: HttpQuery, statement: Statement, call: Call) -> Answer:
        work: Callable[[], Answer]
        if statement.head is not None and statement.format is not None:
            data = query.sql[statement.data_at :]
            work = partial(self._engine.insert, statement.head, statement.format, data, call)
        else:
            work = partial(self._engine.execute, query.sql, call)
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def _remember(self, query: HttpQuery, statement: Statement) -> None:
        if query.session_id is None or statement.kind != "session":
            return
        said = self._sessions.pop(query.session_id, ())
        self._sessions[query.session_id] = (*said, query.sql.decode(errors="replace"))
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)

    async def _stream(
        self, request: web.Request, query: HttpQuery, call: Call, query_id: str, began_s: float
    ) -> web.StreamResponse:
        loop = asyncio.get_running_loop()
        pieces = self._engine.stream(query.sql, call)
        try:
            held, more = await loop.run_in_executor(self._threads, _first_pieces, pieces)
            headers = _headers(query_id, Answer(b""), began_s)
            _describe(headers, call.output_format)
            tag = uuid.uuid4().hex[:16]
            headers["X-ClickHouse-Exception-Tag"] = tag
            compressor = Compressor(query.encoding) if query.encoding else None
            if query.encoding:
                headers["Content-Encoding"] = query.encoding
            if not more:
                body = compressor.add(held) + compressor.end() if compressor else held
                return web.Response(body=body, headers=headers)
            response = web.StreamResponse(headers=headers)
            await response.prepare(request)
            piece: bytes | None = held
            while piece is not None:
                if ready := compressor.add(piece) if compressor else piece:
                    await response.write(ready)
                piece = await loop.run_in_executor(self._threads, _next_piece, pieces, tag)
            if compressor and (rest := compressor.end()):
                await response.write(rest)
            await response.write_eof()
            return response
        finally:
            close = getattr(pieces, "close")  # noqa: B009 - a generator, typed as the iterator it is
            await loop.run_in_executor(self._threads, close)


def _first_pieces(pieces: Iterator[bytes]) -> tuple[bytes, bool]:
    """Return the result up to HELD_BACK_BYTES, and whether there may be more."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= HELD_BACK_BYTES:
            return b"".join(held), True
    return b"".join(held), False


def _next_piece(pieces: Iterator[bytes], tag: str) -> bytes | None:
    """Return the next piece; a failure comes as the text that clients look for in the body."""
    try:
        return next(pieces, None)
    except EngineError as error:
        text = str(error)
        size = len(text.encode()) + 1
        return f"\r\n__exception__\r\n{tag}\r\n{text}\n{size} {tag}\r\n__exception__\r\n".encode()


def _headers(query_id: str, answer: Answer, began_s: float) -> CIMultiDict[str]:
    summary = {
        "read_rows": str(answer.rows_read),
        "read_bytes": str(answer.bytes_read),
        "written_rows": str(answer.rows_written),
        "written_bytes": str(answer.bytes_written),
        "elapsed_ns": str(int((time.perf_counter() - began_s) * 1e9)),
    }
    return CIMultiDict(
        {
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Server-Display-Name": "headway-embedded",
            "X-ClickHouse-Timezone": _TIMEZONE,
            "X-ClickHouse-Summary": json.dumps(summary),
        }
    )


def _describe(headers: CIMultiDict[str], output_format: str) -> None:
    headers["X-ClickHouse-Format"] = output_format
    if output_format.startswith("JSON"):
        headers["Content-Type"] = "application/json; charset=UTF-8"
    elif output_format.startswith(("TSV", "TabSeparated", "Pretty")):
        headers["Content-Type"] = "text/tab-separated-values; charset=UTF-8"
    elif output_format.startswith("CSV"):
        headers["Content-Type"] = "text/csv; charset=UTF-8"
    else:
        headers["Content-Type"] = "application/octet-stream"


def _failure(error: EngineError, query_id: str) -> web.Response:
    return web.Response(
        text=f"{error}\n",
        status=_STATUS.get(error.code, 500),
        headers={
            "X-ClickHouse-Exception-Code": str(error.code),
            "X-ClickHouse-Query-Id": query_id,
            "X-ClickHouse-Timezone": _TIMEZONE,
        },
    )


async def _ok(request: web.Request) -> web.Response:
    del request
    return web.Response(text="Ok.\n")


@web.middleware
async def _refuse_browsers(request: web.Request, handler: Handler) -> web.StreamResponse:
    # A web page that a person has open must not reach the store by way of their browser.
    if "Origin" in request.headers:
        return web.Response(status=403, text="The recorder's store does not answer web pages.\n")
    return await handler(request)
