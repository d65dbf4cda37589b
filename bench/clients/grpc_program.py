# SPDX-License-Identifier: Apache-2.0
"""Run the official 5.x client at full speed and print the result as a JSON line.

The client (PyPI `rocketmq-python-client`) is installed in a separate environment and connects to
the proxy of a 5.x server.
"""

import os
import sys
import threading
from argparse import Namespace
from concurrent.futures import Future

from measure import Meter, parse
from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SendReceipt,
)


def configuration(options: Namespace) -> ClientConfiguration:
    return ClientConfiguration(options.endpoint, Credentials(), request_timeout=10)


def make_message(options: Namespace) -> Message:
    message = Message()
    message.topic = options.topic
    message.body = b"x" * options.body_bytes
    return message


def send(options: Namespace) -> None:
    """Send one at a time with `send`, or keep `in_flight` sends pending with `send_async`."""
    producer = Producer(configuration(options), (options.topic,))
    producer.startup()
    producer.send(make_message(options))  # the route lookup and the connection are not measured
    meter = Meter(options.count)
    meter.start()
    if options.in_flight == 1:
        while meter.claim():
            producer.send(make_message(options))
    else:
        send_window(options, producer, meter)
    meter.show()


def send_window(options: Namespace, producer: Producer, meter: Meter) -> None:
    """Keep up to `in_flight` asynchronous sends pending."""
    room = threading.Semaphore(options.in_flight)
    failures: list[BaseException] = []

    def answered(future: Future[SendReceipt]) -> None:
        error = future.exception()
        if error is not None:
            failures.append(error)
        room.release()

    while meter.claim():
        room.acquire()
        producer.send_async(make_message(options)).add_done_callback(answered)
    for _ in range(options.in_flight):
        room.acquire()
    if failures:
        sys.exit(f"{len(failures)} sends failed, the first with {failures[0]!r}")


class Counter(MessageListener):  # type: ignore[misc]  # its types are in its own environment
    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def consume(self, _: Message) -> ConsumeResult:
        self._meter.seen()
        return ConsumeResult.SUCCESS


def consume(options: Namespace) -> None:
    meter = Meter(options.count)
    subscription = {options.topic: FilterExpression()}
    consumer = PushConsumer(configuration(options), options.group, Counter(meter), subscription)
    consumer.startup()
    meter.wait_and_show()


options = parse()
{"send": send, "consume": consume}[options.command](options)
sys.stdout.flush()
os._exit(0)  # its threads take seconds to end
