# SPDX-License-Identifier: Apache-2.0
"""Chooses the filter of a pull: the pull's own expression, or its group's subscription.

Compatibility: the checks are in RocketMQ's order. A pull that carries an invalid SQL expression
gets every message; if the registered expression is invalid, the pull is refused with code 27.
"""

from functools import partial
from typing import Final, TypeAlias

from cometmq.broker import refusals
from cometmq.broker.broker import Broker
from cometmq.broker.filters.records import RecordFilter, retry_record_filter, sql_record_filter
from cometmq.broker.filters.sql import EXPRESSION_TYPE, SqlError, SqlFilter, compile_sql
from cometmq.broker.filters.tags import TagFilter, is_tag_type, tag_filter
from cometmq.remoting import remarks
from cometmq.remoting.bodies.heartbeat import SubscriptionData
from cometmq.remoting.bodies.topic_config import SubscriptionGroupConfig
from cometmq.remoting.command import Call
from cometmq.remoting.commands.pull import PullMessage
from cometmq.remoting.errors import (
    FilterDataNotExist,
    FilterDataNotLatest,
    NoPermission,
    ServerError,
    SubscriptionNotExist,
    SubscriptionNotLatest,
    SubscriptionParseFailed,
)
from cometmq.remoting.message.flags import PullSysFlag
from cometmq.remoting.names import ALL_TAGS, RETRY_PREFIX

BROADCASTING: Final = "BROADCASTING"
_SUBSCRIPTION: Final = int(PullSysFlag.SUBSCRIPTION)

MessageFilter: TypeAlias = TagFilter | RecordFilter | None
"""Filters by tag code or by record; None accepts all messages."""


def message_filter(
    broker: Broker, call: Call[PullMessage], group: SubscriptionGroupConfig
) -> MessageFilter:
    """Return the filter of a pull; raise CommandError if it cannot be determined."""
    header = call.header
    if header.sys_flag & _SUBSCRIPTION:
        return _own_filter(broker, call)
    subscription = _registered(broker, call, group)
    if not is_tag_type(subscription.expression_type):
        return _registered_sql(broker, call, subscription)
    found = subscription_filter(subscription)
    if found is None and broker.settings.filter_support_retry:
        return _retry_filter(broker, call)
    return found


def subscription_filter(subscription: SubscriptionData) -> TagFilter | None:
    """Return the filter of a registered tag subscription, by the hash codes that came with it."""
    if subscription.class_filter_mode or subscription.sub_string == ALL_TAGS:
        return None
    return frozenset(subscription.code_set).__contains__


def _own_filter(broker: Broker, call: Call[PullMessage]) -> MessageFilter:
    header = call.header
    expression, kind = header.subscription, header.expression_type
    if is_tag_type(kind):
        try:
            return tag_filter(expression)
        except ValueError as error:
            raise SubscriptionParseFailed(remarks.SUBSCRIPTION_PARSE_FAILED) from error
    if not expression:
        raise SubscriptionParseFailed(remarks.SUBSCRIPTION_PARSE_FAILED)
    _check_enabled(broker, kind)
    if kind != EXPRESSION_TYPE:
        return None
    broker.tables.filters.arriving.compiler.check(
        expression, partial(broker.admission.requester, call)
    )
    try:
        return sql_record_filter(compile_sql(expression))
    except SqlError:
        return None


def _registered_sql(
    broker: Broker, call: Call[PullMessage], subscription: SubscriptionData
) -> MessageFilter:
    header = call.header
    data = broker.tables.filters.get(header.topic, header.consumer_group)
    if data is None:
        raise FilterDataNotExist(remarks.FILTER_DATA_NOT_EXIST)
    if data.client_version < header.sub_version:
        raise FilterDataNotLatest(remarks.FILTER_DATA_NOT_LATEST)
    _check_enabled(broker, subscription.expression_type)
    sql = broker.tables.filters.compiled(data, partial(broker.admission.requester, call))
    return None if sql is None else sql_record_filter(sql)


def _retry_filter(broker: Broker, call: Call[PullMessage]) -> RecordFilter | None:
    """Return a filter that tests each retried message with that of its original topic."""
    retry_topic, who = call.header.topic, partial(broker.admission.requester, call)
    group = retry_topic.removeprefix(RETRY_PREFIX)
    if group == retry_topic or not broker.tables.filters.knows(group):
        return None

    def filter_of(topic: str) -> SqlFilter | None:
        data = broker.tables.filters.get(topic, group)
        return None if data is None else broker.tables.filters.compiled(data, who)

    return retry_record_filter(filter_of)


def _check_enabled(broker: Broker, kind: str | None) -> None:
    if not broker.settings.enable_property_filter:
        raise ServerError(remarks.filter_refused(kind or ""))


def _registered(
    broker: Broker, call: Call[PullMessage], group: SubscriptionGroupConfig
) -> SubscriptionData:
    header = call.header
    consumers = broker.clients.consumers.group(header.consumer_group) or broker.clients.told.group(
        call.peer, header.consumer_group, broker.clock.monotonic_ms()
    )
    if consumers is None:
        raise SubscriptionNotExist(remarks.GROUP_INFO_MISSING)
    if consumers.message_model == BROADCASTING and not group.consume_broadcast_enable:
        raise NoPermission(refusals.broadcast_forbidden(header.consumer_group))
    subscription = consumers.subscriptions.get(header.topic)
    if subscription is None:
        raise SubscriptionNotExist(remarks.SUBSCRIPTION_MISSING)
    if subscription.sub_version < header.sub_version:
        raise SubscriptionNotLatest(remarks.SUBSCRIPTION_NOT_LATEST)
    return subscription
