# SPDX-License-Identifier: Apache-2.0
"""A send stores what its message held when it was called, whatever the program reuses later."""

import asyncio
from array import array
from typing import Any

import pytest

from cometmq.client import (
    Message,
    NoReply,
    Producer,
    ProducerOptions,
    TransactionOptions,
    TransactionProducer,
    TransactionState,
    sync,
)
from cometmq.client.testing import MemoryCluster, eventually

FORMS = ("send", "ordered", "oneway", "batch", "request", "transaction")
FIRST = b"first" * 10_000  # long enough to be compressed on a thread


class Reused:
    """A message whose parts the program changes while it is being sent."""

    def __init__(self, size: int) -> None:
        self.body, self.keys, self.properties = bytearray(FIRST[:size]), ["k1"], {"a": "1"}
        self.message = Message("T", self.body, "tag", self.keys, self.properties)  # type: ignore[arg-type]

    def change(self) -> None:
        self.body[:5] = b"other"
        self.keys[0] = "k2"
        self.properties["a"] = "2"
        self.message.tag = "none"


async def send(form: str, producer: TransactionProducer, message: Message) -> None:
    match form:
        case "send":
            await producer.send(message)
        case "ordered":
            await producer.send_ordered(message, "key")
        case "oneway":
            await producer.send_oneway(message)
        case "batch":
            await producer.send_batch([message])
        case "request":
            with pytest.raises(NoReply):
                await producer.request(message, timeout_ms=1_000)
        case _:
            await producer.send_in_transaction(message)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [5, len(FIRST)])
@pytest.mark.parametrize("pending_max", [1, 100])
async def test_what_changes_while_a_send_waits_is_not_sent(
    cluster: MemoryCluster, form: str, size: int, pending_max: int
) -> None:
    seen: list[Any] = []

    class Hook:
        def before_send(self, context: Any) -> None:
            seen.extend(context.messages)

        def after_send(self, context: Any) -> None:
            seen.extend(context.messages)

    producer = TransactionProducer(
        "pg", cluster.namesrv, check=lambda _: TransactionState.UNKNOWN,
        execute=lambda *_: TransactionState.COMMIT,
        options=TransactionOptions(pending_sends_max=pending_max),
    )  # fmt: skip
    producer.add_hook(Hook())
    async with producer:
        given = [Reused(size) for _ in range(3)]
        async with asyncio.TaskGroup() as sends:
            for it in given:
                sends.create_task(send(form, producer, it.message))
            await asyncio.sleep(0)  # each has been called, and waits
            for it in given:
                it.change()
        await eventually(lambda: len(cluster.messages("T")) == 3)
        seen.extend(cluster.messages("T"))
    for one in seen:
        assert (bytes(one.body), one.tag) == (FIRST[:size], "tag")
        assert "k1" in one.keys
        assert one.properties["a"] == "1"


async def test_a_body_may_be_a_view_of_any_items(producer: Producer) -> None:
    numbers = array("I", [1, 2, 3])
    await producer.send(Message("T", memoryview(numbers)))  # type: ignore[arg-type]
    await producer.send_batch([Message("T", memoryview(numbers))])  # type: ignore[arg-type]


def test_a_blocking_send_keeps_no_reference(served: MemoryCluster) -> None:
    body = bytearray(b"one")
    with sync.Producer("pg", served.namesrv, options=ProducerOptions()) as producer:
        for number in range(3):
            body[:] = b"%03d" % number
            producer.send(Message("T", body))  # type: ignore[arg-type]
            producer.send_oneway(Message("T", body))  # type: ignore[arg-type]
    body.extend(b"more")  # raises BufferError while a view of it is kept
    assert {bytes(it.body) for it in served.messages("T")} == {b"000", b"001", b"002"}
