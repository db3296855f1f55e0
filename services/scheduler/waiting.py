"""A request begins or ends to wait or to run: what that changes in its queue and its account. Pure.

Part of evolve. Whatever brings a request into a queue, out of it, onto a replica or off it comes
through these four, so that queue, account, causes and indexes stay in step.
"""

from schemas import decisions as d
from services.scheduler import gathering, running, starvation, waits
from services.scheduler.accounts import Account
from services.scheduler.queue import RANKS
from services.scheduler.state import Model, Request, State


def account_of(state: State, model: Model, tenant: str) -> Account:
    """Return the tenant's account, a new one if need be; it counts as idle until it is not."""
    account = model.accounts.get(tenant)
    if account is None:
        account = model.accounts[tenant] = Account()
        rest(state, model, tenant, account)
    return account


def rest(state: State, model: Model, tenant: str, account: Account) -> None:
    """Note that nothing of a tenant waits or runs, if so; forget whoever is idle for too long."""
    if account.waiting or account.running:
        return
    model.idle[tenant] = None
    model.idle.move_to_end(tenant)
    while len(model.idle) > max(1, state.policy.idle_tenants_max):
        gone, _ = model.idle.popitem(last=False)
        del model.accounts[gone]


def join(state: State, request: Request) -> None:
    """Put a request into its queue; one that ran before stands ahead of younger ones."""
    now_us = state.now_us
    model = state.models[request.model]
    queue = model.queue
    of_tier = queue.tiers[request.line]
    tenant = request.tenant
    if request.attempt:
        lane = queue.add_returned(request.line, tenant, request.id, request.order, now_us)
    else:
        lane = queue.add(request.line, tenant, request.id, now_us)
    account = account_of(state, model, tenant)
    if not (account.waiting or account.running):
        model.idle.pop(tenant, None)
    account.waiting += 1
    account.waiting_tokens += request.prompt_tokens + request.max_output_tokens
    if len(lane) == 1:
        if account.held:
            waits.hold(of_tier, lane, now_us)
        else:
            of_tier.give_turn(tenant, lane, account.enter(of_tier, RANKS[request.line]))
            of_tier.note_age(tenant, lane)
        if len(of_tier.turns) == 1 or of_tier.waiting == 1:
            waits.tell_tiers(model, now_us)
            starvation.arm_below_first(state, model)
    request.stage = "waiting"
    request.since_us = now_us
    waits.mark(request, of_tier, lane, now_us)
    if model.batching is not None:
        gathering.wait_began(model.batching, request, held=account.held)
    state.touched[request.model] = None if request.model in state.touched else request.id


def leave(state: State, request: Request) -> None:
    """Take a request out of its queue: it runs, or it has ended."""
    model = state.models[request.model]
    queue = model.queue
    of_tier = queue.tiers[request.line]
    queue.remove(request.line, request.tenant, request.id, request.order)
    if model.room is not None and model.room.id == request.id:
        model.room = None
    account = model.accounts[request.tenant]
    account.waiting -= 1
    account.waiting_tokens -= request.prompt_tokens + request.max_output_tokens
    rest(state, model, request.tenant, account)
    if model.batching is not None:
        gathering.wait_ended(state, model, model.batching, request, held=account.held)
    if not queue.waiting:
        model.cause = None
    if not of_tier.turns:
        waits.tell_tiers(model, state.now_us)
    elif of_tier.waiting < queue.waiting and not of_tier.timed:
        starvation.arm(state, request.model, request.line, of_tier)


def run(state: State, request: Request, decision: d.RequestDispatched) -> None:
    """Take a waiting request to a replica and charge its tenant what it is expected to cost."""
    model = state.models[request.model]
    queue = model.queue
    of_tier = queue.tiers[request.line]
    of_tier.clock = max(of_tier.clock, of_tier.lanes[request.tenant].turn[0])
    account = model.accounts[request.tenant]
    account.running += 1
    leave(state, request)
    queue.since_starved = 0 if decision.starved else min(queue.since_starved + 1, 100)
    account.charge(
        of_tier,
        request.line,
        request.tenant,
        decision.cost,
        decision.weight,
        decision.quantum,
    )
    request.cost, request.weight, request.quantum = (
        decision.cost,
        decision.weight,
        decision.quantum,
    )
    running.begin(state, model, request, decision)
    state.touched[request.model] = None


def stop(state: State, request: Request, cost: int) -> None:
    """Take a request off its replica; what it did cost takes the place of the estimate.

    A lost attempt costs nothing: it is no fault of the tenant's, and the next one is charged.
    """
    running.end(state, request)
    model = state.models[request.model]
    account = model.accounts[request.tenant]
    account.running -= 1
    if cost != request.cost:
        account.charge(
            model.queue.tiers[request.line],
            request.line,
            request.tenant,
            cost - request.cost,
            request.weight,
            request.quantum,
        )
    if account.held:
        release(state, model, request.tenant)
    rest(state, model, request.tenant, account)


def hold(state: State, model: Model, tenant: str) -> None:
    """Take a tenant's lanes out of the turns, until one of its requests has ended."""
    model.accounts[tenant].held = True
    if model.batching is not None:
        gathering.tenant_held(model.batching, tenant)
    for of_tier in model.queue.tiers.values():
        lane = of_tier.lanes.get(tenant)
        if lane is not None:
            waits.hold(of_tier, lane, state.now_us)
            of_tier.take_turn(lane)
            of_tier.true_age()
    waits.tell_tiers(model, state.now_us)


def release(state: State, model: Model, tenant: str) -> None:
    """Let a tenant's lanes take turns again."""
    account = model.accounts[tenant]
    account.held = False
    if model.batching is not None:
        gathering.tenant_released(model.batching, tenant)
    for line, of_tier in model.queue.tiers.items():
        lane = of_tier.lanes.get(tenant)
        if lane is not None:
            waits.release(of_tier, lane, state.now_us)
            of_tier.give_turn(tenant, lane, account.enter(of_tier, RANKS[line]))
            of_tier.note_age(tenant, lane)
    starvation.arm_below_first(state, model)
    waits.tell_tiers(model, state.now_us)
    state.touched[model.profile.model] = None
