"""Payloads read again by their offset: what is there is found, however long the broker takes."""

import asyncio
import os
import signal
from collections.abc import Callable

from aiokafka import TopicPartition
from aiokafka.admin import RecordsToDelete

from schemas.topics import REQUESTS
from services import bus
from services.batches import raw_value
from services.embedded.broker import Broker
from streams.payloads import Payloads


async def test_a_payload_is_found_again_however_long_the_broker_takes_and_gone_only_when_it_is(
    new_broker: Callable[[], Broker],
) -> None:
    broker = new_broker()
    await bus.ensure_topics(broker.bootstrap, 1)
    async with bus.producing(broker.bootstrap) as producer:
        for number in range(4):
            await producer.send_and_wait(REQUESTS, b"payload %d" % number, partition=0)
    payloads: Payloads[bytes] = Payloads(
        broker.bootstrap, REQUESTS, 0, bytes_max=0, parse=raw_value
    )
    assert await payloads.get(2) == b"payload 2"
    os.kill(broker.pid, signal.SIGSTOP)
    asyncio.get_running_loop().call_later(2.5, os.kill, broker.pid, signal.SIGCONT)
    # Nothing comes for longer than a fetch waits.
    assert await payloads.get(1) == b"payload 1"
    await _delete_before(broker.bootstrap, 3)
    assert await payloads.get(0) is None
    assert await payloads.get(3) == b"payload 3"
    await payloads.close()


async def _delete_before(bootstrap: str, offset: int) -> None:
    """Do what retention does."""
    async with bus.administering(bootstrap) as admin:
        await admin.delete_records({TopicPartition(REQUESTS, 0): RecordsToDelete(offset)})
