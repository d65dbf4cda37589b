# SPDX-License-Identifier: Apache-2.0
"""`cometmq reply`: answer the requests to a topic with a text, an echo, or a command's output."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Final

import msgspec
import typer

from cometmq.cli.connecting import (
    DEFAULT_NAMESRV,
    EXIT_INTERRUPTED,
    Namesrv,
    run,
    with_access,
    wrong_usage,
)
from cometmq.cli.consuming.member_source import as_member
from cometmq.cli.consuming.source import Source, Wanted
from cometmq.cli.lazy import App
from cometmq.cli.output import AsJson, Cell, print_errors, print_facts
from cometmq.cli.say import say
from cometmq.cli.streams import fail_if_output_closes
from cometmq.client import MessageExt, Producer, ProducerOptions
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError, RequesterGone
from cometmq.client.request_reply import is_request
from cometmq.client.subscriptions import subscription
from cometmq.insight.changes.groups import check_not_reserved
from cometmq.remoting.errors import CometError
from cometmq.remoting.integers import whole
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.names import ALL_TAGS
from cometmq.runtime.service import new_event_loop

OUTPUT_BYTES_MAX: Final = 4 << 20
_VALUE_BYTES_MAX: Final = 64 << 10
"""Longer values are left out, because the system limits the size of an environment."""


async def output(command: str, message: MessageExt, prefix: str, within_s: float) -> bytes:
    """Return what a command prints; raise ClientError if it fails, prints too much, or is late."""
    try:
        async with asyncio.timeout(within_s):
            status, data = await _ran(command, message, facts_of(message, prefix), is_read=True)
    except TimeoutError as error:
        raise ClientError(f"the command was not done after {within_s:.1f} s") from error
    if status:
        raise ClientError(f"the command ended with the exit status {status}")
    return data


async def status(command: str, message: MessageExt, prefix: str) -> int:
    """Run a command to its end, with this program's output; return its exit status.

    A negative status is the number of the signal that ended it.
    """
    facts = facts_of(message, prefix) | {
        f"{prefix}BROKER": message.queue.broker_name,
        f"{prefix}QUEUE": str(message.queue.queue_id),
        f"{prefix}OFFSET": str(message.queue_offset),
        f"{prefix}RETRIES": str(message.reconsume_times),
    }
    return (await _ran(command, message, facts, is_read=False))[0]


async def _ran(
    command: str, message: MessageExt, facts: Mapping[str, str], *, is_read: bool
) -> tuple[int, bytes]:
    """Run a command; end it with its children if this call is cancelled."""
    process = await asyncio.create_subprocess_shell(
        command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE if is_read else None,
        env={**os.environ, **facts},  # noqa: TID251  # of a child
        start_new_session=True,  # it can be ended with its children
    )
    try:
        data = await _conversation(process, message.body)
        return await process.wait(), data
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


async def _conversation(process: asyncio.subprocess.Process, body: bytes) -> bytes:
    """Write the body and read the output, both at once; raise ClientError if it is too long."""
    stdin, stdout = process.stdin, process.stdout
    assert stdin is not None

    async def write() -> None:
        if stdin.is_closing():  # it has ended; uvloop refuses the write then
            return
        with suppress(BrokenPipeError, ConnectionResetError):  # it does not read its input
            stdin.write(body)
            await stdin.drain()
            stdin.close()  # no wait_closed(): uvloop logs an error if that wait is cancelled

    if stdout is None:
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write())
            await process.wait()
            writing.cancel()
        return b""
    found = bytearray()
    async with asyncio.TaskGroup() as tasks:
        writing = tasks.create_task(write())
        while len(found) <= OUTPUT_BYTES_MAX and (chunk := await stdout.read(1 << 16)):
            found += chunk
        writing.cancel()
    if len(found) > OUTPUT_BYTES_MAX:
        raise ClientError(f"the command printed more than {OUTPUT_BYTES_MAX:,} bytes")
    return bytes(found)


def facts_of(message: MessageExt, prefix: str) -> dict[str, str]:
    """Return the variables that describe a message, without names and values that the system does
    not allow.
    """
    facts = {
        "ID": message.message_id,
        "TOPIC": message.topic,
        "TAG": message.tag or "",
        "KEYS": " ".join(it for it in message.keys if it != message.message_id),
        **{f"PROPERTY_{name}": value for name, value in message.user_properties.items()},
    }
    return {
        prefix + name: value
        for name, value in facts.items()
        if name.isidentifier() and "\0" not in value and len(value.encode()) < _VALUE_BYTES_MAX
    }


VARIABLE: Final = "REQUEST_"
"""The prefix of the environment variables that describe a request to a command."""

Answer = Callable[[MessageExt, int, float], Awaitable[bytes]]
"""Returns the answer to a request, by its number and the seconds left; raises ClientError."""


async def echo(request: MessageExt, _number: int, _left_s: float) -> bytes:
    """Return the request's body."""
    return request.body


def text(body: str) -> Answer:
    """Return a function that answers each request with a text."""
    data = body.encode("utf-8", "surrogateescape")

    async def answer(_request: MessageExt, _number: int, _left_s: float) -> bytes:
        return data

    return answer


def output_of(command: str) -> Answer:
    """Return a function that runs a shell command for each request and returns its output.

    The function raises ClientError if the command fails, prints nothing or too much, or is late.
    """

    async def answer(request: MessageExt, _number: int, left_s: float) -> bytes:
        return await output(command, request, VARIABLE, left_s)

    return answer


GROUP: Final = "CLI_REPLIER"
CLOCKS_MS: Final = 5_000
"""A request counts as expired only this long after its time to live, because clocks may differ."""
TTL_MS: Final = 3_000
"""The time to live of a request whose own value cannot be read."""

app = App()


class Served(msgspec.Struct):
    """Counts of the requests of one run, by outcome."""

    replied: int = 0
    failed: int = 0
    """Requests that got no answer, or whose reply could not be sent."""
    gone: int = 0
    """Replies whose requester was no longer connected."""
    expired: int = 0
    """Requests whose requester had given up when they arrived."""
    not_requests: int = 0

    @property
    def requests(self) -> int:
        """The number of requests that were read, with any outcome."""
        return self.replied + self.failed + self.gone + self.expired


@app.command()
def reply(  # noqa: PLR0913  # one parameter per option
    topic: Annotated[str, typer.Argument(help="Topic of the requests.")],
    body: Annotated[str | None, typer.Argument(help="Body of every reply.")] = None,
    *,
    is_echo: Annotated[bool, typer.Option("--echo", help="Reply with the request's body.")] = False,
    command: Annotated[
        str | None, typer.Option("--command", help="Reply with what this shell command prints.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(
            "-g",
            "--group",
            help="Consumer group; its members share the requests.",
            show_default=f"{GROUP}_TOPIC",
        ),
    ] = None,
    tag: Annotated[
        str, typer.Option("--tag", help="Only requests with these tags: 'A || B'.")
    ] = ALL_TAGS,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="Exit after this many requests.")
    ] = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    as_json: AsJson = False,
) -> None:
    """Reply to requests until Ctrl-C; exit status 1 if one got no answer.

    A command reads the request from standard input; REQUEST_ID, REQUEST_TOPIC, REQUEST_TAG,
    REQUEST_KEYS and REQUEST_PROPERTY_name describe it. If it fails, prints nothing, or takes longer
    than the requester waits, it is ended, and no reply is sent. Expired requests are skipped.

    \b
    EXAMPLES
      cometmq reply quotes --echo
      cometmq reply quotes --command './quote "$REQUEST_KEYS"' -g quoters
    """
    answer = _answer(body, command, is_echo=is_echo)
    members = group or f"{GROUP}_{topic}"
    check_not_reserved(members)
    subscription("-", tag, version_ms=0)  # raises if it is wrong
    served = Served()

    async def main() -> None:
        async with (
            Producer(
                GROUP, namesrv, options=with_access(ProducerOptions()), log=NO_LOG
            ) as producer,
            as_member(Wanted(namesrv, topic, tag), members, None) as source,
            _ended_with_the_output(),
        ):
            say(f"waiting for requests on {topic} as {members}, Ctrl-C to exit", err=True)
            await _serve(producer, source, answer, served, count)

    status = 0
    try:
        run(main(), loop_factory=new_event_loop)
    except typer.Exit as end:
        if end.exit_code != EXIT_INTERRUPTED:
            raise
        status = EXIT_INTERRUPTED
    facts: dict[str, Cell] = {"requests": served.requests, **msgspec.structs.asdict(served)}
    print_facts(facts, as_json=as_json)
    raise typer.Exit(status or int(bool(served.failed)))


def _answer(body: str | None, command: str | None, *, is_echo: bool) -> Answer:
    """Return the function that answers; exit unless the options name exactly one kind of answer."""
    if (body is not None) + (command is not None) + is_echo != 1:
        raise wrong_usage("give one answer: a body, --echo or --command")
    if body is not None:
        return text(body)
    return echo if command is None else output_of(command)


@asynccontextmanager
async def _ended_with_the_output() -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(fail_if_output_closes())
        yield
        watch.cancel()


async def _serve(
    producer: Producer, source: Source, answer: Answer, served: Served, count: int | None
) -> None:
    """Answer requests one after another.

    Each is acknowledged even if the answer fails, because its requester would be gone at a later
    delivery.
    """
    while served.requests != count:
        printed = await source.get()
        assert printed is not None
        if not is_request(printed.message):
            served.not_requests += 1
            if served.not_requests == 1:
                print_errors([f"{printed.message.message_id} is no request: such are skipped"])
        else:
            await _handle(producer, printed.message, answer, served)
        printed.is_printed = True
        printed.done.set()


async def _handle(producer: Producer, request: MessageExt, answer: Answer, served: Served) -> None:
    given_ms = whole(request.properties.get(PropertyKey.TTL, ""))
    ttl_ms = TTL_MS if given_ms is None else given_ms
    age_ms = wall_ms() - request.store_timestamp
    name = f"request {request.message_id}"
    if age_ms > ttl_ms + CLOCKS_MS:
        served.expired += 1
        print_errors([f"{name} expired {(age_ms - ttl_ms) / 1000:.1f} s ago: skipped"])
        return
    try:
        data = await answer(request, served.requests + 1, ttl_ms / 1000)
        if not data:
            raise ClientError("the answer is empty, and brokers take no message without a body")
        await producer.reply(request, data)
    except RequesterGone as error:
        served.gone += 1
        print_errors([f"{name}: {error}"])
    except CometError as error:
        served.failed += 1
        print_errors([f"{name} gets no reply: {error}"])
    else:
        served.replied += 1
