# SPDX-License-Identifier: Apache-2.0
"""How long requests of tests may take."""

from cometmq.client.clock import monotonic_ms
from cometmq.peers.shared import patience
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings


async def test_requests_to_a_suite_have_time_unless_a_test_takes_it(monkeypatch):
    given = []

    async def invoke(_client, address, _code, *, timeout_ms):
        given.append((address, timeout_ms))

    monkeypatch.setattr(patience, "_invoke", invoke)
    client = RemotingClient(ClientSettings(), clock_ms=monotonic_ms)

    async def ask(address, timeout_ms):
        await client.invoke(address, 1, timeout_ms=timeout_ms)

    with patience.patience("a:1"):
        await ask("a:1", 3_000)
        await ask("a:1", 300)
        await ask("b:1", 3_000)
    await ask("a:1", 3_000)
    assert given == [("a:1", 60_000), ("a:1", 300), ("b:1", 3_000), ("a:1", 3_000)]
