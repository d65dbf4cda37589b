# SPDX-License-Identifier: Apache-2.0
"""The sequence of the demo: a group under load loses its master twice and hands over once."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

from cometmq.cli.say import say
from cometmq.peers.ha_demo.load import Ledger, Load
from cometmq.peers.ha_demo.processes import BROKER_COUNT, GROUP, Group
from cometmq.remoting.errors import CometError
from cometmq.runtime.hangup import cancelled_by_signals
from cometmq.runtime.service import new_event_loop, one_line

QUIET_S: Final = 3.0
"""How long the load runs without a fault, before and after each scene."""
FROZEN_S: Final = 10.0
FAILED_SHOWN: Final = 5
EXIT_INTERRUPTED: Final = 130


class Story:
    """One run of the demo."""

    def __init__(self, group: Group, load: Load) -> None:
        self._group = group
        self._load = load

    async def tell(self) -> None:
        """Play all scenes, then stop the load."""
        await asyncio.sleep(QUIET_S)
        await self._scene("kill -9 of the master", self._kill)
        await self._scene(f"freeze of the master for {FROZEN_S:.0f} s", self._freeze)
        await self._scene("planned switchover", self._switch_over)
        self._load.stop()

    async def _scene(self, name: str, play: Callable[[int], Awaitable[None]]) -> None:
        before = await self._group.until_complete()
        ledger, since = self._load.ledger, monotonic()
        failed_count = len(ledger.failed)
        await play(before["master"])
        await self._group.until_complete()
        await asyncio.sleep(QUIET_S)
        after = await self._group.status()
        say(
            f"  {name:<30} broker {before['master']} -> broker {after['master']}"
            f"   longest pause {ledger.longest_pause_s(since):5.2f} s"
            f"   failed sends {len(ledger.failed) - failed_count}"
        )

    async def _kill(self, master: int) -> None:
        self._group.kill(master)
        await self._group.until_master_is_not(master)
        await self._group.start_broker(master)

    async def _freeze(self, master: int) -> None:
        self._group.freeze(master)
        await asyncio.sleep(FROZEN_S)
        await self._group.until_master_is_not(master)
        self._group.thaw(master)

    async def _switch_over(self, _: int) -> None:
        await self._group.switch_over()


def faults(ledger: Ledger) -> list[str]:
    """Return one line for each fault found in the ledger."""
    found = []
    if ledger.lost:
        found.append(f"{len(ledger.lost):,} acknowledged messages were not received")
    if not ledger.acknowledged:
        found.append("no message was acknowledged")
    return found


async def play(folder: Path) -> list[str]:
    """Run the demo in a folder; return the faults found in the ledger."""
    group = Group(folder)
    try:
        await group.start()
        say(f"  group {GROUP}: {BROKER_COUNT} brokers, an elector, a record in a file")
        load = Load(group.namesrv)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(load.run())
            await Story(group, load).tell()
            await running
    finally:
        await group.stop()
    ledger = load.ledger
    say(
        f"  ledger: {len(ledger.acknowledged):,} acknowledged, {len(ledger.lost):,} lost,"
        f" {ledger.repeated_count:,} delivered again, {len(ledger.failed):,} sends failed"
    )
    for reason, count in Counter(ledger.failed.values()).most_common(FAILED_SHOWN):
        say(f"    {count:,} x {reason}")
    return faults(ledger)


async def _until_signalled() -> list[str]:
    with cancelled_by_signals(), TemporaryDirectory(prefix="cometmq-ha-demo-") as folder:
        return await play(Path(folder))


def main() -> int:
    """Run the demo and return the exit status."""
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            found = runner.run(_until_signalled())
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("interrupted; everything is stopped and removed", err=True)
        return EXIT_INTERRUPTED
    except (CometError, OSError, BaseExceptionGroup) as error:
        line = one_line(error)
        if line is None:
            raise
        found = [line]
    for fault in found:
        say(f"cometmq: {fault}", err=True)
    return 1 if found else 0
