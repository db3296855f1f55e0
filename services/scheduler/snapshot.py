"""The state as bytes and back, and its digest. Pure; what is stored is what cannot be derived.

Order is part of the state where a rule walks in it (whose turn it is, which request of a lost
replica is answered first), so everything is stored as lists in the order in which it stands.
`freeze` only copies references, so that an owner may encode in another thread while it goes on.
"""

import json
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import fields
from operator import attrgetter
from typing import Any

from schemas.codec import CodecError, decode, digest, encode
from schemas.policy import Policy, policy_digest
from schemas.policy_scope import Settings
from schemas.profile import Profile
from services.scheduler import due, gathering, snapshot_queue, starvation
from services.scheduler.batching import STORED_FIELDS, Batching
from services.scheduler.jobs import freeze_jobs, freeze_offline, thaw_jobs, thaw_offline
from services.scheduler.lengths import Histogram, Lengths
from services.scheduler.queue import RANKS
from services.scheduler.state import (
    Claim,
    Ended,
    Model,
    Replica,
    Request,
    Room,
    Service,
    State,
)

FORMAT = 5
_PIECE_ITEMS = 1000

Frozen = list[tuple[str, list[Any]]]

# All but the list, which a later step may change: a copy of it stands at the end.
_REQUEST_FIELDS = tuple(field.name for field in fields(Request) if field.name != "waited_us")
_request_values = attrgetter(*_REQUEST_FIELDS)
_HEAD_FIELDS = ("cell", "cells", "epoch", "now_us", "blind_until_us", "next_order")
_ended_values = attrgetter(*(field.name for field in fields(Ended)))
_REPLICA_FIELDS = tuple(
    field.name for field in fields(Replica) if field.name not in {"running", "batches"}
)
_SERVICE_FIELDS = tuple(field.name for field in fields(Service))


def freeze(state: State) -> Frozen:
    """Return the state's content as named lists of plain values that no later step changes.

    The state must be at rest: nothing pending.
    """
    assert not state.pending, "a state is stored between two facts"  # noqa: S101 - a bound of the algorithm, not input
    head: list[Any] = [FORMAT, *(getattr(state, name) for name in _HEAD_FIELDS)]
    head.append(encode(state.policy).decode())
    return [
        ("head", head),
        ("models", [_freeze_model(model) for model in state.models.values()]),
        (
            "requests",
            [(*_request_values(item), list(item.waited_us)) for item in state.requests.values()],
        ),
        (
            "ended",
            [(key, *_ended_values(item)) for key, item in state.ended.items()],
        ),
        ("starts", [(*key, since_us) for key, since_us in state.starts.items()]),
        ("heard", [(*key, heard_us) for key, heard_us in state.heard.items()]),
        ("jobs", freeze_jobs(state.jobs)),
        # What comes due when follows from more than the queues: each item was made at its time.
        ("starving", [list(item) for item in state.starving]),
        ("timed", starvation.timed(state)),
    ]


def encode_pieces(frozen: Frozen) -> Iterator[bytes]:
    """Yield the canonical bytes of a frozen state, a line at a time, each line short to make."""
    for name, items in frozen:
        for start in range(0, max(1, len(items)), _PIECE_ITEMS):
            line = [name, items[start : start + _PIECE_ITEMS]]
            yield json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def state_digest(state: State) -> str:
    """Return 16 hex characters that name all that the state remembers."""
    return digest(b"".join(encode_pieces(freeze(state))))


def thaw(raw: bytes) -> State:
    """Return the state that `encode_pieces` wrote.

    Raises:
        CodecError: the bytes are not a snapshot that this version reads.
    """
    parts: dict[str, list[Any]] = {}
    try:
        for line in raw.splitlines():
            name, items = json.loads(line)
            parts.setdefault(name, []).extend(items)
        return _thaw(parts)
    except CodecError:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise CodecError(f"the snapshot cannot be read: {error!r}") from error


def _freeze_model(model: Model) -> list[Any]:
    return [
        encode(model.profile).decode(),
        model.owner_cell,
        [
            [*(getattr(replica, name) for name in _REPLICA_FIELDS), list(replica.running.items())]
            for replica in model.replicas.values()
        ],
        list(model.starting.items()),
        list(model.pool_tokens.items()),
        [(key, claim.slot, claim.blocks) for key, claim in model.claims.items()],
        _freeze_lengths(model.lengths),
        model.cause,
        None if model.room is None else [model.room.id, model.room.slot],
        [getattr(model.service, name) for name in _SERVICE_FIELDS],
        snapshot_queue.freeze(model),
        freeze_offline(model.offline),
        _freeze_batching(model.batching),
    ]


def _freeze_batching(batching: Batching | None) -> list[Any] | None:
    if batching is None:
        return None
    *values, service_us = (getattr(batching, name) for name in STORED_FIELDS)
    return [*values, list(service_us)]


def _thaw(parts: dict[str, list[Any]]) -> State:
    version, *values, policy_json = parts["head"]
    if version != FORMAT:
        raise CodecError(f"the snapshot has format {version}, this version reads {FORMAT}")
    state = State()
    for name, value in zip(_HEAD_FIELDS, values, strict=True):
        setattr(state, name, value)
    policy = decode(policy_json.encode())
    if not isinstance(policy, Policy):
        raise CodecError("the snapshot's policy is another message")
    state.policy = policy
    state.settings = Settings(policy)
    state.policy_digest = policy_digest(policy)
    for item in parts["models"]:
        model = _thaw_model(item)
        state.models[model.profile.model] = model
    for item in parts["requests"]:
        request = _thaw_request(item)
        state.requests[request.id] = request
        if request.yielding:
            state.models[request.model].yielding[RANKS[request.line]] += 1
        if request.growing:
            state.models[request.model].growing[request.id] = None
    state.ended = OrderedDict((key, Ended(*values)) for key, *values in parts["ended"])
    state.starts = OrderedDict(((model, slot), since) for model, slot, since in parts["starts"])
    state.heard = OrderedDict(((model, slot), heard) for model, slot, heard in parts["heard"])
    state.jobs = thaw_jobs(parts["jobs"])
    due.rebuild(state)
    starvation.thaw(state, parts["starving"], parts["timed"])
    for model in state.models.values():
        if model.batching is not None:
            gathering.take_in(state, model, model.batching)
    gathering.rebuild(state)
    return state


def _thaw_model(item: list[Any]) -> Model:
    profile_json, owner, replicas, starting, pools, claims, lengths, *rest = item
    cause, room, service, queue, offline, batching = rest
    profile = decode(profile_json.encode())
    if not isinstance(profile, Profile):
        raise CodecError("a profile of the snapshot is another message")
    model = Model(profile, owner)
    for *values, running in replicas:
        named = dict(zip(_REPLICA_FIELDS, values, strict=True))
        replica = Replica(**named, running=dict(running))
        model.replicas[replica.slot] = replica
    model.starting = dict(starting)
    model.pool_tokens = dict(pools)
    model.pool_tokens_max = max(model.pool_tokens.values(), default=0)
    model.lengths = _thaw_lengths(lengths)
    model.claims = {key: Claim(slot, blocks) for key, slot, blocks in claims}
    model.cause = cause
    model.room = None if room is None else Room(*room)
    model.service = Service(**dict(zip(_SERVICE_FIELDS, service, strict=True)))
    snapshot_queue.thaw(model, queue)
    model.offline = thaw_offline(offline)
    if batching is not None:
        model.batching = Batching(**dict(zip(STORED_FIELDS, batching, strict=True)))
    return model


def _freeze_lengths(lengths: Lengths) -> list[Any]:
    tenants = [(tenant, list(own.counts)) for tenant, own in lengths.tenants.items()]
    return [list(lengths.overall.counts), tenants]


def _thaw_lengths(item: list[Any]) -> Lengths:
    overall, tenants = item
    return Lengths(
        Histogram(overall, sum(overall)),
        OrderedDict((tenant, Histogram(counts, sum(counts))) for tenant, counts in tenants),
    )


def _thaw_request(item: list[Any]) -> Request:
    *values, waited_us = item
    named = dict(zip(_REQUEST_FIELDS, values, strict=True))
    named["mark"] = tuple(named["mark"])
    named["used_us"] = tuple(named["used_us"])
    named["metadata"] = tuple((key, value) for key, value in named["metadata"])
    return Request(**named, waited_us=waited_us)
