# SPDX-License-Identifier: Apache-2.0
"""The programs in the guides of clients and of security run unchanged."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator

import pytest

from cometmq.client.testing import LOSE_ANSWER, MemoryCluster
from cometmq.peers.paths import ROOT
from cometmq.remoting.codes import RequestCode


def programs(guide: str) -> list[str]:
    text = (ROOT / "docs/guides" / guide).read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


PROGRAMS = programs("client.md")


@pytest.fixture
async def cluster() -> AsyncIterator[MemoryCluster]:
    async with MemoryCluster() as cluster:
        yield cluster


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
async def test_a_program_of_the_guide_runs(program: str, cluster: MemoryCluster) -> None:
    cluster.create_topic("Orders")
    await _run(program, cluster)


async def _run(program: str, cluster: MemoryCluster) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-W",
        "error",
        "-c",
        program,
        env={"NAMESRV_ADDR": cluster.namesrv, "PATH": os.defpath},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(60):
            _, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, errors.decode()


async def test_the_retry_program_survives_lost_answers(cluster: MemoryCluster) -> None:
    (program,) = [one for one in PROGRAMS if "new_message_id" in one]
    cluster.broker.fail(RequestCode.SEND_MESSAGE_V2, LOSE_ANSWER, times=3)
    await _run(program, cluster)
    messages = cluster.messages("Orders")
    assert len(messages) == 4
    assert len({message.message_id for message in messages}) == 1


def test_the_guide_has_programs() -> None:
    assert len(PROGRAMS) >= 6


async def test_the_program_of_the_guide_of_security_runs(cluster: MemoryCluster) -> None:
    (program,) = programs("security.md")
    await _run(program, cluster)
    assert [message.body for message in cluster.messages("Orders")] == [b"one book"]
