"""Ports of 127.0.0.1 for the embedded parts. Opens nothing that stays open.

They come from below the ranges that systems take outgoing connections' ports from (32768 and up on
Linux, 49152 and up on macOS). In such a range, a client that keeps trying to reach a broker which
is down sooner or later is given the broker's own port, connects to itself, and keeps the port.
"""

import secrets
import socket

HOST = "127.0.0.1"
FIRST = 21_000
COUNT = 9_000


class PortsError(RuntimeError):
    """No port is free; the sentence says where they were looked for."""


def is_free(port: int) -> bool:
    """Return whether nothing listens on `port` of 127.0.0.1."""
    with socket.socket() as listener:
        # As servers do: connections of an earlier server that still fade away are no obstacle.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, port))
        except OSError:
            return False
    # macOS lets one bind 127.0.0.1 beside a listener on all addresses.
    with socket.socket() as client:
        return client.connect_ex((HOST, port)) != 0


def free_port(wanted: int | None = None) -> int:
    """Return `wanted` if nothing listens there, else a port that is free now.

    Raises:
        PortsError: none is free.
    """
    if wanted and is_free(wanted):
        return wanted
    begin = secrets.randbelow(COUNT)
    for step in range(COUNT):
        port = FIRST + (begin + step) % COUNT
        if is_free(port):
            return port
    raise PortsError(
        f"no port from {FIRST} to {FIRST + COUNT - 1} on {HOST} is free; stop what takes them"
    )
