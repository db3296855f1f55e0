"""What the tests of offline jobs tell: a job's header, its items, who steers it; times in ms."""

from schemas.batch import Action, request_id
from schemas.batch_facts import JobControlAsked, JobItemsArrived, JobSubmitted
from schemas.facts import RequestArrived, RoutedBy
from tests.spec.scheduler_story import arrived, us


def submitted(
    job: str = "j",
    *,
    at: float = 0,
    items: int = 4,
    model: str = "m",
    tenant: str | None = None,
    digest: str | None = None,
    routed_by: RoutedBy | None = None,
) -> JobSubmitted:
    return JobSubmitted(
        at_us=us(at),
        job=job,
        model=model,
        tenant=tenant,
        endpoint="/v1/completions",
        items=items,
        digest=digest,
        label="file.jsonl",
        offset=40,
        routed_by=routed_by,
    )


def items(
    job: str = "j",
    *,
    at: float = 0,
    first: int = 0,
    count: int = 4,
    model: str = "m",
    offset: int = 41,
    digest: str = "00000000000000a1",
) -> JobItemsArrived:
    return JobItemsArrived(
        at_us=us(at),
        job=job,
        model=model,
        first=first,
        count=count,
        digest=digest,
        offset=offset,
        body_bytes=100,
    )


def control(action: Action, job: str = "j", *, at: float = 0, model: str = "m") -> JobControlAsked:
    return JobControlAsked(
        at_us=us(at), job=job, model=model, action=action, who="ops", why="test", offset=60
    )


def item(
    number: int,
    job: str = "j",
    *,
    at: float = 0,
    prompt: int = 16,
    output: int = 16,
    tenant: str | None = None,
) -> RequestArrived:
    """Return the arrival of the request that an item of a job became."""
    name = request_id(job, number)
    return arrived(name, at=at, prompt=prompt, output=output, tier="batch", tenant=tenant)
