# SPDX-License-Identifier: Apache-2.0
"""A member that records its orders, behind a control server on a free port."""

import pytest

from cometmq.control.client import MemberClient
from cometmq.control.server import ControlServer
from cometmq.testing.control.scripted import TARGET, ScriptedMember


class PatientClient(MemberClient):
    """A client whose timeouts tolerate a loaded machine."""

    async def status(self, *, timeout_ms=60_000):
        return await super().status(timeout_ms=timeout_ms)

    async def order(self, order, *, timeout_ms=60_000):
        return await super().order(order, timeout_ms=timeout_ms)


@pytest.fixture
def member():
    return ScriptedMember()


@pytest.fixture
async def server(member):
    server = ControlServer(member)
    await server.start("127.0.0.1", 0)
    yield server
    await server.stop()


@pytest.fixture
async def client(server):
    client = PatientClient(f"127.0.0.1:{server.port}", TARGET)
    yield client
    await client.close()
