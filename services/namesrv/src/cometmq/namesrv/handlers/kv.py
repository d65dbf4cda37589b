# SPDX-License-Identifier: Apache-2.0
"""The key-value configuration: 100, 101, 102, 219."""

from cometmq.namesrv.admission import admit_kv
from cometmq.namesrv.namesrv import Namesrv
from cometmq.remoting import remarks
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import OK, Call, Reply
from cometmq.remoting.commands.namesrv import (
    DeleteKvConfig,
    GetKvConfig,
    GetKvConfigReply,
    GetKvlistByNamespace,
    PutKvConfig,
)


async def put_kv_config(namesrv: Namesrv, call: Call[PutKvConfig]) -> Reply:
    """Set a value; answer once it is durable."""
    header = call.header
    admit_kv(namesrv, call, header)
    namesrv.kv_config.put(header.namespace, header.key, header.value)
    await namesrv.save_kv_config()
    return OK


def get_kv_config(namesrv: Namesrv, call: Call[GetKvConfig]) -> Reply:
    """Return a value, or QUERY_NOT_FOUND with an empty header."""
    header = call.header
    value = namesrv.kv_config.get(header.namespace, header.key)
    if value is None:
        remark = remarks.kv_not_found(header.namespace, header.key)
        return Reply(ResponseCode.QUERY_NOT_FOUND, GetKvConfigReply(), remark=remark)
    return Reply(header=GetKvConfigReply(value))


async def delete_kv_config(namesrv: Namesrv, call: Call[DeleteKvConfig]) -> Reply:
    """Remove a value; removing a missing value succeeds."""
    namesrv.kv_config.delete(call.header.namespace, call.header.key)
    await namesrv.save_kv_config()
    return OK


def get_kvlist_by_namespace(namesrv: Namesrv, call: Call[GetKvlistByNamespace]) -> Reply:
    body = namesrv.kv_config.encode_namespace(call.header.namespace)
    if not body:
        remark = remarks.kv_namespace_not_found(call.header.namespace)
        return Reply(ResponseCode.QUERY_NOT_FOUND, remark=remark)
    return Reply(body=body)
