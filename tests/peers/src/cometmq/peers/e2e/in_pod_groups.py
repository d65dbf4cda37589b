# SPDX-License-Identifier: Apache-2.0
"""Sends to each of several broker groups inside a pod; commands and answers are as for `in_pod`."""

import asyncio
import json
import sys
from itertools import count
from time import monotonic
from typing import Any

from cometmq.client import Message, MessageQueue, Producer, SendResult, SendStatus
from cometmq.client.admin import AdminClient
from cometmq.peers.e2e.in_pod import first_after, say
from cometmq.peers.ha.ledger import Acknowledged, Ledger
from cometmq.peers.ha.load import PAUSE_AFTER_FAILURE_S, create_topic
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG

PAUSE_S = 0.1
"""Outages are at most this much longer than measured by a sender that never pauses."""


class LogSender:
    """Sends to one queue of one group, one message after another."""

    def __init__(self, producer: Producer, group: str) -> None:
        self.queue = MessageQueue(f"Sends-{group}", group, 0)
        self.ledger = Ledger()
        self._producer = producer

    async def run(self) -> None:
        """Send until cancelled."""
        for number in count():
            began = monotonic()
            try:
                result = await self._store()
            except CometError as error:
                self.ledger.failed[number] = (monotonic(), str(error))
                await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
            else:
                place = (result.queue.queue_id, result.queue_offset)
                self.ledger.acknowledged[number] = Acknowledged(began, monotonic(), place)
                await asyncio.sleep(PAUSE_S)

    async def _store(self) -> SendResult:
        """Send a message; raise CometError unless all in-sync copies have stored it."""
        message = Message(self.queue.topic, b"1")
        result = await self._producer.send(message, queue=self.queue)
        if result.status is not SendStatus.SEND_OK:
            raise CometError(result.status.name)
        return result


async def answer(senders: dict[str, LogSender], command: dict[str, Any]) -> Any:
    """Return the answer to a command that does not end the program."""
    match command["do"]:
        case "now":
            return monotonic()
        case "again":  # wait until every group has acknowledged a send that began after `since`
            return max([await first_after(it.ledger, command["since"]) for it in senders.values()])
        case "outages":
            found = {
                group: it.ledger.outage(command["since"], command["until"])
                for group, it in senders.items()
            }
            return {group: it and it._asdict() for group, it in found.items()}
        case other:
            raise ValueError(f"unknown command {other}")


async def counts(namesrv: str, senders: dict[str, LogSender]) -> dict[str, list[int]]:
    """Return how many messages each group has acknowledged and stored."""
    found = {}
    async with AdminClient(namesrv, log=NO_LOG) as admin:
        for group, sender in senders.items():
            stats = await admin.topic_stats(sender.queue.topic)
            stored = sum(it.max_offset - it.min_offset for it in stats.values())
            found[group] = [len(sender.ledger.acknowledged), stored]
    return found


async def main(namesrv: str, groups: list[str]) -> None:
    loop = asyncio.get_running_loop()
    async with Producer("group-senders", namesrv, log=NO_LOG) as producer:
        senders = {group: LogSender(producer, group) for group in groups}
        for group, sender in senders.items():
            await create_topic(namesrv, sender.queue.topic, broker_names=[group])
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(sender.run()) for sender in senders.values()]
            await answer(senders, {"do": "again", "since": monotonic()})
            say("running")
            while line := await loop.run_in_executor(None, sys.stdin.readline):
                command = json.loads(line)
                if command["do"] == "finish":
                    break
                say(await answer(senders, command))
            for task in running:
                task.cancel()
    say(await counts(namesrv, senders))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
