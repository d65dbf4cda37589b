# SPDX-License-Identifier: Apache-2.0
"""The processes of the demo: a suite on free ports, and consumers. None outlives the demo."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from cometmq.peers.demo.progress import DemoFailed
from cometmq.testing.runtime.reserved_ports import BROKER_NEIGHBOURS, HOST, reserve_port

START_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 10
PIPE_BYTES: Final = 1 << 20


@asynccontextmanager
async def suite(folder: Path, *more: str) -> AsyncIterator[str]:
    """Run `cometmq standalone` in a folder; yield the address of its name server."""
    namesrv_port = reserve_port()
    broker_port = reserve_port(BROKER_NEIGHBOURS)
    options = [
        *("--data", str(folder), "--namesrv-port", str(namesrv_port)),
        *("--broker-port", str(broker_port), "--http-port", "-1", *more),
    ]
    async with _child("cometmq.cli", "standalone", *options) as process:
        await _wait_until_it_runs(process)
        yield f"{HOST}:{namesrv_port}"


@asynccontextmanager
async def consumer(namesrv: str, topic: str, group: str) -> AsyncIterator[asyncio.StreamReader]:
    """Run a consumer process; yield the stream of its reports."""
    async with _child("cometmq.peers.demo.consumer", namesrv, topic, group) as process:
        assert process.stdout is not None
        yield process.stdout


@asynccontextmanager
async def _child(module: str, *arguments: str) -> AsyncIterator[Process]:
    """Run a CometMQ module in its own session, so that Ctrl-C reaches only this process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, *arguments),
        stdin=DEVNULL,
        stdout=PIPE,
        start_new_session=True,
        limit=PIPE_BYTES,
    )
    try:
        yield process
    finally:
        await end(process)


async def end(process: Process) -> None:
    """Ask a process to stop; kill it if it does not."""
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_TIMEOUT_S):
            await _drain_and_wait(process)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _drain_and_wait(process: Process) -> None:
    """Read the remaining output, because a process blocked on a full pipe cannot exit."""
    while process.stdout is not None and await process.stdout.read(PIPE_BYTES):
        pass
    await process.wait()


async def _wait_until_it_runs(process: Process) -> None:
    assert process.stdout is not None
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_TIMEOUT_S):
            async for line in process.stdout:
                if b"is running" in line:
                    return
    raise DemoFailed("the suite did not start")
