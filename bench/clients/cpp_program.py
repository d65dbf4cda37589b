# SPDX-License-Identifier: Apache-2.0
"""Run the C++ client (PyPI `rocketmq`) at full speed and print the result as a JSON line.

The client is installed in a separate environment. It releases the interpreter lock during blocking
calls, so threads can keep several sends in flight.
"""

import os
import sys
import threading
from argparse import Namespace

from measure import Meter, parse
from rocketmq.client import Message, Producer, PushConsumer, RecvMessage


def send(options: Namespace) -> None:
    """Send from `in_flight` threads."""
    producer = Producer("CLIENTS", timeout=10_000)
    producer.set_namesrv_addr(options.namesrv)
    producer.start()
    meter = Meter(options.count)

    def work() -> None:
        while meter.claim():
            message = Message(options.topic)
            message.set_body(b"x" * options.body_bytes)
            producer.send_sync(message)

    threads = [threading.Thread(target=work) for _ in range(options.in_flight)]
    producer.send_sync(
        first_message(options)
    )  # the route lookup and the connection are not measured
    meter.start()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    meter.show()


def first_message(options: Namespace) -> Message:
    """Return the message that connects the client before the measurement starts."""
    message = Message(options.topic)
    message.set_body(b"first")
    return message


def consume(options: Namespace) -> None:
    meter = Meter(options.count)

    def listener(_: RecvMessage) -> None:
        meter.seen()

    consumer = PushConsumer(options.group)
    consumer.set_namesrv_addr(options.namesrv)
    consumer.subscribe(options.topic, listener)
    consumer.start()
    meter.wait_and_show()


options = parse()
{"send": send, "consume": consume}[options.command](options)
sys.stdout.flush()
os._exit(0)  # the library's threads may crash during interpreter shutdown
