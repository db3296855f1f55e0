"""Every number of the recorder that one may want to tune, as one value. Does nothing."""

from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class RecorderLimits:
    """Bounds on batches, pauses and memory. They change speed and size, never what is stored.

    Attributes:
        batch_rows: ledger lines and messages after which a batch is inserted. A Kafka record is
            never split.
        batch_bytes: bytes of records after which a batch is inserted.
        batch_ms: how long a batch is gathered before it is inserted, full or not.
        fetch_bytes: of one partition in one fetch; what is read ahead is about this much for each.
        gather_bytes: that the broker gathers before it answers a fetch, or 250 ms.
        retry_ms_first, retry_ms_max: pause after a failure; it doubles from one to the other.
        stall_s: silence after which the broker is asked whether there is more, and if so the
            consumer is made anew.
        commit_s: between two commits of the group's offsets, which only lag tools read.
        engine_bytes: memory of the embedded engine, all queries together.
        query_bytes: memory of one query in the embedded engine.
        result_bytes: of one result in a format that has to be built whole.
        query_s: run time of one query in the embedded engine.
        query_threads: queries of HTTP clients that run at a time.
        body_bytes: of one HTTP request, once decompressed.
    """

    batch_rows: int = 20_000
    batch_bytes: int = 8 * MIB
    batch_ms: int = 750
    fetch_bytes: int = MIB
    gather_bytes: int = 256 * 1024
    retry_ms_first: int = 100
    retry_ms_max: int = 5_000
    stall_s: float = 5.0
    commit_s: float = 1.0
    engine_bytes: int = 256 * MIB
    query_bytes: int = 160 * MIB
    result_bytes: int = 64 * MIB
    query_s: int = 300
    query_threads: int = 4
    body_bytes: int = 64 * MIB
