# SPDX-License-Identifier: Apache-2.0
"""Log output of clients, with and without logging configured."""

import asyncio
import json
import logging
import socket
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from cometmq.client import (
    CometError,
    ConnectFailed,
    ConnectionLost,
    ConsumeResult,
    Message,
    NoNamesrv,
    NoRoute,
    OrderlyResult,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
    ScheduledPull,
    TransactionOptions,
    TransactionProducer,
    WrongServer,
)
from cometmq.client.cluster.outages import Outages
from cometmq.client.log import PROGRAM_LOG, REPEAT_WINDOW_MS, LimitedLog
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.client.testing.broker import HANG
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.tasks import TaskSet
from cometmq.testing.client.listening import (
    FIRST,
    QUEUE_0,
    KeptEvents,
    Recorder,
    consumer_of,
    logged,
    send,
    texts,
)


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    assert {record.name for record in caplog.records} <= {"cometmq", "asyncio"}
    return logged(caplog, event)


@pytest.fixture(autouse=True)
def at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


@pytest.fixture
def closed_port() -> Iterator[int]:
    with socket.socket() as silent:  # keeps the port, but does not listen
        silent.bind(("127.0.0.1", 0))
        yield silent.getsockname()[1]


# -- where it goes ----------------------------------------------------------------------------


async def test_starts_are_visible_with_basic_config(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        (line,) = lines(caplog, "producer.started")
        assert line == f"producer.started group=pg client_id={producer.client_id}"


UNREACHABLE = """
from cometmq.client import sync
with sync.Producer("pg", "127.0.0.1:{port}"):
    pass
"""


def run_program(setup: str, port: int) -> subprocess.CompletedProcess[str]:
    """Run a program whose client finds no name server."""
    code = setup + UNREACHABLE.format(port=port)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


@pytest.mark.parametrize(
    ("setup", "level"),
    [("", "warning"), ("import logging\nlogging.basicConfig(level=logging.INFO)", "info")],
)
def test_a_program_without_configuration_sees_warnings(
    setup: str, level: str, closed_port: int
) -> None:
    done = run_program(setup, closed_port)
    assert "namesrv.unreachable" in done.stderr
    assert f"127.0.0.1:{closed_port}" in done.stderr
    assert ("producer.started" in done.stderr) is (level == "info")


def test_structlog_is_used_where_the_program_configured_it(closed_port: int) -> None:
    setup = (
        "import structlog\nstructlog.configure(processors=[structlog.processors.JSONRenderer()])\n"
    )
    done = run_program(setup, closed_port)
    events = {event["event"]: event for event in map(json.loads, done.stdout.splitlines())}
    assert events["producer.started"]["group"] == "pg"
    assert "namesrv.unreachable" in events
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["\x1b]0;title\x07", "a\x9b2J", "\u202eb", "a\rb", "\ud800"])
def test_names_of_brokers_cannot_control_a_terminal(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    PROGRAM_LOG.info("route.changed", topic="T", brokers=name)
    assert lines(caplog, "route.changed") == [f"route.changed topic=T brokers={name!a}"]


def test_a_failure_has_one_traceback_and_then_counts() -> None:
    kept, now_ms = KeptEvents(), [0]
    limited = LimitedLog(kept, clock_ms=lambda: now_ms[0])

    def fail() -> None:
        limited.warning("listener.failed", topic="T", error="x", exc_info=ValueError("x"))

    for _ in range(5):
        fail()
    limited.warning("listener.failed", topic="U", error="x", exc_info=ValueError("x"))
    now_ms[0] = REPEAT_WINDOW_MS
    fail()
    fail()
    limited.flush()
    first, other, again, rest = (facts for _, facts in kept.events)
    assert isinstance(first["exc_info"], ValueError)
    assert other["topic"] == "U"
    assert (again.get("exc_info"), again["suppressed_count"]) == (None, 4)
    assert rest == {"topic": "T", "error": "x", "suppressed_count": 1}


def test_the_log_of_failures_stays_small() -> None:
    kept = KeptEvents()
    limited = LimitedLog(kept, clock_ms=lambda: 0)
    for number in range(5_000):
        limited.warning("x.failed", topic=str(number))
    assert len(limited._windows) <= 1_024
    assert len(kept.events) == 5_000


# -- listeners --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "result", "text"),
    [
        (FIRST, True, "the listener returned True: a consumer accepts None or ConsumeResult.SUCC"),
        (FIRST, OrderlyResult.SUCCESS, "ConsumeResult.RECONSUME_LATER (deliver again)"),
        (
            PushOptions(orderly=True, consume_from=FIRST.consume_from),
            ConsumeResult.SUCCESS,
            "an orderly consumer accepts None or OrderlyResult.SUCCESS",
        ),
    ],
)
async def test_a_wrong_result_names_the_valid_ones(
    cluster: MemoryCluster,
    caplog: pytest.LogCaptureFixture,
    options: PushOptions,
    result: object,
    text: str,
) -> None:
    async with consumer_of(cluster, lambda messages: result, options):
        await send(cluster, *texts(1))
        await eventually(lambda: bool(lines(caplog, "listener.failed")))
    assert text in lines(caplog, "listener.failed")[0]


async def test_a_plain_function_may_return_a_coroutine(cluster: MemoryCluster) -> None:
    seen: list[bytes] = []

    async def handle(messages: list[Any]) -> None:
        seen.append(messages[0].body)

    listener = partial(lambda function, messages: function(messages), handle)
    async with consumer_of(cluster, listener):
        await send(cluster, *texts(1))
        await eventually(lambda: seen == [b"0"])


async def test_a_plain_scheduled_callback_is_refused(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    scheduled = ScheduledPull("pull", cluster.namesrv)
    scheduled.register("T", lambda consumer, queue: 10)  # type: ignore[arg-type, return-value]
    async with scheduled:
        await eventually(lambda: bool(lines(caplog, "callback.failed")))
    assert "declare it with `async def`" in lines(caplog, "callback.failed")[0]


async def test_a_local_transaction_that_raises_is_visible(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def execute(message: Message, argument: object) -> None:
        raise ValueError("no money")

    options = TransactionOptions()
    async with TransactionProducer(
        "tx", cluster.namesrv, check=lambda message: None, execute=execute, options=options
    ) as producer:
        with pytest.raises(ValueError, match="no money"):
            await producer.send_in_transaction(Message("T", b"x"))
    (line,) = lines(caplog, "transaction.failed")
    assert "no money" in line


# -- topics and name servers ------------------------------------------------------------------


async def test_sending_to_an_unknown_topic_names_the_fix(cluster: MemoryCluster) -> None:
    options = ProducerOptions(default_topic="NoBrokerCreatesTopics")
    async with Producer("pg", cluster.namesrv, options=options) as producer:
        with pytest.raises(NoRoute, match="create the topic: cometmq topic create Nowhere"):
            await producer.send(Message("Nowhere", b"x"))


async def test_no_name_server_is_named_with_its_reason(
    closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    addresses = [f"127.0.0.1:{closed_port}", f"localhost:{closed_port}"]
    producer = Producer("pg", ";".join(addresses))
    consumer = PushConsumer("cg", ";".join(addresses), listener=print)
    consumer.subscribe("T")
    async with producer, consumer:
        with pytest.raises(NoNamesrv) as caught:
            await producer.send(Message("T", b"x"))
    reports = lines(caplog, "namesrv.unreachable")
    assert len(reports) >= 2  # the producer and the consumer
    for text in (*reports, str(caught.value)):
        assert all(f"no connection to {address}: " in text for address in addresses)
    assert not lines(caplog, "route.unknown")


async def test_a_start_with_hanging_name_servers_ends_at_the_deadline(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The start has a single deadline, not one per topic."""
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        options = PushOptions(api_timeout_ms=300)
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        consumer = PushConsumer("cg", address, listener=print, options=options)
        for topic in "ABCDEFGH":
            consumer.subscribe(topic)
        async with consumer:
            assert len(lines(caplog, "namesrv.unreachable")) <= 2
    assert address in lines(caplog, "namesrv.unreachable")[0]


async def test_a_broker_is_no_name_server(cluster: MemoryCluster) -> None:
    options = ProducerOptions(retry_times=0)
    async with Producer("pg", cluster.broker.address, options=options) as producer:
        with pytest.raises(WrongServer, match="is a broker, not a name server"):
            await producer.send(Message("T", b"x"), queue=QUEUE_0)


# -- brokers ----------------------------------------------------------------------------------


async def test_a_dead_broker_is_one_line_when_it_goes_and_one_when_it_works_again(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    broker, seen = cluster.broker, Recorder()
    options = PushOptions(consume_from=FIRST.consume_from, persist_offset_interval_ms=20)
    async with consumer_of(cluster, seen, options):
        await send(cluster, *texts(3))
        await eventually(lambda: len(seen.messages) == 3)
        # The consumer finds its retry topic last, so that topic's event is the last of its start.
        await eventually(
            lambda: any("topic=%RETRY%cg" in it for it in lines(caplog, "queues.assigned")), 60
        )
        caplog.clear()
        await broker.stop()
        await eventually(lambda: bool(lines(caplog, "broker.unreachable")))
        await asyncio.sleep(0.3)  # during this time, pulls, offsets and rebalances fail
        gone = [
            record.getMessage()
            for record in caplog.records
            if record.levelno >= logging.WARNING  # the start may still log a route
        ]
        caplog.clear()
        await broker.start()
        await eventually(lambda: bool(lines(caplog, "broker.reachable")))
    (line,) = gone
    for text in (f"peer={broker.address}", "groups=cg", "tries again every second", "error="):
        assert text in line
    (back,) = lines(caplog, "broker.reachable")
    assert "down_s=" in back
    assert "None" not in line + back


def test_a_long_outage_is_repeated_with_its_count() -> None:
    kept, now_ms = KeptEvents(), [0]
    outages = Outages(
        kept, groups=lambda: ["g"], is_probed=lambda _: True, clock_ms=lambda: now_ms[0]
    )
    for second in range(61):
        now_ms[0] = second * 1_000
        outages.note("a:1", ConnectFailed("no connection"))
    failure = ConnectionLost("gone")
    failure.address = "a:1"
    outages.failed("pull.failed", failure)
    outages.keep_only(["b:1"])
    assert [event for event, _ in kept.events] == [
        *["broker.unreachable"] * 3,
        "pull.failed",
        "broker.forgotten",
    ]
    assert kept.events[2][1]["failed_count"] == 61
    assert kept.events[4][1]["down_s"] == 60


async def test_the_name_server_is_reported_when_it_works_again(
    cluster: MemoryCluster, closed_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with consumer_of(cluster, Recorder()) as consumer:
        consumer.use_namesrv(f"127.0.0.1:{closed_port}")
        for _ in range(3):
            await consumer._running().routes.refresh_all(["T"])
        consumer.use_namesrv(cluster.namesrv)
        await consumer._running().routes.refresh_all(["T"])
    (line,) = lines(caplog, "namesrv.unreachable")
    assert f"127.0.0.1:{closed_port}" in line
    assert len(lines(caplog, "namesrv.reachable")) == 1


async def test_the_facts_of_failures_name_group_and_callback(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    def revoked(queues: list[Any]) -> None:
        raise ValueError("no such table")

    consumer = consumer_of(cluster, Recorder(lambda _: "wrong"))
    consumer.on_revoked(revoked)
    async with consumer:
        await send(cluster, *texts(1))
        await eventually(lambda: bool(lines(caplog, "listener.failed")))
    assert lines(caplog, "listener.failed")[0].startswith("listener.failed group=cg topic=T ")
    (line,) = lines(caplog, "callback.failed")
    facts = (
        "group=cg callback=on_revoked topics=['T'] queue_count=4 error='ValueError: no such table'"
    )
    assert facts in line


async def test_a_close_that_waits_in_vain_tells_how_many_calls_run(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    go_on, started = asyncio.Event(), []

    async def listener(messages: list[Any]) -> None:
        started.append(messages)
        await go_on.wait()

    options = PushOptions(consume_from=FIRST.consume_from, drain_ms=50)
    async with consumer_of(cluster, listener, options):
        await send(cluster, *texts(3))
        await eventually(lambda: len(started) == 3)
    (line,) = lines(caplog, "consumer.undrained")
    assert line == "consumer.undrained group=cg running_count=3 drain_ms=50"


async def test_a_producer_tells_how_many_sends_it_left(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.broker.fail(RequestCode.SEND_MESSAGE_V2, HANG, times=2)
    options = ProducerOptions(send_timeout_ms=200)
    producer, sends = Producer("pg", cluster.namesrv, options=options), TaskSet(NO_LOG)

    async def send_slowly() -> None:
        with pytest.raises(CometError):
            await producer.send(Message("T", b"x"), timeout_ms=60_000)

    async with producer:
        for _ in range(2):
            sends.spawn(send_slowly(), name="send")
        await eventually(lambda: cluster.broker.requests[RequestCode.SEND_MESSAGE_V2] >= 2)
    await sends.drain(5)
    assert lines(caplog, "producer.undrained") == ["producer.undrained group=pg running_count=2"]
