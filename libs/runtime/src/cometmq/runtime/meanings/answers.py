# SPDX-License-Identifier: Apache-2.0
"""What a server's answer means, by response code and by remark, and what to do about it; for the
console and the command line.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.refusals import MEANINGS


class Answer(NamedTuple):
    """The meaning of an answer, and what the reader can do."""

    meaning: str
    advice: str = ""


ADVICE: Final[Mapping[int, str]] = {
    ResponseCode.SYSTEM_ERROR: "Read the remark: `cometmq explain 'REMARK'`; without one, read the"
    " server's log at that time.",
    ResponseCode.SYSTEM_BUSY: "Send again after a pause, as clients do by themselves; if it lasts,"
    " send more slowly, or add brokers: runbook system-busy.md, and `cometmq cluster`.",
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: "The server is older than the client, or does not"
    " have the feature; `cometmq cluster` shows its version.",
    ResponseCode.FLUSH_DISK_TIMEOUT: "The message is stored: sending again would store it twice."
    " Look at the disk of the broker: runbook slow.md.",
    ResponseCode.SLAVE_NOT_AVAILABLE: "The message is stored once: sending again would store it"
    " twice. Start the slave: `cometmq cluster`.",
    ResponseCode.FLUSH_SLAVE_TIMEOUT: "The message is stored once: sending again would store it"
    " twice. See how far the slave is behind: `cometmq cluster`.",
    ResponseCode.MESSAGE_ILLEGAL: "Read the remark: the message is too long, its delivery time is"
    " no number or too far away, or its batch may not contain it.",
    ResponseCode.SERVICE_NOT_AVAILABLE: "A full disk, missing copies, or a broker that starts or"
    " stops: `cometmq check broker`, and runbook writes-refused.md.",
    ResponseCode.NO_PERMISSION: "`cometmq topic list` shows the permission of the topic, `cometmq"
    " group describe GROUP` whether the group may consume.",
    ResponseCode.TOPIC_NOT_EXIST: "`cometmq topic create TOPIC`, or correct the name; brokers that"
    " create topics by themselves have autoCreateTopicEnable=true.",
    ResponseCode.PULL_NOT_FOUND: "Nothing is wrong: the pull waits for the next message.",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "Nothing is wrong: the filter selects none of the"
    " messages that were read, and the client pulls again.",
    ResponseCode.PULL_OFFSET_MOVED: "The group's offset is outside the queue: messages were"
    " deleted before they were read, or the topic was created again: `cometmq lag GROUP`.",
    ResponseCode.QUERY_NOT_FOUND: "Check the id, key and time; messages are deleted after"
    " fileReservedTime hours.",
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: "Correct the filter: the remark names the place; see"
    " the guide filters.md.",
    ResponseCode.SUBSCRIPTION_NOT_EXIST: "It passes by itself with the next heartbeat (30 s); if it"
    " lasts, give all members of the group the same subscriptions: `cometmq group describe GROUP`.",
    ResponseCode.SUBSCRIPTION_NOT_LATEST: "It passes by itself with the next heartbeat (30 s).",
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: "`cometmq group create GROUP`, or correct the name.",
    ResponseCode.INVALID_PARAMETER: "Correct the parameter that the remark names.",
    ResponseCode.CONSUMER_NOT_ONLINE: "Start a member of the group; members of proxies of 5.x are"
    " not visible to brokers.",
    ResponseCode.CONSUME_MSG_TIMEOUT: "Look at the member that was asked: `cometmq group describe"
    " GROUP`, and its thread stacks: `cometmq consumerStatus -g GROUP -s`.",
    ResponseCode.BROADCAST_CONSUMPTION: "Members of such a group keep their own offsets; brokers"
    " have none to show or move.",
    ResponseCode.FLOW_CONTROL: "Send more slowly, or raise the limit that the remark names.",
    ResponseCode.GO_AWAY: "Nothing to do: clients connect to another broker, or again.",
}
"""What to do about an answer, by code."""

_OTHERS: Final[Mapping[int, str]] = {
    ResponseCode.SUCCESS: "the request was served",
    ResponseCode.TRANSACTION_FAILED: "the local transaction could not be ended",
    ResponseCode.VERSION_NOT_SUPPORTED: "the server does not support the client's version",
    ResponseCode.TOPIC_EXIST_ALREADY: "a topic of this name exists",
    ResponseCode.PULL_NOT_FOUND: "the queue has no message at this offset yet",
    ResponseCode.PULL_RETRY_IMMEDIATELY: "no message was selected; pull again",
    ResponseCode.PULL_OFFSET_MOVED: "the offset is outside the queue; the answer has a valid one",
    ResponseCode.FILTER_DATA_NOT_EXIST: "the broker has no compiled filter of the group",
    ResponseCode.FILTER_DATA_NOT_LATEST: "the broker has an older compiled filter of the group",
    ResponseCode.TRANSACTION_SHOULD_COMMIT: "the transaction should be committed",
    ResponseCode.TRANSACTION_SHOULD_ROLLBACK: "the transaction should be rolled back",
    ResponseCode.TRANSACTION_STATE_UNKNOW: "the producer does not know the transaction's outcome",
    ResponseCode.TRANSACTION_STATE_GROUP_WRONG: "another producer group owns the transaction",
    ResponseCode.NO_BUYER_ID: "a property of RocketMQ's own operator is missing",
    ResponseCode.NOT_IN_CURRENT_UNIT: "the message belongs to another unit",
    ResponseCode.NO_MESSAGE: "there is no message",
    ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED: "the account could not be stored",
    ResponseCode.DELETE_ACL_CONFIG_FAILED: "the account could not be deleted",
    ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED: "the white list could not be stored",
    ResponseCode.BROKER_DISPATCH_NOT_COMPLETE: "the broker has not indexed its log yet",
    ResponseCode.NOT_LEADER_FOR_QUEUE: "another broker leads this queue",
    ResponseCode.ILLEGAL_OPERATION: "the operation is not allowed in this state",
}

REMARKS: Final = (
    (
        r"\[TIMEOUT_CLEAN_QUEUE\]broker busy",
        Answer(
            "the request waited longer than the broker allows before its turn came",
            "The broker is overloaded: send more slowly, spread the topic over more brokers, or"
            " raise readWaitMills (reads of CometMQ) or waitTimeMillsInSendQueue (sends to"
            " RocketMQ); runbook system-busy.md.",
        ),
    ),
    (
        r"\[OVERLOAD\]system busy",
        Answer(
            "more requests were in flight at the broker than it allows",
            "Send more slowly, or with fewer connections; runbook system-busy.md.",
        ),
    ),
    (
        r"\[OVERLOAD\]too many (cold reads|searches)",
        Answer(
            "more reads of old messages wait at the broker than it allows",
            "Read old messages with fewer consumers at a time; runbook system-busy.md.",
        ),
    ),
    (
        r"\[COMPILING_FILTER\]|\[TOO_MANY_FILTERS\]",
        Answer(
            "the broker has not compiled the SQL92 filter yet",
            "Nothing to do: consumers pull again by themselves.",
        ),
    ),
    (
        r"stores at most \d+ offsets",
        Answer(
            "the broker's table of offsets is full",
            "Delete groups that are not used, with their offsets, or raise offsetsMax.",
        ),
    ),
    (
        r"\[TOO_MANY_ENDS\]",
        Answer(
            "too many requests to end one half message were waiting for its copies",
            "Send the end again later; if it lasts, the copies are slow: `cometmq ha status`.",
        ),
    ),
    (
        r"\[PC_SYNCHRONIZED\]broker busy|\[PCBUSY_CLEAN_QUEUE\]",
        Answer(
            "the disk of the broker took too long to accept the last write",
            "Look at the disk of the broker; runbook slow.md.",
        ),
    ),
    (
        r"No topic route info in name server|No route info of this topic",
        Answer(
            "no name server knows a broker with this topic",
            "Check the name with `cometmq topic list`; create it with `cometmq topic create"
            " TOPIC`; if it exists, its brokers are down: `cometmq cluster`.",
        ),
    ),
    (
        r"the topic .* accepts no messages|has no write permission",
        Answer(
            "no broker lets producers write to the topic",
            "`cometmq topic route TOPIC` shows the permission of each broker; `cometmq topic alter"
            " TOPIC --perm rw` allows sends.",
        ),
    ),
    (
        r"more than body_bytes_max",
        Answer(
            "the message is larger than its producer allows",
            "Shorten it, or raise the producer's option body_bytes_max and maxMessageSize of every"
            " broker; the command line sends 4 MiB at most.",
        ),
    ),
    (
        r"no name server answers",
        Answer(
            "the client reached none of the name servers that it was given",
            "Start one (`cometmq standalone`), or give its address: -n, NAMESRV_ADDR, or `cometmq"
            " context use`.",
        ),
    ),
    (
        r"topic\[.*\] not exist",
        Answer("the broker does not have the topic", ADVICE[ResponseCode.TOPIC_NOT_EXIST]),
    ),
    (
        r"subscription group .*not exist|consumer's group info not exist",
        Answer(
            "the broker does not know the consumer group",
            ADVICE[ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST],
        ),
    ),
    (
        r"subscription group no permission",
        Answer("the group is disabled", "`cometmq group alter GROUP --enabled`"),
    ),
    (
        r"is forbidden for topic\[",
        Answer("a ban of 5.x", "Stop the broker; edit `forbiddenTable` in subscriptionGroup.json"),
    ),
    (
        r"consumer's subscription not exist",
        Answer(
            "no heartbeat has told the broker this subscription of the group",
            ADVICE[ResponseCode.SUBSCRIPTION_NOT_EXIST],
        ),
    ),
    (
        r"[Nn]o accessKey is configured|not found the ak|No acl config",
        Answer(
            "the broker has access control, and does not know this account",
            "Give an account: `cometmq context add`, --credentials FILE, or the client's keys.",
        ),
    ),
    (
        r"[Cc]heck signature failed",
        Answer(
            "the secret key of the client differs from the broker's",
            "Correct the secret key, in the client or in the broker's account file.",
        ),
    ),
    (
        r"[Nn]eed admin permission|No default permission|[Nn]o permission for|topic.*acl",
        Answer(
            "the account does not have the right to do this",
            "An administrator grants it: `cometmq updateAclConfig`, or the account file;"
            " `cometmq account may` names the rule that decides.",
        ),
    ),
    (
        r"crc32 not match",
        Answer(
            "a registration was changed on its way from the broker to the name server",
            "Brokers register again by themselves; if it lasts, look at what is between the two.",
        ),
    ),
    (
        r"string2Properties error",
        Answer("the settings to change cannot be read", "Write lines of the form NAME=VALUE."),
    ),
    (
        r"the message is illegal",
        Answer(
            "the body or the properties are too long, or a batch has a delay or a transaction",
            "Shorten the body or the properties, or raise maxMessageSize at every broker and in"
            " the clients; send delayed and transactional messages one by one.",
        ),
    ),
    (
        r"timer message illegal, .* must be a number",
        Answer(
            "the delivery time of the message is no number",
            "Correct the property that the remark names: a whole number of milliseconds since"
            " 1970, or of the delay.",
        ),
    ),
    (
        r"timer message illegal",
        Answer(
            "the message would be delivered too far in the future",
            "Deliver it sooner, or raise timerMaxDelaySec at every broker.",
        ),
    ),
    (
        r"does not support consumer to filter message by",
        Answer(
            "SQL92 filters are off at this broker",
            "Set enablePropertyFilter=true at every broker.",
        ),
    ),
    (
        r"the topic\[.*\] sending message is forbidden",
        Answer(
            "the topic's permission does not let producers write to it",
            "`cometmq topic alter TOPIC --perm rw` allows it; `cometmq topic list` shows the"
            " permissions.",
        ),
    ),
    (
        r"the broker\[.*\] sending transaction message is forbidden",
        Answer(
            "the broker accepts no transactions",
            "Set rejectTransactionMessage=false at the broker, or use other brokers.",
        ),
    ),
    (
        r"sending message is forbidden",
        Answer(
            "the broker does not accept messages from producers (brokerPermission)",
            "`cometmq cluster` shows the brokers that are read-only, and how to undo it.",
        ),
    ),
    (
        r"pulling message is forbidden",
        Answer(
            "the topic or the broker may not be read",
            "`cometmq topic alter TOPIC --perm rw`; for a broker, its setting brokerPermission.",
        ),
    ),
    (
        r"not online|no consumer for this group|No Any Consumer online",
        Answer(
            MEANINGS[ResponseCode.CONSUMER_NOT_ONLINE], ADVICE[ResponseCode.CONSUMER_NOT_ONLINE]
        ),
    ),
    (
        r"request type -?\d+ not supported",
        Answer(
            MEANINGS[ResponseCode.REQUEST_CODE_NOT_SUPPORTED],
            ADVICE[ResponseCode.REQUEST_CODE_NOT_SUPPORTED],
        ),
    ),
    (
        r"this broker is not the master of the group",
        Answer(
            "another member of the broker's group is the master, or will be",
            "Clients try again by themselves; if it lasts: `cometmq ha status`.",
        ),
    ),
    (
        r"Can't modify topic or subscription group from slave|this broker is not the master",
        Answer("the request went to a slave", "Send it to the master: `cometmq cluster`."),
    ),
    (
        r"stale epoch|no proof of the group's key",
        Answer(
            "the broker is not, or no longer, a valid member of its group",
            "Runbook group-degraded.md; `cometmq ha status`.",
        ),
    ),
    (
        r"Not found, V3_0_6_SNAPSHOT",
        Answer(
            "the group has not committed an offset of this queue yet",
            "Nothing is wrong: members begin where consumeFromWhere tells them.",
        ),
    ),
    (
        r"consumer filter data|subscription not latest",
        Answer(
            "the broker has no, or an older, subscription of this member",
            "It passes by itself with the next heartbeat (30 s); if it lasts, the members of the"
            " group subscribe differently: `cometmq group describe GROUP`.",
        ),
    ),
    (
        r"parse the consumer's subscription failed",
        Answer(
            MEANINGS[ResponseCode.SUBSCRIPTION_PARSE_FAILED],
            ADVICE[ResponseCode.SUBSCRIPTION_PARSE_FAILED],
        ),
    ),
    (
        r"not yet confirmed where the queues end",
        Answer(
            "the broker has become the master, and waits for its copies to confirm the log's end",
            "Clients try again by themselves; if it lasts: `cometmq ha status`.",
        ),
    ),
    (
        r"have a retry topic",
        Answer("the name of the group is too long for a retry topic", "Use a shorter name."),
    ),
    (
        r"specified (topic|group) |than topic max|with system topic|topic\[.*\] is forbidden",
        Answer(
            "the name of the topic or group is not allowed",
            "Use letters, digits, % | - and _, at most 127 characters for a topic, and no name of"
            " a system topic.",
        ),
    ),
    (
        r"queueId\[-?\d+\] is illegal|@.* is not exist!",
        Answer(
            "the topic has no queue, or no message, with this number at this broker",
            "`cometmq topic describe TOPIC` shows the queues; clients learn of changed counts"
            " within 30 s.",
        ),
    ),
    (
        r"can not find message|look message by offset failed|Find prepared transaction message",
        Answer("the message does not exist, or no longer", ADVICE[ResponseCode.QUERY_NOT_FOUND]),
    ),
    (
        r"commitOrRollback field wrong|producer group wrong|(state table|commit log) offset wrong",
        Answer(
            "the end of a transaction does not fit its half message",
            "The producer must end it with the ids and the group of its send: `cometmq txn list`"
            " shows the open ones, `cometmq txn resolve` ends one.",
        ),
    ),
    (
        r"has a full disk",
        Answer(
            "the disk of the broker is full, so it accepts no messages",
            "Free space, or lower fileReservedTime; it accepts messages again by itself:"
            " `cometmq check disk`, and runbook disk-full.md.",
        ),
    ),
    (
        r"than minInSync",
        Answer(
            "too few copies of the broker are in sync",
            "Start or repair its copies: `cometmq ha status`, and runbook group-degraded.md.",
        ),
    ),
    (
        r"broker unable to service, until",
        Answer(
            "the broker accepts no messages before startAcceptSendRequestTimeStamp",
            "Wait for the time that the remark names, or set it to 0.",
        ),
    ),
    (
        r"create mapped file failed|service not available now",
        Answer(
            MEANINGS[ResponseCode.SERVICE_NOT_AVAILABLE], ADVICE[ResponseCode.SERVICE_NOT_AVAILABLE]
        ),
    ),
    (
        r"batch request does not support|messages of a batch cannot",
        Answer("a batch may not contain such messages", "Send them one by one."),
    ),
    (
        r"custom field <.*> is null|REPLY_TO_CLIENT\] is null|not set any response code",
        Answer(
            "the request lacks a field that the server needs",
            "Upgrade the client's library, or report it: applications do not set these fields.",
        ),
    ),
    (
        r"producer group\[.*\] not exist",
        Answer(
            "no producer of the group is connected",
            "Check the name, or start a producer of the group.",
        ),
    ),
    (
        r"No config item|The stats <.*> <.*> not exist",
        Answer("the server has nothing of this name", "Check the name."),
    ),
    (
        r"reset offset failed, no topic|THe consumer group <.*> not exist",
        Answer(
            "the group has no offsets in this topic at this broker",
            "Check both names: `cometmq group describe GROUP` shows the topics that it reads.",
        ),
    ),
    (
        r"does not support this feature\. version|too low to finish",
        Answer("the consumer's library is too old", "Upgrade the client to 3.1.8 or newer."),
    ),
    (
        r"invoke consumer <.*> <.*> Exception",
        Answer(
            "the broker could not ask the consumer, or its answer was an error",
            "Look at the member's log: `cometmq group describe GROUP` names its address.",
        ),
    ),
    (
        r"consumer <.*> <.*> Timeout",
        Answer(
            MEANINGS[ResponseCode.CONSUME_MSG_TIMEOUT], ADVICE[ResponseCode.CONSUME_MSG_TIMEOUT]
        ),
    ),
    (
        r"push reply message",
        Answer(
            "the client that asked is no longer connected to this broker",
            "Nothing to do: its request has timed out, or it asks again.",
        ),
    ),
    (
        r"can not consume by broadcast way",
        Answer("the group may not broadcast", "`cometmq group alter GROUP --broadcast`"),
    ),
    (
        r"limit reached: ",
        Answer(
            "a limit that protects the server is reached",
            "The remark names the limit and the setting that raises it; see the reference"
            " limits.md, and first whether a client creates more than it should.",
        ),
    ),
)  # fmt: skip
"""The meaning of a remark, by a pattern that it contains; the first match counts."""


def answer(code: ResponseCode) -> Answer:
    """Return the meaning of a code."""
    return Answer(MEANINGS.get(code) or _OTHERS[code], ADVICE.get(code, ""))


def remark(text: str) -> Answer | None:
    """Return the meaning of a server's remark, which may be part of a client's error message."""
    return next((found for pattern, found in REMARKS if re.search(pattern, text)), None)


def remarks_with(words: str) -> list[Answer]:
    """Return the meanings of the remarks that contain these words, in any case."""
    wanted = _spaced(words)
    return [found for pattern, found in REMARKS if wanted in _spaced(pattern.replace("\\", ""))]


def _spaced(text: str) -> str:
    return text.lower().replace("_", " ")
