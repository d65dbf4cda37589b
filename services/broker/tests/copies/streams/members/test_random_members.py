# SPDX-License-Identifier: Apache-2.0
"""Three members and random events: masters change, connections break, stores are killed.

Elections follow the rules of the group: the next master is in the in-sync set, and has everything
that was confirmed. In the end, all logs are equal and contain every acknowledged message.
"""

import asyncio
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from cometmq.remoting.message.record import decode_record
from cometmq.store.results import PutStatus
from cometmq.testing.broker.member_nodes import MemberNode, MemoryFiles
from cometmq.testing.broker.replicas import until
from cometmq.testing.store.builders import make_message
from cometmq.testing.store.memory_disk import MemoryDisk


class Group:
    """Three members, one of which leads; all are in the in-sync set."""

    def __init__(self, folder: Path, stack: AsyncExitStack, seed: int) -> None:
        self.random = random.Random(seed)  # a seed repeats the run
        self.folder = folder
        self.stack = stack
        self.nodes: dict[int, MemberNode] = {}
        self.disks = [MemoryDisk() for _ in range(3)]
        self.files = [MemoryFiles() for _ in range(3)]
        self.epoch = 0
        self.master: MemberNode | None = None
        self.sent_count = 0
        self.acked: set[bytes] = set()
        self.steps: list[str] = []

    async def start(self, ordinal: int) -> MemberNode:
        node = MemberNode(
            self.folder,
            ordinal,
            self.disks[ordinal],
            files=self.files[ordinal],
            mapped_file_size_commit_log=2048,
            max_ha_transfer_byte_in_second=0,
        )
        node.store.write_state.role_writable = False
        self.nodes[ordinal] = await self.stack.enter_async_context(node)
        return node

    async def elect(self) -> None:
        """Make a random member master; each of the others follows it now or later."""
        self.epoch += self.random.randint(1, 2)
        if self.master is not None:
            await self.master.depose()
        winner = self.random.choice(list(self.nodes.values()))
        for node in self.nodes.values():
            await node.depose()
        await winner.lead(self.epoch, [node for node in self.nodes.values() if node is not winner])
        self.master = winner
        self.steps.append(f"{winner.copy.ordinal} leads {self.epoch} at {winner.end}")
        for node in self.nodes.values():
            if self.random.random() < 0.7:
                await self.follow(node)

    async def follow(self, node: MemberNode) -> None:
        if node is not self.master and self.master is not None:
            self.steps.append(f"{node.copy.ordinal} follows {self.epoch} from {node.end}")
            await node.follow_member(self.master, self.epoch)

    async def send(self) -> None:
        assert self.master is not None
        for _ in range(self.random.randint(1, 30)):
            body = b"%d" % self.sent_count
            self.sent_count += 1

            def done(result: Any, body: bytes = body) -> None:
                if result.status is PutStatus.PUT_OK:
                    self.acked.add(body)

            self.master.driver.put(make_message(queue_id=self.sent_count % 2, body=body), done)

    async def pause(self) -> None:
        for _ in range(self.random.choice([0, 1, 10, 100, 1_000])):
            await asyncio.sleep(0)

    async def break_connections(self) -> None:
        assert self.master is not None
        for stream in list(self.master.sender._streams):
            stream.close()

    async def kill(self) -> None:
        """Kill a follower: its memory is lost, but the page cache is not."""
        node = self.random.choice([n for n in self.nodes.values() if n is not self.master])
        ordinal = node.copy.ordinal
        self.steps.append(f"{ordinal} is killed at {node.end}")
        await node.depose()
        node.server.close()
        await node.driver.drain()
        node.store._folder.release()
        restarted = await self.start(ordinal)
        assert self.master is not None
        await self.follow(restarted)

    async def settle(self) -> None:
        """Make all other members follow, and wait until their logs are equal."""
        assert self.master is not None
        for node in self.nodes.values():
            await self.follow(node)
        nodes = list(self.nodes.values())
        await until(
            lambda: (
                len({(node.end, node.visible_count, tuple(node.history)) for node in nodes}) == 1
            )
        )


def bodies(node: MemberNode) -> list[bytes]:
    found = []
    for queue_id in range(2):
        for offset in range(node.store.reader.max_offset("T", queue_id)):
            result = node.store.reader.get_messages("T", queue_id, offset, 1)
            found.append(decode_record(result.records[0]).body)
    return found


@pytest.mark.parametrize("seed", range(20))
async def test_no_acknowledged_message_is_lost(tmp_path: Path, seed: int) -> None:
    async with AsyncExitStack() as stack:
        group = Group(tmp_path, stack, seed)
        for ordinal in range(3):
            await group.start(ordinal)
        await group.elect()
        steps = [group.send, group.send, group.pause, group.pause, group.elect,
                 group.break_connections, group.kill]  # fmt: skip
        for _ in range(25):
            await group.random.choice(steps)()
        await group.settle()
        logs = {node.log_bytes() for node in group.nodes.values()}
        assert len(logs) == 1, group.steps
        found = bodies(group.nodes[0])
        assert group.acked <= set(found), group.steps
        assert len(found) == len(set(found))
        assert bodies(group.nodes[1]) == bodies(group.nodes[2]) == found
        # Followers stop before ports, as asyncio leaks connections that a closing port accepts.
        for node in group.nodes.values():
            await node.member_follower.stop()
