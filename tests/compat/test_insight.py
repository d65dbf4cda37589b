# SPDX-License-Identifier: Apache-2.0
"""The model of the console and the command line shows clusters of both implementations."""

from typing import Any

import pytest

from cometmq.client import AdminClient, LitePullConsumer, Message, Producer
from cometmq.client.testing import eventually
from cometmq.insight.browsing import Wanted, browse
from cometmq.insight.changes.preview import preview_reset
from cometmq.insight.findings import findings
from cometmq.insight.life import Happening, life_of
from cometmq.insight.model import BrokerState, Snapshot, Unknown
from cometmq.insight.snapshot import look
from cometmq.peers.cluster import Cluster

pytestmark = pytest.mark.compat

TOPIC, GROUP = "Insight", "insight-group"


async def test_a_look_shows_what_goes_on(cluster: Cluster) -> None:
    namesrv = cluster.namesrv_addr
    async with (
        AdminClient(namesrv) as admin,
        Producer("insight-producers", namesrv=namesrv) as producer,
    ):
        await admin.create_topic(TOPIC, queue_count=1)
        sent = [await producer.send(Message(TOPIC, b"m%d" % at, keys=("k",))) for at in range(4)]
        consumer = LitePullConsumer(GROUP, namesrv=namesrv)
        consumer.subscribe(TOPIC)
        async with consumer:

            async def joined() -> bool:
                group = (await look(admin)).group(GROUP)
                return group is not None and bool(group.members)

            await eventually(joined)
        (queue,) = await admin.queues(TOPIC)
        await admin.commit_offset(GROUP, queue, 1)

        async def behind() -> Snapshot | None:
            found = await look(admin)
            group = found.group(GROUP)
            return found if group is not None and group.lag == 3 else None

        found: Any = await eventually(behind)
        broker = next(it for it in found.brokers if it.is_master)
        assert isinstance(broker.state, BrokerState)
        assert broker.state.figures.version.startswith("V")
        assert not isinstance(broker.state.disk, Unknown)
        assert (broker.state.settings or {}).get("fileReservedTime")
        assert (found.topic(TOPIC).messages, found.topic(TOPIC).end) == (4, 4)
        assert GROUP in found.topic(TOPIC).groups
        assert "insight-producers" in {it.group for it in found.producers}
        stopped = [it for it in findings(found) if it.rule == "group-stopped"]
        assert GROUP in {it.subject for it in stopped}

        assert (await preview_reset(admin, GROUP, TOPIC, 0)).redelivered == 1
        read = await browse(admin, Wanted(topic=TOPIC, count_max=2))
        assert [it.body for it in read.messages] == [b"m2", b"m3"]
        message = await admin.view_message(sent[0].message_id, TOPIC)
        life = await life_of(admin, message)
        assert [it.happening for it in life.events][:2] == [Happening.SENT, Happening.STORED]
