"""One request of the ClickHouse HTTP interface, taken apart. Pure; it runs nothing.

Bodies may be compressed, and a client sends one frame per block: all frames are decoded. An INSERT
may carry its rows behind its own text, and those bytes are never read as text.
"""

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import lz4.frame
import zstandard

from services.recorder.chdb_engine import Call, EngineError

# More than this, decoded, is refused: the process has a bound on its memory.
BODY_BYTES_MAX: Final = 256 * 1024 * 1024
_CANNOT_DECOMPRESS: Final = 271
_TOO_LARGE: Final = 307
_SYNTAX_ERROR: Final = 62

# Formats whose blocks may stand behind each other, so that a result may be sent as it comes.
STREAMED_FORMATS: Final = frozenset(
    {"Native", "TabSeparated", "TSV", "CSV", "RowBinary", "JSONEachRow"}
)
# Parameters that speak to the HTTP interface and are no settings of the engine.
_NOT_SETTINGS: Final = frozenset(
    {
        *("query", "database", "default_format", "user", "password", "query_id", "quota_key"),
        *("session_id", "session_timeout", "session_check", "role", "compress", "decompress"),
        *("wait_end_of_query", "buffer_size", "client_protocol_version", "close_session"),
        *("enable_http_compression", "http_zlib_compression_level", "stacktrace"),
        *("send_progress_in_http_headers", "http_headers_progress_interval_ms"),
        *("cancel_http_readonly_queries_on_client_close",),
    }
)
_BLANK: Final = rb"(?:\s|--[^\n]*\n|/\*.*?\*/)*"
_INSERT: Final = re.compile(_BLANK + rb"INSERT\s+INTO\b", re.IGNORECASE | re.DOTALL)
# What an INSERT's text is made of up to its FORMAT: names in quotes, strings, anything else.
_INSERT_HEAD: Final = re.compile(
    rb"(?:`(?:[^`\\]|\\.)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|[^`'\"])*?"
    rb"\b(?P<word>FORMAT|VALUES|SELECT|WITH)\b",
    re.IGNORECASE | re.DOTALL,
)
_FORMAT_NAME: Final = re.compile(rb"\s+(\w+)[ \t]*;?[ \t]*(?:\r?\n)?")
_TRAILING_FORMAT: Final = re.compile(r"\bFORMAT\s+(\w+)\s*;?\s*$", re.IGNORECASE)
_SELECTS: Final = re.compile(
    _BLANK.decode() + r"\(*\s*(?:SELECT|WITH)\b",
    re.IGNORECASE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Statement:
    """What is to be run.

    Attributes:
        sql: the text, without its FORMAT clause.
        form: the output format; of an insert that carries rows, the input format.
        rows: the bytes that an INSERT stores, or None.
        selects: it is a SELECT, whose result may be streamed.
        wait: the result is to be complete before the reply begins.
        call: the database, settings and bound parameters.
    """

    sql: str
    form: str
    rows: bytes | None
    selects: bool
    wait: bool
    call: Call


def parse(params: Mapping[str, str], form_fields: Mapping[str, str], body: bytes) -> Statement:
    """Return the statement of one request.

    `params` come from the URL, `form_fields` from a multipart body, `body` is any other body,
    decoded.

    Raises:
        EngineError: the text is not UTF-8 or there is none.
    """
    every = {**params, **form_fields}
    text = every.get("query", "").encode()
    raw = text + (b"\n" + body if text and body else body)
    call = Call(
        every.get("database", ""),
        {k: v for k, v in every.items() if k not in _NOT_SETTINGS and not k.startswith("param_")},
        {k.removeprefix("param_"): v for k, v in every.items() if k.startswith("param_")},
    )
    wait = every.get("wait_end_of_query", "0") not in {"", "0"}
    if (insert := _insert_with_rows(raw)) is not None:
        sql, form, rows = insert
        return Statement(_text(sql), form, rows, selects=False, wait=True, call=call)
    sql = _text(raw).strip()
    if not sql:
        raise EngineError(
            f"Code: {_SYNTAX_ERROR}. DB::Exception: Empty query: send it as the parameter `query`"
            " or in the body"
        )
    form = every.get("default_format", "") or "TabSeparated"
    if found := _TRAILING_FORMAT.search(sql):
        sql, form = sql[: found.start()].rstrip(), found.group(1)
    return Statement(sql.rstrip("; \n"), form, None, bool(_SELECTS.match(sql)), wait, call)


def decoded(body: bytes, encoding: str) -> bytes:
    """Return the body behind its Content-Encoding, every frame of it.

    Raises:
        EngineError: the encoding is not known, the bytes are damaged, or there are too many.
    """
    name = encoding.strip().lower()
    if name in {"", "identity"}:
        return body
    try:
        whole = _all_frames(body, name)
    except (RuntimeError, zlib.error, zstandard.ZstdError, EOFError) as error:
        raise EngineError(
            f"Code: {_CANNOT_DECOMPRESS}. DB::Exception: the {name} body is damaged: {error}"
        ) from error
    return whole


def _all_frames(body: bytes, encoding: str) -> bytes:
    parts: list[bytes] = []
    size = 0
    while body:
        decoder: Any = _decoder(encoding)
        part = decoder.decompress(body)
        if not decoder.eof:
            raise EOFError("it ends within a frame")
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise EngineError(
                f"Code: {_TOO_LARGE}. DB::Exception: the body holds more than {BODY_BYTES_MAX}"
                " bytes; send it in several inserts"
            )
        parts.append(part)
        body = decoder.unused_data or b""
    return b"".join(parts)


def _decoder(encoding: str) -> Any:
    if encoding == "lz4":
        return lz4.frame.LZ4FrameDecompressor()
    if encoding == "zstd":
        return zstandard.ZstdDecompressor().decompressobj()
    if encoding == "gzip":
        return zlib.decompressobj(wbits=31)
    if encoding == "deflate":
        return zlib.decompressobj()
    raise EngineError(
        f"Code: {_CANNOT_DECOMPRESS}. DB::Exception: the body's encoding {encoding!r} is not known;"
        " use lz4, zstd, gzip or deflate"
    )


class Compressor:
    """Compresses a reply as it comes, as one frame; `name` is its Content-Encoding, or none."""

    def __init__(self, accepted: str) -> None:
        offered = {part.split(";")[0].strip().lower() for part in accepted.split(",")}
        self.name = next((name for name in ("lz4", "zstd", "gzip") if name in offered), "")
        self._begun = False
        self._coder: Any = None
        if self.name == "lz4":
            self._coder = lz4.frame.LZ4FrameCompressor()
        elif self.name == "zstd":
            self._coder = zstandard.ZstdCompressor(level=1).compressobj()
        elif self.name == "gzip":
            self._coder = zlib.compressobj(level=1, wbits=31)

    def compress(self, data: bytes) -> bytes:
        """Return the next compressed bytes for `data`, which may be none yet."""
        if not self.name:
            return data
        head = b""
        if self.name == "lz4" and not self._begun:
            head = self._coder.begin()
        self._begun = True
        return head + self._coder.compress(data)

    def finish(self) -> bytes:
        """Return the frame's end."""
        if not self.name:
            return b""
        head = self.compress(b"") if not self._begun else b""
        return head + self._coder.flush()


def _insert_with_rows(raw: bytes) -> tuple[bytes, str, bytes] | None:
    start = _INSERT.match(raw)
    if not start:
        return None
    head = _INSERT_HEAD.match(raw, start.end())
    if not head or head.group("word").upper() != b"FORMAT":
        return None
    name = _FORMAT_NAME.match(raw, head.end())
    if not name or name.group(1).upper() == b"VALUES":
        return None
    return raw[: head.start("word")], name.group(1).decode(), raw[name.end() :]


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise EngineError(
            f"Code: {_SYNTAX_ERROR}. DB::Exception: the query is not UTF-8: {error}"
        ) from error
