# SPDX-License-Identifier: Apache-2.0
"""The queue of messages between a consumer and the output, and which queues may have unread ones.

If no message arrives, not everything may have been read: brokers that hang or are down send none.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Final, NamedTuple

import msgspec

from cometmq.cli.admin import missing_text
from cometmq.cli.complaints import Complaints
from cometmq.cli.connecting import with_access
from cometmq.cli.limits import with_limit
from cometmq.cli.output import print_notes
from cometmq.cli.verbs.topic_notes import unreadable_notes
from cometmq.client import ClientOptions, MessageExt, MessageQueue
from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.errors import ClientError, broker_missing
from cometmq.client.subscriptions import MessageSelector
from cometmq.insight.words import counted
from cometmq.remoting.errors import (
    AccessDenied,
    CometError,
    ConnectFailed,
    ConnectionLost,
    RequestTimeout,
)
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.visible import command

NAMES_MAX: Final = 8
"""Number of queues that are named in one line."""

RECENT_S: Final = 15.0
"""Failed pulls that are older than this do not count; clients retry every 3 s."""

UNANSWERED: Final = frozenset(
    error.__name__ for error in (ConnectFailed, ConnectionLost, RequestTimeout)
)
"""The names of the errors after which a broker counts as not answering, as they appear in logs."""

Positions = Mapping[MessageQueue, int]


class Printed:
    """A message on its way to the output; it is acknowledged once it is printed."""

    def __init__(self, message: MessageExt) -> None:
        self.message = message
        self.is_printed = False
        self.is_refused = False
        """Whether the command of `--exec` failed: the message is redelivered later."""
        self.done = asyncio.Event()


class Unread(msgspec.Struct):
    """The queues that may have unread messages."""

    lines: dict[str, str] = {}
    """The queues of each broker, with the reason and a remedy, by the broker's name."""
    is_coming: bool = False
    """Whether a broker that answers has more messages, which the next pull may return."""


class Wanted(NamedTuple):
    """The topic and the filter, the name servers, and the user's time limit."""

    namesrv: str
    topic: str
    selector: str | MessageSelector
    limit_s: float | None = None

    def admin(self) -> AdminClient:
        """Return a client, not started yet, whose requests end within the limit."""
        options = with_limit(with_access(ClientOptions()), self.limit_s)
        return AdminClient(self.namesrv, options=options, log=NO_LOG)


class Ends:
    """Queries brokers for the ends of a topic's queues."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._queues: list[MessageQueue] = []
        self._addresses: dict[str, str] = {}

    def begin(self, queues: Iterable[MessageQueue], brokers: Mapping[str, BrokerAdmin]) -> None:
        """Remember the queues and their brokers, because the route may drop a lost broker."""
        self._queues = list(queues)
        self._addresses = {name: broker.address for name, broker in brokers.items()}

    async def unread(self, positions: Positions, faults: Mapping[MessageQueue, str]) -> Unread:
        """Return the queues whose end is beyond their position, or whose broker does not answer.

        A queue without a position is read by a different member of its group; its broker is asked.
        `faults` are the reasons why the pulls of queues fail.
        """
        found = Unread()
        names = sorted({queue.broker_name for queue in self._queues})
        async with self._wanted.admin() as admin:
            with suppress(CometError):  # the addresses known at the start remain
                self._addresses |= {
                    name: broker.address
                    for name, broker in (await readable(admin, self._wanted.topic)).items()
                }
            async with asyncio.TaskGroup() as tasks:
                for name in names:
                    if name in self._addresses:
                        broker = admin.broker(self._addresses[name], name=name)
                        tasks.create_task(self._ask(broker, positions, faults, found))
                    else:
                        found.lines[name] = str(broker_missing(name))
        return found

    async def _ask(
        self,
        broker: BrokerAdmin,
        positions: Positions,
        faults: Mapping[MessageQueue, str],
        found: Unread,
    ) -> None:
        left: dict[MessageQueue, int] = {}
        queues = [queue for queue in self._queues if queue.broker_name == broker.name]
        for number, queue in enumerate(queues):
            try:
                end = await broker.max_offset(queue.topic, queue.queue_id)
            except CometError as error:
                why = missing_text(broker.name, broker.address, error)
                rest = [*left, *queues[number:]]
                found.lines[broker.name] = f"{names_of(rest)} may not be read to the end: {why}"
                return
            position = positions.get(queue)
            if position is not None and position < end:
                left[queue] = end - position
        if left:
            found.is_coming = True
            reasons = " ".join(dict.fromkeys(faults[queue] for queue in left if queue in faults))
            found.lines[broker.name] = (
                f"{names_of(left)} not read to the end: {counted(sum(left.values()), 'message')}"
                f" left, although broker {broker.name} ({broker.address}) answers; "
                + (
                    f"pulls fail: {reasons}"
                    if reasons
                    else "unless another error is shown, try again with a longer --timeout"
                )
            )


def names_of(queues: Iterable[MessageQueue]) -> str:
    """Return the queues as words: 1 queue (broker-a:0), 2 queues (broker-a:0 broker-a:1)."""
    names = [f"{queue.broker_name}:{queue.queue_id}" for queue in queues]
    shown = " ".join(names[:NAMES_MAX]) + " ..." * (len(names) > NAMES_MAX)
    return f"{counted(len(names), 'queue')} ({shown})"


class Faults:
    """The queues of a topic whose pulls fail, until a later message of the queue is printed."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._by_queue: dict[MessageQueue, tuple[int, str, float]] = {}

    def note(self, facts: Mapping[str, object]) -> None:
        """Remember the failed pull that a log event reports.

        Brokers that do not answer are left out, because `Ends` queries them.
        """
        kind, _, text = str(facts.get("error", "")).partition(": ")
        name, number, at = (facts.get(key) for key in ("broker", "queue_id", "queue_offset"))
        if (
            facts.get("topic") == self._topic
            and kind not in UNANSWERED
            and isinstance(name, str)
            and isinstance(number, int)
            and isinstance(at, int)
        ):
            self._by_queue[MessageQueue(self._topic, name, number)] = at, text, monotonic()

    def passed(self, message: MessageExt) -> None:
        """Forget the failures of a queue that has delivered a message beyond them."""
        queue = message.queue
        if queue in self._by_queue and message.queue_offset >= self._by_queue[queue][0]:
            del self._by_queue[queue]

    async def positions(self) -> Positions:
        """Return the offsets at which pulls have failed within RECENT_S."""
        since = monotonic() - RECENT_S
        return {queue: at for queue, (at, _, when) in self._by_queue.items() if when >= since}

    @property
    def texts(self) -> Mapping[MessageQueue, str]:
        """The reason for the last failure of each queue."""
        return {queue: text for queue, (_, text, _) in self._by_queue.items()}


class EndingComplaints(Complaints):
    """Remembers failing pulls, and ends the command if a broker denies one, because retrying would
    not help.
    """

    def __init__(self, faults: Faults) -> None:
        super().__init__()
        self._faults = faults
        self._refusal: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def warning(self, event: str, /, **facts: object) -> None:
        """Print the event, unless it is a refusal, which becomes the command's error."""
        text = self.refusal(facts)
        if text is None:
            self._faults.note(facts)
            super().warning(event, **facts)
        elif not self._refusal.done():
            self._refusal.set_result(text)

    def refusal(self, facts: Mapping[str, object]) -> str | None:
        """Return the text of the refusal that an event reports; None if it reports none."""
        kind, _, text = str(facts.get("error", "")).partition(": ")
        return text if kind == AccessDenied.__name__ else None

    async def fail_if_refused(self) -> None:
        """Wait for a refusal and raise it."""
        raise ClientError(await self._refusal)


async def _unknown() -> Positions:
    return {}


class Source(asyncio.Queue[Printed | None]):
    """The messages to print; None only wakes the printer at the end."""

    is_finished = False
    """Whether no further message will come."""

    def __init__(
        self,
        size_max: int,
        ends: Ends,
        positions: Callable[[], Awaitable[Positions]] = _unknown,
        faults: Faults | None = None,
    ) -> None:
        """`positions` returns the offset up to which each queue has been read."""
        super().__init__(size_max)
        self._ends = ends
        self.faults = faults
        self._positions = positions

    async def unread(self) -> Unread:
        """Return the queues that may have unread messages."""
        texts = {} if self.faults is None else self.faults.texts
        return await self._ends.unread(await self._positions(), texts)


async def queues_to_read(admin: AdminClient, topic: str) -> list[MessageQueue]:
    """Return the queues of a topic as `queues_of` does, and name those that are left out."""
    queues = await queues_of(admin, topic)
    print_notes(unreadable_notes(topic, await admin.route(topic)))
    return queues


async def queues_of(admin: AdminClient, topic: str) -> list[MessageQueue]:
    """Return the queues of a topic; raise ClientError if consumers may read none of them."""
    queues = await admin.queues(topic)
    if not queues:
        raise ClientError(
            f"consumers may not read the topic {topic}: see {command('topic route', topic)}; to"
            f" allow it: {command('topic alter', topic, options=('--perm', 'rw'))}"
        )
    return queues


async def readable(admin: AdminClient, topic: str) -> dict[str, BrokerAdmin]:
    """Return the master of each broker that has the topic, or a slave if there is no master."""
    return {
        data.broker_name: admin.broker(
            data.broker_addrs[min(data.broker_addrs)], name=data.broker_name
        )
        for data in (await admin.route(topic)).broker_datas
        if data.broker_addrs
    }
