# SPDX-License-Identifier: Apache-2.0
"""Topic routes and the cluster info: 105, 106.

Compatibility: Java writes broker ids unquoted (`{0:"ip:port"}`) in the cluster info, and in routes
for clients before 4.9.4. That is not JSON, but some clients (the Go client up to 2.1.2) parse the
text themselves and mistake every address for the master's if the ids are quoted. Old clients
therefore get unquoted ids. Clients from 4.9.4 onwards get standard JSON, as do all clients that
request it.
"""

from collections.abc import Mapping, Sequence

import msgspec

from cometmq.namesrv.namesrv import Namesrv
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.route import BrokerData, QueueData, TopicRoute
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.namesrv import GetRouteinfoByTopic
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.errors import CommandError
from cometmq.remoting.names import ORDER_NAMESPACE
from cometmq.remoting.versions import STANDARD_JSON_ROUTE_MIN


class _JavaBrokerData(msgspec.Struct, rename="camel"):
    broker_addrs: msgspec.Raw
    broker_name: str
    cluster: str


class _JavaRoute(msgspec.Struct, rename="camel"):
    broker_datas: Sequence[_JavaBrokerData]
    filter_server_table: Mapping[str, Sequence[str]]
    order_topic_conf: str | None
    queue_datas: Sequence[QueueData]


class _JavaClusterInfo(msgspec.Struct, rename="camel"):
    broker_addr_table: Mapping[str, _JavaBrokerData]
    cluster_addr_table: Mapping[str, Sequence[str]]


def get_routeinfo_by_topic(namesrv: Namesrv, call: Call[GetRouteinfoByTopic]) -> Reply:
    topic = call.header.topic
    route = namesrv.routes.route(topic)
    if route is None:
        raise CommandError(ResponseCode.TOPIC_NOT_EXIST, remarks.no_route(topic))
    if namesrv.settings.value.order_message_enable:
        order = namesrv.kv_config.get(ORDER_NAMESPACE, topic)
        route = msgspec.structs.replace(route, order_topic_conf=order)
    is_standard = call.version >= STANDARD_JSON_ROUTE_MIN or call.header.accept_standard_json_only
    return Reply(body=encode_json(route if is_standard else _java_route(route)))


def get_broker_cluster_info(namesrv: Namesrv, _call: Call[NoHeader]) -> Reply:
    info = namesrv.routes.cluster_info()
    groups = {name: _java_group(group) for name, group in info.broker_addr_table.items()}
    return Reply(body=encode_json(_JavaClusterInfo(groups, info.cluster_addr_table)))


def _java_route(route: TopicRoute) -> _JavaRoute:
    groups = [_java_group(group) for group in route.broker_datas]
    return _JavaRoute(groups, route.filter_server_table, route.order_topic_conf, route.queue_datas)


def _java_group(group: BrokerData) -> _JavaBrokerData:
    encode = msgspec.json.encode
    members = (b"%d:%s" % (i, encode(address)) for i, address in group.broker_addrs.items())
    return _JavaBrokerData(
        msgspec.Raw(b"{" + b",".join(members) + b"}"), group.broker_name, group.cluster
    )
