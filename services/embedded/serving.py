"""Does a Kafka broker serve there? One request on a plain socket; no client, no topic.

A broker that accepts connections need not serve yet: after a start it is fenced until its own
controller has heard from it, and clients would be told that partitions have no leader. A Metadata
request tells: it lists the brokers that are not fenced.
"""

import socket
import struct
import time

METADATA_API = 3
# The oldest version that Kafka 4 and Kafka 2 both know (flexible versions begin with 9).
METADATA_VERSION = 4
CORRELATION_ID = 1
CLIENT_ID = b"headway"
ANSWER_BYTES_MAX = 1 << 20
ANSWER_S_MAX = 2.0
POLL_S = 0.05


class NotServingError(RuntimeError):
    """No broker serves there; the sentence says where and for how long it was tried."""


def cluster_id(host: str, port: int, seconds: float = ANSWER_S_MAX) -> str | None:
    """Return the id of the cluster whose brokers serve at that address, or None if none does.

    A cluster that tells no id returns an empty string.
    """
    try:
        with socket.create_connection((host, port), timeout=seconds) as peer:
            peer.sendall(_request())
            size = struct.unpack(">i", _read(peer, 4))[0]
            if not 0 < size <= ANSWER_BYTES_MAX:
                return None
            return _cluster_id(_read(peer, size))
    except (OSError, struct.error, UnicodeDecodeError):
        return None


def wait_until_serving(bootstrap: str, seconds: float) -> str:
    """Wait until one of the `host:port,…` serves; return its cluster's id.

    Raises:
        NotServingError: none did within `seconds`.
    """
    until_s = time.monotonic() + seconds
    servers = [server.strip().rpartition(":") for server in bootstrap.split(",")]
    while True:
        for host, _, port in servers:
            found = cluster_id(host.strip("[]"), int(port))
            if found is not None:
                return found
        if time.monotonic() > until_s:
            raise NotServingError(
                f"no Kafka broker answers at {bootstrap} after {seconds:g} s; is it running, and"
                " is the address right?"
            )
        time.sleep(POLL_S)


def _request() -> bytes:
    header = struct.pack(">hhih", METADATA_API, METADATA_VERSION, CORRELATION_ID, len(CLIENT_ID))
    # No topics, and none to be created.
    body = header + CLIENT_ID + struct.pack(">i?", 0, False)
    return struct.pack(">i", len(body)) + body


def _read(peer: socket.socket, size: int) -> bytes:
    """Read exactly `size` bytes.

    Raises:
        ConnectionError: the peer closed before.
    """
    parts: list[bytes] = []
    while size > 0:
        part = peer.recv(size)
        if not part:
            raise ConnectionError("closed before the answer was whole")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _cluster_id(answer: bytes) -> str | None:
    """Read the cluster's id out of a Metadata answer, version 4; None where no broker serves."""
    correlation_id, _throttle_ms, brokers = struct.unpack_from(">iii", answer, 0)
    if correlation_id != CORRELATION_ID or brokers < 1:
        return None
    at = 12
    for _ in range(brokers):
        # node id, host, port, rack
        _, at = _string(answer, at + 4)
        _, at = _string(answer, at + 4)
    found, _ = _string(answer, at)
    return found


def _string(answer: bytes, at: int) -> tuple[str, int]:
    """Read a string with its length in front (-1 for null, told as empty); return what follows."""
    (size,) = struct.unpack_from(">h", answer, at)
    at += 2
    end = at + max(size, 0)
    return answer[at:end].decode(), end
