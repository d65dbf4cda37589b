# SPDX-License-Identifier: Apache-2.0
"""`cometmq reply`: answer the requests to a topic with a text, an echo, or a command's output."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
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
from cometmq.cli.messaging import shell
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
        return await shell.output(command, request, VARIABLE, left_s)

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
