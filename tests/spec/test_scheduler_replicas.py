"""The lives of replicas: ready, replaced, silent, draining, stopped, and the strangers."""

from schemas import decisions as d
from schemas import facts as f
from services.scheduler.step import next_due_us
from tests.spec.scheduler_story import (
    a,
    arrived,
    draining,
    failed,
    finished,
    given,
    heartbeat,
    left,
    policy_is,
    progressed,
    ready,
    started,
    starting,
    stopped,
    tick,
    us,
    with_policy,
)

# The default policy counts a replica as lost after 3,000 ms of silence, and a cell as deaf after
# more than 1,500 ms without a fact.


def test_a_ready_replica_is_admitted_with_its_budget() -> None:
    given().when(ready(2, blocks=40, batch=8)).then(
        a(d.ReplicaAdmitted, model="m", slot=2, incarnation="L1", kv_blocks=40, max_batch=8)
    )


def test_a_ready_that_is_sent_again_changes_nothing() -> None:
    story = given(ready(), arrived("a"))
    story.when(ready(blocks=99)).then_nothing()
    assert story.state.models["m"].replicas[0].blocks_used == 2
    assert story.state.models["m"].replicas[0].kv_blocks == 10


def test_a_new_life_replaces_the_one_that_holds_its_slot() -> None:
    story = given(ready(), arrived("a", at=1))
    story.when(ready(at=5, life="L2")).then(
        a(
            d.ReplicaLost,
            slot=0,
            incarnation="L1",
            why="replaced",
            silent_us=5000,
            running=1,
        ),
        a(d.ReplicaAdmitted, incarnation="L2"),
        a(
            d.AttemptLost,
            id="a",
            why="replica m/0 was lost: replaced",
            losses=1,
            backoff_ms=100,
            retry_at_us=105_000,
        ),
    )
    story.when(tick(105)).then(
        a(d.RequestReturned, id="a", attempt=1),
        a(d.RequestDispatched, id="a", incarnation="L2", attempt=2),
    )


def test_a_replica_of_an_unknown_model_is_told_to_come_again() -> None:
    given(profile=None).when(ready()).then(
        a(d.ReplicaTurnedAway, rejoin=True, why="no profile of m is known yet")
    )


def test_a_slot_that_does_not_exist_is_turned_away_for_good() -> None:
    story = given(starting(4), arrived("a"))
    story.when(ready(4)).then(
        a(d.ReplicaTurnedAway, slot=4, rejoin=False, why="slot 4 does not exist: m has 4"),
        a(d.QueueBlocked, cause="no-replica"),  # its cold start came to nothing
    )
    given(ready(3)).then(a(d.ReplicaAdmitted, slot=3))


def test_a_heartbeat_keeps_a_replica() -> None:
    story = given(ready())
    for at in range(1000, 10_000, 1000):
        story.when(heartbeat(at=at)).then_nothing()


def test_work_reports_keep_a_replica_too() -> None:
    story = given(ready(), arrived("a"), arrived("b"))
    story.when(started("a", "b", at=1400)).then_nothing()
    story.when(progressed("a", "b", at=2800)).then_nothing()
    story.when(finished("a", at=4200)).then(a(d.RequestEnded))
    story.when(tick(5600), tick(7000)).then_nothing()
    story.when(tick(7200)).then(a(d.ReplicaLost, silent_us=3_000_000), a(d.AttemptLost, id="b"))


def test_a_silent_replica_is_lost_and_its_work_is_tried_again() -> None:
    story = given(ready(), arrived("a", at=1), tick(1400), tick(2800))
    story.when(tick(2999.999)).then_nothing()
    story.when(tick(3000)).then(
        a(d.ReplicaLost, slot=0, why="silent", silent_us=3_000_000, running=1),
        a(
            d.AttemptLost,
            id="a",
            attempt=1,
            slot=0,
            why="replica m/0 was lost: silent",
            losses=1,
            backoff_ms=100,
            retry_at_us=3_100_000,
        ),
    )


def test_the_one_silent_longest_is_lost_first() -> None:
    story = given(ready(0), ready(1), tick(1400), heartbeat(0, at=1500), tick(2900))
    story.when(tick(3000)).then(a(d.ReplicaLost, slot=1, silent_us=3_000_000))
    story.when(tick(4400), tick(4500)).then(a(d.ReplicaLost, slot=0, silent_us=3_000_000))


def test_several_that_are_silent_are_lost_in_one_step() -> None:
    story = given(ready(1), ready(0), tick(1500))
    story.when(tick(3000)).then(a(d.ReplicaLost, slot=1), a(d.ReplicaLost, slot=0))


def test_a_report_that_comes_at_the_last_moment_is_heard() -> None:
    story = given(ready(), tick(1400), tick(2800))
    story.when(heartbeat(at=3500)).then_nothing()


def test_silence_while_the_cell_could_not_hear_is_no_sign_of_loss() -> None:
    story = given(ready(), tick(1400))
    # 1,501 ms without any fact: the cell was deaf until 2,901 ms.
    story.when(tick(2901), tick(4400), tick(5900)).then_nothing()
    story.when(tick(5900.999)).then_nothing()
    story.when(tick(5901)).then(a(d.ReplicaLost, silent_us=5_901_000))


def test_a_gap_of_exactly_half_the_limit_is_not_deafness() -> None:
    story = given(ready(), tick(1500))
    story.when(tick(3000)).then(a(d.ReplicaLost))


def test_after_a_takeover_the_replicas_have_the_whole_limit_again() -> None:
    story = given(ready(), tick(1400), tick(2800))
    story.when(f.OwnerTookOver(at_us=us(2900), cell=0, cells=1, epoch=2, owner="next"))
    story.when(tick(4300), tick(5700), tick(5899)).then_nothing()
    story.when(tick(5900)).then(a(d.ReplicaLost))


def test_a_lone_replica_that_falls_silent_is_lost_by_ticks_alone() -> None:
    story = given(ready(), arrived("a"))
    due_us = next_due_us(story.state.policy, story.state)
    lost: list[d.Decision] = []
    while due_us is not None and not lost:
        # The shell's timer is a little late each time.
        story.when(f.ClockTicked(at_us=due_us + 50_000))
        lost = [item for item in story.decisions if isinstance(item, d.ReplicaLost)]
        due_us = next_due_us(story.state.policy, story.state)
    assert 3_000_000 <= story.state.now_us <= 3_200_000


def test_a_shorter_limit_takes_effect_at_once() -> None:
    story = given(ready(), tick(900))
    story.when(policy_is(with_policy(replica_lost_ms=800), at=1000)).then(a(d.ReplicaLost))


def test_a_heartbeat_of_a_lost_replica_asks_it_to_rejoin() -> None:
    story = given(ready(), tick(1500), tick(3000))
    story.when(heartbeat(at=3100)).then(
        a(
            d.ReplicaTurnedAway,
            slot=0,
            incarnation="L1",
            rejoin=True,
            why="m/0 counts as lost; its work was given to others",
        )
    )
    story.when(ready(at=3200)).then(a(d.ReplicaAdmitted, incarnation="L1"))


def test_a_heartbeat_of_a_life_whose_slot_another_holds_sends_it_away() -> None:
    given(ready(), ready(life="L2")).when(heartbeat(life="L1")).then(
        a(d.ReplicaTurnedAway, rejoin=False, why="another life of m/0 holds the slot")
    )


def test_a_heartbeat_for_an_unknown_model_asks_it_to_rejoin() -> None:
    given(profile=None).when(heartbeat()).then(a(d.ReplicaTurnedAway, rejoin=True))


def test_other_reports_of_strangers_change_nothing() -> None:
    story = given(ready(life="L2"), arrived("a"))
    strangers = [
        started("a", life="L1"),
        progressed("a", life="L1"),
        finished("a", life="L1"),
        failed("a", life="L1"),
        left("a", life="L1"),
        draining(life="L1"),
        stopped(life="L1"),
        stopped(model="none"),
    ]
    for fact in strangers:
        story.when(fact).then_nothing()
    assert story.state.requests["a"].stage == "running"


def test_a_draining_replica_finishes_what_it_has_and_gets_nothing_more() -> None:
    story = given(ready(), arrived("a"), draining())
    story.when(arrived("b")).then(
        a(d.RequestQueued), a(d.QueueBlocked, cause="no-replica", replicas_ready=0)
    )
    story.when(finished("a", at=1)).then(a(d.RequestEnded, outcome="completed"))
    story.when(stopped(at=2)).then(a(d.ReplicaLost, why="stopped", running=0))


def test_a_stopped_replica_gives_its_work_back() -> None:
    story = given(ready(), arrived("a"), arrived("b"))
    story.when(stopped(at=9)).then(
        a(d.ReplicaLost, why="stopped", silent_us=0, running=2),
        a(d.AttemptLost, id="a", why="replica m/0 was lost: stopped"),
        a(d.AttemptLost, id="b"),
    )


def test_the_work_of_a_lost_replica_can_go_to_another_at_the_end_of_its_back_off() -> None:
    story = given(ready(0), ready(1), arrived("a"))
    story.when(stopped(0, at=10)).then(a(d.ReplicaLost), a(d.AttemptLost, retry_at_us=110_000))
    story.when(tick(109.999)).then_nothing()
    story.when(tick(110)).then(
        a(d.RequestReturned),
        a(d.RequestDispatched, slot=1, attempt=2, waits=(("backoff", 100_000),)),
    )


def test_a_start_that_is_stopped_is_no_cold_start_any_more() -> None:
    story = given(starting(), arrived("a"))
    story.when(stopped(life="L9")).then_nothing()
    story.when(stopped()).then(a(d.QueueBlocked, cause="no-replica"))


def test_a_start_of_an_unknown_model_changes_nothing() -> None:
    given(profile=None).when(starting()).then_nothing()


def test_a_start_that_is_reported_twice_leaves_no_cold_start_behind_once_the_replica_is_lost() -> (
    None
):
    # A worker whose acknowledgement was lost says again what it said, in the same order.
    story = given(starting(), ready(), starting(), ready())
    story.when(tick(1000), tick(2000), tick(3000)).then(a(d.ReplicaLost, why="silent"))
    story.when(arrived("a", at=3001)).then(
        a(d.RequestQueued), a(d.QueueBlocked, cause="no-replica")
    )


def test_a_replica_that_never_becomes_ready_is_given_up() -> None:
    story = given(arrived("a"), starting(at=5), policy=with_policy(cold_start_max_ms=1000))
    story.then(a(d.RequestQueued), a(d.QueueBlocked), a(d.QueueBlocked, cause="cold-start"))
    assert next_due_us(story.state.policy, story.state) == 1_005_000
    story.when(tick(1004)).then_nothing()
    story.when(tick(1005)).then(
        a(d.ReplicaLost, why="never-ready", incarnation="L1", silent_us=1_000_000, running=0),
        a(d.QueueBlocked, cause="no-replica"),
    )
    # It may still come.
    story.when(ready(at=2000)).then(a(d.ReplicaAdmitted), a(d.RequestDispatched, id="a"))
