# SPDX-License-Identifier: Apache-2.0
"""`cometmq produce`: send messages from arguments, lines of a file, or standard input."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Annotated, Final

import msgspec
import typer

from cometmq.cli import message_json
from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, run, with_access, wrong_usage
from cometmq.cli.input import read_lines
from cometmq.cli.meter import is_terminal, live
from cometmq.cli.meter import rate as shown_rate
from cometmq.cli.output import (
    AsJson,
    Cell,
    as_objects,
    print_facts,
    print_json,
    print_notes,
    print_rows,
)
from cometmq.cli.verbs.patience import MaybeStored, Patience
from cometmq.cli.words import counted
from cometmq.client import InvalidArgument, Message, Producer, ProducerOptions, SendResult
from cometmq.client.errors import ClientError, NoRoute
from cometmq.client.message import SendStatus
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.service import new_event_loop

GROUP: Final = "CLI_PRODUCER"
RESULTS_MAX: Final = 20
"""Up to this many results are listed; if there are more, only the count is shown."""
LOOKUP_S: Final = 2.0
"""Time limit for learning whether the topic exists; the sends do not depend on it."""

app = typer.Typer(add_completion=False, rich_markup_mode=None)

Bodies = Annotated[
    list[str] | None,
    typer.Argument(help="Message bodies; without any, each line of standard input is a message."),
]
Topic = Annotated[str, typer.Argument(help="Topic; created if the broker allows it.")]
File = Annotated[
    Path | None,
    typer.Option(
        "-f",
        "--file",
        help="Send each line of this file as a message.",
        exists=True,
        dir_okay=False,
    ),
]
Tag = Annotated[str | None, typer.Option("--tag", help="Tag of the messages.")]
Keys = Annotated[
    list[str] | None, typer.Option("-k", "--key", help="Message key; may be repeated.")
]
Properties = Annotated[
    list[str] | None, typer.Option("-p", "--property", help="Property NAME=VALUE; may be repeated.")
]
DelayLevel = Annotated[
    int, typer.Option(min=0, max=18, help="Delay level 1 to 18: 1s 5s 10s 30s 1m ... 2h; 0: none.")
]
Count = Annotated[
    int | None,
    typer.Option(
        "--count",
        min=1,
        help="Send N messages, cycling through the bodies; if they are read as lines, at most N.",
    ),
]
Rate = Annotated[
    float | None, typer.Option(min=0.001, help="Maximum number of messages per second.")
]
InFlight = Annotated[
    int,
    typer.Option(
        min=1, max=10_000, help="Maximum number of concurrent sends; 1 preserves the order."
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        min=0,
        help="Retry a message for this many seconds while servers are down, hanging or busy.",
    ),
]
JsonLines = Annotated[
    bool,
    typer.Option(
        "--json-lines",
        help="Read lines and bodies as JSON, in the form printed by `consume --json`.",
    ),
]


class Sent(msgspec.Struct):
    """The outcome of a run."""

    count: int = 0
    skipped_count: int = 0
    """The number of empty lines, which are skipped because RocketMQ allows no empty bodies."""
    unconfirmed: dict[str, int] = {}
    """The number of messages by status other than SEND_OK: stored, but less safely than requested.
    """
    new_topic: str = ""
    """The topic, if no broker had it before the run."""
    own_topic: str = ""
    """The topic, if a broker has its name, and so created it for tests of itself."""
    uncertain_count: int = 0
    """Messages that failed, but that an unanswered attempt may have stored."""
    results: list[SendResult] = []
    seconds: float = 0.0


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
    count: Count = None,
    rate: Rate = None,
    in_flight: InFlight = 64,
    timeout: Timeout = 30,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    json_lines: JsonLines = False,
    as_json: AsJson = False,
) -> None:
    """Send messages; exit with status 1 at the first one that is not stored."""
    if body and file:
        raise wrong_usage("give bodies or --file, not both")
    defaults = Message(topic, b"", tag, key or (), _pairs(properties or ()), 0, delay_level)

    def message_of(line: bytes) -> Message:
        if json_lines:
            return message_json.parse(line, defaults=defaults)
        return msgspec.structs.replace(defaults, body=line)

    is_keyboard = not body and file is None and is_terminal(sys.stdin)

    async def main() -> Sent:
        sent = Sent()
        messages = _messages(_lines(body, file, count), message_of, sent, count)
        options = with_access(ProducerOptions())
        begin = monotonic()

        def progress() -> str:
            total = f" of {count:,}" if count is not None else ""
            return f"sent {shown_rate(sent.count, begin)}{total}"

        try:
            async with (
                Producer(GROUP, namesrv, options=options, log=NO_LOG) as producer,
                live(progress, wanted=not is_keyboard),
            ):
                await _look_at_topic(producer, topic, sent)
                send = partial(Patience(timeout).send, producer)
                await _send_all(send, messages, sent, rate=rate, in_flight=in_flight)
        except BaseException as error:
            is_stopped = isinstance(error, KeyboardInterrupt | asyncio.CancelledError)
            print_notes(_failure_notes(sent, "end" if is_stopped else "error"))
            if sent.count and isinstance(error, InvalidArgument):
                raise ClientError(str(error)) from error  # status 1: something was done
            raise
        if not sent.count:
            raise InvalidArgument("nothing was sent: the input has no non-empty line")
        sent.seconds = monotonic() - begin
        return sent

    _print(run(main(), loop_factory=new_event_loop), as_json=as_json)


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, _ in pairs:
        if not name or not equals:
            raise wrong_usage(f"--property {name}: must be name=value")
    return {name: value for name, _, value in pairs}


# -- sources ----------------------------------------------------------------------------------


async def _lines(
    bodies: Sequence[str] | None, file: Path | None, count: int | None
) -> AsyncIterator[bytes]:
    """Yield the bodies, repeated up to `count`, or the lines of the file or of standard input."""
    if bodies:
        for number in range(count or len(bodies)):
            yield bodies[number % len(bodies)].encode("utf-8", "surrogateescape")
        return
    if file is None:
        if is_terminal(sys.stdin):
            typer.echo("Each line is a message; Ctrl-D to end.", err=True)
        async for line in read_lines(sys.stdin.fileno()):
            yield line
        return
    descriptor = os.open(file, os.O_RDONLY)
    try:
        async for line in read_lines(descriptor):
            yield line
    finally:
        os.close(descriptor)


async def _messages(
    lines: AsyncIterator[bytes],
    message_of: Callable[[bytes], Message],
    sent: Sent,
    count: int | None,
) -> AsyncIterator[Message]:
    made = 0
    async for line in lines:
        if not line:
            sent.skipped_count += 1
            continue
        yield message_of(line)
        made += 1
        if made == count:
            return


async def _look_at_topic(producer: Producer, topic: str, sent: Sent) -> None:
    """Note whether no broker has the topic, or a broker has its name; the first send reports any
    other problem.
    """
    try:
        async with asyncio.timeout(LOOKUP_S):
            queues = await producer.admin.queues(topic)
    except NoRoute:
        sent.new_topic = topic
    except (CometError, TimeoutError):
        pass
    else:
        sent.own_topic = topic if any(topic == it.broker_name for it in queues) else ""


# -- sending ----------------------------------------------------------------------------------


async def _send_all(
    send_one: Callable[[Message], Awaitable[SendResult]],
    messages: AsyncIterator[Message],
    sent: Sent,
    *,
    rate: float | None,
    in_flight: int,
) -> None:
    """Send with at most `in_flight` sends pending.

    After the first failure, no more messages are read. Once the sends in flight have ended, raise
    the first failure of a message that may be stored or, if there is none, the first failure.
    """
    room = asyncio.Semaphore(in_flight)
    begin = monotonic()
    failures: list[CometError] = []

    async def send(message: Message) -> None:
        try:
            result = await send_one(message)
        except CometError as error:
            failures.append(error)
            sent.uncertain_count += isinstance(error, MaybeStored)
            feeding.cancel()
            return
        finally:
            room.release()
        sent.count += 1
        if result.status is not SendStatus.SEND_OK:
            name = result.status.name
            sent.unconfirmed[name] = sent.unconfirmed.get(name, 0) + 1
        if len(sent.results) < RESULTS_MAX:
            sent.results.append(result)

    async def feed() -> None:
        number = 0
        try:
            async for message in messages:
                await room.acquire()
                pause_s = 0.0 if rate is None else begin + number / rate - monotonic()
                if pause_s > 0:
                    await asyncio.sleep(pause_s)
                group.create_task(send(message))
                await asyncio.sleep(0)  # starts it: a message that is refused ends the reading
                number += 1
        except InvalidArgument as error:
            failures.append(error)

    async with asyncio.TaskGroup() as group:
        feeding = group.create_task(feed())
    if failures:
        uncertain = (error for error in failures if isinstance(error, MaybeStored))
        raise next(uncertain, failures[0])


def _print(sent: Sent, *, as_json: bool) -> None:
    facts: dict[str, Cell] = {
        "sent": sent.count,
        "seconds": round(sent.seconds, 3),
        "per_second": round(sent.count / sent.seconds) if sent.seconds else 0,
    }
    unconfirmed = sum(sent.unconfirmed.values())
    if unconfirmed:
        facts["unconfirmed"] = unconfirmed
    if sent.skipped_count:
        facts["empty_lines_skipped"] = sent.skipped_count
    columns = ("Message id", "Status", "Broker", "Queue", "Offset")
    rows: list[list[Cell]] = [
        [
            result.message_id,
            result.status.name,
            result.queue.broker_name,
            result.queue.queue_id,
            result.queue_offset,
        ]
        for result in sent.results
    ]
    if as_json:
        print_json({**facts, "first_results": as_objects(columns, rows)})
    elif 0 < sent.count <= RESULTS_MAX:
        print_rows(columns, rows, as_json=False)
    else:
        print_facts(facts, as_json=False)
    print_notes([*_skipped_notes(sent), *_topic_notes(sent), *_unconfirmed_notes(sent)])


def _skipped_notes(sent: Sent) -> list[str]:
    if not sent.skipped_count:
        return []
    verb = "was" if sent.skipped_count == 1 else "were"
    lines = f"{counted(sent.skipped_count, 'empty line')} {verb} not sent"
    return [f"{lines}: brokers store no message without a body"]


def _unconfirmed_notes(sent: Sent) -> list[str]:
    """Return the warning about messages that are stored less safely than requested."""
    if not sent.unconfirmed:
        return []
    statuses = ", ".join(f"{name} {count:,}" for name, count in sorted(sent.unconfirmed.items()))
    total = counted(sum(sent.unconfirmed.values()), "message")
    line = (
        f"{total} stored without the confirmation that the broker waits for ({statuses}):"
        " when they were sent, only one machine was certain to have them; look at cometmq cluster"
    )
    return [line]


def _topic_notes(sent: Sent) -> list[str]:
    """Return the note that the first message has created the topic, whose name may be misspelt, or
    that a broker created it for itself.
    """
    if sent.own_topic:
        line = (
            f"{sent.own_topic} is the name of a broker, which has a topic of this name for tests of"
            " itself: the messages are stored there, but topic list hides it, and topic create"
            " refuses the name; choose a different name for a topic of your own"
        )
        return [line]
    if not sent.new_topic:
        return []
    line = (
        f"no broker had the topic {sent.new_topic}, so it was created with default settings (at"
        f" most {ProducerOptions().default_topic_queue_nums} queues per broker); to choose them,"
        " create it first: cometmq topic create; if the name is wrong: cometmq topic delete"
        f" {sent.new_topic}"
    )
    return [line]


def _failure_notes(sent: Sent, what: str = "error") -> list[str]:
    """Return notes on a run that failed or was stopped: how many messages are, or may be,
    stored.
    """
    notes: list[str] = []
    if sent.count:
        stored = f"{counted(sent.count, 'message')} stored before the {what}"
        notes += [stored, *_topic_notes(sent), *_unconfirmed_notes(sent)]
    notes += _skipped_notes(sent)
    if sent.uncertain_count:
        notes.append(
            f"{counted(sent.uncertain_count, 'message')} may be stored: a broker has not answered"
            " an attempt, so a message that is sent again may be stored twice"
        )
    return notes
