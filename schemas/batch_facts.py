"""What happened to offline jobs, as the cell records it. Pure; one class a fact kind and version.

The items themselves are never in a fact: it holds how many, their digest, and the offset in
headway.batch.jobs, in the cell's partition, at which the shell reads them again.
"""

from typing import Literal

from schemas.batch import Action, Endpoint
from schemas.ids import RoutedBy
from schemas.message import message


@message
class JobSubmitted:
    """A job's header was read. `digest` is that of all its items, or None."""

    kind: Literal["job-submitted.v1"] = "job-submitted.v1"
    at_us: int
    job: str
    model: str
    tenant: str | None = None
    endpoint: Endpoint
    items: int
    digest: str | None = None
    label: str = ""
    offset: int
    routed_by: RoutedBy | None = None


@message
class JobItemsArrived:
    """Items `first` to `first` + `count` − 1 of a job were read.

    Attributes:
        digest: 16 hex characters, what they add to the job's digest.
        offset: where in headway.batch.jobs they lie.
    """

    kind: Literal["job-items-arrived.v1"] = "job-items-arrived.v1"
    at_us: int
    job: str
    model: str
    first: int
    count: int
    digest: str
    offset: int
    body_bytes: int
    routed_by: RoutedBy | None = None


@message
class JobControlAsked:
    """Somebody asked for a job to pause, go on or end."""

    kind: Literal["job-control-asked.v1"] = "job-control-asked.v1"
    at_us: int
    job: str
    model: str
    action: Action
    who: str = ""
    why: str = ""
    offset: int
    routed_by: RoutedBy | None = None


JobFact = JobSubmitted | JobItemsArrived | JobControlAsked
