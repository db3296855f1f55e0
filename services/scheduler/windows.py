"""When a one-shot model's waiting requests leave, and which of them leave together. Pure.

A one-shot model runs whole batches: a request that leaves alone pays for a pass alone. So requests
are held back for a window, and a batch leaves when it is full, when the window is due, when the
backlog is large enough to be worth a pass, or when the nearest deadline demands it. In the mode
`when_free` there is no window: what came while the replicas were busy leaves when one is free.

The window runs from the beginning of the longest wait, and takes at most a share of the tier's
latency target. A replica runs one batch; a full one may wait there behind it, because nothing
could join it any more. Every batch holds the request that is next in the queue, so that whatever
the queue's order keeps from starving does not starve here; the others are taken from the next few
in that order, where their lengths cost little padding. Reads only.
"""

from dataclasses import dataclass

from schemas.batches import BatchFormed, BatchPlace, ClosedBy, WindowOpened, WindowTuned
from schemas.decisions import Cause, TenantHeld
from schemas.policy import Policy, Tier
from services.scheduler import order, quotas, tuning
from services.scheduler.batching import Batching, Forming, service_us
from services.scheduler.claims import blocks_for
from services.scheduler.placement import Blocked, Fit, cause_without_room
from services.scheduler.queue import RANKS
from services.scheduler.reservation import Reservation
from services.scheduler.state import Model, Replica, Request, State

_US_PER_MS = 1000

Found = BatchFormed | WindowOpened | WindowTuned | Request | TenantHeld | Blocked


@dataclass(slots=True)
class _Timing:
    """What the window is measured by: whose wait, how long, and what a deadline allows."""

    opened_us: int
    allowed_us: int
    tier: Tier
    target_ms: int
    window_ms: int
    deadline_us: int | None
    service_us: int

    def window_due_us(self) -> int:
        """Return when the window is over."""
        return self.opened_us + self.allowed_us

    def deadline_due_us(self) -> int | None:
        """Return when a batch must leave for the nearest deadline, if there is one.

        While it is not known how long a batch takes, that is at once: unknown is not zero.
        """
        if self.deadline_us is None:
            return None
        return self.deadline_us - self.service_us if self.service_us else self.opened_us

    def due_us(self) -> int:
        """Return the earlier of the two."""
        by_deadline_us = self.deadline_due_us()
        by_window_us = self.window_due_us()
        return by_window_us if by_deadline_us is None else min(by_window_us, by_deadline_us)


@dataclass(slots=True)
class _View:
    """What is looked at: the model's policy, its state and its replicas that take work.

    `full` says whether a batch waits to which the replica that takes the most could add nothing.
    """

    keys: Policy
    state: State
    model: Model
    batching: Batching
    ready: list[Replica]
    full: bool


def find(state: State, model: Model, batching: Batching) -> Found | None:
    """Return what to do for a one-shot model in which something waits, or None: nothing now.

    Returns:
        A batch to form, a window to tune or open, a Request that no replica could ever hold, a
        decision that holds a tenant back, or Blocked when the cause that holds the queue back has
        changed.
    """
    keys = state.settings.at(model.profile.model)
    ready = [replica for replica in model.replicas.values() if not replica.draining]
    widest = max([replica.max_batch for replica in ready], default=0)
    full = batching.texts_waiting >= min(keys.batch_texts_max, widest)
    view = _View(keys, state, model, batching, ready, full)
    if not ready:
        return _held(view, cause_without_room(model, 0))
    if not batching.requests_waiting:
        # Whoever waits has as many running as its quota allows.
        return _held(view, "quota")
    # Where no window is kept the timing is not needed, and this is asked for each arrival.
    why = _closed_at_once(view) or _closed_in_time(view, _timing(view))
    return _keep_open(view, _timing(view)) if why is None else _leave(view, why)


def _leave(view: _View, why: ClosedBy) -> Found | None:
    """Return the batch that leaves now, or what keeps it from leaving."""
    keys, state, model = view.keys, view.state, view.model
    free = _free(view)
    if not free:
        return _held(view, "slots")
    head = state.requests[next(order.candidates(state, model, 1)[0])]
    held = quotas.to_hold(state, model, head)
    if held is not None:
        return held
    if over_every_pool(keys, model, head.texts, head.longest_tokens):
        return head
    for replica in free:
        if _blocks(keys, replica, head) <= _blocks_allowed(keys, replica):
            return _form(view, why, replica)
    # Idle ones are too small for it; a larger one is busy.
    compared = _blocks(keys, free[0], head), max(_blocks_allowed(keys, item) for item in free)
    return _held(view, "kv", compared)


def next_member(state: State, forming: Forming) -> tuple[Model, Fit, BatchPlace]:
    """Return the next member of a batch that was formed, where it goes, and its place in it."""
    model = state.models[forming.model]
    request = state.requests[forming.members[0]]
    replica = model.replicas[forming.slot]
    block = blocks_for(forming.longest_tokens, replica.block_tokens)
    blocks = min(request.texts, forming.texts_max) * block
    place = BatchPlace(batch=forming.batch, size=forming.size)
    starved = forming.starved and len(forming.members) == forming.size
    reserved = Reservation(blocks, blocks, 0)
    return model, Fit(request, replica, reserved, (), starved), place


def over_every_pool(keys: Policy, model: Model, texts: int, longest_tokens: int) -> bool:
    """Return whether one pass over the texts is too large for every replica that ever was ready."""
    allowed_tokens = model.pool_tokens_max * (100 - keys.mem_safety_margin_pct) // 100
    needed_tokens = _pass_tokens(keys, model, texts, longest_tokens)
    return bool(model.pool_tokens) and needed_tokens > allowed_tokens


def over_pool_detail(keys: Policy, model: Model, texts: int, longest_tokens: int) -> str:
    """Return the sentence that says which limit a too large embedding request meets."""
    needed = _pass_tokens(keys, model, texts, longest_tokens)
    return (
        f"one pass over its texts takes memory for {needed} tokens"
        f" ({_pass_texts(keys, model, texts)} texts padded to {longest_tokens}), but the largest"
        f" replica has {model.pool_tokens_max}, of which {keys.mem_safety_margin_pct}% stay free"
    )


def _pass_tokens(keys: Policy, model: Model, texts: int, longest_tokens: int) -> int:
    # Before a replica is known, neither is its block: then it is found out when a batch is formed.
    block = max((replica.block_tokens for replica in model.replicas.values()), default=1)
    return _pass_texts(keys, model, texts) * blocks_for(longest_tokens, block) * block


def _pass_texts(keys: Policy, model: Model, texts: int) -> int:
    of_replicas = max((replica.max_batch for replica in model.replicas.values()), default=texts)
    return min(texts, keys.batch_texts_max, of_replicas)


def _timing(view: _View) -> _Timing:
    """Return the timing of the tier whose window is due first."""
    keys, batching = view.keys, view.batching
    window_ms = tuning.window_ms(keys, batching)
    found: _Timing | None = None
    for line, of_tier in view.model.queue.tiers.items():
        since_us = of_tier.oldest_us
        if since_us is None:
            continue
        tier = "batch" if line == "offline" else line
        target_ms = keys.tier_latency_target_ms[RANKS[tier]]
        share_us = target_ms * _US_PER_MS * keys.window_share_pct // 100
        allowed_us = min(window_ms * _US_PER_MS, share_us)
        if found is None or since_us + allowed_us < found.window_due_us():
            found = _Timing(since_us, allowed_us, tier, target_ms, window_ms, None, 0)
    assert found is not None, "something waits"  # noqa: S101 - a bound of the algorithm, not input
    found.service_us = service_us(batching, min(batching.texts_waiting, keys.batch_texts_max))
    if batching.deadlines:
        deadline_us, _, request_id = batching.deadlines[0]
        # A batch would not help a tenant that is held back.
        if not view.model.accounts[view.state.requests[request_id].tenant].held:
            found.deadline_us = deadline_us
    return found


def _closed_at_once(view: _View) -> ClosedBy | None:
    """Return why a batch may leave now, whatever the time is, or None."""
    if view.full:
        return "full"
    if view.keys.window_mode == "when_free":
        return "free"
    backlog_closes = view.keys.window_backlog_closes
    if backlog_closes is not None and view.batching.requests_waiting > backlog_closes:
        return "backlog"
    return None


def _closed_in_time(view: _View, timing: _Timing) -> ClosedBy | None:
    """Return why the time ends the window, or None when it is kept."""
    now_us = view.state.now_us
    by_deadline_us = timing.deadline_due_us()
    if timing.window_due_us() <= now_us:
        return "due"
    return "deadline" if by_deadline_us is not None and by_deadline_us <= now_us else None


def _keep_open(view: _View, timing: _Timing) -> WindowOpened | WindowTuned | Blocked | None:
    """Return what is to be told of a window that is kept, or None when all is told."""
    now_us = view.state.now_us
    due_us, told_us = timing.due_us(), view.batching.due_us
    if told_us is None:
        changed = tuning.change(view.keys, view.model, view.batching, len(view.ready), now_us)
        if changed is not None:
            return changed
    if told_us is None or due_us < told_us or told_us <= now_us:
        return WindowOpened(
            model=view.model.profile.model,
            opened_us=timing.opened_us,
            due_us=due_us,
            window_ms=timing.window_ms,
            allowed_us=timing.allowed_us,
            tier=timing.tier,
            target_ms=timing.target_ms,
            share_pct=view.keys.window_share_pct,
            deadline_us=timing.deadline_us,
            service_us=timing.service_us,
            waiting=view.model.queue.waiting,
        )
    return _held(view, "window")


def _held(view: _View, cause: Cause, compared: tuple[int, int] = (0, 0)) -> Blocked | None:
    """Return what holds the queue back, or None when that is on record already.

    Any cause but the window ends an open one, so that is told even where the cause stays.
    """
    model = view.model
    if cause == model.cause and (cause == "window" or view.batching.due_us is None):
        return None
    return Blocked(
        cause=cause,
        head=model.queue.head(),
        blocks_needed=compared[0],
        blocks_free_max=compared[1],
        replicas_ready=len(view.ready),
        slots_free=sum(not replica.batches for replica in view.ready),
    )


def _free(view: _View) -> list[Replica]:
    """Return the replicas that may take a batch now, idle ones first."""
    idle = [replica for replica in view.ready if not replica.batches]
    if not view.full:
        return idle
    ahead_max = view.keys.batches_ahead_max
    behind = [replica for replica in view.ready if 0 < len(replica.batches) <= ahead_max]
    return idle + sorted(behind, key=lambda replica: (len(replica.batches), replica.slot))


def _blocks_allowed(keys: Policy, replica: Replica) -> int:
    usable = replica.kv_blocks * (100 - keys.mem_safety_margin_pct) // 100
    return usable - replica.blocks_used


def _blocks(keys: Policy, replica: Replica, request: Request) -> int:
    """Return the blocks of a request that rides alone; many texts take several passes."""
    texts = min(request.texts, keys.batch_texts_max, replica.max_batch)
    return texts * blocks_for(request.longest_tokens, replica.block_tokens)


@dataclass(slots=True)
class _Group:
    """The requests of one batch, and what a pass over them takes; the head is always in."""

    members: list[str]
    texts: int
    tokens: int
    longest: int
    starved: bool
    places: dict[str, int | None]
    seen: int = 0

    def take_place(self, state: State, model: Model, tenant: str) -> bool:
        """Take one of the tenant's places among the running, if its quota leaves one."""
        if tenant not in self.places:
            self.places[tenant] = quotas.places_left(state, model, tenant)
        left = self.places[tenant]
        if left is None:
            return True
        self.places[tenant] = left - 1
        return left > 0


def _group(view: _View, replica: Replica, texts_max: int, allowed: int) -> _Group:
    """Return the head and those of the next few that fit beside it: places, memory, padding."""
    state, model = view.state, view.model
    request_ids, starved = order.candidates(state, model, view.keys.batch_look_ahead_requests)
    group: _Group | None = None
    for request_id in request_ids:
        request = state.requests[request_id]
        if group is None:
            longest, first = request.longest_tokens, request_id == starved
            group = _Group([request_id], request.texts, request.prompt_tokens, longest, first, {})
            group.take_place(state, model, request.tenant)
            continue
        if group.texts >= texts_max:
            break
        group.seen += 1
        texts = group.texts + request.texts
        tokens = group.tokens + request.prompt_tokens
        longest = max(group.longest, request.longest_tokens)
        computed = texts * longest
        if (
            texts <= texts_max
            and texts * blocks_for(longest, replica.block_tokens) <= allowed
            and (computed - tokens) * 100 <= view.keys.batch_padding_pct_max * computed
            and group.take_place(state, model, request.tenant)
        ):
            group.members.append(request_id)
            group.texts, group.tokens, group.longest = texts, tokens, longest
    assert group is not None, "something waits"  # noqa: S101 - a bound of the algorithm, not input
    return group


def _form(view: _View, why: ClosedBy, replica: Replica) -> BatchFormed:
    """Return the batch of the queue's head and of those next to it that fit."""
    timing = _timing(view)
    texts_max = min(view.keys.batch_texts_max, replica.max_batch)
    allowed = _blocks_allowed(view.keys, replica)
    group = _group(view, replica, texts_max, allowed)
    computed = group.texts * group.longest
    block = blocks_for(group.longest, replica.block_tokens)
    return BatchFormed(
        model=view.model.profile.model,
        batch=view.batching.next_batch,
        slot=replica.slot,
        incarnation=replica.incarnation,
        why=why,
        members=tuple(group.members),
        starved=group.starved,
        passed_over=group.seen + 1 - len(group.members),
        texts=group.texts,
        texts_max=texts_max,
        longest_tokens=group.longest,
        padding_pct=(computed - group.tokens) * 100 // max(1, computed),
        blocks=min(group.texts, texts_max) * block,
        blocks_allowed=allowed,
        ahead=len(replica.batches),
        opened_us=view.batching.opened_us,
        due_us=view.batching.due_us,
        waiting=view.model.queue.waiting,
        backlog_closes=view.keys.window_backlog_closes,
        deadline_us=timing.deadline_us,
        service_us=timing.service_us,
    )
