# SPDX-License-Identifier: Apache-2.0
"""Calls the tools of `cometmq mcp` with the SDK's own client."""

import asyncio
import json

from mcp import Client

from cometmq.cli.mcp.server import server_of
from cometmq.cli.mcp.tool import Session
from cometmq.client.admin import AdminClient
from cometmq.client.settings import ClientOptions
from cometmq.console.audit import Audit
from cometmq.insight.reading import ReadingAdmin
from cometmq.runtime.clock import SystemClock

TIMEOUT_S = 120


class Recorder:
    """A log that keeps info events."""

    def __init__(self):
        self.events = []

    def info(self, event, /, **facts):
        self.events.append((event, facts))

    def debug(self, event, /, **facts): ...

    warning = error = debug


class Tools:
    """Calls tools of a server in this process, each call with a new client."""

    def __init__(self, namesrv, folder, *, allow_changes=False):
        self.namesrv = namesrv
        self.folder = folder
        self.options = {"allow_changes": allow_changes}
        self.log = Recorder()

    async def _with_client(self, use):
        options = ClientOptions()
        audit = Audit(self.folder, mib_max=1, clock=SystemClock(), log=self.log)
        try:
            async with (
                asyncio.timeout(TIMEOUT_S),
                AdminClient(self.namesrv, options=options) as admin,
                ReadingAdmin(self.namesrv, options=options) as reader,
            ):
                session = Session(admin, reader=reader, audit=audit, user="ada")
                server = server_of(session, **self.options)
                async with Client(server) as client:
                    return await use(client)
        finally:
            audit.close()

    def listed(self):
        found = asyncio.run(self._with_client(lambda client: client.list_tools()))
        return {it.name: it for it in found.tools}

    def result(self, name, **arguments):
        return asyncio.run(self._with_client(lambda client: client.call_tool(name, arguments)))

    def call(self, name, **arguments):
        found = self.result(name, **arguments)
        assert not found.is_error, found.content[0].text
        assert json.loads(found.content[0].text) == found.structured_content
        return found.structured_content

    def refusal(self, name, **arguments):
        found = self.result(name, **arguments)
        assert found.is_error, found.structured_content
        return found.content[0].text

    @property
    def audited(self):
        path = self.folder / "audit.log"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
