# SPDX-License-Identifier: Apache-2.0
"""The member of a group in `cometmq consume`: printed messages are committed."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

from cometmq.cli.connecting import with_access
from cometmq.cli.consuming.observer import FIRST, LAST, PLACES, begin_of
from cometmq.cli.consuming.source import (
    EndingComplaints,
    Ends,
    Faults,
    Printed,
    Source,
    Wanted,
    queues_to_read,
    readable,
)
from cometmq.cli.say import say
from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    MessageExt,
    MessageQueue,
    PushConsumer,
    PushOptions,
)
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.clock import wall_ms
from cometmq.client.errors import ClientError
from cometmq.client.message import check_group, check_topic
from cometmq.client.subscriptions import MessageSelector, subscription
from cometmq.insight import times
from cometmq.remoting import remarks
from cometmq.remoting.errors import (
    NO_ANSWER,
    AccessDenied,
    CometError,
    CommandError,
    ConsumerNotOnline,
    NoPermission,
    ServerError,
    SubscriptionGroupNotExist,
    SubscriptionParseFailed,
)
from cometmq.remoting.visible import command

DRAIN_MS: Final = 500
"""Time to acknowledge the last printed message."""

_REFUSALS: Final = frozenset(
    {AccessDenied, NoPermission, SubscriptionGroupNotExist, SubscriptionParseFailed}
)
"""Pull refusals that do not go away with time."""


@asynccontextmanager
async def as_member(wanted: Wanted, group: str, start: str | None) -> AsyncIterator[Source]:
    """Consume for a group; messages not printed at the end are redelivered to the next member."""
    ends, faults = Ends(wanted), Faults(wanted.topic)
    source = Source(1, ends, faults.positions, faults)
    is_leaving = False

    async def listen(messages: list[MessageExt]) -> ConsumeResult:
        for number, message in enumerate(messages):
            printed = Printed(message)
            faults.passed(message)
            if not is_leaving:
                await source.put(printed)
                await printed.done.wait()
            if not printed.is_printed:
                await _abandon()
            if printed.is_refused:
                return ConsumeResult.consumed(number)
        return ConsumeResult.SUCCESS

    check_group(group)
    check_topic(wanted.topic)
    consume_from, moment_ms = _group_start(start or LAST)
    retries = await _prepared(wanted, ends, group, start)
    options = PushOptions(
        consume_from=consume_from, consume_timestamp_ms=moment_ms, concurrency=1, drain_ms=DRAIN_MS,
        max_reconsume_times=retries,
    )  # fmt: skip
    log = MemberComplaints(group, faults)
    consumer = PushConsumer(
        group, wanted.namesrv, listener=listen, options=with_access(options), log=log
    )
    consumer.subscribe(wanted.topic, wanted.selector)
    async with consumer, asyncio.TaskGroup() as tasks:
        watch = tasks.create_task(log.fail_if_refused())
        try:
            yield source
        finally:
            watch.cancel()
            is_leaving = True
            while not source.empty():
                if (printed := source.get_nowait()) is not None:
                    printed.done.set()


async def _prepared(wanted: Wanted, ends: Ends, group: str, start: str | None) -> int:
    """Check that the group may read the topic, and store its start offsets; return its limit of
    retries.
    """
    async with wanted.admin() as admin:
        queues = await queues_to_read(admin, wanted.topic)
        brokers = await readable(admin, wanted.topic)
        ends.begin(queues, brokers)
        silent = await _try_to_pull(brokers, group, queues, wanted.selector)
        answering = {name: broker for name, broker in brokers.items() if name not in silent}
        if start is not None:
            await _place_group(answering, silent, group, queues, start)
        return await _retries(answering, group)


async def _try_to_pull(
    brokers: Mapping[str, BrokerAdmin],
    group: str,
    queues: Sequence[MessageQueue],
    selector: str | MessageSelector,
) -> set[str]:
    """Pull once from each broker, and raise its refusal; return the brokers that do not answer.

    This runs before the group joins or gets offsets, so a refused command changes nothing.
    """

    wanted = subscription("-", selector, version_ms=0)
    silent: set[str] = set()

    async def attempt(broker: BrokerAdmin) -> None:
        queue = next((it for it in queues if it.broker_name == broker.name), None)
        if queue is None:
            return
        place = (queue.topic, queue.queue_id)
        try:
            end = await broker.max_offset(*place)
            await broker.pull(
                *place, end, count_max=1, group=group,
                expression=wanted.sub_string, expression_type=str(wanted.expression_type),
            )  # fmt: skip
        except CommandError as error:
            if type(error) in _REFUSALS:
                raise _refusal(group, broker.name, error) from error
        except NO_ANSWER:
            silent.add(broker.name)  # the consumer reports it, and reads the other brokers

    async with asyncio.TaskGroup() as tasks:
        for broker in brokers.values():
            tasks.create_task(attempt(broker))
    return silent


async def _retries(brokers: Mapping[str, BrokerAdmin], group: str) -> int:
    """Return the group's limit of retries, the smallest if brokers differ; -1 if no broker knows
    it.

    The command needs it because brokers apply the limit that a member sends.
    """
    found: list[int] = []
    for broker in brokers.values():
        with suppress(CommandError, *NO_ANSWER):
            known = (await broker.groups()).get(group)
            found += [] if known is None else [max(0, known.retry_max_times)]
    return min(found, default=-1)


def _refusal(group: str, broker: str, error: CommandError) -> CometError:
    """Return the error for a refused pull, with a remedy if there is one."""
    if remarks.group_pull_forbidden(group) in str(error):
        return ClientError(_disabled_text(group))
    if isinstance(error, SubscriptionGroupNotExist):
        return ClientError(
            f"broker {broker} does not know the consumer group {group}, and does not create groups"
            f" itself (autoCreateSubscriptionGroup): {command('group create', group)}"
        )
    return error


def _disabled_text(group: str) -> str:
    """Return the error for a group that may not consume."""
    return (
        f"the consumer group {group} is disabled: nothing is delivered to it; to enable it: cometmq"
        f" group alter {group} --enabled"
    )


class MemberComplaints(EndingComplaints):
    """Also ends the command if the group is disabled."""

    def __init__(self, group: str, faults: Faults) -> None:
        super().__init__(faults)
        self._group = group

    def warning(self, event: str, /, **facts: object) -> None:
        """Print the event, unless it is a refusal, or comes from `_abandon`."""
        if event != "task.cancelled":
            super().warning(event, **facts)

    def refusal(self, facts: Mapping[str, object]) -> str | None:
        """Return the text of the refusal that an event reports; None if it reports none."""
        if remarks.group_pull_forbidden(self._group) in str(facts.get("error", "")):
            return _disabled_text(self._group)
        return super().refusal(facts)


async def _place_group(
    brokers: Mapping[str, BrokerAdmin],
    unanswered: Iterable[str],
    group: str,
    queues: Sequence[MessageQueue],
    start: str,
) -> None:
    """Store the start offsets of a group that has neither members nor offsets.

    Otherwise brokers would start the group at offset 0 of a young queue, regardless of the group's
    request (youngQueueStartsAtZero).
    """
    topic = queues[0].topic
    placed: list[bool] = []
    silent = sorted(unanswered)
    for broker in brokers.values():
        here = [queue for queue in queues if queue.broker_name == broker.name]
        try:
            placed.append(await _place_at(broker, group, here, start))
        except NO_ANSWER:
            silent.append(broker.name)  # the consumer reports it, and reads the other brokers
    if placed and not any(placed):
        move = command("group reset", group, topic, options=("--to", start))
        say(
            f"cometmq: {group} has members or offsets in {topic}: it goes on there, whatever --from"
            f" says; to move it: {move}",
            err=True,
        )
    if silent:
        say(
            f"cometmq: {' and '.join(silent)} did not answer: if {group} is new there, the broker"
            " decides where it starts, whatever --from says",
            err=True,
        )


async def _place_at(
    broker: BrokerAdmin, group: str, queues: Sequence[MessageQueue], start: str
) -> bool:
    """Store the start offsets of a group on a broker; return False if the broker knows the
    group.
    """
    try:
        await broker.consumer_connections(group)
    except (ConsumerNotOnline, ServerError):
        stats = await broker.consume_stats(group)
    else:
        return False
    if any(queue.topic == queues[0].topic for queue in stats.offset_table):
        return False
    for queue in queues:
        begin = await begin_of(broker, queue, start, None)
        await broker.commit_offset(group, queue.topic, queue.queue_id, begin)
    return True


async def _abandon() -> None:
    """End this listener call without a result, so that the next member gets its message."""
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


def _group_start(start: str) -> tuple[ConsumeFrom, int]:
    if start == FIRST:
        return ConsumeFrom.FIRST_OFFSET, 0
    if start == LAST:
        return ConsumeFrom.LAST_OFFSET, 0
    return ConsumeFrom.TIMESTAMP, times.parsed(start, now_ms=wall_ms(), words=PLACES)
