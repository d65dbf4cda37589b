# SPDX-License-Identifier: Apache-2.0
"""GET_BROKER_OVERVIEW (30003): all queues, all members and recent refusals, for consoles."""

from itertools import islice
from typing import Final

from cometmq.broker.broker import Broker
from cometmq.broker.clients.consumers import ConsumerGroup
from cometmq.broker.handlers.admin import connection_of
from cometmq.broker.handlers.deferred_answers import stepwise
from cometmq.broker.tables.topics import QUEUE_NUMS_MAX
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.large import encode_table
from cometmq.remoting.bodies.overview import BrokerOverview, GroupClients, QueueEnds
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.table import NoHeader
from cometmq.runtime.incremental import Steps

STEP_ITEMS: Final = 256  # queues and members; about 0.3 ms


async def get_broker_overview(broker: Broker, call: Call[NoHeader]) -> Reply:
    """Return the ends of all queues, the members of all connected groups, the ages of their oldest
    unread messages, and the requests that were refused lately.

    The first request makes the broker measure these ages from then on, with some reads per second.
    """
    broker.measured.is_observed = True
    return Reply(body=await stepwise(broker, call, _answer(broker)))


def _answer(broker: Broker) -> Steps[bytes]:
    return (yield from encode_overview((yield from _overview(broker))))


def encode_overview(found: BrokerOverview) -> Steps[bytes]:
    """Return an overview as JSON; with thousands of topics, it has several MB."""
    queues = yield from encode_table(found.queues, lambda ends: 3 * len(ends))
    groups = yield from encode_table(
        found.groups, lambda group: 8 * (1 + len(group.members) + len(group.subscriptions))
    )
    oldest = yield from encode_table(found.oldest_unread_ms)
    refused, habits = encode_json(found.refused), encode_json(found.habits)
    return b'{"queues":%b,"groups":%b,"oldestUnreadMs":%b,"refused":%b,"habits":%b}' % (
        queues, groups, oldest, refused, habits,
    )  # fmt: skip


def _overview(broker: Broker) -> Steps[BrokerOverview]:
    queues = yield from _queues(broker)
    groups: dict[str, GroupClients] = {}
    left = STEP_ITEMS
    for group in broker.clients.consumers.groups():
        groups[group.name] = _clients(group)
        left -= len(group.clients) + 1
        if left <= 0:
            left = STEP_ITEMS
            yield
    oldest: dict[str, int] = {}
    ages = iter(list(broker.measured.lag_times.oldest_ms.items()))
    while part := list(islice(ages, STEP_ITEMS)):
        oldest.update((f"{topic}@{group}", oldest_ms) for (topic, group), oldest_ms in part)
        yield
    refused, habits = broker.admission.refused.newest(), broker.clients.habits.newest()
    return BrokerOverview(queues, groups, oldest, refused, habits)


def _queues(broker: Broker) -> Steps[dict[str, list[QueueEnds]]]:
    store = broker.store
    found: dict[str, list[QueueEnds]] = {}
    left = STEP_ITEMS
    for topic, config in list(broker.tables.topics.table.items()):
        offered = max(config.read_queue_nums, config.write_queue_nums)
        count = max(offered, min(store.reader.queue_count(topic), QUEUE_NUMS_MAX))
        found[topic] = [
            QueueEnds(
                number,
                store.reader.min_offset(topic, number),
                store.reader.max_offset(topic, number),
            )
            for number in range(count)
        ]
        left -= count
        if left <= 0:
            left = STEP_ITEMS
            yield
    return found


def _clients(group: ConsumerGroup) -> GroupClients:
    mismatch = group.member_subscriptions.mismatch()
    return GroupClients(
        [connection_of(client) for client in group.clients.values()],
        group.consume_type,
        group.message_model,
        list(group.subscriptions.values()),
        ""
        if mismatch is None
        else f"{mismatch.client_id} reads {mismatch.topic} with {mismatch.wants or 'nothing'!r},"
        f" {mismatch.other_client_id} with {mismatch.other_wants or 'nothing'!r}",
    )
