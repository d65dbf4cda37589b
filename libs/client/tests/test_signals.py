# SPDX-License-Identifier: Apache-2.0
"""The end of a program: on a signal, without `close`, and of a forked process."""

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from cometmq.client import Message, MessageQueue
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.testing.client.listening import QUEUE_0, send, texts

DRAINING = """
import asyncio
from cometmq.client import ConsumeFrom, PushConsumer, PushOptions, until_signal

async def main() -> None:
    async def listener(messages: list) -> None:
        print("begun", flush=True)
        await asyncio.sleep(0.3)

    consumer = PushConsumer(
        "cg", listener=listener, options=PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    )
    consumer.subscribe("T")
    async with consumer:
        await until_signal()
    print("left", flush=True)

asyncio.run(main())
"""

BLOCKING = """
import asyncio, time
from cometmq.client import ConsumeFrom, PushConsumer, PushOptions, until_signal

async def main() -> None:
    async def listener(messages: list) -> None:
        print("begun", flush=True)
        time.sleep(60)

    consumer = PushConsumer(
        "cg", listener=listener, options=PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    )
    consumer.subscribe("T")
    async with consumer:
        await until_signal()

asyncio.run(main())
"""

ITERATING = """
import asyncio
from cometmq.client import ConsumeFrom, LitePullConsumer, LitePullOptions, on_signal

async def main() -> None:
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer = LitePullConsumer("cg", options=options)
    consumer.subscribe("T")
    async with consumer:
        with on_signal(consumer.finish):
            async for message in consumer:
                print("begun", flush=True)
                await asyncio.sleep(0.3)
    print("left", flush=True)

asyncio.run(main())
"""

FORKING = """
import asyncio, os
from cometmq.client import ClientStateError, Message, Producer, PushConsumer

async def send() -> str:
    async with Producer("pg") as producer:
        await producer.send(Message("T", b"of the child"))
        return producer.client_id

async def main() -> tuple[int, Producer]:
    producer = Producer("pg")
    await producer.start()
    await producer.send(Message("T", b"of the parent"))
    return producer

loop = asyncio.new_event_loop()
producer = loop.run_until_complete(main())
parent_id = producer.client_id
if os.fork() == 0:
    for work in (lambda: producer.send(Message("T", b"by mistake")), producer.close):
        try:
            asyncio.new_event_loop().run_until_complete(work())
        except ClientStateError as error:
            print("refused", error, flush=True)
    print("own", asyncio.run(send()) != parent_id, flush=True)
    os._exit(0)
os.wait()
loop.run_until_complete(producer.send(Message("T", b"of the parent again")))
loop.run_until_complete(producer.close())
print("done", flush=True)
"""

EXITING = """
import os, sys
from cometmq.client import Message
from cometmq.client.sync import LitePullConsumer, Producer, ScheduledPull

def exit_status():
    child = os.fork()
    if child == 0:
        sys.exit(5)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

consumer, scheduled = LitePullConsumer("cg"), ScheduledPull("sg")
consumer.subscribe("T")
scheduled.register("T", lambda consumer, queue: 1000)
with Producer("pg") as producer, consumer, scheduled:
    producer.send(Message("T", b"of the parent"))
    print(exit_status(), flush=True)
    producer.send(Message("T", b"of the parent again"))
print("done", flush=True)
"""


UNCLOSED = """
import threading, time
from cometmq.client import ConsumeFrom, PushOptions
from cometmq.client.sync import PushConsumer

begun = threading.Semaphore(0)

def listener(messages: list) -> None:
    begun.release()
    time.sleep(1.5 if messages[0].queue.queue_id == 0 else 0.3)

options = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET, concurrency=2, orderly=ORDERLY)
consumer = PushConsumer("cg", listener=listener, options=options)
consumer.subscribe("T")
consumer.start()
for _ in range(2):
    begun.acquire()
print("leaving", flush=True)
"""


async def run_program(
    cluster: MemoryCluster, text: str, end: signal.Signals | None = None, *, count: int = 1
) -> tuple[int | None, str, str]:
    """Run a program and signal it `count` times after its first line; return status and output."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        text,
        env={"NAMESRV_ADDR": cluster.namesrv, "PATH": os.defpath},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            first = b""
            if end is not None:
                first = await process.stdout.readline()
                for _ in range(count):
                    process.send_signal(end)
                    await asyncio.sleep(0.1)
                    await eventually(lambda: is_handled(process.pid))
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, (first + output).decode(), errors.decode()


def is_handled(pid: int) -> bool:
    """Whether a program has handled a signal and sleeps again; until then, a second is merged."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True
    facts = dict(line.split(":", 1) for line in text.splitlines())
    return int(facts["ShdPnd"], 16) == 0 and facts["State"].split()[0] in "SZX"


async def test_a_push_consumer_drains_on_sigterm(cluster: MemoryCluster) -> None:
    await send(cluster, Message("T", b"x"))
    status, output, errors = await run_program(cluster, DRAINING, signal.SIGTERM)
    assert (status, output, errors) == (0, "begun\nleft\n", "")
    assert cluster.committed("cg", "T")[QUEUE_0] == 1
    assert not cluster.broker.groups["cg"]


async def test_a_second_sigterm_ends_a_program_whose_listener_blocks(
    cluster: MemoryCluster,
) -> None:
    await send(cluster, Message("T", b"x"))
    began = time.monotonic()
    status, _, _ = await run_program(cluster, BLOCKING, signal.SIGTERM, count=2)
    assert (status, time.monotonic() - began < 50) == (-signal.SIGTERM, True)


async def test_repeated_sigints_end_a_program_whose_listener_blocks(cluster: MemoryCluster) -> None:
    """The client handles the first signal, the second cancels asyncio.run's task, and the third
    raises KeyboardInterrupt.
    """
    await send(cluster, Message("T", b"x"))
    began = time.monotonic()
    status, _, errors = await run_program(cluster, BLOCKING, signal.SIGINT, count=3)
    assert (status, time.monotonic() - began < 50) == (-signal.SIGINT, True)
    assert "KeyboardInterrupt" in errors


async def test_iterating_ends_on_sigint(cluster: MemoryCluster) -> None:
    await send(cluster, *texts(3))
    status, output, errors = await run_program(cluster, ITERATING, signal.SIGINT)
    assert (status, errors) == (0, "")
    assert output == "begun\nleft\n"
    assert cluster.committed("cg", "T")[QUEUE_0] == 1


async def test_a_child_process_makes_its_own_client(cluster: MemoryCluster) -> None:
    status, output, errors = await run_program(cluster, FORKING)
    assert status == 0, errors
    lines = output.splitlines()
    refusal = "refused this client was started before a fork: start one in the child"
    assert lines == [refusal, refusal, "own True", "done"]
    await eventually(lambda: len(cluster.messages("T")) == 3)
    assert {message.body for message in cluster.messages("T")} == {
        b"of the parent",
        b"of the child",
        b"of the parent again",
    }


async def test_a_child_that_exits_leaves_the_clients_of_its_parent_alone(
    cluster: MemoryCluster,
) -> None:
    status, output, errors = await run_program(cluster, EXITING)
    assert (status, output, errors) == (0, "5\ndone\n", "")
    assert len(cluster.messages("T")) == 2


@pytest.mark.parametrize("is_orderly", [False, True])
async def test_messages_do_not_fail_at_the_end_of_a_program_that_closes_nothing(
    cluster: MemoryCluster, is_orderly: bool
) -> None:
    """The interpreter refuses new calls, and waits for the running ones."""
    for queue_id in (0, 1):
        await send(cluster, *texts(3), queue=MessageQueue("T", "broker-a", queue_id))
    status, out, err = await run_program(cluster, UNCLOSED.replace("ORDERLY", str(is_orderly)))
    assert (status, out) == (0, "leaving\n")
    assert "listener.failed" not in err
    assert cluster.broker.requests[RequestCode.CONSUMER_SEND_MSG_BACK] == 0
