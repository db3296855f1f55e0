"""Every topic: what it carries, who writes and reads it, its partitions and settings. Pure.

The single source: topic creation, `headway topics`, the README's table and the tests read it here.
"""

from dataclasses import dataclass, field
from typing import Literal

DAY_MS = 24 * 3600 * 1000

REQUESTS = "headway.requests"
BATCH_JOBS = "headway.batch.jobs"
BATCH_STATUS = "headway.batch.status"
TELEMETRY = "headway.telemetry"
SIGNALS = "headway.signals"
WORKER_EVENTS = "headway.worker.events"
CONFIG = "headway.config"
CONTROL = "headway.control"
LEDGER = "headway.ledger"
WORK_PREFIX = "headway.work."
TOKENS = "headway.tokens"
RESULTS = "headway.results"
NODE_COMMANDS = "headway.node.commands"
SNAPSHOTS = "headway.snapshots"
DEAD_LETTER = "headway.dead-letter"

# Cells, so partitions of headway.requests; fixed for the life of a deployment.
CELLS_DEFAULT = 4

Partitions = Literal["one", "cells", "cells-and-planner", "work-slots"]


@dataclass(frozen=True, slots=True)
class Topic:
    """One described topic.

    Attributes:
        kinds: of its messages; each has a schema of that name in schemas/json.
        keyed_by: what the record's key is.
        retention_ms: how long records are kept, or None for a compacted topic.
    """

    name: str
    purpose: str
    kinds: tuple[str, ...]
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    keyed_by: str
    partitions: Partitions
    retention_ms: int | None
    settings: dict[str, str] = field(default_factory=dict[str, str])

    def config(self) -> dict[str, str]:
        """Return the broker's settings of this topic."""
        if self.retention_ms is None:
            base = {"cleanup.policy": "compact"}
        else:
            base = {"cleanup.policy": "delete", "retention.ms": str(self.retention_ms)}
        # The broker's clock is the one that deadlines count from, so producers' clocks may be off.
        base["message.timestamp.type"] = "LogAppendTime"
        return base | self.settings

    def partition_count(self, cells: int) -> int:
        """Return how many partitions it has in a deployment of `cells` cells.

        Raises:
            ValueError: it is a work topic, whose partitions the model's profile gives.
        """
        if self.partitions == "work-slots":
            raise ValueError(f"the partitions of {self.name} are its model's work slots")
        return {"one": 1, "cells": cells, "cells-and-planner": cells + 1}[self.partitions]


TOPICS: tuple[Topic, ...] = (
    Topic(
        REQUESTS,
        "inference events from producers",
        ("inference-request.v1", "embedding-request.v1", "cancel.v1"),
        ("producers", "gateway", "cell"),
        ("cell",),
        "model",
        "cells",
        7 * DAY_MS,
        {"max.message.bytes": "4194304"},
    ),
    Topic(
        BATCH_JOBS,
        "offline jobs with many items, and what steers them",
        ("batch-job.v1", "batch-items.v1", "batch-control.v1"),
        ("job submitters", "cell"),
        ("cell",),
        "model",
        "cells",
        # A job may have to wait for weeks until there is room.
        30 * DAY_MS,
        {"max.message.bytes": "4194304"},
    ),
    Topic(
        BATCH_STATUS,
        "how far each offline job is, and what holds a model's jobs back",
        ("batch-status.v1", "batch-hold.v1"),
        ("cell",),
        ("job submitters", "people"),
        "job, or model",
        "cells",
        None,
        # Small segments that are soon compacted: who asks for a job reads the whole topic.
        {"segment.ms": "600000", "min.cleanable.dirty.ratio": "0.1"},
    ),
    Topic(
        TELEMETRY,
        "raw device samples",
        ("device-sample.v1",),
        ("agent",),
        ("signals", "recorder"),
        "device",
        "cells",
        DAY_MS,
    ),
    Topic(
        SIGNALS,
        "windows and slopes derived from telemetry and ledgers",
        ("depth.v1",),
        ("signals",),
        ("planner", "recorder"),
        "cell",
        "one",
        DAY_MS,
    ),
    Topic(
        WORKER_EVENTS,
        "what workers report: ready, started, progress, finished, failed, heartbeat",
        ("worker-report.v1",),
        ("worker",),
        ("cell", "planner"),
        "model",
        "cells",
        7 * DAY_MS,
        {"max.message.bytes": "16777216"},
    ),
    Topic(
        CONFIG,
        "policies and model profiles",
        ("policy-set.v1", "profile.v1"),
        ("operators",),
        ("cell", "planner", "worker"),
        "kind and name; of a policy also its version and a digest, so that every one is kept",
        "one",
        None,
    ),
    Topic(
        CONTROL,
        "approvals, rollbacks and drains, with who and why",
        (),
        ("operators",),
        ("cell", "planner"),
        "subject",
        "one",
        30 * DAY_MS,
    ),
    Topic(
        LEDGER,
        "facts and the decisions that follow from them; a line an entry",
        ("ledger-entry.v1",),
        ("cell", "planner"),
        ("recorder", "signals", "lab"),
        "cell",
        "cells-and-planner",
        30 * DAY_MS,
        {"max.message.bytes": "16777216"},
    ),
    Topic(
        WORK_PREFIX + "MODEL",
        "requests for a replica to run; one partition a replica slot",
        ("work.v1", "work-leave.v1", "worker-notice.v1"),
        ("cell",),
        ("worker",),
        "request id",
        "work-slots",
        DAY_MS,
        {"max.message.bytes": "4194304"},
    ),
    Topic(
        TOKENS,
        "streamed output",
        ("tokens.v1",),
        ("worker",),
        ("gateway", "clients"),
        "model",
        "cells",
        3600 * 1000,
    ),
    Topic(
        RESULTS,
        "exactly one outcome per request, and the answers to resends",
        ("result.v1", "resend-answer.v1"),
        ("cell",),
        ("producers", "gateway", "recorder"),
        "request id",
        "cells",
        7 * DAY_MS,
        {"max.message.bytes": "16777216"},
    ),
    Topic(
        NODE_COMMANDS,
        "start, drain or stop a replica",
        (),
        ("planner",),
        ("agent",),
        "node",
        "one",
        DAY_MS,
    ),
    Topic(
        SNAPSHOTS,
        "state snapshots, in chunks",
        ("snapshot-chunk.v1",),
        ("cell", "planner"),
        ("cell", "planner"),
        "cell, slot and part",
        "cells-and-planner",
        None,
    ),
    Topic(
        DEAD_LETTER,
        "what could not be decoded: raw bytes, source offset, reason",
        ("dead-letter.v1",),
        ("cell", "recorder", "signals"),
        ("people", "recorder"),
        "source",
        "cells",
        30 * DAY_MS,
    ),
)


def work_topic(model: str) -> str:
    """Return the name of the model's work topic."""
    return WORK_PREFIX + model
