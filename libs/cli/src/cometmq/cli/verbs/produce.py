# SPDX-License-Identifier: Apache-2.0
"""`cometmq produce`: send messages from arguments, lines of a file, or standard input."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Final

import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, run, with_access, wrong_usage
from cometmq.cli.input import read_lines
from cometmq.cli.lazy import App
from cometmq.cli.limits import BriefEnd, with_limit
from cometmq.cli.meter import live
from cometmq.cli.meter import rate as shown_rate
from cometmq.cli.output import AsJson, print_notes
from cometmq.cli.say import say
from cometmq.cli.streams import is_terminal
from cometmq.cli.verbs.lines import Line, line_form, message_of_line, pairs
from cometmq.cli.verbs.patience import SEND_TIMEOUT_MS, MaybeStored, Patience
from cometmq.cli.verbs.sent import Sent, delay_texts, failure_notes, report
from cometmq.cli.verbs.write_access import explained
from cometmq.client import (
    ClientOptions,
    InvalidArgument,
    Message,
    Producer,
    ProducerOptions,
    SendResult,
)
from cometmq.client.admin import AdminClient
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, NoRoute
from cometmq.insight import times
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.service import new_event_loop


def deliver_at(at: str | None, in_: str | None, *, now_ms: int) -> datetime | timedelta | None:
    """Return when to deliver; raise InvalidArgument for a time in the past."""
    if at is not None and in_ is not None:
        raise InvalidArgument("--at cannot be combined with --in")
    if in_ is not None:
        return timedelta(seconds=times.seconds(in_))
    if at is None:
        return None
    due_ms = times.parsed(at, now_ms=now_ms)
    if due_ms <= now_ms:
        raise InvalidArgument(
            f"--at {at} is in the past: {times.shown(due_ms)}; to deliver so much later, give --in"
        )
    return datetime.fromtimestamp(due_ms // 1_000, UTC) + timedelta(milliseconds=due_ms % 1_000)


def shown_time(at: datetime | timedelta | None) -> str:
    """Return the text for the results; empty for messages without a time."""
    if isinstance(at, datetime):
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return "" if at is None else f"in {at}"


GROUP: Final = "CLI_PRODUCER"
STDIN: Final = "-"
LOOKUP_S: Final = 2.0
"""Time limit for learning whether the topic exists; the sends do not depend on it."""
END_S: Final = 1.0
"""Time limit for closing the client; by then all sends have ended."""

app = App()


Bodies = Annotated[
    list[str] | None,
    typer.Argument(help="Bodies; without any, each line of standard input."),
]
Topic = Annotated[str, typer.Argument(help="Topic; a broker may create it.")]
File = Annotated[
    Path | None,
    typer.Option(
        "-f",
        "--file",
        help="Send each line of this file; - is standard input.",
        exists=True,
        dir_okay=False,
        allow_dash=True,
    ),
]
Tag = Annotated[str | None, typer.Option("--tag", help="Tag.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("-k", "--key", help="A key; may be repeated; 'a b' is two."),
]
Properties = Annotated[
    list[str] | None, typer.Option("-p", "--property", help="Property NAME=VALUE; may be repeated.")
]
DelayLevel = Annotated[
    int,
    typer.Option(
        min=0,
        max=18,
        show_default=False,
        help="Deliver later: 1 to 18 are 1s 5s 10s 30s 1m 2m ... 10m 20m 30m 1h 2h.",
    ),
]
At = Annotated[str | None, typer.Option("--at", help="Deliver at 2026-11-20T10:00Z.")]
In = Annotated[str | None, typer.Option("--in", help="Or in 90m, 3d.")]
Count = Annotated[
    int | None,
    typer.Option("--count", min=1, help="Send N messages or lines."),
]
Rate = Annotated[
    float | None,
    typer.Option(min=0.001, help="Send N a second."),
]
InFlight = Annotated[
    int,
    typer.Option(min=1, max=10_000, show_default=False, help="Sends at a time; 1 keeps the order."),
]
Timeout = Annotated[
    float,
    typer.Option(min=0, help="Seconds to retry at busy servers."),
]
KeyDelimiter = Annotated[
    str | None,
    typer.Option("-K", "--key-delimiter", help="Text between the key and the body of each line."),
]
JsonLines = Annotated[
    bool, typer.Option("--json-lines", help="Read lines and bodies as `consume --json` prints.")
]


@app.command()
def produce(  # noqa: PLR0913  # one parameter per option
    topic: Topic,
    body: Bodies = None,
    *,
    file: File = None,
    tag: Tag = None,
    key: Keys = None,
    properties: Properties = None,
    delay_level: DelayLevel = 0,
    at: At = None,
    in_: In = None,
    count: Count = None,
    rate: Rate = None,
    in_flight: InFlight = 64,
    timeout: Timeout = 30,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    key_delimiter: KeyDelimiter = None,
    json_lines: JsonLines = False,
    as_json: AsJson = False,
) -> None:
    """Send messages; exit with status 1 at the first one that is not stored.

    \b
    EXAMPLES
      cometmq produce orders 'order 17' --tag paid --key order-17
      cometmq produce orders 'again' --count 1000 --rate 50
    """
    if body and file:
        raise wrong_usage("give bodies or --file, not both")
    if str(file) == STDIN:
        file = None
    keys = " ".join(key or ())
    defaults = Message(
        topic, b"-", tag, keys, pairs(properties or ()), 0, delay_level,
        deliver_at=deliver_at(at, in_, now_ms=wall_ms()),
    )  # fmt: skip
    form = line_form(defaults, key_delimiter or "", is_json=json_lines)
    message_of = partial(message_of_line, form=form)

    is_keyboard = not body and file is None and is_terminal(sys.stdin)

    async def main() -> Sent:
        sent = Sent(due=shown_time(defaults.deliver_at))
        stripped = None if json_lines else sent  # CR is a blank in JSON
        messages = _messages(_lines(body, file, count, stripped), message_of, sent, count)
        patience = Patience(timeout)
        begin = monotonic()

        def progress() -> str:
            total = f" of {count:,}" if count is not None else ""
            return f"sent {shown_rate(sent.count, begin)}{total}"

        async with (
            _failures_noted(sent, topic, namesrv),
            live(progress, wanted=not is_keyboard),
            BriefEnd(END_S) as end,
        ):
            producer = await end.enter_async_context(_producer(namesrv, patience))
            await end.enter_async_context(_abandoned_if_unanswered(sent))
            await _look_at_topic(producer, topic, sent)
            send = partial(patience.send, producer)
            await _send_all(send, messages, sent, patience, rate=rate, in_flight=in_flight)
        if not sent.count:
            raise InvalidArgument("nothing was sent: the input has no non-empty line")
        sent.seconds = monotonic() - begin
        if sent.is_delayed and not sent.due:
            sent.delays = await delay_texts(namesrv)
        return sent

    report(run(main(), loop_factory=new_event_loop), as_json=as_json)


def _producer(namesrv: str, patience: Patience) -> Producer:
    options = with_access(ProducerOptions(send_timeout_ms=SEND_TIMEOUT_MS))
    options = with_limit(options, patience.limit_s or None)
    producer = Producer(GROUP, namesrv, options=options, log=NO_LOG)
    producer.add_hook(patience)
    return producer


@asynccontextmanager
async def _failures_noted(sent: Sent, topic: str, namesrv: str) -> AsyncIterator[None]:
    """Print what was sent before a failure or an interruption."""
    try:
        yield
    except CometError as error:
        print_notes(failure_notes(sent))
        raise await _to_report(error, topic, namesrv, sent) from error.__cause__
    except BaseException as error:
        is_stopped = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
        print_notes(failure_notes(sent, "end" if is_stopped else "error"))
        raise


async def _to_report(error: CometError, topic: str, namesrv: str, sent: Sent) -> CometError:
    """Return the error that ends the run: the given error, or one with a better text or status."""
    if sent.count and isinstance(error, InvalidArgument):
        return ClientError(str(error))  # status 1: something was done
    if isinstance(error, NoRoute):
        async with AdminClient(namesrv, options=with_access(ClientOptions())) as admin:
            return await explained(admin, topic, error)
    return error


# -- sources ----------------------------------------------------------------------------------


async def _lines(
    bodies: Sequence[str] | None, file: Path | None, count: int | None, stripped: Sent | None
) -> AsyncIterator[Line]:
    """Yield the bodies, repeated up to `count`, or the lines of the file or of standard input.

    Lines are yielded without their ending; `stripped` counts the lines that end in CR LF.
    """
    if bodies:
        for index in range(count or len(bodies)):
            number = index % len(bodies)
            yield Line(number + 1, bodies[number].encode("utf-8", "surrogateescape"), "body")
        return
    if file is None and is_terminal(sys.stdin):
        say("Each line is a message; Ctrl-D to end.", err=True)
    descriptor = sys.stdin.fileno() if file is None else os.open(file, os.O_RDONLY)
    number = 0
    try:
        async for text in read_lines(descriptor):
            number += 1
            yield Line(number, _without_cr(text, stripped), file=file)
    finally:
        if file is not None:
            os.close(descriptor)


def _without_cr(line: bytes, stripped: Sent | None) -> bytes:
    """Return a line without the CR of its ending, which is counted in `stripped`."""
    if stripped is not None and line.endswith(b"\r"):
        stripped.stripped_count += 1
    return line.removesuffix(b"\r")


async def _messages(
    lines: AsyncIterator[Line],
    message_of: Callable[[Line], Message],
    sent: Sent,
    count: int | None,
) -> AsyncIterator[tuple[Line, Message]]:
    made = 0
    async for line in lines:
        if not line.text:
            sent.skipped_count += 1
            continue
        made += 1
        yield line, message_of(line)
        if made == count:
            return


async def _look_at_topic(producer: Producer, topic: str, sent: Sent) -> None:
    """Note whether a topic is new or named after a broker; the first send reports other faults."""
    try:
        async with asyncio.timeout(LOOKUP_S):
            queues = await producer.admin.queues(topic)
    except NoRoute:
        sent.new_topic = topic
    except (CometError, TimeoutError):
        pass  # the first send reports it
    else:
        sent.own_topic = topic if any(topic == it.broker_name for it in queues) else ""


# -- sending ----------------------------------------------------------------------------------


async def _send_all(
    send_one: Callable[[Message], Awaitable[SendResult]],
    messages: AsyncIterator[tuple[Line, Message]],
    sent: Sent,
    patience: Patience,
    *,
    rate: float | None,
    in_flight: int,
) -> None:
    """Send with at most `in_flight` sends pending.

    After the first failure, no more messages are read. Once the sends in flight have ended, raise
    the first failure of a message that may be stored or, if there is none, the first failure.

    When cancelled, stop reading, and raise CancelledError once the current attempts have ended.
    When cancelled again, end at once, and count the pending sends as uncertain.
    """
    room = asyncio.Semaphore(in_flight)
    begin = monotonic()
    failures: list[CometError] = []
    pending: set[asyncio.Task[None]] = set()

    async def send(line: Line, message: Message) -> None:
        try:
            result = await send_one(message)
        except CometError as error:
            failures.append(line.named_in(error))
            sent.uncertain_count += isinstance(error, MaybeStored)
            feeding.cancel()
            return
        except asyncio.CancelledError:
            sent.uncertain_count += 1
            raise
        finally:
            room.release()
        sent.add(result, message.delay_level)
        sent.repeated_count = patience.repeated_count

    async def feed() -> None:
        number = 0
        try:
            async for line, message in messages:
                await room.acquire()
                pause_s = 0.0 if rate is None else begin + number / rate - monotonic()
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
                task = group.create_task(send(line, message))
                pending.add(task)
                task.add_done_callback(pending.discard)
                await asyncio.sleep(0)  # starts it: a message that is refused ends the reading
                number += 1
        except InvalidArgument as error:
            failures.append(error)

    async with asyncio.TaskGroup() as group:
        feeding = group.create_task(feed())
        await _ended(feeding, pending, patience)
    _raise_first(failures)


@asynccontextmanager
async def _abandoned_if_unanswered(sent: Sent) -> AsyncIterator[None]:
    """After a cancellation, also interrupt `close` if a send is unanswered: it would wait 3 s for
    that broker.
    """
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if sent.uncertain_count and task is not None:
            task.cancel()
        raise


async def _ended(
    feeding: asyncio.Task[None], pending: set[asyncio.Task[None]], patience: Patience
) -> None:
    """Wait until the input and the pending sends have ended.

    When cancelled, stop reading and retrying, and wait for the current attempts: without their
    answers, the printed number of stored messages would be too low.
    """
    try:
        await asyncio.wait([feeding])
        if pending:
            await asyncio.wait(pending)
    except asyncio.CancelledError:
        feeding.cancel()
        patience.stop()
        await asyncio.wait({feeding, *pending})
        raise


def _raise_first(failures: Sequence[CometError]) -> None:
    if failures:
        uncertain = (error for error in failures if isinstance(error, MaybeStored))
        raise next(uncertain, failures[0])
