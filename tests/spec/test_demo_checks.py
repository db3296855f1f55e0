"""What a demo says when something is wrong: each fault in a sentence."""

from schemas.profile import SMOLLM2_135M
from services.cli._demo_audit import AuditFound
from services.cli._demo_checks import outcome_faults
from services.cli._demo_run import Watch
from services.cli._demo_traffic import Sending, sendings
from services.lab.arrivals import Arrival


def four() -> list[Sending]:
    return sendings([Arrival(0.0, 10, 5)] * 4, SMOLLM2_135M, "r", 0, chat=True)


def test_requests_without_an_outcome_are_counted_and_named() -> None:
    watch = Watch(total=4, began_s=0.0, ended_s=90.0)
    (fault,) = outcome_faults(four(), watch)
    assert fault.startswith("4 of 4 requests have no outcome after 90 s")
    assert "r-00000, r-00001, r-00002 and 1 more" in fault
    assert "--scale-tokens" in fault


def test_requests_with_two_outcomes_are_named() -> None:
    watch = Watch(total=4)
    watch.occupancy.ended.update({"r-00001": 2})
    faults = outcome_faults(four(), watch)
    assert faults[-1] == "1 requests have more than one outcome: r-00001 (2)"


def test_what_could_not_be_sent_is_a_fault() -> None:
    watch = Watch(total=4, troubles=["r-00003 could not be sent: the broker is away"])
    faults = outcome_faults(four(), watch)
    assert faults[0] == "r-00003 could not be sent: the broker is away"


def test_an_audit_tells_its_problems_in_one_line() -> None:
    told = AuditFound(True, 0.5, 10, 10, {"ledger gaps": 2, "unfinished": 1}).sentence()
    assert "10 requests and 10 outcomes recorded" in told
    assert "3 problems (ledger gaps, unfinished)" in told
    behind = AuditFound(caught_up=False, catch_up_s=60.0).sentence()
    assert behind == "not finished: the recorder was still behind after 60 s"
