# SPDX-License-Identifier: Apache-2.0
"""Remarks that clients parse or that users know from RocketMQ.

Compatibility: these are the remarks of 4.9.4, byte for byte, including leading spaces. A remark
with a variable part is a function; handlers never spell out any of these remarks themselves.
"""

from typing import Final

FAQ_SUFFIX: Final = "See http://rocketmq.apache.org/docs/faq/ for further details."

CRC_MISMATCH: Final = "crc32 not match"
PROPERTIES_UNREADABLE: Final = "string2Properties error"

SLAVE_MODIFY_REFUSED: Final = (
    "Can't modify topic or subscription group from slave broker, "
    "please execute it from master broker."
)
NOT_THE_MASTER: Final = "this broker is not the master of"
"""Part of the refusal by a member that does not lead its group with failover."""
ENDS_UNCONFIRMED: Final = "it is not yet confirmed where the queues end"
"""Part of the refusal of a read by a member that does not know yet where its queues end."""
TOPIC_BLANK: Final = "The specified topic is blank."
TOPIC_ILLEGAL: Final = (
    "The specified topic contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
)
TOPIC_TOO_LONG: Final = "The specified topic is longer than topic max length."
GROUP_INFO_MISSING: Final = f"the consumer's group info not exist\n{FAQ_SUFFIX}"
SUBSCRIPTION_MISSING: Final = f"the consumer's subscription not exist\n{FAQ_SUFFIX}"
SUBSCRIPTION_NOT_LATEST: Final = "the consumer's subscription not latest"
FILTER_DATA_NOT_EXIST: Final = (
    "The broker's consumer filter data is not exist!Your expression may be wrong!"
)
FILTER_DATA_NOT_LATEST: Final = "the consumer's consumer filter data not latest"
SUBSCRIPTION_PARSE_FAILED: Final = "parse the consumer's subscription failed"
QUERY_MESSAGE_NOT_FOUND: Final = "can not find message, maybe time range not correct"
CONSUMER_OFFSET_NOT_FOUND: Final = "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"
DECISION_WRONG: Final = "commitOrRollback field wrong"
HALF_MESSAGE_NOT_FOUND: Final = "Find prepared transaction message failed"
PRODUCER_GROUP_WRONG: Final = "The producer group wrong"
TRANSACTION_OFFSET_WRONG: Final = "The transaction state table offset wrong"
COMMIT_LOG_OFFSET_WRONG: Final = "The commit log offset wrong"
MAPPED_FILE_CREATE_FAILED: Final = "create mapped file failed, server is busy or broken."
PAGE_CACHE_BUSY: Final = "[PC_SYNCHRONIZED]broker busy, start flow control for a while"
BATCH_RETRY_TOPIC: Final = "batch request does not support retry group "
NOT_SET: Final = "not set any response code"
REPLY_TO_CLIENT_MISSING: Final = "reply message properties[REPLY_TO_CLIENT] is null"

STALE_EPOCH = "stale epoch"
"""The beginning of the answer to a broker that registers in an epoch below its group's."""
UNPROVEN = "no proof of the group's key"
"""The beginning of the answer to a broker that does not prove that it belongs to its group."""


def filter_refused(kind: str) -> str:
    """Answer to a subscription in a language that the broker does not support."""
    return f"The broker does not support consumer to filter message by {kind}"


def request_not_supported(code: int) -> str:
    """Both servers' answer to a request code that they do not serve."""
    return f" request type {code} not supported"


def rejected(*, in_flight: int, waited_ms: int) -> str:
    """Answer to a request that exceeds the limit on requests in flight."""
    return (
        "[OVERLOAD]system busy, start flow control for a while, "
        f"period in queue: {waited_ms}ms, size of queue: {in_flight}"
    )


def queue_timeout(*, in_queue: int, waited_ms: int) -> str:
    """Answer to a request that has waited too long for its turn."""
    return (
        "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
        f"period in queue: {waited_ms}ms, size of queue: {in_queue}"
    )


def message_illegal(body_bytes_max: int) -> str:
    """Answer to a message whose body or properties are too long."""
    return (
        "the message is illegal, maybe msg body or properties length not matched. "
        f"msg body length limit {body_bytes_max}B, msg properties length limit 32KB."
    )


def missing_field(field: str) -> str:
    """Answer to a request whose header lacks a required field."""
    return f"the custom field <{field}> is null"


def topic_not_exist(topic: str) -> str:
    """Answer to an admin command that names an unknown topic."""
    return f"topic[{topic}] not exist"


def send_queue_illegal(queue_id: int, topic: str, peer: str) -> str:
    """Answer to a send to a queue that the topic does not have.

    `topic` is the topic's configuration as RocketMQ prints it; clients parse its queue counts.
    """
    return f"request queueId[{queue_id}] is illegal, {topic} Producer: {peer}"


def send_topic_not_exist(topic: str) -> str:
    """Answer to a send to a topic that does not exist and may not be created."""
    return f"topic[{topic}] not exist, apply first please!\n{FAQ_SUFFIX}"


def pull_topic_not_exist(topic: str) -> str:
    """Answer to a pull from an unknown topic; unlike for sends, a space precedes the line break."""
    return f"topic[{topic}] not exist, apply first please! \n{FAQ_SUFFIX}"


def send_topic_forbidden(topic: str) -> str:
    """Answer to a send to a topic that is reserved for the broker."""
    return f"Sending message to topic[{topic}] is forbidden."


def broker_send_forbidden(host: str) -> str:
    """Answer to a send to a broker without write permission."""
    return f"the broker[{host}] sending message is forbidden"


def broker_pull_forbidden(host: str) -> str:
    """Answer to a pull from a broker without read permission."""
    return f"the broker[{host}] pulling message is forbidden"


def group_forbidden_for_topic(group: str, topic: str) -> str:
    """Return RocketMQ 5's remark; 4.9 has no table of forbidden topics."""
    return f"the consumer group[{group}] is forbidden for topic[{topic}]"


def topic_pull_forbidden(topic: str) -> str:
    """Answer to a pull from a topic without read permission."""
    return f"the topic[{topic}] pulling message is forbidden"


def group_pull_forbidden(group: str) -> str:
    """Answer to a pull by a group whose consumption is disabled."""
    return f"subscription group no permission, {group}"


def pull_group_not_exist(group: str) -> str:
    """Answer to a pull by an unknown group."""
    return f"subscription group [{group}] does not exist, \n{FAQ_SUFFIX}"


def send_back_group_not_exist(group: str) -> str:
    """Answer to a message sent back by an unknown group."""
    return f"subscription group not exist, {group} \n{FAQ_SUFFIX}"


def pull_queue_illegal(*, queue_id: int, topic: str, read_queue_nums: int, peer: str) -> str:
    """Answer to a pull from a queue that the topic does not have."""
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic}] "
        f"topicConfig.readQueueNums:[{read_queue_nums}] consumer:[/{peer}]"
    )


def system_topic_conflict(topic: str) -> str:
    """Answer to an attempt to create or delete a system topic."""
    return f"The topic[{topic}] is conflict with system topic."


def message_not_found(physical_offset: int) -> str:
    """Answer to a query for a message that no longer exists."""
    return f"can not find message by the offset, {physical_offset}"


def send_back_not_found(physical_offset: int) -> str:
    """Answer to an attempt to send back a message that no longer exists."""
    return f"look message by offset failed, {physical_offset}"


def no_route(topic: str) -> str:
    """The name server's answer to a request for a topic without queues or brokers."""
    return f"No topic route info in name server for the topic: {topic}\n{FAQ_SUFFIX}"


def kv_not_found(namespace: str, key: str) -> str:
    """The name server's answer to a request for a missing key."""
    return f"No config item, Namespace: {namespace} Key: {key}"


def kv_namespace_not_found(namespace: str) -> str:
    """The name server's answer to a request for an empty namespace."""
    return f"No config item, Namespace: {namespace}"


def group_not_online(group: str) -> str:
    """Answer to a request for the connections of a group that has none."""
    return f"the consumer group[{group}] not online"


def producer_group_not_exist(group: str) -> str:
    """Answer to a request for the connections of a producer group that has none."""
    return f"the producer group[{group}] not exist"


def consumers_offline(group: str) -> str:
    """Answer to a rebalancing client whose group the broker does not know."""
    return f"no consumer for this group, {group}"


def stats_not_exist(name: str, key: str) -> str:
    """Answer to a request for a statistic that does not exist."""
    return f"The stats <{name}> <{key}> not exist"


def queue_not_exist(queue_id: int, topic: str) -> str:
    """Answer to a request for an unknown consume queue."""
    return f"{queue_id}@{topic} is not exist!"


def queue_index_not_exist(index: int, queue_id: int, topic: str) -> str:
    """Remark on an index that lies outside a consume queue."""
    return f"Index {index} of {queue_id}@{topic} is not exist!"


def reset_offset_offline(*, group: str, topic: str, timestamp: int) -> str:
    """The answer to an offset reset for a group without clients."""
    return (
        "Consumer not online, so can not reset offset, "
        f"Group: {group} Topic: {topic} Timestamp: {timestamp}"
    )


def reset_offset_no_topic(topic: str) -> str:
    """Answer to an offset reset for a topic that the broker does not have."""
    return f"[reset-offset] reset offset failed, no topic in this broker. topic={topic}"


def reset_offset_no_group(group: str) -> str:
    """Answer to an offset reset for a group without offsets in the topic."""
    return f"THe consumer group <{group}> not exist"


def client_too_old(version: str) -> str:
    """Answer to an offset request that a member of the group is too old to serve."""
    return f"the client does not support this feature. version={version}"


def no_consumer_online(group: str) -> str:
    """Answer to a request for the offsets of a group without clients."""
    return f"No Any Consumer online in the consumer group: [{group}]"


def consumer_not_online(group: str, client_id: str) -> str:
    """Answer to a request for a client that is not connected."""
    return f"The Consumer <{group}> <{client_id}> not online"


def consumer_too_old(client_id: str, version: str) -> str:
    """The answer to a request meant for a client that is too old to serve it."""
    return (
        f"The Consumer <{client_id}> Version <{version}> too low to finish, "
        "please upgrade it to V3_1_8_SNAPSHOT"
    )


def consumer_timeout(group: str, client_id: str, reason: str) -> str:
    """Answer to a request that was forwarded to a client and timed out."""
    return f"consumer <{group}> <{client_id}> Timeout: {reason}"


def consumer_call_failed(group: str, client_id: str, reason: str) -> str:
    """Answer to a request that could not be forwarded to a client."""
    return f"invoke consumer <{group}> <{client_id}> Exception: {reason}"


def reply_channel_missing(client_id: str) -> str:
    """Answer to a reply whose requester is not connected to this broker."""
    return f"push reply message fail, channel of <{client_id}> not found."


def reply_push_failed(client_id: str) -> str:
    """Answer to a reply that could not be pushed to the requester."""
    return f"push reply message to {client_id}fail."
