# SPDX-License-Identifier: Apache-2.0
"""mqadmin's startMonitoring, which watches all groups in rounds."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Annotated, Any, Final

import msgspec

from cometmq.cli.admin import no_broker_text
from cometmq.cli.complaints import Complaints
from cometmq.cli.connecting import DEFAULT_NAMESRV, run, with_access
from cometmq.cli.mqadmin import java_text
from cometmq.cli.mqadmin.frame import Family, Namesrv
from cometmq.cli.option_sets import opt
from cometmq.cli.output import AsJson
from cometmq.cli.say import say
from cometmq.client import ClientOptions, ConsumeResult, MessageExt, PushConsumer, PushOptions
from cometmq.client.admin import AdminClient, QueueLag
from cometmq.client.clock import wall_ms
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.bodies.running_info import ConsumerRunningInfo
from cometmq.remoting.errors import CometError, CommandError
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.names import (
    MONITOR_GROUP,
    OFFSET_MOVED_TOPIC,
    RETRY_PREFIX,
    groups_with,
    retry_topic,
)
from cometmq.runtime.service import new_event_loop

ROUND_S: Final = 60.0
_UNDONE_FIELDS: Final = (
    "consumerGroup", "topic", "undoneMsgsTotal", "undoneMsgsSingleMQ", "undoneMsgsDelayTimeMills",
)  # fmt: skip

app = Family()


class Undone(msgspec.Struct, frozen=True, rename="camel"):
    """The lag of a group in a topic."""

    consumer_group: str
    topic: str
    undone_msgs_total: int
    undone_msgs_single_mq: int = msgspec.field(name="undoneMsgsSingleMQ")
    undone_msgs_delay_time_mills: int


@app.named("startMonitoring")
def start_monitoring(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    interval: Annotated[float, opt("--interval", "Seconds between rounds.", min=0.1)] = ROUND_S,
    rounds: Annotated[int | None, opt("--rounds", "Exit after this many rounds.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Watch all groups for lag and other problems, and for offset corrections."""
    monitor = Monitor(as_json=as_json)
    run(monitor.watch(namesrv, interval, rounds), loop_factory=new_event_loop)


class Monitor:
    """Watches the groups of a cluster and prints its findings."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json

    async def watch(self, namesrv: str, interval_s: float, rounds: int | None) -> None:
        """Check every group, wait, and repeat."""
        async with AsyncExitStack() as stack:
            asking = AdminClient(namesrv, options=with_access(ClientOptions()), log=NO_LOG)
            admin = await stack.enter_async_context(asking)
            if OFFSET_MOVED_TOPIC in await admin.topics():
                await stack.enter_async_context(self._listener(namesrv))
            number = 0
            while True:
                number += 1
                await self._round(admin)
                if number == rounds:
                    return
                await asyncio.sleep(interval_s)

    def _listener(self, namesrv: str) -> PushConsumer:
        """Return a consumer of the events that brokers send when they correct an offset."""

        async def listen(messages: list[MessageExt]) -> ConsumeResult:
            for message in messages:
                text = message.body.decode("utf-8", "replace")
                moved = {"event": text, "timestamp": message.store_timestamp}
                self._report("reportDeleteMsgsEvent", moved, text)
            return ConsumeResult.SUCCESS

        options = with_access(PushOptions())
        log = Complaints()
        consumer = PushConsumer(MONITOR_GROUP, namesrv, listener=listen, options=options, log=log)
        consumer.subscribe(OFFSET_MOVED_TOPIC)
        return consumer

    async def _round(self, admin: AdminClient) -> None:
        self._report("beginRound", {}, "=" * 41)
        if not (await admin.cluster()).broker_addr_table:
            say(f"cometmq: {no_broker_text(admin.namesrv.addresses)}", err=True)
        for group in groups_with(RETRY_PREFIX, await admin.topics()):
            try:
                await self._look_at(admin, group)
            except CometError as error:
                say(f"cometmq: {retry_topic(group)}: {error}", err=True)
        self._report("endRound", {}, "=" * 41)

    async def _look_at(self, admin: AdminClient, group: str) -> None:
        try:
            members = (await admin.consumer_connections(group)).connection_set
        except CommandError:
            return  # no member can fall behind
        for undone in await _undone(admin, group):
            pairs = java_text.fields(undone, _UNDONE_FIELDS)
            self._report("reportUndoneMsgs", undone, java_text.bracketed("UndoneMsgs", pairs))
        infos: dict[str, ConsumerRunningInfo] = {}
        for member in members:
            infos[member.client_id] = await admin.running_info(group, member.client_id)
        for trouble in _troubles(infos, wall_ms()):
            found = {"consumer_group": group, "trouble": trouble}
            self._report("reportConsumerRunningInfo", found, f"ConsumerGroup: {group}, {trouble}")

    def _report(self, kind: str, found: Any, text: str) -> None:
        if self._as_json:
            say(msgspec.json.encode({"report": kind, "found": found}))
        else:
            say(f"[MONITOR] {kind}: {text}")


def _troubles(infos: dict[str, ConsumerRunningInfo], now_ms: int) -> Iterator[str]:
    if not java_text.is_same_subscription(infos, now_ms=now_ms):
        yield "Subscription different"
    for client_id, info in infos.items():
        yield from java_text.troubles(client_id, info, now_ms=now_ms)


async def _undone(admin: AdminClient, group: str) -> list[Undone]:
    by_topic: dict[str, list[QueueLag]] = {}
    for found in await admin.lag(group):
        by_topic.setdefault(found.queue.topic, []).append(found)
    return [
        Undone(
            group,
            topic,
            sum(max(0, lag.difference) for lag in lags),
            max(0, *(lag.difference for lag in lags)),
            max(0, *[await _delay_ms(admin, lag) for lag in lags]),
        )
        for topic, lags in by_topic.items()
    ]


async def _delay_ms(admin: AdminClient, lag: QueueLag) -> int:
    """Return the time between the last message stored and the last one consumed."""
    if lag.last_timestamp <= 0 or lag.difference <= 0:
        return 0
    stored_ms = await _last_stored_ms(admin, lag.queue, lag.max_offset)
    return 0 if stored_ms is None else stored_ms - lag.last_timestamp


async def _last_stored_ms(admin: AdminClient, queue: MessageQueue, end: int) -> int | None:
    async for pulled in admin.read(queue, end - 1, end):
        for message in pulled.messages:
            return message.store_timestamp
    return None
