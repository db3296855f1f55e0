"""The recorder's bounds, as one value with defaults. They change its speed, never what it stores."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecorderLimits:
    """How much is gathered before it is stored, and how failures are paced.

    Attributes:
        batch_rows: rows of all tables after which a batch is stored. A Kafka record is never
            split, so a batch may be larger by one record.
        batch_ms: time after which a batch is stored, however small.
        fetch_bytes: that one fetch takes of a partition.
        backoff_ms, backoff_ms_max: the first pause after a failure, and the longest.
        status_ms: between two looks at the ends of the partitions.
        stuck_ms: without progress, while there is something to read, after which the Kafka client
            is replaced.
    """

    batch_rows: int = 20_000
    batch_ms: int = 400
    fetch_bytes: int = 1024 * 1024
    backoff_ms: int = 100
    backoff_ms_max: int = 5_000
    status_ms: int = 1_000
    stuck_ms: int = 15_000
