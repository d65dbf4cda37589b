# SPDX-License-Identifier: Apache-2.0
"""Routes: which brokers hold a topic, and which brokers form a cluster."""

import msgspec

from cometmq.remoting.integers import Int32, Int64


class BrokerData(msgspec.Struct, gc=False, rename="camel"):
    """The addresses of one broker group by broker id; id 0 is the master."""

    broker_addrs: dict[Int64, str] = {}
    broker_name: str = ""
    cluster: str = ""
    zone_name: str | None = None
    enable_acting_master: bool | None = None


class QueueData(msgspec.Struct, gc=False, rename="camel"):
    """A topic's queues in one broker group."""

    broker_name: str = ""
    perm: Int32 = 0
    read_queue_nums: Int32 = 0
    topic_sys_flag: Int32 = 0
    write_queue_nums: Int32 = 0


class TopicRoute(msgspec.Struct, gc=False, rename="camel"):
    """Everything a client needs to send to or pull from a topic."""

    broker_datas: list[BrokerData] = []
    filter_server_table: dict[str, list[str]] = {}
    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = []


class ClusterInfo(msgspec.Struct, gc=False, rename="camel"):
    """All broker groups, and the clusters they belong to."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, list[str]] = {}
