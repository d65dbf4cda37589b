# SPDX-License-Identifier: Apache-2.0
"""A burst of changes sent to a name server process: all are answered in bounded memory."""

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.remoting.commands.namesrv import GetKvConfig, PutKvConfig
from cometmq.remoting.transport import ClientSettings, RemotingClient
from cometmq.runtime.clock import SystemClock

CONNECTIONS = 8
PUTS = 2_500  # per connection, all of them in flight at once
VALUE = "v" * 200
GROWTH_MB_MAX = 500
"""20,000 requests in flight take 50 MB (2.5 kB each); one save per request takes gigabytes."""
LATER_BURSTS = 3
LATER_GROWTH_MB_MAX = 40
TIMEOUT_MS = 600_000


@asynccontextmanager
async def namesrv_process(folder: Path):
    environment = {
        "COMETMQ_NAMESRV_LISTEN_PORT": "0",
        "COMETMQ_NAMESRV_BIND_ADDRESS": "127.0.0.1",
        "COMETMQ_NAMESRV_ADMIN_HTTP_PORT": "-1",
        "COMETMQ_NAMESRV_KV_CONFIG_PATH": str(folder / "kvConfig.json"),
        "COMETMQ_NAMESRV_CONFIG_STORE_PATH": str(folder / "namesrv.properties"),
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cometmq.cli", "namesrv"),
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        async with asyncio.timeout(60):
            assert process.stderr
            event = json.loads(await process.stderr.readline())
        assert event["event"] == "namesrv.ready"
        yield process.pid, event["addresses"][0]
    finally:
        process.send_signal(signal.SIGTERM)
        await process.communicate()


def memory_mb(pid: int, field: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) // 1024
    raise AssertionError(field)


@pytest.mark.load
async def test_20_000_puts_from_8_connections_are_answered_in_bounded_memory(tmp_path):
    clients = [
        RemotingClient(
            ClientSettings(connect_timeout_ms=TIMEOUT_MS), clock_ms=SystemClock().monotonic_ms
        )
        for _ in range(CONNECTIONS)
    ]

    async def put(client, address, key, value):
        request = PutKvConfig("N", key, value)
        return (await client.invoke(address, 100, request, timeout_ms=TIMEOUT_MS)).code

    async def burst():
        async with asyncio.TaskGroup() as group:
            puts = [
                group.create_task(put(client, address, f"{number}-{turn % 500}", f"{turn}{VALUE}"))
                for turn in range(PUTS)
                for number, client in enumerate(clients)
            ]
        assert [task.result() for task in puts] == [0] * (CONNECTIONS * PUTS)

    async with namesrv_process(tmp_path) as (pid, address):
        for client in clients:
            await put(client, address, "warm", "up")
        before_mb = memory_mb(pid, "VmRSS")

        await burst()
        peak_mb = memory_mb(pid, "VmHWM")
        assert peak_mb - before_mb < GROWTH_MB_MAX
        growths_mb = []
        for _ in range(LATER_BURSTS):
            await burst()
            growths_mb.append(memory_mb(pid, "VmHWM") - peak_mb)
            peak_mb += growths_mb[-1]
            if growths_mb[-1] < LATER_GROWTH_MB_MAX:
                break
        # A burst may reach a new peak if more of its requests wait at once; a leak grows with every
        # burst.
        assert min(growths_mb) < LATER_GROWTH_MB_MAX
        for number, client in enumerate(clients):
            request = GetKvConfig("N", f"{number}-499")
            last = await client.invoke(address, 101, request, timeout_ms=TIMEOUT_MS)
            assert last.header.value == f"{PUTS - 1}{VALUE}"
            await client.close()

    saved = json.loads((tmp_path / "kvConfig.json").read_bytes())["configTable"]["N"]
    assert len(saved) == 1 + CONNECTIONS * 500
    assert all(
        saved[f"{number}-{key}"] == f"{PUTS - 500 + key}{VALUE}"
        for number in range(CONNECTIONS)
        for key in range(500)
    )
