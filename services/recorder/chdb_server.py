"""The ClickHouse HTTP interface in front of the embedded engine, on 127.0.0.1 only.

May use the engine and a socket; knows nothing of Headway's tables. Any ClickHouse client works
against it as against a server. Queries run in threads, so a long one stops nobody else.
"""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from aiohttp import web

from services.recorder.chdb_engine import Answer, Engine, EngineError
from services.recorder.http_request import (
    STREAMED_FORMATS,
    Compressor,
    Statement,
    decoded,
    parse,
)

T = TypeVar("T")

HOST: Final = "127.0.0.1"
PORT_NAME: Final = "http.port"
_REQUEST_BYTES_MAX: Final = 128 * 1024 * 1024
# A result that is to be complete before the reply begins is held in memory: this much at most.
_HELD_BYTES_MAX: Final = 64 * 1024 * 1024
_TOO_MANY_BYTES: Final = 307
_QUERIES_AT_ONCE: Final = 4
_TEXT: Final = "text/plain; charset=UTF-8"
# HTTP states by ClickHouse's error code; all others are 500, as its own server does it.
_NOT_FOUND_CODES: Final = frozenset({46, 47, 48, 60, 81, 115})
_BAD_REQUEST_CODES: Final = frozenset({6, 26, 27, 36, 38, 41, 43, 53, 62, 69, 117, 271, 457})
_READONLY: Final = 164


class ChdbServer:
    """Serves `engine` over HTTP; `add_routes` may hang more paths into `app` before the start."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(_QUERIES_AT_ONCE, "chdb-query")
        self.app = web.Application(client_max_size=_REQUEST_BYTES_MAX)
        self.app.router.add_get("/ping", self._ping)
        self.app.router.add_get("/", self._handle)
        self.app.router.add_post("/", self._handle)
        # Bodies are decoded here, frame by frame: the library stops after the first frame.
        self._runner = web.AppRunner(self.app, auto_decompress=False, access_log=None)
        self.port = 0

    async def start(self, port: int | None, remember_in: Path) -> int:
        """Serve on `port`, else on the one remembered, else on a free one; return which.

        Raises:
            OSError: `port` was asked for and is taken.
        """
        await self._runner.setup()
        self.port = await listen(self._runner, port, remember_in)
        return self.port

    async def stop(self) -> None:
        """Stop serving; queries that run are waited for."""
        await self._runner.cleanup()
        await asyncio.to_thread(self._threads.shutdown)

    async def _ping(self, _request: web.Request) -> web.Response:
        return web.Response(text="Ok.\n")

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query_id = request.query.get("query_id") or str(uuid.uuid4())
        try:
            statement, compressor = await _read(request)
            if statement is None:
                return web.Response(text="Ok.\n")
            streams = statement.selects and statement.form in STREAMED_FORMATS
            if streams and not statement.wait:
                return await self._stream(request, statement, compressor, query_id)
            answer = await self._in_thread(self._answer, statement, streams)
        except EngineError as error:
            return _failure(error, query_id)
        body = compressor.compress(answer.body) + compressor.finish() if answer.body else b""
        headers = _headers(statement, query_id) | {"X-ClickHouse-Summary": _summary(answer)}
        if body and compressor.name:
            headers["Content-Encoding"] = compressor.name
        return web.Response(body=body, headers=headers)

    def _answer(self, statement: Statement, streams: bool) -> Answer:  # noqa: FBT001 - called by place from the pool
        if statement.rows is not None:
            return self._engine.insert(
                statement.sql, statement.form, statement.rows, statement.call
            )
        if not streams:
            return self._engine.query(statement.sql, statement.form, statement.call)
        parts: list[bytes] = []
        held = 0
        for part in self._engine.stream(statement.sql, statement.form, statement.call):
            held += len(part)
            if held > _HELD_BYTES_MAX:
                raise EngineError(
                    f"Code: {_TOO_MANY_BYTES}. DB::Exception: the result is larger than"
                    f" {_HELD_BYTES_MAX} bytes; read it as a stream, or ask for less"
                )
            parts.append(part)
        return Answer(b"".join(parts))

    async def _stream(
        self, request: web.Request, statement: Statement, compressor: Compressor, query_id: str
    ) -> web.StreamResponse:
        parts = self._engine.stream(statement.sql, statement.form, statement.call)
        try:
            # An error before the first block is still an HTTP error.
            part = await self._in_thread(_next_part, parts)
            response = web.StreamResponse(headers=_headers(statement, query_id))
            if compressor.name:
                response.headers["Content-Encoding"] = compressor.name
            await response.prepare(request)
            while part is not None:
                await response.write(compressor.compress(part))
                try:
                    part = await self._in_thread(_next_part, parts)
                except EngineError as error:
                    await response.write(compressor.compress(f"\n{error.text}\n".encode()))
                    # Cut, so that no client takes what it has for the whole result.
                    if request.transport is not None:
                        request.transport.abort()
                    return response
            await response.write(compressor.finish())
            await response.write_eof()
        finally:
            await self._in_thread(_close, parts)
        return response

    async def _in_thread(self, call: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *args)


async def listen(runner: web.AppRunner, port: int | None, remember_in: Path) -> int:
    """Bind a started runner to `port`, else to the port remembered, else to a free one.

    Raises:
        OSError: `port` was asked for and is taken.
    """
    file = remember_in / PORT_NAME
    known = file.read_text().strip() if file.exists() else ""
    remembered = [int(known)] if known.isdigit() and 0 < int(known) < 65536 else []  # noqa: PLR2004 - ports end there
    wanted = [port] if port else [*remembered, 0]
    for choice in wanted:
        site = web.TCPSite(runner, HOST, choice)
        try:
            await site.start()
        except OSError:
            if choice == wanted[-1]:
                raise
            continue
        break
    bound = int(runner.addresses[0][1])
    file.write_text(f"{bound}\n")
    return bound


async def _read(request: web.Request) -> tuple[Statement | None, Compressor]:
    body = b""
    fields: dict[str, str] = {}
    if request.content_type in {"multipart/form-data", "application/x-www-form-urlencoded"}:
        posted = await request.post()
        fields = {name: value for name, value in posted.items() if isinstance(value, str)}
    else:
        body = decoded(await request.read(), request.headers.get("Content-Encoding", ""))
    params = dict(request.query)
    wants = params.get("enable_http_compression", "0") not in {"", "0"}
    compressor = Compressor(request.headers.get("Accept-Encoding", "") if wants else "")
    if header_format := request.headers.get("X-ClickHouse-Format"):
        params.setdefault("default_format", header_format)
    if header_database := request.headers.get("X-ClickHouse-Database"):
        params.setdefault("database", header_database)
    if not body and not fields and "query" not in params and request.method == "GET":
        return None, compressor
    return parse(params, fields, body), compressor


def _headers(statement: Statement, query_id: str) -> dict[str, str]:
    return {
        "X-ClickHouse-Query-Id": query_id,
        "X-ClickHouse-Format": statement.form,
        "X-ClickHouse-Timezone": "UTC",
        "X-ClickHouse-Server-Display-Name": "headway-embedded",
        "Content-Type": _TEXT,
    }


def _summary(answer: Answer) -> str:
    told = {
        "read_rows": answer.read_rows,
        "read_bytes": answer.read_bytes,
        "written_rows": answer.written_rows,
        "written_bytes": 0,
        "result_rows": 0,
        "elapsed_ns": int(answer.elapsed_s * 1e9),
    }
    return json.dumps({name: str(value) for name, value in told.items()})


def _failure(error: EngineError, query_id: str) -> web.Response:
    status = 404 if error.code in _NOT_FOUND_CODES else 500
    if error.code in _BAD_REQUEST_CODES:
        status = 400
    text = error.text
    if error.code == _READONLY:
        status = 403
        text += ". This connection only reads: statements that change data are refused here"
    return web.Response(
        status=status,
        text=text + "\n",
        headers={
            "X-ClickHouse-Exception-Code": str(error.code),
            "X-ClickHouse-Query-Id": query_id,
            "Content-Type": _TEXT,
        },
    )


def _next_part(parts: Iterator[bytes]) -> bytes | None:
    return next(parts, None)


def _close(parts: Iterator[bytes]) -> None:
    close = getattr(parts, "close", None)
    if close is not None:
        close()
