# SPDX-License-Identifier: Apache-2.0
"""Requests that brokers send about themselves: 103, 104, 322."""

from typing import Any
from zlib import crc32

from cometmq.namesrv.namesrv import Namesrv
from cometmq.namesrv.route_table import BrokerId, Registration
from cometmq.remoting import remarks
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.kv import KVTable
from cometmq.remoting.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigTable,
    decode_register_body,
)
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.namesrv import (
    QueryDataVersion,
    QueryDataVersionReply,
    RegisterBroker,
    RegisterBrokerReply,
    UnregisterBroker,
)
from cometmq.remoting.errors import CommandError, RemoteProtocolError
from cometmq.remoting.names import ORDER_NAMESPACE
from cometmq.remoting.versions import REGISTER_WITH_FILTER_SERVERS_MIN

_CRC_MASK = 0x7FFF_FFFF

LATE_REGISTRATIONS_MAX = 3
"""Refusals per epoch that are not worth a warning: a deposed master tries twice a second until it
has noticed.
"""


def register_broker(namesrv: Namesrv, call: Call[RegisterBroker]) -> Reply:
    header = call.header
    if header.body_crc32 and header.body_crc32 != crc32(call.body) & _CRC_MASK:
        raise CommandError(ResponseCode.SYSTEM_ERROR, remarks.CRC_MISMATCH)
    _refuse_stale(namesrv, header)
    body = _registered(call)
    topics = body.topic_config_serialize_wrapper
    broker = BrokerId(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
    replaced = namesrv.routes.holder(broker, header.group_epoch)
    is_new = broker.address not in namesrv.routes.live_brokers()
    master = namesrv.routes.register(
        Registration(
            broker,
            header.ha_server_addr,
            topics.data_version,
            topics.topic_config_table.values(),
            body.filter_server_list,
            header.group_epoch,
        ),
        connection=call.peer,
        now_ms=namesrv.clock.monotonic_ms(),
        keep_ms=namesrv.settings.value.lost_master_keep_ms,
    )
    if is_new:
        namesrv.log.info("broker.registered", **broker._asdict())
    if replaced is not None:
        namesrv.log.warning("broker.address_replaced", **broker._asdict(), replaced=replaced)
    reply = RegisterBrokerReply()
    if master is not None:
        reply = RegisterBrokerReply(master.ha_address, master.address)
    return Reply(header=reply, body=_order_topics(namesrv))


def _refuse_stale(namesrv: Namesrv, header: RegisterBroker) -> None:
    """Refuse a deposed master, because it would take its successor's place in the routes.

    During a switchover, a registration from the old master may already be in progress.
    """
    epoch = namesrv.routes.stale_below(header.broker_name, header.group_epoch)
    if epoch is None:
        return
    facts = {
        "broker_name": header.broker_name, "address": header.broker_addr,
        "epoch": header.group_epoch, "group_epoch": epoch,
    }  # fmt: skip
    if namesrv.routes.refusals_in_epoch(header.broker_name) <= LATE_REGISTRATIONS_MAX:
        namesrv.log.info("broker.deposed", **facts)
    else:
        namesrv.log.warning("broker.stale", **facts)
    raise CommandError(
        ResponseCode.SYSTEM_ERROR,
        f"{remarks.STALE_EPOCH}: {header.broker_addr} registers in epoch {header.group_epoch}, but"
        f" the group {header.broker_name} is in epoch {epoch}",
    )


def unregister_broker(namesrv: Namesrv, call: Call[UnregisterBroker]) -> Reply:
    header = call.header
    broker = BrokerId(header.cluster_name, header.broker_name, header.broker_id, header.broker_addr)
    namesrv.routes.unregister(broker)
    namesrv.log.info("broker.unregistered", **broker._asdict())
    return OK


def query_data_version(namesrv: Namesrv, call: Call[QueryDataVersion]) -> Reply:
    changed, known = namesrv.routes.query_data_version(
        call.header.broker_addr,
        _decoded(DataVersion, call),
        now_ms=namesrv.clock.monotonic_ms(),
    )
    body = b"" if known is None else encode_json(known)
    return Reply(header=QueryDataVersionReply(changed), body=body)


def _registered(call: Call[RegisterBroker]) -> RegisterBrokerBody:
    """Decode a registration; brokers before 3.0.11 send only their topics."""
    if not call.body:
        return RegisterBrokerBody()
    if call.version < REGISTER_WITH_FILTER_SERVERS_MIN:
        return RegisterBrokerBody([], _decoded(TopicConfigTable, call))
    try:
        return decode_register_body(call.body, compressed=call.header.compressed)
    except RemoteProtocolError as error:
        raise CommandError(ResponseCode.SYSTEM_ERROR, str(error)) from error


def _decoded(type_: Any, call: Call[Any]) -> Any:
    """Decode a JSON body; malformed JSON gets an answer instead of closing the connection."""
    try:
        return decode_json(type_, call.body)
    except RemoteProtocolError as error:
        raise CommandError(ResponseCode.SYSTEM_ERROR, str(error)) from error


def _order_topics(namesrv: Namesrv) -> bytes:
    """Return the queue counts of ordered topics, which every registration's answer includes."""
    values = namesrv.kv_config.namespace(ORDER_NAMESPACE)
    return encode_json(KVTable(dict(values))) if values else b""
