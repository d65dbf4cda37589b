# SPDX-License-Identifier: Apache-2.0
"""`cometmq check`: compare a cluster with thresholds, for monitoring systems and scripts."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex
from time import monotonic, monotonic_ns
from typing import Annotated, Any, Final, Literal, NamedTuple, NoReturn

import msgspec
import typer

from cometmq.cli.connecting import DEFAULT_NAMESRV, EXIT_USAGE, Namesrv, run, with_access
from cometmq.cli.failures import with_remedy
from cometmq.cli.lazy import App
from cometmq.cli.operation import checks
from cometmq.cli.operation.checks import FORMS, Item, Limits, Status
from cometmq.cli.operation.evidence import with_ages
from cometmq.cli.option_sets import arg, opt
from cometmq.cli.say import say
from cometmq.client import ClientOptions, Message, MessageQueue, Producer, ProducerOptions
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.cluster.routes import MASTER_ID
from cometmq.client.errors import ClientError, NoRoute
from cometmq.insight.model import Snapshot
from cometmq.insight.snapshot import certificates_at, look
from cometmq.insight.words import counted
from cometmq.remoting.bodies.topic_config import TopicConfig
from cometmq.remoting.errors import CometError
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.tls_keys import expiries_named_in

PREFIX: Final = "CLI_CHECK_"
"""The prefix of the test topics. A topic that a killed process has left can be deleted."""
GROUP: Final = "CLI_CHECK"
ROUTE_S: Final = 10.0
READ_S: Final = 5.0
FIGURE: Final = "round_trip_ms"


class Times(msgspec.Struct):
    """The durations of the parts of each round trip, in ms."""

    network: list[float] = []
    send: list[float] = []
    whole: list[float] = []

    def text(self) -> str:
        """Return a sentence with the medians."""
        network, send, whole = (sorted(it) for it in (self.network, self.send, self.whole))
        return (
            f"{counted(len(whole), 'round trip')}: {_middle(whole):.1f} ms, slowest"
            f" {whole[-1]:.1f} ms; network {_middle(network):.1f} ms, send {_middle(send):.1f} ms"
        )


def _middle(values: Sequence[float]) -> float:
    return values[len(values) // 2]


async def round_trips(
    namesrv: str, names: Sequence[str], limits: Limits, *, count: int, size: int
) -> list[Item]:
    """Send `count` messages to each master, or to the masters in `names`, and read them back."""
    options = with_access(ClientOptions())
    async with AdminClient(namesrv, options=options, log=NO_LOG) as admin:
        groups = await admin.broker_groups()
        masters = {it: group[MASTER_ID] for it, group in groups.items() if MASTER_ID in group}
        items = [
            Item(name, Status.CRITICAL, "has no master" if name in groups else "is not registered")
            for name in names or groups
            if name not in masters
        ]
        if not groups:
            return [Item("cluster", Status.CRITICAL, "no broker is registered")]
        for name, master in masters.items():
            if not names or name in names:
                items.append(await _item(admin, namesrv, master, limits, count, size))
    return items


async def _item(  # all that a test needs
    admin: AdminClient, namesrv: str, master: BrokerAdmin, limits: Limits, count: int, size: int
) -> Item:
    topic = PREFIX + token_hex(8)
    times, failure = Times(), ""
    try:
        config = TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1)
        await master.create_topic(config)
        await _routed(admin, topic)
        times = await _times(namesrv, master, topic, count, size)
    except CometError as error:
        failure = str(error)
    finally:
        left = await _left(admin, master, topic)
    if failure or left:
        return Item(master.name, Status.CRITICAL, failure or left, FIGURE)
    slowest = max(times.whole)
    return Item(master.name, limits.status(slowest), times.text(), FIGURE, slowest, limits)


async def _left(admin: AdminClient, master: BrokerAdmin, topic: str) -> str:
    """Delete the topic; on failure, return a text that names it."""
    try:
        await master.delete_topic(topic)
        await admin.namesrv.delete_topic(topic)
    except CometError as error:
        return f"the topic {topic} of this test could not be deleted: {error}"
    return ""


async def _routed(admin: AdminClient, topic: str) -> None:
    """Wait until the name servers know the topic."""
    end = monotonic() + ROUTE_S
    while True:
        try:
            await admin.route(topic)
        except NoRoute:
            if monotonic() > end:
                raise
            await asyncio.sleep(0.05)
        else:
            return


async def _times(namesrv: str, master: BrokerAdmin, topic: str, count: int, size: int) -> Times:
    """Make the round trips one after another; each body is compared with what was sent."""
    options = with_access(ProducerOptions(retry_times=0))
    queue = MessageQueue(topic, master.name, 0)
    times = Times()
    async with Producer(GROUP, namesrv, options=options, log=NO_LOG) as producer:
        for number in range(-1, count):  # the first one connects
            body = os.urandom(size)
            begin_ns = monotonic_ns()
            await master.max_offset(topic, 0)
            asked_ns = monotonic_ns()
            sent = await producer.send(Message(topic, body), queue=queue)
            sent_ns = monotonic_ns()
            if await _read(master, topic, sent.queue_offset) != body:
                raise ClientError("a message came back with another body")
            if number >= 0:
                times.network.append((asked_ns - begin_ns) / 1e6)
                times.send.append((sent_ns - asked_ns) / 1e6)
                times.whole.append((monotonic_ns() - asked_ns) / 1e6)
    return times


async def _read(master: BrokerAdmin, topic: str, offset: int) -> bytes:
    """Return the body of a message, which the broker may show a little after it was stored."""
    end = monotonic() + READ_S
    while monotonic() < end:
        found = await master.pull(topic, 0, offset, count_max=1)
        if found.messages:
            return found.messages[0].body
        await asyncio.sleep(0.001)
    raise ClientError(f"a stored message could not be read within {READ_S:g} s")


EXIT_UNKNOWN: Final = int(Status.UNKNOWN)

app = App("Compare a cluster with thresholds; exit status 0 ok, 1 warning, 2 critical, 3 unknown.")

Form = Annotated[
    Literal["text", "json", "nagios", "prometheus"], opt("--format", "Form of the output.")
]
Groups = Annotated[list[str] | None, arg("Groups; all by default.")]
Brokers = Annotated[list[str] | None, arg("Brokers; all by default.")]


def _limit(letter: str, name: str, words: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = opt(
        f"-{letter}", f"--{name}", f"{words} from this value.", min=0
    )
    return option


Warn = Annotated[float | None, _limit("w", "warn", "Warning")]
Critical = Annotated[float | None, _limit("C", "critical", "Critical")]


class Check(NamedTuple):
    """A check of brokers, topics or groups by one figure, and the limits that it has by default."""

    judge: Callable[..., Sequence[Item]]
    names: str
    help: str
    example: str
    warn: float | None = None
    critical: float | None = None


CHECKS: Final[Mapping[str, Check]] = {
    "broker": Check(
        checks.brokers,
        "Brokers",
        "Check that brokers are there, answer and take messages; thresholds are ms for all"
        " answers.",
        "cometmq check broker broker-a --critical 1000 --format nagios",
    ),
    "topic": Check(
        checks.topics,
        "Topics",
        "Check that topics exist, can be written and read; thresholds: seconds since the last"
        " message.",
        "cometmq check topic orders --critical 600",
    ),
    "copies": Check(
        checks.copies,
        "Brokers",
        "Check that slaves follow and copies are in sync; thresholds: missing copies of a broker.",
        "cometmq check copies --critical 1",
        *(1, 2),
    ),
    "dlq": Check(
        checks.dead_letters,
        "Groups",
        "Check the number of dead letters of groups that were not sent again.\n\n"
        "Dead letters that a replay without a selection has sent stay until they expire. They do"
        " not count here, in doctor, or on the console's Home page.",
        "cometmq check dlq billing --critical 10 --format json",
        *(1, 100),
    ),
    "disk": Check(
        checks.disks,
        "Brokers",
        "Check how full the disks of the brokers are; thresholds: percent.",
        "cometmq check disk --warn 70 --critical 85",
        *(75, 90),
    ),
}


def _add(check: str, it: Check) -> None:
    names = Annotated[list[str] | None, arg(f"{it.names}; all by default.")]

    def command(
        name: names = None,
        namesrv: Namesrv = DEFAULT_NAMESRV,
        warn: Warn = it.warn,
        critical: Critical = it.critical,
        form: Form = "text",
    ) -> None:
        limits, wanted = _limits(warn, critical), name or ()
        add = with_ages(wanted) if check == "topic" and limits != Limits() else None
        expected = wanted if check == "broker" else ()
        judge = partial(it.judge, names=wanted, limits=limits)
        _check(check, namesrv, judge, form, expected=expected, add=add)

    command.__doc__ = f"{it.help}\n\n\b\nEXAMPLE\n  {it.example}\n"
    app.command(check)(command)


for _check_name, _one in CHECKS.items():
    _add(_check_name, _one)


@app.command()
def group(  # noqa: PLR0913, PLR0917  # one parameter per option
    name: Groups = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    warn: Warn = 1_000,
    critical: Critical = 10_000,
    warn_seconds: Annotated[
        float | None, opt("Warning if the oldest message is this old.", min=0)
    ] = None,
    critical_seconds: Annotated[
        float | None, opt("Critical if the oldest message is this old.", min=0)
    ] = None,
    members: Annotated[int, opt("Critical if fewer members are connected.", min=0)] = 0,
    form: Form = "text",
) -> None:
    """Check the unread messages of groups, their age, and lost messages.

    \b
    EXAMPLES
      cometmq check group billing --warn 1000 --critical 10000 --members 2
      cometmq check group --critical-seconds 300 --format prometheus
    """
    lag, behind = _limits(warn, critical), _limits(warn_seconds, critical_seconds)
    _check("group", namesrv, lambda it: checks.groups(it, name or (), lag, behind, members), form)


@app.command()
def certificate(
    namesrv: Namesrv = DEFAULT_NAMESRV,
    warn: Annotated[float | None, opt("-w", "--warn", "Warning with fewer days left.", min=0)] = 21,
    critical: Annotated[
        float | None, opt("-C", "--critical", "Critical with fewer days left.", min=0)
    ] = 3,
    config: Annotated[
        list[Path] | None,
        opt(
            "--config",
            "Settings file of an elector, txn-checker or exporter; may be repeated.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    form: Form = "text",
) -> None:
    """Check when certificates expire: those of servers, and those in TLS files; in days.

    Programs that only connect to the cluster cannot be asked: --config names their files.

    \b
    EXAMPLE
      cometmq check certificate --warn 30 --config /etc/cometmq/elector.conf
    """

    async def add(_admin: AdminClient, snapshot: Snapshot) -> Snapshot:
        found = [
            one
            for file in config or ()
            for one in certificates_at(str(file), expiries_named_in(file))
        ]
        return msgspec.structs.replace(snapshot, certificates=[*snapshot.certificates, *found])

    if warn is not None and critical is not None and warn < critical:
        say(f"cometmq: --warn {warn:g} is below --critical {critical:g}", err=True)
        raise typer.Exit(EXIT_UNKNOWN)
    limits = Limits(warn, critical, is_floor=True)
    _check("certificate", namesrv, lambda it: checks.certificates(it, limits), form, add=add)


@app.command()
def roundtrip(  # one parameter per option
    name: Brokers = None,
    namesrv: Namesrv = DEFAULT_NAMESRV,
    warn: Warn = 100,
    critical: Critical = 1_000,
    count: Annotated[int, opt("Messages for each broker.", min=1, max=10_000)] = 20,
    size: Annotated[int, opt("Bytes of each body.", min=1, max=1 << 20)] = 1024,
    form: Form = "text",
) -> None:
    """Send messages to each broker and read them; thresholds are ms of the slowest one.

    The topic of the test, CLI_CHECK_ and a number, is deleted at the end. It needs the right to
    create topics.

    \b
    EXAMPLES
      cometmq check roundtrip
      cometmq check roundtrip broker-a --count 100 --format prometheus
    """
    limits = _limits(warn, critical)
    trips = round_trips(namesrv, name or (), limits, count=count, size=size)
    _conclude("roundtrip", trips, form)


def _limits(warn: float | None, critical: float | None) -> Limits:
    if warn is not None and critical is not None and warn > critical:
        say(f"cometmq: --warn {warn:g} is above --critical {critical:g}", err=True)
        raise typer.Exit(EXIT_UNKNOWN)
    return Limits(warn, critical)


def _check(
    check: str,
    namesrv: str,
    judge: Callable[[Snapshot], Sequence[Item]],
    form: str,
    *,
    expected: Collection[str] = (),
    add: Callable[[AdminClient, Snapshot], Awaitable[Snapshot]] | None = None,
) -> NoReturn:
    """Take a snapshot, judge it, print the result, and exit with its status.

    `add` completes the snapshot with figures that it does not contain by default.
    """

    async def asked() -> Sequence[Item]:
        options = with_access(ClientOptions())
        async with AdminClient(namesrv, options=options, log=NO_LOG) as admin:
            found = await look(admin, expected=expected)
            items = judge(found if add is None else await add(admin, found))
            if not items and not found.brokers:
                return [Item("cluster", Status.UNKNOWN, "no broker is registered")]
            return items

    _conclude(check, asked(), form, is_down_critical=check == "broker")


def _conclude(
    check: str,
    asked: Coroutine[Any, Any, Sequence[Item]],
    form: str,
    *,
    is_down_critical: bool = True,
) -> NoReturn:
    """Await the items of a check, print them, and exit with their status."""
    try:
        items = run(asked)
    except typer.Exit as end:
        code = EXIT_UNKNOWN if end.exit_code == EXIT_USAGE else end.exit_code
        raise typer.Exit(code) from end
    except CometError as error:
        status = Status.CRITICAL if is_down_critical else Status.UNKNOWN
        items = [Item("cluster", status, with_remedy(error))]
    say(FORMS[form](check, items), nl=False)
    raise typer.Exit(int(checks.worst(it.status for it in items)))
