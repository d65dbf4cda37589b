# SPDX-License-Identifier: Apache-2.0
"""The official Java client as senders and consumers, with its own ledger."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

from cometmq.peers.clients.javaclient import JavaClient
from cometmq.peers.clients.programs import Running
from cometmq.peers.errors import PeerError
from cometmq.peers.ha.ledger import CONCURRENT, Acknowledged, Ledger
from cometmq.peers.ha.load import POLL_S, create_topic, until

TOPIC: Final = "JavaLedger"
CONSUMER_GROUP: Final = "java-ledger-readers"
POLL_ROUTES_MS: Final = 1000
"""With the default of 30 s, the ledger would show little but the client's wait for new routes."""
_NS: Final = 1_000_000_000


class JavaLoad:
    """One Java program, whose events are entered in the ledger shortly after it prints them."""

    def __init__(
        self,
        namesrv: str,
        folder: Path,
        *,
        concurrent_group: str = "",
        **timeouts: int,
    ) -> None:
        """`timeouts` are those of RocketMQ, where a test does not change them. With a
        `concurrent_group`, a concurrent consumer receives all messages beside the orderly one.
        """
        self._concurrent_group = concurrent_group
        self._timeouts = timeouts or {"poll_routes_ms": POLL_ROUTES_MS}
        self.ledger = Ledger()
        self._namesrv = namesrv
        self._folder = folder
        self._stop_sending, self._stop = folder / "stop-sending", folder / "stop"
        self._seen: set[str] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Ledger]:
        """Send and consume inside the context; on leaving, wait for all acknowledged messages."""
        await create_topic(self._namesrv, TOPIC)
        client = await asyncio.to_thread(JavaClient, self._folder)
        with client.start(
            "ledger",
            namesrv=self._namesrv,
            topic=TOPIC,
            producer_group="java-ledger-senders",
            consumer_group=CONSUMER_GROUP,
            concurrent_group=self._concurrent_group,
            **self._timeouts,
            stop_sending=self._stop_sending,
            stop=self._stop,
        ) as program:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read(program))
                await until(lambda: "started" in self._seen, "the Java client starts")
                yield self.ledger
                self._stop_sending.touch()
                await until(lambda: "stopped" in self._seen, "sends have an outcome")
                with suppress(PeerError):  # the ledger names the messages that are missing
                    await until(lambda: not self.ledger.lost(), "messages are consumed")
                self._stop.touch()
                await asyncio.to_thread(program.finish)
                reader.cancel()

    async def _read(self, program: Running) -> None:
        with program.log_path.open("rb") as log:
            rest = b""
            while program.is_running:
                *lines, rest = (rest + log.read()).split(b"\n")
                for line in lines:
                    if line.startswith(b'{"event":'):
                        self.record(json.loads(line))
                await asyncio.sleep(POLL_S)
        if not self._stop.exists():
            raise PeerError(f"the Java client ended:\n{program.log()[-6000:]}")

    def record(self, event: Mapping[str, Any]) -> None:
        """Add one event of the program to the ledger."""
        ledger, kind = self.ledger, event["event"]
        match kind:
            case "sending":
                ledger.senders[event["number"]] = event["sender"]
                ledger.pending[event["number"]] = event["at_ns"] / _NS
            case "sent" | "failed":
                began, ended = ledger.pending.pop(event["number"]), event["at_ns"] / _NS
                status = event.get("status")
                if status == "SEND_OK":
                    place = (event["queue_id"], event["queue_offset"])
                    ledger.acknowledged[event["number"]] = Acknowledged(began, ended, place)
                else:  # with any other status, a failover may lose the message
                    reason = status or event["error"]
                    ledger.failed[event["number"]] = (ended, reason)
            case "received":
                place = (event["queue_id"], event["queue_offset"])
                ledger.receive(place, event["number"], event["at_ns"] / _NS)
            case "concurrent":
                ledger.note_delivery(CONCURRENT, event["number"], event["at_ns"] / _NS)
            case _:
                self._seen.add(kind)
