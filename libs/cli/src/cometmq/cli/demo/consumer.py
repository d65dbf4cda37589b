# SPDX-License-Identifier: Apache-2.0
"""One of the consumer processes: it writes the messages it consumes to standard output.

A message is acknowledged only after it is written, so if the process dies, unwritten messages are
redelivered to another member of the group.
"""

import asyncio
import contextlib
import sys
from typing import Final

from cometmq.cli.demo.reports import Line, Report, encode_report
from cometmq.client import ConsumeFrom, MessageExt, PushConsumer, PushOptions
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.service import Stop, run

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
