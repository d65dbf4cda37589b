# SPDX-License-Identifier: Apache-2.0
"""Estimates how many unread messages match a group's filter, by testing an even sample of them.

Brokers filter by tag or SQL but count all messages, so the lag of such a group is only an upper
bound. Each test is a pull with the group's filter: the broker decides whether the message matches.
"""

from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate

from cometmq.client.admin.broker import BrokerAdmin
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import CometError
from cometmq.remoting.message.record import scan_record
from cometmq.spark.cluster.pulling import PULL_CODES, pull_header
from cometmq.spark.options.definitions import READER_GROUP
from cometmq.spark.options.offsets_json import Queue
from cometmq.spark.tables.state import BrokerState, Pair, Sample


async def sample(broker: BrokerAdmin, state: BrokerState, pair: Pair, count: int) -> Sample:
    """Test `count` unread messages of a group in a topic; an error ends the sample early."""
    tried = matched = 0
    with suppress(CometError):
        for place in places(unread(state, pair), count):
            matched += await _matches(broker, state, pair, place)
            tried += 1
    return Sample(tried, matched)


def unread(state: BrokerState, pair: Pair) -> dict[int, range]:
    topic, _ = pair
    found = state.stats.get(topic, {})
    return {
        queue: range(max(offset, found[queue].min_offset), found[queue].max_offset)
        for queue, offset in sorted(state.offsets.get(pair, {}).items())
        if queue in found
    }


def places(queues: dict[int, range], count: int) -> Iterator[tuple[int, int]]:
    """Yield `count` evenly spread (queue, offset) positions, or all if there are fewer."""
    ends = dict(zip(queues, accumulate(len(it) for it in queues.values()), strict=True))
    total = max(ends.values(), default=0)
    chosen = min(count, total)
    for number in range(chosen):
        place = (2 * number + 1) * total // (2 * chosen)
        queue = next(it for it, end in ends.items() if place < end)
        yield queue, queues[queue][place - ends[queue]]


async def _matches(
    broker: BrokerAdmin, state: BrokerState, pair: Pair, place: tuple[int, int]
) -> bool:
    """Return whether the message at `place` matches.

    A pull that starts at a matching message returns that message's offset.
    """
    topic, group = pair
    queue_id, offset = place
    wanted = state.connections[group].subscription_table[topic]
    # Pulls use the data source's group, so no consumer group's figures change.
    header = pull_header(
        Queue(topic, state.broker_name, queue_id),
        offset,
        1,
        group=READER_GROUP,
        expression=wanted.sub_string,
        expression_type=wanted.expression_type,
    )
    answer = await broker.invoke(RequestCode.PULL_MESSAGE, header, ok=PULL_CODES)
    return bool(answer.body) and scan_record(answer.body).queue_offset == offset
