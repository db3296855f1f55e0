"""One request of ClickHouse's HTTP interface, read into a query; and the answer's encoding. Pure.

Follows ClickHouse's documentation of its HTTP interface, as far as clients of the embedded engine
use it. What is not supported is refused with a sentence, never ignored where that would matter.
"""

import gzip
import io
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import lz4.frame
import zstandard

from services.recorder.engine import ERROR_NOT_IMPLEMENTED, EngineError

# Parameters that are the interface's own, and no settings of the query.
_OWN = frozenset(
    {
        "query",
        "database",
        "default_format",
        "query_id",
        "session_id",
        "session_timeout",
        "session_check",
        "user",
        "password",
        "quota_key",
        "role",
        "stacktrace",
        "buffer_size",
        "wait_end_of_query",
        "compress",
        "decompress",
        "client_protocol_version",
        "send_progress_in_http_headers",
        "http_headers_progress_interval_ms",
        "enable_http_compression",
        "http_response_buffer_size",
        "cancel_http_readonly_queries_on_client_close",
        "readonly",
        "async_insert",
        "wait_for_async_insert",
    }
)
_ENCODINGS = ("lz4", "zstd", "gzip", "deflate")


@dataclass(frozen=True, slots=True)
class HttpQuery:
    """A query as a client sent it.

    Attributes:
        sql: the statement and, for an insert, its data.
        params: bound parameters by name.
        settings: of the query.
        session_id: of a session, or None.
        readonly: nothing may be changed.
        encoding: how the answer is to be compressed, or None.
    """

    sql: bytes
    default_format: str
    query_id: str | None
    session_id: str | None
    database: str | None
    readonly: bool
    encoding: str | None
    params: dict[str, str] = field(default_factory=dict[str, str])
    settings: dict[str, str] = field(default_factory=dict[str, str])


def read_query(
    method: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
) -> HttpQuery:
    """Return the query of a request whose body is decompressed already.

    Raises:
        EngineError: the request asks for what the embedded store does not do.
    """
    if query.get("decompress", "0") != "0" or query.get("compress", "0") != "0":
        raise EngineError(
            f"Code: {ERROR_NOT_IMPLEMENTED}. DB::Exception: The embedded ClickHouse does not read"
            " or write ClickHouse's own block compression over HTTP; use Content-Encoding and"
            " Accept-Encoding. (NOT_IMPLEMENTED)"
        )
    text = query.get("query", "").encode()
    parting = b"\n" if text and body else b""
    accepted = headers.get("Accept-Encoding", "")
    compress = query.get("enable_http_compression", "0") not in {"0", "false"}
    return HttpQuery(
        sql=text + parting + body,
        default_format=query.get("default_format")
        or headers.get("X-ClickHouse-Format")
        or "TabSeparated",
        query_id=query.get("query_id") or None,
        session_id=query.get("session_id") or None,
        database=query.get("database") or headers.get("X-ClickHouse-Database"),
        # As with a server: GET never changes anything.
        readonly=method == "GET" or query.get("readonly", "0") != "0",
        encoding=_choose(accepted) if compress else None,
        params={
            name.removeprefix("param_"): value
            for name, value in query.items()
            if name.startswith("param_")
        },
        settings={
            name: value
            for name, value in query.items()
            if name not in _OWN and not name.startswith("param_")
        },
    )


def _choose(accepted: str) -> str | None:
    names = [item.partition(";")[0].strip() for item in accepted.split(",")]
    return next((name for name in names if name in _ENCODINGS), None)


def decompress(body: bytes, encoding: str | None, bytes_max: int) -> bytes:
    """Return the body as it was before `encoding`: all frames of it, not only the first.

    Raises:
        EngineError: it is not so encoded, is cut off, or is larger than `bytes_max`.
    """
    if not encoding or encoding == "identity":
        return body
    try:
        out = _decompressed(body, encoding, bytes_max)
    except (RuntimeError, OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
        raise EngineError(
            f"Code: 432. DB::Exception: The body is not {encoding}: {error}"
            " (UNKNOWN_COMPRESSION_METHOD)"
        ) from error
    if len(out) > bytes_max:
        raise EngineError(
            f"Code: 241. DB::Exception: The body is larger than the {bytes_max} bytes that one"
            " request to the embedded ClickHouse may have; send it in parts."
            " (MEMORY_LIMIT_EXCEEDED)"
        )
    return out


def _decompressed(body: bytes, encoding: str, bytes_max: int) -> bytes:
    if encoding == "gzip":
        with gzip.open(io.BytesIO(body)) as stream:
            return stream.read(bytes_max + 1)
    if encoding == "deflate":
        return zlib.decompressobj().decompress(body, bytes_max + 1)
    if encoding == "zstd":
        with zstandard.ZstdDecompressor().stream_reader(body, read_across_frames=True) as stream:
            return stream.read(bytes_max + 1)
    if encoding == "lz4":
        return _lz4_frames(body, bytes_max)
    raise EngineError(
        f"Code: 432. DB::Exception: Unknown compression method {encoding!r}; the embedded"
        f" ClickHouse knows {', '.join(_ENCODINGS)}. (UNKNOWN_COMPRESSION_METHOD)"
    )


def _lz4_frames(body: bytes, bytes_max: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while body and size <= bytes_max:
        frame: Any = lz4.frame.LZ4FrameDecompressor()
        part: bytes = frame.decompress(body, max_length=bytes_max + 1 - size)
        parts.append(part)
        size += len(part)
        if not frame.eof:
            if size <= bytes_max:
                raise EOFError("its last frame is cut off")
            break
        body = frame.unused_data or b""
    return b"".join(parts)


class Compressor:
    """Compresses an answer piece by piece."""

    def __init__(self, encoding: str) -> None:
        self._lz4: Any = None
        self._other: Any = None
        if encoding == "lz4":
            self._lz4 = lz4.frame.LZ4FrameCompressor(auto_flush=True)
            self._begun = False
        elif encoding == "zstd":
            self._other = zstandard.ZstdCompressor(level=1).compressobj()
        else:
            bits = zlib.MAX_WBITS | 16 if encoding == "gzip" else zlib.MAX_WBITS
            self._other = zlib.compressobj(1, zlib.DEFLATED, bits)

    def add(self, piece: bytes) -> bytes:
        """Return what is ready after `piece`."""
        if self._lz4 is None:
            out: bytes = self._other.compress(piece)
            return out
        head: bytes = b"" if self._begun else self._lz4.begin()
        self._begun = True
        return head + self._lz4.compress(piece)

    def end(self) -> bytes:
        """Return the rest."""
        if self._lz4 is None:
            out: bytes = self._other.flush()
            return out
        head: bytes = b"" if self._begun else self._lz4.begin()
        return head + self._lz4.flush()
