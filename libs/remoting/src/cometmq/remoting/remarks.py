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

filter_refused: Final = "The broker does not support consumer to filter message by {}".format
request_not_supported: Final = " request type {} not supported".format
rejected: Final = (
    "[OVERLOAD]system busy, start flow control for a while, period in queue: {waited_ms}ms, "
    "size of queue: {in_flight}"
).format
"""For requests above the limit on requests in flight."""
queue_timeout: Final = (
    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: "
    "{waited_ms}ms, size of queue: {in_queue}"
).format
"""For requests that have waited too long for their turn."""
message_illegal: Final = (
    "the message is illegal, maybe msg body or properties length not matched. msg body "
    "length limit {}B, msg properties length limit 32KB."
).format
missing_field: Final = "the custom field <{}> is null".format
topic_not_exist: Final = "topic[{}] not exist".format
send_queue_illegal: Final = "request queueId[{}] is illegal, {} Producer: {}".format
"""The second value is the topic as RocketMQ prints it; clients parse its queue counts."""
send_topic_not_exist: Final = ("topic[{}] not exist, apply first please!\n" + FAQ_SUFFIX).format
pull_topic_not_exist: Final = ("topic[{}] not exist, apply first please! \n" + FAQ_SUFFIX).format
"""Unlike for sends, a space precedes the line break."""
send_topic_forbidden: Final = "Sending message to topic[{}] is forbidden.".format
broker_send_forbidden: Final = "the broker[{}] sending message is forbidden".format
broker_pull_forbidden: Final = "the broker[{}] pulling message is forbidden".format
group_forbidden_for_topic: Final = "the consumer group[{}] is forbidden for topic[{}]".format
"""RocketMQ 5's remark; 4.9 has no table of forbidden topics."""
topic_pull_forbidden: Final = "the topic[{}] pulling message is forbidden".format
group_pull_forbidden: Final = "subscription group no permission, {}".format
pull_group_not_exist: Final = ("subscription group [{}] does not exist, \n" + FAQ_SUFFIX).format
send_back_group_not_exist: Final = ("subscription group not exist, {} \n" + FAQ_SUFFIX).format
pull_queue_illegal: Final = (
    "queueId[{queue_id}] is illegal, topic:[{topic}] "
    "topicConfig.readQueueNums:[{read_queue_nums}] consumer:[/{peer}]"
).format
system_topic_conflict: Final = "The topic[{}] is conflict with system topic.".format
message_not_found: Final = "can not find message by the offset, {}".format
send_back_not_found: Final = "look message by offset failed, {}".format
no_route: Final = ("No topic route info in name server for the topic: {}\n" + FAQ_SUFFIX).format
kv_not_found: Final = "No config item, Namespace: {} Key: {}".format
kv_namespace_not_found: Final = "No config item, Namespace: {}".format
group_not_online: Final = "the consumer group[{}] not online".format
producer_group_not_exist: Final = "the producer group[{}] not exist".format
consumers_offline: Final = "no consumer for this group, {}".format
stats_not_exist: Final = "The stats <{}> <{}> not exist".format
queue_not_exist: Final = "{}@{} is not exist!".format
queue_index_not_exist: Final = "Index {} of {}@{} is not exist!".format
reset_offset_offline: Final = (
    "Consumer not online, so can not reset offset, Group: {group} Topic: {topic} Timestamp: "
    "{timestamp}"
).format
reset_offset_no_topic: Final = (
    "[reset-offset] reset offset failed, no topic in this broker. topic={}"
).format
reset_offset_no_group: Final = "THe consumer group <{}> not exist".format
client_too_old: Final = "the client does not support this feature. version={}".format
"""For an offset request that a member of the group is too old to serve."""
no_consumer_online: Final = "No Any Consumer online in the consumer group: [{}]".format
consumer_not_online: Final = "The Consumer <{}> <{}> not online".format
consumer_too_old: Final = (
    "The Consumer <{}> Version <{}> too low to finish, please upgrade it to V3_1_8_SNAPSHOT"
).format
"""For a request meant for a client that is too old to serve it."""
consumer_timeout: Final = "consumer <{}> <{}> Timeout: {}".format
consumer_call_failed: Final = "invoke consumer <{}> <{}> Exception: {}".format
reply_channel_missing: Final = "push reply message fail, channel of <{}> not found.".format
reply_push_failed: Final = "push reply message to {}fail.".format
