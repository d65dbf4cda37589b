# SPDX-License-Identifier: Apache-2.0
"""A member of a group that only sends a heartbeat."""

from cometmq.client.clock import monotonic_ms
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat, SubscriptionData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings


async def heartbeat(address, client_id, group, topic=None, model="CLUSTERING"):
    """Send one heartbeat over a new connection; return the client, which keeps it open."""
    client = RemotingClient(ClientSettings(), clock_ms=monotonic_ms)
    topics = [] if topic is None else [SubscriptionData(topic=topic, sub_string="*")]
    member = ConsumerData(
        group_name=group,
        message_model=model,
        subscription_data_set=topics,
    )
    beat = Heartbeat(client_id=client_id, consumer_data_set=[member])
    body = encode_json(beat)
    await client.invoke(address, RequestCode.HEART_BEAT, None, body, timeout_ms=60_000)
    return client
