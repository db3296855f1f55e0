"""The one way to a ClickHouse server at a URL, for the recorder and for whoever queries it.

A URL is http(s)://user:password@host:port/database; what it leaves out is the server's own default.
Knows no table. The client is loaded only once somebody connects: it takes 100 MB.
"""

import logging
from typing import Any
from urllib.parse import unquote, urlsplit

CONNECT_S_MAX = 5
HTTP_PORT = 8123
HTTPS_PORT = 8443


def connect(url: str, answer_s_max: int) -> Any:
    """Return a clickhouse_connect client of the server at `url`; a failed query is not repeated.

    Args:
        url: of the server.
        answer_s_max: how long a query may take.

    Raises:
        ClickHouseError, OSError: it does not answer.
    """
    import clickhouse_connect  # noqa: PLC0415 - 100 MB with what it loads, not when embedded

    # It writes a line for each failure beside the error that it raises.
    logging.getLogger("clickhouse_connect").setLevel(logging.CRITICAL)
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    return clickhouse_connect.get_client(
        host=parts.hostname or "127.0.0.1",
        port=parts.port or (HTTPS_PORT if secure else HTTP_PORT),
        username=unquote(parts.username or "default"),
        password=unquote(parts.password or ""),
        database=parts.path.strip("/") or "__default__",
        secure=secure,
        connect_timeout=CONNECT_S_MAX,
        send_receive_timeout=answer_s_max,
        query_retries=0,
        autogenerate_session_id=False,
    )


def without_password(url: str) -> str:
    """Return `url` without whom it lets in, to be shown."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
