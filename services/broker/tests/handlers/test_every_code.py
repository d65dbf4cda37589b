# SPDX-License-Identifier: Apache-2.0
"""Every request code has a declared right and kind, because the defaults are permissive."""

from typing import Final

from cometmq.broker.acl.check import (
    ADMIN_CODES,
    ADMIN_CODES_OF_5,
    NEEDS,
    NEEDS_OF_5,
    UNCHANGING,
)
from cometmq.broker.copies.gate.kinds import KINDS
from cometmq.broker.handlers import HANDLERS
from cometmq.remoting.codes import RequestCode as Code

SERVED_IN_EVERY_ROLE: Final = {
    Code.QUERY_MESSAGE,
    Code.GET_ALL_TOPIC_CONFIG,
    Code.UPDATE_BROKER_CONFIG,
    Code.GET_BROKER_CONFIG,
    Code.GET_BROKER_RUNTIME_INFO,
    Code.GET_MIN_OFFSET,
    Code.GET_EARLIEST_MSG_STORETIME,
    Code.VIEW_MESSAGE_BY_ID,
    Code.HEART_BEAT,
    Code.UNREGISTER_CLIENT,
    Code.DISCONNECT_CLIENT,
    Code.GET_CONSUMER_LIST_BY_GROUP,
    Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_ALL_DELAY_OFFSET,
    Code.CHECK_CLIENT_CONFIG,
    Code.UPDATE_AND_CREATE_ACL_CONFIG,
    Code.DELETE_ACL_CONFIG,
    Code.GET_BROKER_CLUSTER_ACL_INFO,
    Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    Code.GET_BROKER_CLUSTER_ACL_CONFIG,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_CONSUMER_CONNECTION_LIST,
    Code.GET_PRODUCER_CONNECTION_LIST,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    Code.QUERY_TOPIC_CONSUME_BY_WHO,
    Code.REGISTER_FILTER_SERVER,
    Code.QUERY_CONSUME_TIME_SPAN,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE,
    Code.GET_CONSUMER_RUNNING_INFO,
    Code.QUERY_CORRECTION_OFFSET,
    Code.CONSUME_MESSAGE_DIRECTLY,
    Code.VIEW_BROKER_STATS_DATA,
    Code.CLEAN_UNUSED_TOPIC,
    Code.GET_BROKER_CONSUME_STATS,
    Code.QUERY_CONSUME_QUEUE,
    Code.SEND_REPLY_MESSAGE,
    Code.SEND_REPLY_MESSAGE_V2,
    Code.GET_ALL_PRODUCER_INFO,
    Code.DELETE_EXPIRED_COMMITLOG,
    Code.GET_TOPIC_CONFIG,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG,
    Code.ASK_TRANSACTION_STATE,
}
"""Requests to a group member that change no replicated table and reveal no end of a queue."""


def test_every_code_has_a_right() -> None:
    """END_TRANSACTION's topic is known only to its handler, which checks the right to it."""
    rights = [*NEEDS, *NEEDS_OF_5, *ADMIN_CODES, *ADMIN_CODES_OF_5, *UNCHANGING]
    assert HANDLERS.keys() == {*rights, Code.END_TRANSACTION}
    assert {it for it in rights if rights.count(it) > 1} == NEEDS.keys() & NEEDS_OF_5.keys()


def test_every_code_has_a_kind() -> None:
    assert HANDLERS.keys() - KINDS.keys() == SERVED_IN_EVERY_ROLE
