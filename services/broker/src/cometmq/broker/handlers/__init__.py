# SPDX-License-Identifier: Apache-2.0
"""HANDLERS maps request codes to handlers; requests with other codes are answered with code 3."""

from collections.abc import Mapping
from functools import wraps
from typing import Any, Final

from cometmq.broker.broker import Broker
from cometmq.broker.detours import SlowReason
from cometmq.broker.handlers import (
    acl,
    admin,
    client_calls,
    clients,
    groups,
    locks,
    maintenance,
    offsets,
    overview,
    progress,
    pull,
    queries,
    replies,
    resets,
    send,
    send_back,
    topics,
    transactions,
)
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call
from cometmq.remoting.transport.bodies import bounded_bodies
from cometmq.remoting.transport.dispatch import Handler, Result

_HANDLERS: Final[Mapping[int, Handler[Broker]]] = {
    # messages
    Code.SEND_MESSAGE: send.send_message,
    Code.SEND_MESSAGE_V2: send.send_message,
    Code.SEND_BATCH_MESSAGE: send.send_batch_message,
    Code.CONSUMER_SEND_MSG_BACK: send_back.consumer_send_msg_back,
    Code.SEND_REPLY_MESSAGE: replies.send_reply_message,
    Code.SEND_REPLY_MESSAGE_V2: replies.send_reply_message,
    Code.END_TRANSACTION: transactions.end_transaction,
    Code.RESUME_CHECK_HALF_MESSAGE: transactions.resume_check_half_message,
    Code.ASK_TRANSACTION_STATE: transactions.ask_transaction_state,
    Code.SET_TRANSACTION_ASIDE: transactions.set_transaction_aside,
    Code.PULL_MESSAGE: pull.pull_message,
    Code.LITE_PULL_MESSAGE: pull.pull_message,
    Code.QUERY_MESSAGE: queries.query_message,
    Code.VIEW_MESSAGE_BY_ID: queries.view_message_by_id,
    Code.QUERY_CONSUME_QUEUE: queries.query_consume_queue,
    # offsets
    Code.QUERY_CONSUMER_OFFSET: offsets.query_consumer_offset,
    Code.UPDATE_CONSUMER_OFFSET: offsets.update_consumer_offset,
    Code.SEARCH_OFFSET_BY_TIMESTAMP: offsets.search_offset_by_timestamp,
    Code.GET_MAX_OFFSET: offsets.get_max_offset,
    Code.GET_MIN_OFFSET: offsets.get_min_offset,
    Code.GET_EARLIEST_MSG_STORETIME: offsets.get_earliest_msg_storetime,
    Code.GET_ALL_CONSUMER_OFFSET: admin.get_all_consumer_offset,
    Code.GET_ALL_DELAY_OFFSET: admin.get_all_delay_offset,
    Code.INVOKE_BROKER_TO_RESET_OFFSET: resets.invoke_broker_to_reset_offset,
    Code.QUERY_CORRECTION_OFFSET: resets.query_correction_offset,
    Code.CLONE_GROUP_OFFSET: resets.clone_group_offset,
    # clients
    Code.HEART_BEAT: clients.heart_beat,
    Code.UNREGISTER_CLIENT: clients.unregister_client,
    Code.DISCONNECT_CLIENT: clients.disconnect_client,
    Code.GET_CONSUMER_LIST_BY_GROUP: clients.get_consumer_list_by_group,
    Code.CHECK_CLIENT_CONFIG: clients.check_client_config,
    Code.LOCK_BATCH_MQ: locks.lock_batch_mq,
    Code.UNLOCK_BATCH_MQ: locks.unlock_batch_mq,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: client_calls.invoke_broker_to_get_consumer_status,
    Code.GET_CONSUMER_RUNNING_INFO: client_calls.get_consumer_running_info,
    Code.CONSUME_MESSAGE_DIRECTLY: client_calls.consume_message_directly,
    # topics and groups
    Code.UPDATE_AND_CREATE_TOPIC: topics.update_and_create_topic,
    Code.DELETE_TOPIC_IN_BROKER: topics.delete_topic_in_broker,
    Code.GET_ALL_TOPIC_CONFIG: topics.get_all_topic_config,
    Code.GET_TOPIC_CONFIG: topics.get_topic_config,
    Code.GET_TOPIC_STATS_INFO: topics.get_topic_stats_info,
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.update_and_create_subscriptiongroup,
    Code.DELETE_SUBSCRIPTIONGROUP: groups.delete_subscriptiongroup,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: groups.get_all_subscriptiongroup_config,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG: groups.get_subscriptiongroup_config,
    # access control
    Code.UPDATE_AND_CREATE_ACL_CONFIG: acl.update_and_create_acl_config,
    Code.DELETE_ACL_CONFIG: acl.delete_acl_config,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: acl.update_global_white_addrs_config,
    Code.GET_BROKER_CLUSTER_ACL_INFO: acl.get_broker_cluster_acl_info,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG: acl.get_broker_cluster_acl_config,
    # the broker
    Code.UPDATE_BROKER_CONFIG: admin.update_broker_config,
    Code.GET_BROKER_CONFIG: admin.get_broker_config,
    Code.GET_BROKER_RUNTIME_INFO: admin.get_broker_runtime_info,
    Code.GET_BROKER_OVERVIEW: overview.get_broker_overview,
    Code.GET_CONSUMER_CONNECTION_LIST: admin.get_consumer_connection_list,
    Code.GET_PRODUCER_CONNECTION_LIST: admin.get_producer_connection_list,
    Code.GET_CONSUME_STATS: progress.get_consume_stats,
    Code.GET_BROKER_CONSUME_STATS: progress.get_broker_consume_stats,
    Code.QUERY_TOPIC_CONSUME_BY_WHO: progress.query_topic_consume_by_who,
    Code.QUERY_CONSUME_TIME_SPAN: progress.query_consume_time_span,
    Code.GET_ALL_PRODUCER_INFO: admin.get_all_producer_info,
    Code.VIEW_BROKER_STATS_DATA: admin.view_broker_stats_data,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: maintenance.get_system_topic_list,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE: maintenance.clean_expired_consume_queue,
    Code.CLEAN_UNUSED_TOPIC: maintenance.clean_unused_topic,
    Code.DELETE_EXPIRED_COMMITLOG: maintenance.delete_expired_commitlog,
    Code.REGISTER_FILTER_SERVER: maintenance.register_filter_server,
}

_NOTING: Final = frozenset(
    {
        Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.SEND_BATCH_MESSAGE, Code.PULL_MESSAGE,
        Code.LITE_PULL_MESSAGE, Code.LOCK_BATCH_MQ, Code.END_TRANSACTION,
        Code.CONSUMER_SEND_MSG_BACK,
    }
)  # fmt: skip
"""Codes whose handlers note why they, and not a lane, serve a request."""


def _noted(code: int, handler: Handler[Broker]) -> Handler[Broker]:
    if code in _NOTING:
        return handler

    @wraps(handler)
    def noted(broker: Broker, call: Call[Any]) -> Result:
        if broker.lane is not None:
            broker.detours.note(code, SlowReason.NO_NATIVE_FORM)
        return handler(broker, call)

    return noted


HANDLERS: Final[Mapping[int, Handler[Broker]]] = bounded_bodies(
    {code: _noted(code, handler) for code, handler in _HANDLERS.items()}
)

VIP_EXCLUDED: Final = frozenset({Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE})
"""Requests refused on the second port, so that pulls cannot delay sends there."""
