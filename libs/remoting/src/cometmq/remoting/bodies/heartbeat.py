# SPDX-License-Identifier: Apache-2.0
"""Heartbeats: the groups and subscriptions of a client.

Enumerations stay texts: an unknown one must not reject the heartbeat of a newer client.
"""

import msgspec

from cometmq.remoting.integers import Int32, Int64


class SubscriptionData(msgspec.Struct, rename="camel"):
    """What a consumer wants of a topic; `code_set` holds the tag codes of `tags_set`."""

    class_filter_mode: bool = False
    code_set: list[Int32] = []
    expression_type: str = "TAG"
    filter_class_source: str | None = None
    sub_string: str = ""
    sub_version: Int64 = 0
    tags_set: list[str] = []
    topic: str = ""


class ConsumerData(msgspec.Struct, rename="camel"):
    """One consumer group of a client."""

    consume_from_where: str = "CONSUME_FROM_LAST_OFFSET"
    consume_type: str = "CONSUME_PASSIVELY"
    group_name: str = ""
    message_model: str = "CLUSTERING"
    subscription_data_set: list[SubscriptionData] = []
    unit_mode: bool = False


class ProducerData(msgspec.Struct, gc=False, rename="camel"):
    """One producer group of a client."""

    group_name: str = ""


class Heartbeat(msgspec.Struct, rename="camel"):
    """Body of HEART_BEAT; the last two members are of 5.x."""

    client_id: str = msgspec.field(name="clientID", default="")
    consumer_data_set: list[ConsumerData] = []
    producer_data_set: list[ProducerData] = []
    heartbeat_fingerprint: Int32 | None = None
    without_sub: bool | None = msgspec.field(name="withoutSub", default=None)


class ClientConfigCheck(msgspec.Struct, rename="camel"):
    """Body of CHECK_CLIENT_CONFIG: is this subscription acceptable?"""

    client_id: str = ""
    group: str = ""
    namespace: str | None = None
    subscription_data: SubscriptionData | None = None
