# SPDX-License-Identifier: Apache-2.0
"""The type of a probe, and the fields and bodies of `cometmq.peers.probes`."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from cometmq.peers.wire import CURRENT_VERSION

TOPIC: Final = "SameTopic"
GROUP: Final = "SameGroup"
REPLY_TOPIC: Final = "PeersCluster_REPLY_TOPIC"
HEARTBEAT: Final[dict[str, Any]] = {
    "clientID": "127.0.0.1@same",
    "producerDataSet": [{"groupName": "SameProducer"}],
    "consumerDataSet": [
        {
            "groupName": GROUP,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": [
                {
                    "topic": TOPIC,
                    "subString": "TagA",
                    "tagsSet": ["TagA"],
                    "codeSet": [2598919],
                    "subVersion": 100,
                    "classFilterMode": False,
                    "expressionType": "TAG",
                }
            ],
            "unitMode": False,
        }
    ],
}
FIRST_ID: Final = "7F0000010000000000000000" + "0" * 8
UNUSED: Final = (23, 209, 210, 211, 212, 213, 214, 302)


@dataclass(frozen=True)
class Probe:
    """One request; `name` is part of the test's id."""

    name: str
    code: int
    fields: Mapping[str, object] = field(default_factory=dict)
    body: bytes = b""
    version: int = CURRENT_VERSION
    compare_body: Literal["json", "keys", "records", "no"] = "json"
    to: Literal["broker", "namesrv"] = "broker"


def counted_fields(name: str, key: str) -> dict[str, object]:
    return {"statsName": name, "statsKey": key}


def entries_fields(**changes: object) -> dict[str, object]:
    return {"topic": TOPIC, "queueId": 0, "index": 0, "count": 2} | changes


def send_fields(**changes: object) -> dict[str, object]:
    """Return the fields of SEND_MESSAGE_V2."""
    return {
        "a": "SameProducer",
        "b": TOPIC,
        "c": "TBW102",
        "d": 4,
        "e": 0,
        "f": 0,
        "g": 1700000000000,
        "h": 0,
        "i": "TAGS\x01TagA\x02KEYS\x01same\x02UNIQ_KEY\x017F000001000100000000000000000000",
        "j": 0,
        "k": "false",
        **changes,
    }


def v1_fields(**changes: object) -> dict[str, object]:
    names = {
        "a": "producerGroup",
        "b": "topic",
        "c": "defaultTopic",
        "d": "defaultTopicQueueNums",
        "e": "queueId",
        "f": "sysFlag",
        "g": "bornTimestamp",
        "h": "flag",
        "i": "properties",
        "j": "reconsumeTimes",
        "k": "unitMode",
    }
    return {names[key]: value for key, value in send_fields(**changes).items()}


def batch_body(*bodies: bytes) -> bytes:
    """Return the body of a batch; each message has two properties."""
    properties = b"KEYS\x01batched\x02UNIQ_KEY\x017F000001000100000000000000000001"
    items = (
        struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 5, len(body))
        + body
        + struct.pack(">h", len(properties))
        + properties
        for body in bodies
    )
    return b"".join(items)


def cpp_heartbeat() -> bytes:
    """Return a heartbeat as the C++ client writes it: enumerations by ordinal."""
    consumer = {
        **HEARTBEAT["consumerDataSet"][0],
        "groupName": "SameCpp",
        "consumeType": 1,
        "messageModel": 1,
        "consumeFromWhere": 0,
    }
    heartbeat = {"clientID": "127.0.0.1@cpp", "consumerDataSet": [consumer]}
    return json.dumps(heartbeat).encode()


def pull_fields(**changes: object) -> dict[str, object]:
    return {
        "consumerGroup": GROUP,
        "topic": TOPIC,
        "queueId": 0,
        "queueOffset": 0,
        "maxMsgNums": 32,
        "sysFlag": 4,
        "commitOffset": 0,
        "suspendTimeoutMillis": 0,
        "subscription": "*",
        "subVersion": 1,
        "expressionType": "TAG",
        **changes,
    }


def queue_fields(**changes: object) -> dict[str, object]:
    return {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, **changes}


def topic_fields(name: str, **changes: object) -> dict[str, object]:
    return {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": 2,
        "writeQueueNums": 2,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        **changes,
    }


def locks_body() -> bytes:
    queues = [{"brokerName": "broker-a", "queueId": n, "topic": TOPIC} for n in (0, 1)]
    return json.dumps({"consumerGroup": GROUP, "clientId": "same", "mqSet": queues}).encode()


REGISTERED: Final = {
    "brokerName": "same-b",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "SameCluster",
    "haServerAddr": "127.0.0.1:2",
    "brokerId": 0,
    "compressed": "false",
}


def registration_body() -> bytes:
    """Return two topics: our name server reads the next registration of a broker with one again."""
    topic = {
        "topicName": "SameRegistered",
        "readQueueNums": 3,
        "writeQueueNums": 2,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    wrapper = {
        "dataVersion": {"counter": 2, "timestamp": 9},
        "topicConfigTable": {
            "SameRegistered": topic,
            "SameRegisteredToo": {**topic, "topicName": "SameRegisteredToo"},
        },
    }
    body = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
    return json.dumps(body).encode()


AWAY: Final = {"consumerGroup": "SameAway", "commitOffset": 0}


def reset_fields(**changes: object) -> dict[str, object]:
    """Return the fields of INVOKE_BROKER_TO_RESET_OFFSET: a forced reset to the end."""
    return {"topic": TOPIC, "group": GROUP, "timestamp": -1, "isForce": "true", **changes}


def copy_fields(**changes: object) -> dict[str, object]:
    return {
        "srcGroup": GROUP,
        "destGroup": "SameCopy",
        "topic": TOPIC,
        "offline": "false",
        **changes,
    }


def reply_fields(**changes: object) -> dict[str, object]:
    """Return the fields of SEND_REPLY_MESSAGE_V2."""
    return send_fields(**{"b": REPLY_TOPIC, "i": "MSG_TYPE\x01reply", **changes})


def end_fields(**changes: object) -> dict[str, object]:
    """Return the fields of END_TRANSACTION: a commit of a half message that does not exist."""
    return {
        "producerGroup": "SameProducer",
        "tranStateTableOffset": 0,
        "commitLogOffset": 1 << 40,
        "commitOrRollback": 8,
        "fromTransactionCheck": "false",
        "msgId": FIRST_ID,
        "transactionId": "same",
    } | changes
