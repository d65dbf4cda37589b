# SPDX-License-Identifier: Apache-2.0
"""mqadmin's commands that send: one message, or many to measure response times."""

import asyncio
from collections.abc import Awaitable, Sequence
from datetime import UTC, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Decimal
from typing import Annotated, Any, Final, NamedTuple

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, ask, run, with_access, wrong_usage
from cometmq.cli.mqadmin.frame import (
    Column,
    Family,
    Namesrv,
    Topic,
    TrueFalse,
    print_done,
    print_table,
    to_line,
    to_object,
)
from cometmq.cli.output import AsJson, print_json
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

Amount = Annotated[int, typer.Option("-a", "--amount", min=1, help="Number of messages.")]
Size = Annotated[int, typer.Option("-s", "--size", min=1, help="Bytes of each message.")]


@app.named("sendMessage")
def send_message(
    topic: Topic,
    body: Annotated[str, typer.Option("-p", "--body", help="Text of the message.")],
    key: Annotated[
        str | None, typer.Option("-k", "--key", help="Keys, separated by spaces.")
    ] = None,
    tag: Annotated[str | None, typer.Option("-c", "--tags", help="Tag of the message.")] = None,
    broker: Annotated[
        str | None, typer.Option("-b", "--broker", help="Name of the broker, with -i.")
    ] = None,
    queue_id: Annotated[
        int | None, typer.Option("-i", "--qid", min=0, help="Queue of -b to send to.")
    ] = None,
    trace: Annotated[
        TrueFalse, typer.Option("-m", "--msgTraceEnable", help="Also send a trace.")
    ] = "false",
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Send a message."""
    if queue_id is not None and broker is None:
        raise wrong_usage("Broker name must be set if the queue is chosen!")
    message = Message(topic.strip(), body.strip().encode(), tag, tuple((key or "").split()))
    queue = None
    if broker is not None and queue_id is not None:
        queue = MessageQueue(message.topic, broker.strip(), queue_id)

    async def main() -> SendResult:
        async with _producer(namesrv, is_traced=trace == "true") as producer:
            return await producer.send(message, queue=queue)

    sent = run(main())
    row = (sent.queue.broker_name, sent.queue.queue_id, sent.status.name, sent.message_id)
    print_table(SENT_COLUMNS, [row], as_json=as_json)


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


@app.named("sendMsgStatus")
def send_msg_status(
    broker: Annotated[str, typer.Option("-b", "--brokerName", help="Name of the broker.")],
    size: Annotated[
        int, typer.Option("-s", "--messageSize", min=1, help="Bytes of each message.")
    ] = 128,
    count: Annotated[int, typer.Option("-c", "--count", min=1, help="Number of messages.")] = 50,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Send to the topic named after the broker and show the result of each message."""
    topic = broker.strip()
    body = GREETING * -(-size // len(GREETING))

    async def main() -> list[Timed]:
        async with _producer(namesrv) as producer:
            await producer.send(Message(topic, GREETING))
            return [await _timed(producer.send(Message(topic, body))) for _ in range(count)]

    attempts = run(main())
    lines = [
        f"rt={it.rt_ms}ms, SendResult={_result_text(it.result) if it.result else it.failure}"
        for it in attempts
    ]
    facts = [{"rt_ms": it.rt_ms, **_facts(it)} for it in attempts]
    print_done("\n".join(lines), facts, as_json=as_json)
    _exit_if_failed(attempts)


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


def _result_text(result: SendResult) -> str:
    queue = result.queue
    return (
        f"SendResult [sendStatus={result.status.name}, msgId={result.message_id}, "
        f"offsetMsgId={result.offset_message_id}, messageQueue=MessageQueue "
        f"[topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}], "
        f"queueOffset={result.queue_offset}]"
    )


def _exit_if_failed(attempts: list[Timed]) -> None:
    failures = [attempt.failure for attempt in attempts if attempt.failure is not None]
    if failures:
        say(f"cometmq: {len(failures)} of {len(attempts)} failed: {failures[0]}", err=True)
        raise typer.Exit(1)


@app.named("checkMsgSendRT")
def check_msg_send_rt(
    topic: Topic,
    amount: Amount = 100,
    size: Size = 128,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Send to the queues of a topic in turn and show the response times."""
    message = Message(topic.strip(), b"a" * size)

    async def main() -> tuple[list[Timed], list[MessageQueue]]:
        async with _producer(namesrv) as producer:
            attempts: list[Timed] = []
            chosen: list[MessageQueue] = []

            def in_turn(queues: Sequence[MessageQueue], _: Message, number: int) -> MessageQueue:
                chosen.append(queues[number % len(queues)])
                return chosen[-1]

            for number in range(amount):
                attempt = await _timed(producer.send_ordered(message, number, selector=in_turn))
                if attempt.failure is not None and len(chosen) == number:
                    raise attempt.failure  # there is no queue to send to
                attempts.append(attempt)
            return attempts, chosen

    attempts, chosen = run(main())
    rows = [
        (queue.broker_name, queue.queue_id, attempt.failure is None, attempt.rt_ms)
        for attempt, queue in zip(attempts, chosen, strict=True)
    ]
    average = _average(attempts)
    if as_json:
        print_json({"sends": [to_object(TIMED_COLUMNS, row) for row in rows], "avg_rt_ms": average})
    else:
        print_table(TIMED_COLUMNS, rows, as_json=False)
        say(f"Avg RT: {'-' if average is None else f'{average:.2f}'}")
    _exit_if_failed(attempts)


@app.named("clusterRT")
def cluster_rt(
    amount: Amount = 100,
    size: Size = 128,
    cluster: Annotated[
        str | None, typer.Option("-c", "--cluster", help="Only this cluster.")
    ] = None,
    as_log: Annotated[
        TrueFalse, typer.Option("-p", "--print log", "--printLog", help="Print log lines.")
    ] = "false",
    room: Annotated[
        str,
        typer.Option(
            "-m", "--machine room", "--machineRoom", help="Machine room shown in the log."
        ),
    ] = "noname",
    interval_s: Annotated[
        int, typer.Option("-i", "--interval", min=1, help="Seconds between rounds.")
    ] = 10,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    *,
    as_json: AsJson = False,
) -> None:
    """Send to every broker in rounds until Ctrl-C and show the response times."""
    message_body = b"a" * size

    async def question(admin: AdminClient) -> None:
        if not as_json and as_log == "false":
            print_table(CLUSTER_COLUMNS, [], as_json=False)
        async with _producer(namesrv) as producer:
            while True:
                for name, broker in await _places(admin, cluster):
                    message = Message(broker, message_body)
                    attempts = [await _timed(producer.send(message)) for _ in range(amount)]
                    _print_round(name, broker, attempts, room=room, as_log=as_log, as_json=as_json)
                await asyncio.sleep(interval_s)

    ask(namesrv, question)


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


def _print_round(
    cluster: str, broker: str, attempts: list[Timed], *, room: str, as_log: str, as_json: bool
) -> None:
    average = _average(attempts)
    failed = sum(attempt.failure is not None for attempt in attempts)
    row = (cluster, broker, average, len(attempts) - failed, failed)
    if as_json:
        print_json(to_object(CLUSTER_COLUMNS, row))
    elif as_log == "true":
        moment = datetime.fromtimestamp(wall_ms() // 1000, tz=UTC).astimezone(LOG_ZONE)
        rounded = "" if average is None else Decimal(average).quantize(Decimal(0), ROUND_HALF_UP)
        say(f"{moment:%Y-%m-%d %H:%M:%S}|{room}|{cluster}|{broker}|{rounded}")
    else:
        say(to_line(CLUSTER_COLUMNS, row))
