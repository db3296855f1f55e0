"""Fixtures for tests on a whole deployment: real processes over a broker of their own."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from services.embedded.broker import Broker
from tests.e2e.deployment import Deployment


@pytest.fixture
async def deployment(new_broker: Callable[[], Broker], tmp_path: Path) -> AsyncIterator[Deployment]:
    """Give a deployment with its own broker and topics, and no process yet."""
    broker = new_broker()
    made = Deployment(broker.bootstrap, tmp_path, broker)
    await made.prepare()
    yield made
    made.close()
