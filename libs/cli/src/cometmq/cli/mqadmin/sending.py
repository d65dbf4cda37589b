# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands that send: one message, or many to measure response times."""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated, Any, Final, NamedTuple

from cometmq.cli.connecting import with_access, wrong_usage
from cometmq.cli.mqadmin.frame import (
    Column,
    Family,
    Reply,
    Topic,
    TrueFalse,
    objects,
    table,
    text_of,
)
from cometmq.cli.mqadmin.java_text import send_result
from cometmq.cli.option_sets import opt
from cometmq.cli.say import say
from cometmq.client.admin import AdminClient
from cometmq.client.clock import monotonic_ms, wall_ms
from cometmq.client.message import Message, SendResult
from cometmq.client.produce.producer import Producer
from cometmq.client.settings import ProducerOptions
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG

GROUP: Final = "CLI_PRODUCER"
GREETING: Final = b"hello jodie"
LOG_ZONE: Final = timezone(timedelta(hours=8))
"""Time zone of the lines of clusterRT -p."""

app = Family()

SENT_COLUMNS: Final = (
    Column("broker", "#Broker Name", "%-32s  "),
    Column("queue", "#QID", "%-4s  "),
    Column("status", "#Send Result", "%-20s    "),
    Column("message_id", "#MsgId", "%s"),
)
TIMED_COLUMNS: Final = (
    Column("broker", "#Broker Name", "%-32s  "),
    Column("queue", "#QID", "%-4s  "),
    Column("sent", "#Send Result", "%-20s    ", text=lambda is_sent: str(is_sent).lower()),
    Column("rt_ms", "#RT", "%s"),
)
CLUSTER_COLUMNS: Final = (
    Column("cluster", "#Cluster Name", "%-24s  "),
    Column("broker", "#Broker Name", "%-24s  "),
    Column("rt_ms", "#RT", "%-8.2f  "),
    Column("sent", "#successCount", "%-16s  "),
    Column("failed", "#failCount", "%-16s"),
)

Amount = Annotated[int, opt("-a", "--amount", "Number of messages.", min=1)]
Size = Annotated[int, opt("-s", "--size", "Bytes of each message.", min=1)]


@app.asks("sendMessage")
async def _send_message(
    _admin: AdminClient,
    topic: Topic,
    body: Annotated[str, opt("-p", "--body", "Text of the message.")],
    key: Annotated[str | None, opt("-k", "--key", "Keys, separated by spaces.")] = None,
    tag: Annotated[str | None, opt("-c", "--tags", "Tag of the message.")] = None,
    broker: Annotated[str | None, opt("-b", "--broker", "Name of the broker, with -i.")] = None,
    queue_id: Annotated[int | None, opt("-i", "--qid", "Queue of -b to send to.", min=0)] = None,
    trace: Annotated[TrueFalse, opt("-m", "--msgTraceEnable", "Also send a trace.")] = "false",
    *,
    namesrv: str,
) -> Reply:
    if queue_id is not None and broker is None:
        raise wrong_usage("Broker name must be set if the queue is chosen!")
    message = Message(topic.strip(), body.strip().encode(), tag, tuple((key or "").split()))
    queue = None
    if broker is not None and queue_id is not None:
        queue = MessageQueue(message.topic, broker.strip(), queue_id)
    async with _producer(namesrv, is_traced=trace == "true") as producer:
        sent = await producer.send(message, queue=queue)
    row = (sent.queue.broker_name, sent.queue.queue_id, sent.status.name, sent.message_id)
    return table(SENT_COLUMNS, [row])


def _producer(namesrv: str, *, is_traced: bool = False) -> Producer:
    return Producer(
        GROUP, namesrv, options=with_access(ProducerOptions(trace=is_traced)), log=NO_LOG
    )


# -- response times ---------------------------------------------------------------------------


class Timed(NamedTuple):
    """One timed attempt to send."""

    rt_ms: int
    result: SendResult | None
    failure: CometError | None


async def _timed(send: Awaitable[SendResult]) -> Timed:
    result, failure = None, None
    begin = monotonic_ms()
    try:
        result = await send
    except CometError as error:
        failure = error
    return Timed(monotonic_ms() - begin, result, failure)


def _average(attempts: list[Timed]) -> float | None:
    """Return the mean of all attempts but the first, which also connects; None if there are no
    others.
    """
    others = [attempt.rt_ms for attempt in attempts[1:]]
    return sum(others) / len(others) if others else None


@app.asks("sendMsgStatus")
async def _send_msg_status(
    _admin: AdminClient,
    broker: Annotated[str, opt("-b", "--brokerName", "Name of the broker.")],
    size: Annotated[int, opt("-s", "--messageSize", "Bytes of each message.", min=1)] = 128,
    count: Annotated[int, opt("-c", "--count", "Number of messages.", min=1)] = 50,
    *,
    namesrv: str,
) -> Reply:
    topic = broker.strip()
    body = GREETING * -(-size // len(GREETING))
    async with _producer(namesrv) as producer:
        await producer.send(Message(topic, GREETING))
        attempts = [await _timed(producer.send(Message(topic, body))) for _ in range(count)]
    lines = [
        f"rt={it.rt_ms}ms, SendResult={send_result(it.result) if it.result else it.failure}"
        for it in attempts
    ]
    facts = [{"rt_ms": it.rt_ms, **_facts(it)} for it in attempts]
    return Reply("\n".join(lines), facts, _failed(attempts))


def _facts(attempt: Timed) -> dict[str, Any]:
    result = attempt.result
    if result is None:
        return {"error": str(attempt.failure)}
    return {
        "status": result.status.name,
        "message_id": result.message_id,
        "offset_message_id": result.offset_message_id,
        "broker": result.queue.broker_name,
        "queue": result.queue.queue_id,
        "queue_offset": result.queue_offset,
    }


def _failed(attempts: list[Timed]) -> list[str]:
    failures = [attempt.failure for attempt in attempts if attempt.failure is not None]
    return [f"{len(failures)} of {len(attempts)} failed: {failures[0]}"] if failures else []


@app.asks("checkMsgSendRT")
async def _check_msg_send_rt(
    _admin: AdminClient, topic: Topic, amount: Amount = 100, size: Size = 128, *, namesrv: str
) -> Reply:
    message = Message(topic.strip(), b"a" * size)
    attempts: list[Timed] = []
    chosen: list[MessageQueue] = []

    def in_turn(queues: Sequence[MessageQueue], _: Message, number: int) -> MessageQueue:
        chosen.append(queues[number % len(queues)])
        return chosen[-1]

    async with _producer(namesrv) as producer:
        for number in range(amount):
            attempt = await _timed(producer.send_ordered(message, number, selector=in_turn))
            if attempt.failure is not None and len(chosen) == number:
                raise attempt.failure  # there is no queue to send to
            attempts.append(attempt)
    rows = [
        (queue.broker_name, queue.queue_id, attempt.failure is None, attempt.rt_ms)
        for attempt, queue in zip(attempts, chosen, strict=True)
    ]
    average = _average(attempts)
    last = f"Avg RT: {'-' if average is None else f'{average:.2f}'}"
    facts = {"sends": objects(TIMED_COLUMNS, rows), "avg_rt_ms": average}
    return Reply(f"{text_of(TIMED_COLUMNS, rows)}\n{last}", facts, _failed(attempts))


@app.asks("clusterRT")
async def _cluster_rt(
    admin: AdminClient,
    amount: Amount = 100,
    size: Size = 128,
    cluster: Annotated[str | None, opt("-c", "--cluster", "Only this cluster.")] = None,
    as_log: Annotated[
        TrueFalse, opt("-p", "--print log", "--printLog", "Print log lines.")
    ] = "false",
    room: Annotated[
        str, opt("-m", "--machine room", "--machineRoom", "Machine room shown in the log.")
    ] = "noname",
    interval_s: Annotated[int, opt("-i", "--interval", "Seconds between rounds.", min=1)] = 10,
    *,
    namesrv: str,
    as_json: bool,
) -> None:
    if not as_json and as_log == "false":
        say(text_of(CLUSTER_COLUMNS, []))
    async with _producer(namesrv) as producer:
        while True:
            for name, broker in await _places(admin, cluster):
                message = Message(broker, b"a" * size)
                attempts = [await _timed(producer.send(message)) for _ in range(amount)]
                _round(name, broker, attempts, room if as_log == "true" else None).print(
                    as_json=as_json
                )
            await asyncio.sleep(interval_s)


async def _places(admin: AdminClient, cluster: str | None) -> list[tuple[str, str]]:
    """Return the cluster and name of every broker group."""
    wanted = await admin.masters(cluster)
    clusters = (await admin.cluster()).cluster_addr_table
    return [
        (of, name)
        for of, names in sorted(clusters.items())
        if cluster in (None, of)
        for name in sorted(names)
        if name in wanted
    ]


def _round(cluster: str, broker: str, attempts: list[Timed], room: str | None) -> Reply:
    """Return the row of a round; with a machine room, as a line of a log."""
    average = _average(attempts)
    failed = sum(attempt.failure is not None for attempt in attempts)
    row = (cluster, broker, average, len(attempts) - failed, failed)
    text = text_of(CLUSTER_COLUMNS, [row], has_heading=False)
    if room is not None:
        moment = datetime.fromtimestamp(wall_ms() // 1000, tz=UTC).astimezone(LOG_ZONE)
        rounded = "" if average is None else Decimal(average).quantize(Decimal(0), ROUND_HALF_UP)
        text = f"{moment:%Y-%m-%d %H:%M:%S}|{room}|{cluster}|{broker}|{rounded}"
    return Reply(text, objects(CLUSTER_COLUMNS, [row])[0])
