# SPDX-License-Identifier: Apache-2.0
"""Run CometMQ's client at full speed and print the result as a JSON line."""

import argparse
import asyncio
import threading

import uvloop
from measure import Meter, parse

from cometmq.client import ConsumeFrom, Message, MessageExt, Producer, PushConsumer, PushOptions
from cometmq.client import sync as waiting

OPTIONS = PushOptions(consume_from=ConsumeFrom.FIRST_OFFSET)


async def send(options: argparse.Namespace) -> None:
    """Send from `in_flight` tasks."""
    meter = Meter(options.count)
    async with Producer("CLIENTS", options.namesrv) as producer:

        async def work() -> None:
            while meter.claim():
                await producer.send(Message(options.topic, b"x" * options.body_bytes))

        await producer.send(Message(options.topic, b"first"))
        meter.start()
        async with asyncio.TaskGroup() as group:
            for _ in range(options.in_flight):
                group.create_task(work())
        meter.show()


def send_and_wait(options: argparse.Namespace) -> None:
    """Send from `in_flight` threads."""
    meter = Meter(options.count)
    with waiting.Producer("CLIENTS", options.namesrv) as producer:

        def work() -> None:
            while meter.claim():
                producer.send(Message(options.topic, b"x" * options.body_bytes))

        producer.send(Message(options.topic, b"first"))
        threads = [threading.Thread(target=work) for _ in range(options.in_flight)]
        meter.start()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        meter.show()


async def consume(options: argparse.Namespace) -> None:
    """Consume with an asynchronous listener until all messages have arrived."""
    meter = Meter(options.count)
    finished = asyncio.Event()

    async def listener(messages: list[MessageExt]) -> None:
        if meter.seen(len(messages)):
            finished.set()

    consumer = PushConsumer(options.group, options.namesrv, listener=listener, options=OPTIONS)
    consumer.subscribe(options.topic)
    async with consumer:
        await finished.wait()
        meter.show()


def consume_in_threads(options: argparse.Namespace) -> None:
    """Consume with a synchronous listener until all messages have arrived."""
    meter = Meter(options.count)

    def listener(messages: list[MessageExt]) -> None:
        meter.seen(len(messages))

    consumer = waiting.PushConsumer(
        options.group, options.namesrv, listener=listener, options=OPTIONS
    )
    consumer.subscribe(options.topic)
    with consumer:
        meter.wait_and_show()


def main() -> None:
    """Send or consume with the kind of client that `--form` selects."""
    options = parse()
    if options.form == "sync":
        {"send": send_and_wait, "consume": consume_in_threads}[options.command](options)
        return
    run = uvloop.run if options.form == "uvloop" else asyncio.run
    run({"send": send, "consume": consume}[options.command](options))


if __name__ == "__main__":
    main()
