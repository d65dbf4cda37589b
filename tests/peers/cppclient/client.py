# SPDX-License-Identifier: Apache-2.0
"""Runs the C++ client (PyPI `rocketmq`): sends or consumes, and prints JSON lines.

It runs in a separate environment, which contains that package but not CometMQ.
"""

import argparse
import hashlib
import json
import os
import sys
import threading
import time

from rocketmq.client import Message, Producer, PushConsumer, RecvMessage

STATUS_DEADLINE = 3
ORDERED_KEYS = 4
BATCH_SIZE = 10
FIRST_HEARTBEAT_S = 0.5  # the library plans it 10 ms after the start
PRINTING = threading.Lock()


def show(event: str, **fields: object) -> None:
    """Print one event; a lock is needed because several threads call the consumer's callbacks."""
    with PRINTING:
        sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
        sys.stdout.flush()


def text(value: bytes | None) -> str | None:
    """Decode a string from the library, which passes bytes or None."""
    return None if value is None else value.decode()


def body_of(key: str, size: int) -> bytes:
    """Return a body that is text without zero bytes: the library reads bodies as C strings."""
    body = f"{key}: äöü 中文 "
    while len(body.encode()) < size:
        body += "the quick brown fox "
    return body.encode()


def make_message(options: argparse.Namespace, index: int) -> tuple[Message, dict[str, object]]:
    key = f"{options.key}-{index}"
    tags = ["TagA"] if options.tags == "*" else options.tags.split(",")
    tag = tags[index % len(tags)]
    body = body_of(key, options.size)
    message = Message(options.topic)
    message.set_keys(key)
    message.set_tags(tag)
    message.set_body(body)
    message.set_property("colour", "grün 绿")
    facts = {
        "key": key,
        "tag": tag,
        "sha256": hashlib.sha256(body).hexdigest(),
        "size": len(body),
    }
    return message, facts


def send(options: argparse.Namespace) -> None:
    producer = Producer(options.group or "CppProducer", timeout=10_000)
    producer.set_namesrv_addr(options.namesrv)
    producer.start()
    # A send fails at once, as "no route", while the heartbeat's thread connects to the same broker.
    # Before the first send, that thread knows no broker; its next turn is 30 seconds later.
    time.sleep(FIRST_HEARTBEAT_S)
    messages = [make_message(options, index) for index in range(options.count)]
    for index, (message, facts) in enumerate(messages):
        if options.mode == "oneway":
            producer.send_oneway(message)
            show("sent", **facts)
            continue
        if options.mode == "ordered":
            result = producer.send_orderly(message, index % ORDERED_KEYS)
        else:
            result = producer.send_sync(message)
        status = "SEND_OK" if result.status == 0 else result.status.name
        show("sent", **facts, status=status, msg_id=result.msg_id, queue_offset=result.offset)
    producer.shutdown()


def consume(options: argparse.Namespace) -> None:
    finished = threading.Event()
    keys: set[bytes] = set()

    def on_message(message: RecvMessage) -> None:
        body = message.body
        accepted = message.reconsume_times >= options.fail_first
        show(
            "received" if accepted else "refused",
            topic=message.topic,
            key=text(message.keys),
            tag=text(message.tags),
            sha256=hashlib.sha256(body).hexdigest(),
            size=len(body),
            msg_id=message.id,
            colour=text(message.get_property("colour")),
            queue_id=message.queue_id,
            queue_offset=message.queue_offset,
            reconsume_times=message.reconsume_times,
        )
        if not accepted:
            raise ValueError("refused on purpose")
        keys.add(message.keys)
        if len(keys) >= options.count:
            finished.set()

    consumer = PushConsumer(options.group, orderly=options.orderly == "true")
    consumer.set_namesrv_addr(options.namesrv)
    consumer.subscribe(options.topic, on_message, options.tags)
    consumer.start()
    show("started")
    if not finished.wait(options.timeout_s):
        os._exit(STATUS_DEADLINE)
    consumer.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("command", choices=["send", "consume"])
    parser.add_argument("--namesrv", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group", default="")
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--size", type=int, default=100)
    parser.add_argument("--tags", default="*")
    parser.add_argument("--key", default="cpp")
    parser.add_argument("--mode", default="sync", choices=["sync", "oneway", "ordered"])
    parser.add_argument("--orderly", default="false")
    parser.add_argument("--fail-first", type=int, default=0)
    parser.add_argument("--timeout-s", type=int, default=60)
    options = parser.parse_args()
    {"send": send, "consume": consume}[options.command](options)
    sys.stdout.flush()
    os._exit(0)  # the library's threads may crash during interpreter shutdown


main()
