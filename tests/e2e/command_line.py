"""Calls commands as a shell would, beside a test's own event loop."""

import asyncio
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from services import cli
from tests.e2e.deployment import Deployment


class Commands:
    """The command line, pointed at one deployment by the environment."""

    def __init__(self, deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HEADWAY_KAFKA", deployment.bootstrap)
        monkeypatch.setenv("HEADWAY_STATE", str(deployment.directory / "state"))
        monkeypatch.delenv("HEADWAY_CLICKHOUSE", raising=False)

    async def call(self, name: str, *arguments: str, given: str | None = None) -> Result:
        """Call a command, with `given` on its standard input."""
        group = cli.Commands("headway")

        def work() -> Result:
            return CliRunner().invoke(group, [name, *arguments], input=given)

        return await asyncio.to_thread(work)

    async def json(self, name: str, *arguments: str) -> Any:
        """Call a command with --json, which must succeed, and return what it printed."""
        got = await self.call(name, *arguments, "--json")
        assert got.exit_code == 0, got.output
        return json.loads(got.stdout)
