# SPDX-License-Identifier: Apache-2.0
"""The sequence of the demo: start a suite, send, consume in two processes, rebuild, compare."""

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic
from typing import Final

import msgspec

from cometmq.cli.say import say
from cometmq.client import Message, Producer
from cometmq.client.admin import AdminClient
from cometmq.peers.demo import children
from cometmq.peers.demo.consumer import read_reports
from cometmq.peers.demo.progress import Counts, DemoFailed, show_progress, stalled
from cometmq.peers.demo.rebuild import Rebuilder, SourceFile, library_files
from cometmq.remoting.errors import CometError, Outage, SystemBusy
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.hangup import cancelled_by_signals
from cometmq.runtime.service import new_event_loop, one_line

TOPIC: Final = "PythonLibrary"
PRODUCER_GROUP: Final = "demo-producer"
CONSUMER_GROUP: Final = "demo-consumers"
CONSUMER_COUNT: Final = 2
QUEUE_COUNT: Final = 8
FILES_AT_ONCE: Final = 32
"""The lines of a file are sent one by one to keep their order; files are sent concurrently."""

STALL_S: Final = 60
"""Default time without progress after which the demo gives up."""
SEND_ATTEMPTS: Final = 20
SEND_PAUSE_S: Final = 0.25
FAULTS_SHOWN: Final = 10
EXIT_INTERRUPTED: Final = 130


class Demo:
    """The state of one run."""

    def __init__(self, files: Sequence[SourceFile], stall_s: float) -> None:
        self.files = files
        self.stall_s = stall_s
        self.line_count = sum(file.line_count for file in files)
        self.rebuilder = Rebuilder(files)
        self.sent_count = 0
        self.send_s = 0.0
        self.receive_s = 0.0
        self.received_by = [0] * CONSUMER_COUNT
        self.queue_counts = [0] * CONSUMER_COUNT
        self._shared = asyncio.Event()

    def counts(self) -> Counts:
        """Return how many messages have been sent and received."""
        return Counts(self.sent_count, self.rebuilder.line_count)

    async def run(self, namesrv: str) -> None:
        """Send everything and wait until everything has been received."""
        async with AdminClient(namesrv, log=NO_LOG) as admin:
            await admin.create_topic(TOPIC, queue_count=QUEUE_COUNT)
        async with AsyncExitStack() as stack:
            producer = await stack.enter_async_context(
                Producer(PRODUCER_GROUP, namesrv, log=NO_LOG)
            )
            streams = [
                await stack.enter_async_context(children.consumer(namesrv, TOPIC, CONSUMER_GROUP))
                for _ in range(CONSUMER_COUNT)
            ]
            async with asyncio.TaskGroup() as group:
                readers = [
                    group.create_task(self._receive(number, stream))
                    for number, stream in enumerate(streams)
                ]
                await self._wait_until_shared()
                begin = monotonic()
                progress = group.create_task(
                    show_progress(self.line_count, self.counts, self.stall_s)
                )
                await self._send(producer)
                self.send_s = monotonic() - begin
                await progress
                self.receive_s = monotonic() - begin
                for reader in readers:
                    reader.cancel()

    async def _wait_until_shared(self) -> None:
        """Wait for the rebalance, so that the consumers share the load from the first line."""
        try:
            async with asyncio.timeout(self.stall_s):
                await self._shared.wait()
        except TimeoutError as error:
            text = f"the consumers have not shared the queues: {self.queue_counts}"
            raise stalled(text, self.stall_s) from error
        shares = " and ".join(str(count) for count in self.queue_counts)
        say(f"  consumers  {CONSUMER_COUNT} processes of one group, with {shares} queues")

    async def _receive(self, number: int, stream: asyncio.StreamReader) -> None:
        async for report in read_reports(stream):
            if report.queue_count is not None:
                self.queue_counts[number] = report.queue_count
                if all(self.queue_counts) and sum(self.queue_counts) == QUEUE_COUNT:
                    self._shared.set()
            for line in report.lines:
                self.rebuilder.add(line)
            self.received_by[number] += len(report.lines)
        raise DemoFailed(f"consumer {number + 1} ended early")

    async def _send(self, producer: Producer) -> None:
        """Send many files concurrently, with the lines of each file in order."""
        files = iter(self.files)
        async with asyncio.TaskGroup() as group:
            for _ in range(FILES_AT_ONCE):
                group.create_task(self._send_files(producer, files))

    async def _send_files(self, producer: Producer, files: Iterator[SourceFile]) -> None:
        for file in files:
            for number, line in enumerate(file.lines(), start=1):
                key = f"{file.name}:{number}"
                await _send_line(producer, Message(TOPIC, line, file.package, key), file.name)
                self.sent_count += 1

    def summary(self, faults: Sequence[str]) -> list[str]:
        """Return the results as text."""
        shares = " + ".join(f"{count:,}" for count in self.received_by)
        equal_count = len(self.files) - len(faults)
        sent_rate = self.sent_count / self.send_s
        twice = f"{self.rebuilder.repeated_count:,} of them twice"
        equal = f"{equal_count:,} of {len(self.files):,} files are equal by SHA-256"
        lines = [
            f"  sent       {self.sent_count:,} messages in {self.send_s:.1f} s: {sent_rate:,.0f}/s",
            f"  received   {shares} messages in {self.receive_s:.1f} s: {twice}",
            f"  compared   {equal}, each in one queue and in order",
        ]
        lines += [f"  {fault}" for fault in faults[:FAULTS_SHOWN]]
        if len(faults) > FAULTS_SHOWN:
            lines.append(f"  ... and {len(faults) - FAULTS_SHOWN:,} more files")
        return lines


async def _send_line(producer: Producer, message: Message, name: str) -> None:
    """Send one line; retry if the broker is busy or its answer is lost, so a line may arrive
    twice, with the same message id."""
    message = msgspec.structs.replace(message, message_id=producer.new_message_id())
    for attempt in range(SEND_ATTEMPTS):
        try:
            await producer.send_ordered(message, name)
        except (SystemBusy, Outage):
            if attempt == SEND_ATTEMPTS - 1:
                raise
            await asyncio.sleep(SEND_PAUSE_S)
        else:
            return


async def demo(files: Sequence[SourceFile], stall_s: float = STALL_S) -> bool:
    """Run the demo; return whether every file came back unchanged.

    Raise DemoFailed after `stall_s` seconds without progress.
    """
    say("CometMQ demo: the Python standard library through a broker and back")
    run = Demo(files, stall_s)
    megabytes = sum(file.byte_count for file in files) / 1e6
    say(f"  library    {len(files):,} modules, {run.line_count:,} lines, {megabytes:.1f} MB")
    with TemporaryDirectory(prefix="cometmq-demo-") as folder:
        async with children.suite(Path(folder)) as namesrv:
            say(f"  suite      name server {namesrv}, data in {folder}")
            say(f"  end        when all is compared, or after {stall_s:g} s without progress")
            await run.run(namesrv)
    faults = run.rebuilder.faults()
    for line in run.summary(faults):
        say(line)
    return not faults


async def _until_signalled(stall_s: float) -> bool:
    """Run the demo; clean up after SIGTERM and SIGHUP as after Ctrl-C."""
    with cancelled_by_signals():
        return await demo(library_files(), stall_s)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise argparse.ArgumentTypeError(f"{text}: must be a number of seconds above 0")
    return seconds


def main() -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(prog="make demo ARGS=...", description=__doc__)
    parser.add_argument(
        "--timeout",
        type=_seconds,
        default=STALL_S,
        metavar="S",
        help="give up after this many seconds without progress (default: %(default)s)",
    )
    stall_s = parser.parse_args().timeout
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return 0 if runner.run(_until_signalled(stall_s)) else 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        say("interrupted; everything is stopped and removed", err=True)
        return EXIT_INTERRUPTED
    except (CometError, OSError, BaseExceptionGroup) as error:
        line = one_line(error)
        if line is None:
            raise
        say(f"cometmq: {line}", err=True)
    return 1
