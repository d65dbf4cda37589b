# SPDX-License-Identifier: Apache-2.0
"""`cometmq consume`: print messages, as a member of a group or as an observer.

A member of a group gets messages pushed from its share of the queues, and printed messages are
committed. An observer reads every queue of the topic from the position of `--from` and changes
nothing on the broker.
"""

import asyncio
import sys
from collections.abc import Callable
from importlib import import_module
from time import monotonic
from typing import Annotated, Final, Literal

import typer

from cometmq.cli.connecting import (
    DEFAULT_NAMESRV,
    Namesrv,
    run,
    similar_topics_named,
    wrong_usage,
)
from cometmq.cli.consuming.member_source import as_member
from cometmq.cli.consuming.message_format import HEADERS_FORMAT, HELP, Piece, compiled
from cometmq.cli.consuming.observer import LAST, as_observer
from cometmq.cli.consuming.source import Printed, Source, Wanted
from cometmq.cli.consuming.spans import LAST_MAX, Span, as_reader, parse_span
from cometmq.cli.lazy import App
from cometmq.cli.limits import BriefEnd, Limit
from cometmq.cli.messaging import reply
from cometmq.cli.meter import live, rate
from cometmq.cli.outcome import MISSING
from cometmq.cli.output import print_errors, print_notes
from cometmq.cli.say import say
from cometmq.cli.streams import fail_if_output_closes, is_terminal
from cometmq.client import MessageExt
from cometmq.client.clock import wall_ms
from cometmq.client.subscriptions import MessageSelector, subscription
from cometmq.insight import message_json
from cometmq.insight.changes.groups import check_not_reserved
from cometmq.remoting.names import ALL_TAGS
from cometmq.runtime.service import new_event_loop

VARIABLE: Final = "MESSAGE_"
"""The prefix of the environment variables that describe a message to the command of --exec."""
END_S: Final = 3.0
"""Time limit for committing the last offsets and leaving the group."""
HINT_S: Final = 1.0
"""Idle time after which a terminal shows that the command is waiting."""

app = App()

Topic = Annotated[str, typer.Argument(help="Topic to read.")]
Group = Annotated[
    str | None, typer.Option("-g", "--group", help="Consume as a member; offsets are committed.")
]
Tag = Annotated[
    str, typer.Option("--tag", show_default=False, help="Only messages with these tags: 'A || B'.")
]
Filter = Annotated[
    str | None, typer.Option("--filter", help="Only what meets this SQL92 condition.")
]
From = Annotated[
    str | None,
    typer.Option("--from", help="first, last (usual), a time (90m), or @TIME:TIME."),
]
Until = Annotated[str | None, typer.Option("--until", help="Only what is older; exit.")]
Last = Annotated[
    int | None,
    typer.Option("--last", min=1, max=LAST_MAX, help="Only the N newest; exit."),
]
Follow = Annotated[
    bool | None,
    typer.Option("--follow/--no-follow", help="Wait for more, or exit at the present end."),
]
Format = Annotated[
    str | None, typer.Option("--format", help="As '%k: %v\\n'; `--format help` lists escapes.")
]
Decode = Annotated[
    Literal["raw", "auto", "json", "msgpack", "text", "hex"],
    typer.Option(
        "--decode",
        metavar="FORM",
        show_default=False,
        help="raw (usual), auto, json, msgpack, text or hex.",
    ),
]
Headers = Annotated[bool, typer.Option("--headers", help="Print position and properties.")]
Queue = Annotated[str | None, typer.Option("--queue", help="Only BROKER:NUMBER, not with -g.")]
Offset = Annotated[int | None, typer.Option(min=0, help="From this offset.")]
# `--max` as in the other commands; `--count` as in `produce`, `reply`, and other brokers' tools.
Max = Annotated[int | None, typer.Option("--max", "--count", min=1, help="Exit after N messages.")]
Timeout = Annotated[
    float | None,
    typer.Option(min=0.001, help="Exit after N s without one."),
]
Exec = Annotated[
    str | None,
    typer.Option("--exec", metavar="CMD", help="Give each to a command; not 0: retried with -g."),
]
AsJsonLines = Annotated[bool, typer.Option("--json", help="Print JSON lines.")]


@app.command()
def consume(  # noqa: PLR0913  # one parameter per option
    topic: Topic,
    *,
    group: Group = None,
    tag: Tag = ALL_TAGS,
    condition: Filter = None,
    start: From = None,
    until: Until = None,
    last: Last = None,
    follow: Follow = None,
    queue: Queue = None,
    offset: Offset = None,
    count_max: Max = None,
    timeout: Timeout = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    format_: Format = None,
    decode: Decode = "raw",
    command: Exec = None,
    headers: Headers = False,
    as_json: AsJsonLines = False,
) -> None:
    """Print messages until Ctrl-C, or the end that options set.

    \b
    EXAMPLES
      cometmq consume orders --from @90m:60m --filter "price > 5" --json
      cometmq consume orders -g billing --exec './bill "$MESSAGE_KEYS"'
    """
    if format_ == "help":
        say(HELP, nl=False)
        return
    if command is not None and (format_ or headers or as_json or decode != "raw"):
        raise wrong_usage("--exec prints nothing: it cannot be combined with forms of printing")
    render = _renderer(format_, decode, has_headers=headers, as_json=as_json)
    selector = _selector(tag, condition)
    span = _checked_span(parse_span(start, until, last, follow), start, group, queue, offset)

    failed = 0

    async def main() -> int:
        nonlocal failed
        limit = Limit(timeout)
        wanted = Wanted(namesrv, topic, selector, timeout)
        if group is not None:
            source = as_member(wanted, group, span.start)
        elif span.is_bounded:
            source = as_reader(wanted, span, queue, offset)
        else:
            source = as_observer(wanted, span.start or LAST, span.last, queue, offset)
        async with BriefEnd(END_S) as end:
            messages = await limit.start(end.enter_async_context(source))
            printer = Printer(messages, topic, render, limit, command)
            async with asyncio.TaskGroup() as tasks:
                watch = tasks.create_task(fail_if_output_closes())
                async with live(printer.progress, beside_output=True):
                    count = await printer.print_all(count_max)
                watch.cancel()
            failed = printer.failed
        return count

    with similar_topics_named(namesrv):
        printed = run(main(), loop_factory=new_event_loop)
    if count_max is not None and printed < count_max and not span.is_bounded:
        say(f"cometmq: only {printed} of {count_max} messages arrived in time", err=True)
        raise typer.Exit(1)
    if failed:
        raise typer.Exit(1)


def _checked_span(
    span: Span, start: str | None, group: str | None, queue: str | None, offset: int | None
) -> Span:
    """Return the part of the topic to read, unless it contradicts the other options."""
    if offset is not None and start is not None:
        raise wrong_usage("--offset cannot be combined with --from: both say where to start")
    if offset is not None and span.last is not None:
        raise wrong_usage("--offset cannot be combined with --last: both say where to start")
    if group is not None and (span.is_bounded or span.last is not None):
        raise wrong_usage(
            "--until, --last, --no-follow and ranges cannot be combined with --group: they read a"
            " part of the topic without changing offsets"
        )
    if queue is not None and group is not None:
        raise wrong_usage(
            "--queue cannot be combined with --group: a group shares its queues among its members"
        )
    if offset is not None and queue is None:
        raise wrong_usage("--offset needs --queue")
    if span.begin_ms > wall_ms():
        read = (
            "there are no messages" if span.is_bounded else "the last message of each queue is read"
        )
        print_notes([f"{start} is in the future: {read}"])
    if group is not None:
        check_not_reserved(group)
    return span


def _selector(tag: str, condition: str | None) -> str | MessageSelector:
    """Return the filter: a tag expression, or a SQL92 condition if one is given."""
    if condition is not None and tag != ALL_TAGS:
        raise wrong_usage("--tag and --filter are two filters: give TAGS = 'A' in the condition")
    selector = tag if condition is None else MessageSelector.by_sql(condition)
    subscription("-", selector, version_ms=0)  # raises if it is wrong
    return selector


# -- printing ---------------------------------------------------------------------------------


def _renderer(format_: str | None, decode: str, *, has_headers: bool, as_json: bool) -> Piece:
    """Return the function that renders a message with its number."""
    if decode != "raw" and as_json:
        raise wrong_usage("--decode is for people: --json has the body as it is")
    if (format_ is not None) + has_headers + as_json > 1:
        raise wrong_usage("--format, --headers and --json are three forms: give one of them")
    is_shown = is_terminal(sys.stdout)
    if as_json:
        return lambda message, _: message_json.render(message) + b"\n"
    if format_ is None:
        format_ = HEADERS_FORMAT if has_headers else "%v\\n"
    return compiled(format_, _decoder(decode), for_terminal=is_shown)


def _decoder(form: str) -> Callable[[MessageExt], bytes] | None:
    """Return the function that renders a body as `form`; a body that is not of this form is shown
    as hex.
    """
    if form == "raw":
        return None
    module = import_module("cometmq.insight.decode")

    def decoded(message: MessageExt) -> bytes:
        found = module.decode(message.body, module.Format(form))
        cut = " ..." if found.is_cut else ""
        text: str = found.text + cut
        return text.encode()

    return decoded


class Printer:
    """Prints messages, or runs a command for each; prints a hint on a terminal if none arrive."""

    def __init__(
        self,
        source: Source,
        topic: str,
        render: Piece,
        limit: Limit,
        command: str | None = None,
    ) -> None:
        self._source = source
        self._limit = limit
        self._topic = topic
        self._render = render
        self._command = command
        self._begin = monotonic()
        self._is_waiting = False
        self._is_hint_due = is_terminal(sys.stderr)
        self.count = 0
        self.failed = 0
        """Number of messages whose command failed."""

    async def print_all(self, count_max: int | None) -> int:
        """Print until `count_max` messages are printed or the time limit ends; return their
        number.
        """
        out, source = sys.stdout.buffer, self._source
        is_last_wait = False
        while self.count != count_max:
            printed = await self._next(is_last=is_last_wait)
            if printed is None:
                if source.is_finished:
                    break
                unread = await source.unread()
                if source.empty() and (is_last_wait or not unread.is_coming):
                    MISSING.update(unread.lines)
                    break
                is_last_wait = True
                continue
            is_last_wait = False
            self._limit.renew()
            if self._command is not None:
                printed.is_refused = await self._is_refused(printed.message, self._command)
            else:
                out.write(self._render(printed.message, self.count + 1))
                if source.empty() or self.count + 1 == count_max:
                    out.flush()
            printed.is_printed = True
            printed.done.set()
            self.count += 1
        return self.count

    async def _is_refused(self, message: MessageExt, command: str) -> bool:
        """Run a command for a message; name the message if it fails."""
        status = await reply.status(command, message, VARIABLE)
        if status:
            self.failed += 1
            end = f"signal {-status}" if status < 0 else f"exit status {status}"
            print_errors([f"message {message.message_id}: the command ended with {end}"])
        return bool(status)

    async def _next(self, *, is_last: bool) -> Printed | None:
        if not self._source.empty():
            return self._source.get_nowait()
        self._is_waiting = True
        if self._is_hint_due:
            asyncio.get_running_loop().call_later(HINT_S, self._hint)
            self._is_hint_due = False
        try:
            async with asyncio.timeout(self._limit.wait_s(is_last=is_last)):
                return await self._source.get()
        except TimeoutError:
            return None
        finally:
            self._is_waiting = False

    def _hint(self) -> None:
        """Show that the command is waiting, not stuck."""
        if self._is_waiting:
            say(self._waiting(), err=True)
        else:
            self._is_hint_due = True  # a message has arrived since

    def _waiting(self) -> str:
        return f"waiting for messages on {self._topic}, Ctrl-C to exit"

    def progress(self) -> str:
        """Return the text shown on a terminal while the output is redirected."""
        shown = rate(self.count, self._begin)
        return f"{shown}; {self._waiting()}" if self._is_waiting else shown
