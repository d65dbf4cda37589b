# SPDX-License-Identifier: Apache-2.0
"""Floods a broker with requests that wait for its disk; those of a quiet connection hardly wait."""

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple

from tests.load.reporting import Findings, say

from cometmq.peers.broker.child import BrokerChild
from cometmq.peers.broker.client import Client
from cometmq.peers.broker.facts import FILES
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.commands.queries import ViewMessageById

COLD_BROKER: Final = "tests.load.cold_broker"
FLOODERS: Final = 4
FLOOD: Final = 250
"""Requests that each of them has under way: together, they read for longer than requests wait."""
QUIET_S_MAX: Final = 1.0
"""The longest wait of a request beside the flood, of about five reads on an idle machine."""
TOPIC: Final = "cold"
ANSWERS: Final = (ResponseCode.SUCCESS, ResponseCode.SYSTEM_BUSY)


class Wait(NamedTuple):
    elapsed_s: float
    is_refused: bool


class ColdReadsRun:
    def __init__(self, folder: Path) -> None:
        self._broker = BrokerChild(folder, module=COLD_BROKER, **FILES)

    async def run(self) -> Findings:
        """Read beside the flood; each refused or late answer is a finding."""
        async with AsyncExitStack() as stack:
            stack.callback(self._broker.kill)
            await self._broker.start()
            quiet, *flooders = [
                await stack.enter_async_context(Client(self._broker.address))
                for _ in range(1 + FLOODERS)
            ]
            await quiet.create_topic(TOPIC, 1)
            sent = await quiet.send(TOPIC, 0, b"x")
            offset = int(sent.msg_id[-16:], 16)
            async with asyncio.TaskGroup() as tasks:
                flood = [
                    tasks.create_task(view(flooder, offset))
                    for flooder in flooders
                    for _ in range(FLOOD)
                ]
                await asyncio.wait(flood, return_when=asyncio.FIRST_COMPLETED)
                waits = []
                while not all(task.done() for task in flood):
                    waits.append(await view(quiet, offset))
        return judged(waits, [task.result() for task in flood])


async def view(client: Client, offset: int) -> Wait:
    """Read a message by its position; return how long it took, and whether it was refused."""
    began_s = time.monotonic()
    answer = await client.ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageById(offset), ok=ANSWERS)
    return Wait(time.monotonic() - began_s, answer.code == ResponseCode.SYSTEM_BUSY)


def judged(waits: list[Wait], flood: list[Wait]) -> Findings:
    findings = Findings()
    slowest, refused = max(wait.elapsed_s for wait in waits), sum(it.is_refused for it in waits)
    say(
        f"cold reads: a quiet connection got {len(waits)} answers beside a flood, the slowest"
        f" after {slowest:.2f} s; {sum(it.is_refused for it in flood)} of {len(flood)} requests of"
        " the flood waited too long"
    )
    if not any(wait.is_refused for wait in flood):
        findings.add("cold reads: the flood was too small for the disk")
    if refused:
        findings.add(f"cold reads: {refused} requests of a quiet connection were refused")
    if slowest > QUIET_S_MAX:
        findings.add(f"cold reads: a request of a quiet connection waited for {slowest:.2f} s")
    return findings
