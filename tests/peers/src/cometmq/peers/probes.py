# SPDX-License-Identifier: Apache-2.0
"""Requests that two servers should answer alike, as a table.

The order matters: a probe sees what the probes before it did.
"""

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


@dataclass(frozen=True)
class Probe:
    """One request; `name` appears in the test's id."""

    name: str
    to: Literal["broker", "namesrv"]
    code: int
    fields: Mapping[str, object] = field(default_factory=dict)
    body: bytes = b""
    version: int = CURRENT_VERSION
    compare_body: Literal["json", "keys", "records", "no"] = "json"


def _counted(name: str, key: str) -> dict[str, object]:
    """Fields of a question for a statistic."""
    return {"statsName": name, "statsKey": key}


def _entries(**changes: object) -> dict[str, object]:
    """Fields of a question for entries of a queue."""
    return {"topic": TOPIC, "queueId": 0, "index": 0, "count": 2} | changes


def send_fields(**changes: object) -> dict[str, object]:
    """Fields of SEND_MESSAGE_V2."""
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


def _v1_fields(**changes: object) -> dict[str, object]:
    """Fields of SEND_MESSAGE."""
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


def _batch(*bodies: bytes) -> bytes:
    """Body of a batch; each message has two properties."""
    properties = b"KEYS\x01batched\x02UNIQ_KEY\x017F000001000100000000000000000001"
    items = (
        struct.pack(">iiiii", 22 + len(body) + len(properties), 0, 0, 5, len(body))
        + body
        + struct.pack(">h", len(properties))
        + properties
        for body in bodies
    )
    return b"".join(items)


def _cpp_heartbeat() -> bytes:
    """A heartbeat as the C++ client writes it: enumerations by ordinal."""
    consumer = {
        **HEARTBEAT["consumerDataSet"][0],
        "groupName": "SameCpp",
        "consumeType": 1,
        "messageModel": 1,
        "consumeFromWhere": 0,
    }
    heartbeat = {"clientID": "127.0.0.1@cpp", "consumerDataSet": [consumer]}
    return json.dumps(heartbeat).encode()


def _pull(**changes: object) -> dict[str, object]:
    """Fields of PULL_MESSAGE with a subscription of its own and no waiting."""
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


def _queue(**changes: object) -> dict[str, object]:
    """Fields that name a queue."""
    return {"consumerGroup": GROUP, "topic": TOPIC, "queueId": 0, **changes}


def _topic(name: str, **changes: object) -> dict[str, object]:
    """Fields of UPDATE_AND_CREATE_TOPIC."""
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


def _locks() -> bytes:
    """Body of LOCK_BATCH_MQ and its opposite."""
    queues = [{"brokerName": "broker-a", "queueId": n, "topic": TOPIC} for n in (0, 1)]
    return json.dumps({"consumerGroup": GROUP, "clientId": "same", "mqSet": queues}).encode()


_REGISTERED: Final = {
    "brokerName": "same-b",
    "brokerAddr": "127.0.0.1:1",
    "clusterName": "SameCluster",
    "haServerAddr": "127.0.0.1:2",
    "brokerId": 0,
    "compressed": "false",
}


def _registration() -> bytes:
    """Body of REGISTER_BROKER with one topic."""
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
        "topicConfigTable": {"SameRegistered": topic},
    }
    body = {"filterServerList": [], "topicConfigSerializeWrapper": wrapper}
    return json.dumps(body).encode()


_AWAY: Final = {"consumerGroup": "SameAway", "commitOffset": 0}


def _reset(**changes: object) -> dict[str, object]:
    """Fields of INVOKE_BROKER_TO_RESET_OFFSET: to the end, whatever it skips."""
    return {"topic": TOPIC, "group": GROUP, "timestamp": -1, "isForce": "true", **changes}


def _copy(**changes: object) -> dict[str, object]:
    """Fields of CLONE_GROUP_OFFSET."""
    return {
        "srcGroup": GROUP,
        "destGroup": "SameCopy",
        "topic": TOPIC,
        "offline": "false",
        **changes,
    }


def _reply(**changes: object) -> dict[str, object]:
    """Fields of SEND_REPLY_MESSAGE_V2."""
    return send_fields(**{"b": REPLY_TOPIC, "i": "MSG_TYPE\x01reply", **changes})


SENDS: Final = [
    Probe("send", "broker", 310, send_fields(e=1), b"body"),
    Probe("send by the old code", "broker", 10, _v1_fields(e=2), b"old"),
    Probe(
        "send a batch",
        "broker",
        320,
        send_fields(e=2, m="true", i="WAIT\x01true"),
        _batch(b"1", b"22"),
    ),
    Probe("send delayed", "broker", 310, send_fields(i="DELAY\x012\x02KEYS\x01late"), b"late"),
    Probe("send to a random queue", "broker", 310, send_fields(b="SameRandom", d=1, e=-1), b"r"),
    Probe("send without properties", "broker", 310, send_fields(b="SameBare", i=""), b"bare"),
    Probe("send an empty body", "broker", 310, send_fields(b="SameBare", e=1), b""),
    Probe("send to an illegal name", "broker", 310, send_fields(b="not legal!"), b"body"),
    Probe("send to an empty name", "broker", 310, send_fields(b=""), b"body"),
    Probe("send to a long name", "broker", 310, send_fields(b="T" * 128), b"body"),
    Probe("send to a system topic", "broker", 310, send_fields(b="SCHEDULE_TOPIC_XXXX"), b"body"),
    Probe("send to queue 99", "broker", 310, send_fields(e=99), b"body"),
    Probe("send without default topic", "broker", 310, send_fields(b="None1", c="None2"), b"body"),
    Probe("send creates a topic", "broker", 310, send_fields(b="SameCreated", e=0), b"body"),
    Probe("send too many properties", "broker", 310, send_fields(i="k\x01" + "v" * 33000), b"body"),
    Probe("send a large body", "broker", 310, send_fields(), b"x" * (4 * 1024 * 1024 + 1)),
    Probe("send to retry of nobody", "broker", 310, send_fields(b="%RETRY%Nobody"), b"body"),
    Probe("send back of nobody", "broker", 36, {"offset": 0, "group": "Nobody", "delayLevel": 0}),
    Probe(
        "send back of nothing", "broker", 36, {"offset": 1 << 40, "group": GROUP, "delayLevel": 0}
    ),
]
PULLS: Final = [
    Probe("pull", "broker", 11, _pull(), compare_body="records"),
    Probe("pull what came", "broker", 11, _pull(queueId=2), compare_body="records"),
    Probe(
        "pull what is late",
        "broker",
        11,
        _pull(topic="SCHEDULE_TOPIC_XXXX", queueId=1),
        compare_body="records",
    ),
    Probe("pull what is bare", "broker", 11, _pull(topic="SameBare"), compare_body="records"),
    Probe(
        "pull without a body",
        "broker",
        11,
        _pull(topic="SameBare", queueId=1),
        compare_body="records",
    ),
    Probe("pull two", "broker", 11, _pull(maxMsgNums=2), compare_body="records"),
    Probe("pull a tag", "broker", 11, _pull(subscription="TagZ")),
    Probe("pull at the end", "broker", 11, _pull(queueId=1, queueOffset=1)),
    Probe("pull behind the end", "broker", 11, _pull(queueOffset=1000)),
    Probe("pull an empty queue", "broker", 11, _pull(queueId=3)),
    Probe("pull an empty queue at 5", "broker", 11, _pull(queueId=3, queueOffset=5)),
    Probe("pull queue 99", "broker", 11, _pull(queueId=99)),
    Probe("pull an unknown topic", "broker", 11, _pull(topic="Nothing")),
    Probe("pull of an unknown group", "broker", 11, _pull(consumerGroup="Unseen", sysFlag=0)),
    Probe(
        "pull as subscribed", "broker", 11, _pull(sysFlag=0, subVersion=100), compare_body="records"
    ),
    Probe("pull as subscribed later", "broker", 11, _pull(sysFlag=0, subVersion=101)),
    Probe("pull with SQL", "broker", 11, _pull(subscription="a > 1", expressionType="SQL92")),
]
OFFSETS: Final = [
    Probe("unknown progress", "broker", 14, _queue(queueId=2)),
    Probe("unknown progress of a topic", "broker", 14, _queue(topic="Nothing")),
    Probe("commit progress", "broker", 15, _queue(commitOffset=2)),
    Probe("progress", "broker", 14, _queue()),
    Probe("offset by time 0", "broker", 29, {"topic": TOPIC, "queueId": 0, "timestamp": 0}),
    Probe(
        "offset by time after all",
        "broker",
        29,
        {"topic": TOPIC, "queueId": 0, "timestamp": 1 << 50},
    ),
    Probe("maximum", "broker", 30, {"topic": TOPIC, "queueId": 0}),
    Probe("maximum of nothing", "broker", 30, {"topic": "Nothing", "queueId": 0}),
    Probe("minimum", "broker", 31, {"topic": TOPIC, "queueId": 0}),
    Probe("minimum of nothing", "broker", 31, {"topic": "Nothing", "queueId": 7}),
    Probe("first time", "broker", 32, {"topic": TOPIC, "queueId": 0}),
    Probe("first time of nothing", "broker", 32, {"topic": "Nothing", "queueId": 0}),
    Probe(
        "query nothing",
        "broker",
        12,
        {"topic": TOPIC, "key": "no", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 1 << 60},
    ),
    Probe(
        "query",
        "broker",
        12,
        {"topic": TOPIC, "key": "same", "maxNum": 2, "beginTimestamp": 0, "endTimestamp": 1 << 60},
        compare_body="records",
    ),
    Probe("view nothing", "broker", 33, {"offset": 1 << 40}),
    Probe("view", "broker", 33, {"offset": 0}, compare_body="records"),
]
CLIENTS: Final = [
    Probe("heartbeat", "broker", 34, body=json.dumps(HEARTBEAT).encode()),
    Probe("heartbeat of C++", "broker", 34, body=_cpp_heartbeat()),
    Probe("C++ consumers on line", "broker", 203, {"consumerGroup": "SameCpp"}),
    Probe("members", "broker", 38, {"consumerGroup": GROUP}),
    Probe("members of nobody", "broker", 38, {"consumerGroup": "Nobody"}),
    Probe("consumers on line", "broker", 203, {"consumerGroup": GROUP}),
    Probe("consumers of nobody", "broker", 203, {"consumerGroup": "Nobody"}),
    Probe("producers on line", "broker", 204, {"producerGroup": "SameProducer"}),
    Probe("producers of nobody", "broker", 204, {"producerGroup": "Nobody"}),
    Probe("lock", "broker", 41, body=_locks()),
    Probe("unlock", "broker", 42, body=_locks()),
    Probe(
        "check SQL",
        "broker",
        46,
        body=json.dumps(
            {
                "clientId": "same",
                "group": GROUP,
                "subscriptionData": {
                    "topic": TOPIC,
                    "subString": "a > 1",
                    "expressionType": "SQL92",
                    "subVersion": 1,
                },
            }
        ).encode(),
    ),
]
ADMIN: Final = [
    Probe("create a topic", "broker", 17, _topic("SameAdmin")),
    Probe("create an illegal topic", "broker", 17, _topic("not legal!")),
    Probe("create an empty topic", "broker", 17, _topic("")),
    Probe("create a system topic", "broker", 17, _topic("TBW102")),
    Probe("delete an illegal topic", "broker", 215, {"topic": "not legal!"}),
    Probe("delete a system topic", "broker", 215, {"topic": "TBW102"}),
    Probe("delete an unknown topic", "broker", 215, {"topic": "Unknown"}),
    Probe("topic statistics", "broker", 202, {"topic": TOPIC}),
    Probe("topic statistics of nothing", "broker", 202, {"topic": "Nothing"}),
    Probe("consume statistics", "broker", 208, {"consumerGroup": GROUP}),
    Probe("consume statistics of nobody", "broker", 208, {"consumerGroup": "Nobody"}),
    Probe("all topics", "broker", 21),
    Probe("all groups", "broker", 201),
    Probe("all progress", "broker", 43),
    Probe("all delay offsets", "broker", 45),
    Probe("broker configuration", "broker", 26, compare_body="no"),
    Probe("update configuration without body", "broker", 25),
    Probe("update unknown configuration", "broker", 25, body=b"unknownKey=1\n"),
    Probe("run-time information", "broker", 28, compare_body="keys"),
    Probe(
        "create a group",
        "broker",
        200,
        body=b'{"groupName":"SameAdminGroup","retryQueueNums":2,"retryMaxTimes":3,'
        b'"consumeEnable":false,"consumeBroadcastEnable":false}',
    ),
    Probe("pull of a stopped group", "broker", 11, _pull(consumerGroup="SameAdminGroup")),
    Probe("all groups with the new one", "broker", 201),
    Probe("delete a group", "broker", 207, {"groupName": "SameAdminGroup"}),
    Probe("delete an unknown group", "broker", 207, {"groupName": "Nobody"}),
    Probe("unknown code", "broker", 9999),
    Probe("unused code", "broker", 13),
]
_FIRST_ID: Final = "7F0000010000000000000000" + "0" * 8
MOVED: Final = [
    *(
        Probe(f"commit queue {number}", "broker", 15, _queue(queueId=number, commitOffset=1))
        for number in range(4)
    ),
    Probe("reset to the end", "broker", 222, _reset()),
    Probe("reset backwards only", "broker", 222, _reset(isForce="false")),
    Probe("reset to the begin", "broker", 222, _reset(timestamp=0)),
    Probe("progress after a reset", "broker", 14, _queue()),
    Probe("reset in nothing", "broker", 222, _reset(topic="Nothing")),
    Probe("reset of nobody", "broker", 222, _reset(group="Nobody")),
    *(
        Probe(f"commit queue {n} of who is away", "broker", 15, _queue(**_AWAY, queueId=n))
        for n in range(4)
    ),
    Probe("reset of who is away", "broker", 222, _reset(group="SameAway")),
    Probe(
        "corrections",
        "broker",
        308,
        {"filterGroups": "", "compareGroup": "SameAway", "topic": TOPIC},
    ),
    Probe("corrections of nothing", "broker", 308, {"compareGroup": GROUP, "topic": "Nothing"}),
    Probe("copy", "broker", 314, _copy()),
    Probe("progress of the copy", "broker", 14, _queue(consumerGroup="SameCopy", queueId=2)),
    Probe("copy in nothing", "broker", 314, _copy(topic="Nothing")),
    Probe("copy of nobody", "broker", 314, _copy(srcGroup="Nobody")),
    Probe("state of nobody", "broker", 307, {"consumerGroup": GROUP, "clientId": "nobody"}),
    Probe("state in no group", "broker", 307, {"consumerGroup": "Nobody", "clientId": "nobody"}),
    Probe(
        "consume at nobody",
        "broker",
        309,
        {"consumerGroup": GROUP, "clientId": "nobody", "msgId": _FIRST_ID},
    ),
    Probe("reply to nobody", "broker", 325, _reply(i="REPLY_TO_CLIENT\x01nobody"), b"reply"),
    Probe("reply without requester", "broker", 325, _reply(), b"reply"),
    Probe("reply to queue 99", "broker", 325, _reply(e=99), b"reply"),
    Probe("reply to an illegal name", "broker", 325, _reply(b="not legal!"), b"reply"),
    Probe("replies kept", "broker", 11, _pull(topic=REPLY_TOPIC), compare_body="records"),
]
STATISTICS: Final = [
    Probe("who consumes", "broker", 300, {"topic": TOPIC}),
    Probe("who consumes nothing", "broker", 300, {"topic": "Nothing"}),
    Probe("time spans", "broker", 303, {"topic": TOPIC, "group": GROUP}),
    Probe("time spans of nothing", "broker", 303, {"topic": "Nothing", "group": GROUP}),
    Probe("system topics", "broker", 305),
    Probe("clean queues", "broker", 306),
    Probe("clean topics", "broker", 316),
    Probe("clean the log", "broker", 329),
    Probe("progress of all", "broker", 317, {"isOrder": "false"}),
    Probe("progress in ordered topics", "broker", 317, {"isOrder": "true"}),
    Probe(
        "statistics of a topic", "broker", 315, _counted("TOPIC_PUT_NUMS", TOPIC), b"", 401, "keys"
    ),
    Probe(
        "statistics of the cluster",
        "broker",
        315,
        _counted("BROKER_PUT_NUMS", "PeersCluster"),
        b"",
        401,
        "keys",
    ),
    Probe("statistics of nobody", "broker", 315, _counted("TOPIC_PUT_NUMS", "Nothing")),
    Probe("statistics without a group", "broker", 315, _counted("GROUP_GET_NUMS", TOPIC)),
    Probe("unknown statistics", "broker", 315, _counted("Nothing", TOPIC)),
    Probe(
        "statistics of the disk",
        "broker",
        315,
        _counted("GROUP_GET_FROM_DISK_NUMS", f"{TOPIC}@{GROUP}"),
    ),
    Probe("entries of a queue", "broker", 321, _entries()),
    Probe("entries for a group", "broker", 321, _entries(consumerGroup=GROUP)),
    Probe("entries for nobody", "broker", 321, _entries(consumerGroup="Nobody")),
    Probe("entries behind the end", "broker", 321, _entries(index=1000)),
    Probe("entries of nothing", "broker", 321, _entries(topic="Nothing")),
    Probe("producers", "broker", 328),
    Probe("register a filter server", "broker", 301, {"filterServerAddr": "127.0.0.1:1"}),
    Probe("topic configuration of old", "broker", 22, {"topic": TOPIC}),
    Probe("delete files of old", "broker", 27),
]
NAMESRV: Final = [
    Probe("route", "namesrv", 105, {"topic": TOPIC}),
    Probe("route for an old client", "namesrv", 105, {"topic": TOPIC}, version=399),
    Probe("route of nothing", "namesrv", 105, {"topic": "Nothing"}),
    Probe("cluster", "namesrv", 106),
    Probe("all topics", "namesrv", 206),
    Probe("topics of the cluster", "namesrv", 224, {"cluster": "PeersCluster"}),
    Probe("topics of no cluster", "namesrv", 224, {"cluster": "None"}),
    Probe("system topics", "namesrv", 304),
    Probe("unit topics", "namesrv", 311),
    Probe("unit subscriptions", "namesrv", 312),
    Probe("unit subscriptions without unit", "namesrv", 313),
    Probe("put", "namesrv", 100, {"namespace": "S", "key": "k", "value": "v"}),
    Probe("get", "namesrv", 101, {"namespace": "S", "key": "k"}),
    Probe("list", "namesrv", 219, {"namespace": "S"}),
    Probe("list of nothing", "namesrv", 219, {"namespace": "None"}),
    Probe("delete", "namesrv", 102, {"namespace": "S", "key": "k"}),
    Probe("get nothing", "namesrv", 101, {"namespace": "S", "key": "k"}),
    Probe("delete nothing", "namesrv", 102, {"namespace": "S", "key": "k"}),
    Probe("configuration", "namesrv", 319, compare_body="no"),
    Probe("update unknown configuration", "namesrv", 318, body=b"unknownKey=1\n"),
    Probe("register a broker", "namesrv", 103, {**_REGISTERED, "bodyCrc32": 0}, _registration()),
    Probe(
        "register with a wrong sum",
        "namesrv",
        103,
        {**_REGISTERED, "bodyCrc32": 5},
        _registration(),
    ),
    Probe("route to the registered", "namesrv", 105, {"topic": "SameRegistered"}),
    Probe("cluster of both", "namesrv", 106),
    Probe(
        "data version of the registered",
        "namesrv",
        322,
        _REGISTERED,
        b'{"counter":2,"timestamp":9}',
    ),
    Probe("wipe the registered", "namesrv", 205, {"brokerName": "same-b"}),
    Probe("route without writing", "namesrv", 105, {"topic": "SameRegistered"}),
    Probe("add to the registered", "namesrv", 327, {"brokerName": "same-b"}),
    Probe("unregister", "namesrv", 104, _REGISTERED),
    Probe("route to the unregistered", "namesrv", 105, {"topic": "SameRegistered"}),
    Probe("wipe an unknown broker", "namesrv", 205, {"brokerName": "none"}),
    Probe("delete an unknown topic", "namesrv", 216, {"topic": "Unknown"}),
    Probe(
        "data version",
        "namesrv",
        322,
        {"brokerName": "x", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": 0},
        body=b'{"counter":1,"timestamp":1}',
    ),
]
PROBES: Final = [*SENDS, *PULLS, *OFFSETS, *CLIENTS, *ADMIN, *MOVED, *STATISTICS, *NAMESRV]
