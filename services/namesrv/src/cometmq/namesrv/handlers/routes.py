# SPDX-License-Identifier: Apache-2.0
"""Topic routes and the cluster info: 105, 106.

Compatibility: Java writes broker ids unquoted (`{0:"ip:port"}`) in the cluster info, and in routes
for clients before 4.9.4. That is not JSON, but some clients (the Go client up to 2.1.2) parse the
text themselves and mistake every address for the master's if the ids are quoted. Old clients
therefore get unquoted ids. Clients from 4.9.4 onwards get standard JSON, as do all clients that
request it. Clients from 5.0.0 onwards also get `enableActingMaster`, as from a name server of 5.x:
rocketmq-client-rust 1.0.0 refuses a route without it.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from cometmq.namesrv.admission import stepwise
from cometmq.namesrv.namesrv import Namesrv
from cometmq.namesrv.route_table import STEP_GROUPS
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.large import encode_with_lists
from cometmq.remoting.bodies.route import BrokerData
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Call, Reply
from cometmq.remoting.commands.namesrv import GetRouteinfoByTopic
from cometmq.remoting.commands.table import NoHeader
from cometmq.remoting.errors import CommandError
from cometmq.remoting.names import ORDER_NAMESPACE
from cometmq.remoting.versions import ACTING_MASTER_ROUTE_MIN, STANDARD_JSON_ROUTE_MIN
from cometmq.runtime.incremental import Steps, finish

T = TypeVar("T")


class _JavaBrokerData(msgspec.Struct, rename="camel"):
    broker_addrs: msgspec.Raw
    broker_name: str
    cluster: str


def get_routeinfo_by_topic(
    namesrv: Namesrv, call: Call[GetRouteinfoByTopic]
) -> Reply | Awaitable[Reply]:
    if len(namesrv.routes.topics.of(call.header.topic)) > STEP_GROUPS:
        return stepwise(namesrv, call, _route(namesrv, call))
    return finish(_route(namesrv, call))


def _route(namesrv: Namesrv, call: Call[GetRouteinfoByTopic]) -> Steps[Reply]:
    topic = call.header.topic
    route = yield from namesrv.routes.routing(topic)
    if route is None:
        raise CommandError(ResponseCode.TOPIC_NOT_EXIST, remarks.no_route(topic))
    if namesrv.settings.value.order_message_enable:
        order = namesrv.kv_config.get(ORDER_NAMESPACE, topic)
        route = msgspec.structs.replace(route, order_topic_conf=order)
    is_standard = call.version >= STANDARD_JSON_ROUTE_MIN or call.header.accept_standard_json_only
    groups: Sequence[Any] = route.broker_datas
    if not is_standard:
        groups = yield from _each(_java_group, route.broker_datas)
    elif call.version >= ACTING_MASTER_ROUTE_MIN:
        groups = yield from _each(_group_of_5, route.broker_datas)
    around = msgspec.structs.replace(route, broker_datas=[], queue_datas=[])
    lists = {"brokerDatas": groups, "queueDatas": route.queue_datas}
    return Reply(body=(yield from encode_with_lists(around, lists)))


async def get_broker_cluster_info(namesrv: Namesrv, call: Call[NoHeader]) -> Reply:
    return Reply(body=await stepwise(namesrv, call, _cluster_info(namesrv)))


def _cluster_info(namesrv: Namesrv) -> Steps[bytes]:
    info = namesrv.routes.groups.cluster_info()
    yield
    names = list(info.broker_addr_table)
    groups = yield from _each(_java_group, list(info.broker_addr_table.values()))
    pieces: list[bytes] = []
    for start in range(0, len(names), STEP_GROUPS):
        end = start + STEP_GROUPS
        pieces.append(
            encode_json(dict(zip(names[start:end], groups[start:end], strict=True)))[1:-1]
        )
        yield
    return b'{"brokerAddrTable":{%b},"clusterAddrTable":%b}' % (
        b",".join(pieces),
        encode_json(info.cluster_addr_table),
    )


def _each(form: Callable[[BrokerData], T], groups: Sequence[BrokerData]) -> Steps[list[T]]:
    found: list[T] = []
    for start in range(0, len(groups), STEP_GROUPS):
        found += map(form, groups[start : start + STEP_GROUPS])
        yield
    return found


def _group_of_5(group: BrokerData) -> BrokerData:
    return msgspec.structs.replace(group, enable_acting_master=False)


def _java_group(group: BrokerData) -> _JavaBrokerData:
    encode = msgspec.json.encode
    members = (b"%d:%s" % (i, encode(address)) for i, address in group.broker_addrs.items())
    return _JavaBrokerData(
        msgspec.Raw(b"{" + b",".join(members) + b"}"), group.broker_name, group.cluster
    )
