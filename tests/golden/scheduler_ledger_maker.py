"""Makes the recorded ledgers beside it: `python -m tests.golden.scheduler_ledger_maker`.

Run it only when a message or a rule of the core changes on purpose, and say so in the commit: an
older ledger that no longer replays is what the tests are there to find.
"""

from dataclasses import replace
from pathlib import Path

from schemas import decisions as d
from schemas import facts as f
from schemas.codec import decode_line, encode_entry
from schemas.ledger import GENESIS_CHAIN, Entry
from schemas.policy import TIERS, Override, Policy
from tests.sim.oneshot_replica import ENCODER, OneShotReplica, submit_texts
from tests.sim.scheduler_world import KILLS, MS, SECOND, World

RECORDED = Path(__file__).parent / "scheduler-ledger.ndjson"
ALTERED = Path(__file__).parent / "scheduler-ledger-altered.ndjson"
ALTERED_ENTRIES = 60


def eventful_world() -> World:
    """Return a world in which every kind of fact was told and every kind of decision taken."""
    die: list[str] = []
    held_back = Override(tenant="tenant-1", key="quota_running_requests", value=1)
    policy = Policy(
        name="golden",
        queued_requests_max=30,
        room_kept_after_pct=1,
        reservation="quantile",
        reservation_quantile_pct=50,
        reservation_samples_min=4,
        reservation_growth_blocks=1,
        offline_slots_max_pct=100,
        offline_alone_ms=500,
        overrides=(held_back,),
    )
    # Of three cells, "m" belongs to 2 and "other" to 1.
    world = World(seed=3, policy=policy, cell=2, cells=3, kill=lambda: die.pop() if die else None)
    early_requests(world)
    world.send(f.ReplicaStarting(model="m", slot=0, incarnation="L1"))
    world.run(for_us=40 * MS)
    first = world.add_replica(0, kv_blocks=24, max_batch=3)
    world.add_replica(1, kv_blocks=20, max_batch=2)
    traffic(world, "a", 24)
    running = next(iter(first.running))
    world.cancel(running)
    world.cancel(running)
    world.cancel("a-0")
    world.run(for_us=200 * MS)
    if first.running:
        first.fail(next(iter(first.running)), "out of memory", retryable=True)
        first.fail(next(iter(first.running)), "not a prompt", retryable=False)
    world.run(for_us=300 * MS)
    preempt_one(world)
    world.send(
        f.WorkProgressed(
            model="m",
            slot=0,
            incarnation="L1",
            items=tuple(
                f.WorkTokens(id=item.id, attempt=item.attempt, output_tokens=item.tokens)
                for item in first.running.values()
            ),
        )
    )
    die.append(KILLS[2])
    traffic(world, "b", 16)
    world.replicas[1].frozen = True
    world.run(for_us=4 * SECOND)
    world.replicas[1].frozen = False
    world.run(for_us=SECOND)
    world.send(f.ReplicaDraining(model="m", slot=0, incarnation="L1"))
    changed = replace(policy, version=2, look_ahead_requests=2)
    world.send(f.PolicyActivated(at_us=0, policy=changed, who="ops", why="try less look-ahead"))
    world.add_replica(2, kv_blocks=24, max_batch=3)
    traffic(world, "c", 12)
    first.stop()
    offline_jobs(world)
    embeddings(world)
    job_of_a_tenant_with_a_quota(world)
    world.run_until_all_ended()
    world.check()
    return world


def early_requests(world: World) -> None:
    """Send what is answered before there is any replica."""
    world.run(for_us=5 * MS)
    world.submit("e-default", output=None, metadata=(("trace", "é-1"),))
    world.submit("e-default", output=None)
    world.submit("e-over-context", prompt=9000)
    world.submit("e-over-pool", prompt=900, output=100)
    world.submit("e-unknown", model="nowhere-m")
    world.submit("e-routed", model="other")
    world.submit("e-late", deadline_ms=0)
    world.submit("e-expires", deadline_ms=30)
    world.submit("e-cancelled")
    world.cancel("e-cancelled")
    world.cancel("nobody")
    world.send(
        f.RequestRefused(
            at_us=0,
            id="e-refused",
            model="m",
            arrived_us=world.now_us,
            offset=1,
            body_digest="fedcba9876543210",
            detail="temperature: should be at most 5",
        )
    )
    world.send(
        f.MessageUnreadable(
            at_us=0,
            topic="headway.requests",
            partition=2,
            offset=77,
            reason="it is not JSON",
            body_bytes=12,
        )
    )


def offline_jobs(world: World) -> None:
    """Let jobs be received, refused, sent on, held back, steered and finished."""
    world.submit_job("elsewhere", 1, model="other")
    world.submit_job("nowhere", 1, model="nowhere-m")
    world.submit_job("night", 14, chunk=8)
    world.submit_job("night", 14, chunk=8)
    traffic(world, "d", 10)
    world.steer("night", "pause")
    world.run(for_us=300 * MS)
    world.steer("night", "resume")
    world.submit_job("dropped", 30)
    world.run(for_us=300 * MS)
    world.steer("dropped", "cancel")
    while len(world.jobs_finished) < 2:
        world.run(for_us=100 * MS)


def job_of_a_tenant_with_a_quota(world: World) -> None:
    """Let a job wait for its tenant's quota: one of it may run, and one more stands ready."""
    world.submit_job("one-at-a-time", 8, tenant="tenant-1")
    while len(world.jobs_finished) < 3:
        world.run(for_us=100 * MS)


def embeddings(world: World) -> None:
    """Send texts to an encoder, fast enough that its window becomes shorter."""
    encoder = replace(ENCODER, model="e")  # of three cells it belongs to 2, as "m" does
    world.send(f.ProfileSet(at_us=0, profile=encoder))
    OneShotReplica(world, slot=5, model=encoder.model).come()
    for number in range(40):
        submit_texts(world, f"e-{number}", 10 + number % 3, 9, model=encoder.model)
        world.run(for_us=4 * MS)
    submit_texts(world, "e-chatty", 9, model="m")


def traffic(world: World, prefix: str, count: int) -> None:
    """Send requests of all tiers and three tenants, a few ms apart."""
    draw = world.random
    for number in range(count):
        world.submit(
            f"{prefix}-{number}",
            prompt=draw.randrange(4, 120),
            output=draw.randrange(2, 40),
            tier=TIERS[draw.randrange(4)],
            tenant=f"tenant-{draw.randrange(3)}",
            deadline_ms=draw.choice((None, None, 150, 60_000)),
        )
        world.run(for_us=draw.randrange(12 * MS))


def preempt_one(world: World) -> None:
    """Let one running request leave without having been asked to."""
    for replica in world.replicas.values():
        for item in list(replica.running.values())[:1]:
            del replica.running[item.id]
            world.kept[item.id] = item.tokens
            departure = f.WorkDeparture(
                id=item.id, attempt=item.attempt, cause="preempted", usage=item.usage(10 * MS)
            )
            world.send(
                f.WorkLeft(
                    model="m",
                    slot=replica.slot,
                    incarnation=replica.life,
                    offset=5,
                    items=(departure,),
                )
            )
            return


def altered_lines(lines: list[bytes]) -> tuple[list[bytes], int]:
    """Return the first lines with one decision altered and all chains made right again.

    Returns the seq of the altered entry too. Only deciding again can find such a change.
    """
    entries = [decode_line(line).entry for line in lines[:ALTERED_ENTRIES]]
    seq, index = next(
        (entry.seq, index)
        for entry in reversed(entries)
        for index, item in enumerate(entry.decisions)
        if isinstance(item, d.RequestDispatched)
    )
    decisions = list(entries[seq].decisions)
    dispatch = decisions[index]
    assert isinstance(dispatch, d.RequestDispatched)
    decisions[index] = replace(dispatch, blocks_free=dispatch.blocks_free + 1)
    entries[seq] = replace(entries[seq], decisions=tuple(decisions))
    return chained(entries), seq


def chained(entries: list[Entry]) -> list[bytes]:
    """Return the lines of the entries, each with its chain."""
    chain, lines = GENESIS_CHAIN, list[bytes]()
    for entry in entries:
        raw, chain = encode_entry(entry, chain)
        lines.append(raw)
    return lines


if __name__ == "__main__":
    made = eventful_world().lines()
    RECORDED.write_bytes(b"\n".join(made) + b"\n")
    ALTERED.write_bytes(b"\n".join(altered_lines(made)[0]) + b"\n")
