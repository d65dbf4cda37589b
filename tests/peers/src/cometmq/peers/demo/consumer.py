# SPDX-License-Identifier: Apache-2.0
"""One of the consumer processes: it writes the messages it consumes to standard output.

A message is acknowledged only after it is written, so if the process dies, unwritten messages are
redelivered to another member of the group.
"""

import asyncio
import contextlib
import struct
import sys
from collections.abc import AsyncIterator
from typing import Final

import msgspec

from cometmq.client import ConsumeFrom, MessageExt, PushConsumer, PushOptions
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.service import Stop, run

_LENGTH: Final = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()


class Line(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One received message; `key` is the file name, a colon, and the line number."""

    key: str
    queue_id: int
    queue_offset: int
    text: bytes


class Report(msgspec.Struct, array_like=True, frozen=True):
    """A list of consumed messages, and the number of assigned queues if it has changed."""

    lines: list[Line] = []
    queue_count: int | None = None


_decoder = msgspec.msgpack.Decoder(Report)


def encode_report(report: Report) -> bytes:
    """Return an encoded report, preceded by its length."""
    data = _encoder.encode(report)
    return _LENGTH.pack(len(data)) + data


async def read_reports(stream: asyncio.StreamReader) -> AsyncIterator[Report]:
    """Yield reports until the process exits."""
    while True:
        try:
            (length,) = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))
            data = await stream.readexactly(length)
        except asyncio.IncompleteReadError:
            return
        yield _decoder.decode(data)


QUEUE_REPORT_S: Final = 0.1


def write(report: Report) -> None:
    """Write one report to the parent; a slow parent blocks this process."""
    sys.stdout.buffer.write(encode_report(report))
    sys.stdout.buffer.flush()


async def listen(messages: list[MessageExt]) -> None:
    """Report a list of lines."""
    write(Report([Line(m.keys[-1], m.queue.queue_id, m.queue_offset, m.body) for m in messages]))


async def consume(stop: Stop, *, namesrv: str, topic: str, group: str) -> None:
    """Consume until the parent stops this process."""
    options = PushOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET, batch_count_max=32, rebalance_interval_ms=1_000
    )
    consumer = PushConsumer(group, namesrv, listener=listen, options=options, log=NO_LOG)
    consumer.subscribe(topic)
    async with consumer:
        queue_count = -1
        while not stop.is_requested:
            if len(consumer.queues) != queue_count:
                queue_count = len(consumer.queues)
                write(Report(queue_count=queue_count))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(QUEUE_REPORT_S):
                    await stop.wait()


def main() -> int:
    """Run with the arguments NAMESRV TOPIC GROUP."""
    namesrv, topic, group = sys.argv[1:]

    async def serve(stop: Stop) -> None:
        await consume(stop, namesrv=namesrv, topic=topic, group=group)

    return run(serve)


if __name__ == "__main__":
    sys.exit(main())
