# SPDX-License-Identifier: Apache-2.0
"""`cometmq request`: send messages, and print the replies of their consumer."""

import sys
from time import monotonic
from typing import Annotated, Any, Final

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, Namesrv, run, with_access, wrong_usage
from cometmq.cli.consuming.message_format import compiled
from cometmq.cli.lazy import App
from cometmq.cli.limits import BriefEnd, with_limit
from cometmq.cli.output import print_errors, print_notes
from cometmq.cli.streams import is_terminal
from cometmq.cli.verbs.lines import Line, line_form, message_of_line, pairs
from cometmq.cli.verbs.write_access import explained
from cometmq.client import ClientOptions, Message, MessageExt, Producer, ProducerOptions
from cometmq.client.admin import AdminClient
from cometmq.client.errors import NoReply, NoRoute
from cometmq.insight import message_json
from cometmq.insight.words import counted
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.service import new_event_loop

GROUP: Final = "CLI_REQUESTER"
END_S: Final = 1.0
"""Time limit for closing the client, after all replies."""
BODY_BYTES_MAX: Final = 4 << 20

app = App()

Tag = Annotated[str | None, typer.Option("--tag", help="Tag of the request.")]
Keys = Annotated[
    list[str] | None, typer.Option("-k", "--key", help="Message key; may be repeated.")
]
Properties = Annotated[
    list[str] | None, typer.Option("-p", "--property", help="Property NAME=VALUE; may be repeated.")
]


@app.command()
def request(  # noqa: PLR0913  # one parameter per option
    topic: Annotated[str, typer.Argument(help="Topic whose consumer replies.")],
    body: Annotated[
        str | None, typer.Argument(help="Body; without one, all of standard input.")
    ] = None,
    *,
    tag: Tag = None,
    key: Keys = None,
    properties: Properties = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Send N requests in turn.")] = 1,
    timeout: Annotated[
        float, typer.Option(min=0.001, max=86_400, help="Seconds to wait for each reply.")
    ] = 3,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    format_: Annotated[
        str, typer.Option("--format", help="Form of a reply, as in consume.")
    ] = "%v\\n",
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each reply as a line of JSON.")
    ] = False,
) -> None:
    """Send a request and print the reply; exit status 1 if none comes in time.

    Requests are messages: a consumer that is down gets them later, and its reply is then dropped.
    Consumers of RocketMQ's clients can answer, and `cometmq reply`.

    \b
    EXAMPLES
      cometmq request quotes 'EURUSD' --timeout 5
      cometmq request quotes 'EURUSD' --count 100 --json
    """
    render = compiled(format_, for_terminal=is_terminal(sys.stdout))
    if body is None and is_terminal(sys.stdin):
        raise wrong_usage("give the body of the request, or send it to standard input")
    data = _standard_input() if body is None else body.encode("utf-8", "surrogateescape")
    defaults = Message(topic, b"-", tag, " ".join(key or ()), pairs(properties or ()))
    form = line_form(defaults)
    message = message_of_line(Line(1, data, "body"), form=form)

    def print_reply(reply: MessageExt, number: int, took_ms: float) -> None:
        line = _json_line(reply, took_ms) if as_json else render(reply, number)
        sys.stdout.buffer.write(line)
        sys.stdout.flush()

    async def main() -> list[float]:
        took: list[float] = []
        options = with_limit(with_access(ProducerOptions()), timeout)
        async with BriefEnd(END_S) as end:
            started = Producer(GROUP, namesrv, options=options, log=NO_LOG)
            producer = await end.enter_async_context(started)
            for number in range(1, count + 1):
                begin = monotonic()
                try:
                    reply = await producer.request(message, round(timeout * 1000) or 1)
                except NoReply as error:
                    print_errors([str(error)])
                    continue
                except NoRoute as error:
                    async with AdminClient(namesrv, options=with_access(ClientOptions())) as admin:
                        raise await explained(admin, topic, error) from error.__cause__
                took.append((monotonic() - begin) * 1000)
                print_reply(reply, number, took[-1])
        return took

    took = run(main(), loop_factory=new_event_loop)
    if count > 1:
        print_notes([_summary(took, count)])
    if len(took) < count:
        raise typer.Exit(1)


def _standard_input() -> bytes:
    data = sys.stdin.buffer.read(BODY_BYTES_MAX + 1)
    if len(data) > BODY_BYTES_MAX:
        raise wrong_usage(
            f"standard input has more than {BODY_BYTES_MAX:,} bytes, which is too much"
        )
    return data


def _json_line(reply: MessageExt, took_ms: float) -> bytes:
    found: dict[str, Any] = msgspec.json.decode(message_json.render(reply))
    return msgspec.json.encode({**found, "took_ms": round(took_ms, 3)}) + b"\n"


def _summary(took: list[float], count: int) -> str:
    replies = f"{len(took):,} of {counted(count, 'request')} answered"
    if not took:
        return replies
    figures = f"{min(took):.1f}, {sum(took) / len(took):.1f} and {max(took):.1f} ms"
    return f"{replies}; the least, mean and most time was {figures}"
