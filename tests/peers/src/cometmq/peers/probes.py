# SPDX-License-Identifier: Apache-2.0
"""Requests that two servers should answer alike, as a table.

The order matters: the answer to a probe depends on the effects of earlier probes.
"""

import json
from functools import partial
from typing import Final

from cometmq.peers.probe import (
    AWAY,
    FIRST_ID,
    GROUP,
    HEARTBEAT,
    REGISTERED,
    REPLY_TOPIC,
    TOPIC,
    UNUSED,
    Probe,
    batch_body,
    copy_fields,
    counted_fields,
    cpp_heartbeat,
    end_fields,
    entries_fields,
    locks_body,
    pull_fields,
    queue_fields,
    registration_body,
    reply_fields,
    reset_fields,
    send_fields,
    topic_fields,
    v1_fields,
)

namesrv: Final = partial(Probe, to="namesrv")
records: Final = partial(Probe, compare_body="records")

SENDS: Final = [
    Probe("send", 310, send_fields(e=1), b"body"),
    Probe("send by the old code", 10, v1_fields(e=2), b"old"),
    Probe(
        "send a batch", 320, send_fields(e=2, m="true", i="WAIT\x01true"), batch_body(b"1", b"22")
    ),
    # Delayed by two hours: with a short delay, one side would deliver it before the other.
    Probe("send delayed", 310, send_fields(i="DELAY\x0118\x02KEYS\x01late"), b"late"),
    Probe("send to a random queue", 310, send_fields(b="SameRandom", d=1, e=-1), b"r"),
    Probe("send without properties", 310, send_fields(b="SameBare", i=""), b"bare"),
    Probe("send an empty body", 310, send_fields(b="SameBare", e=1), b""),
    Probe("send to an illegal name", 310, send_fields(b="not legal!"), b"body"),
    Probe("send to an empty name", 310, send_fields(b=""), b"body"),
    Probe("send to a long name", 310, send_fields(b="T" * 128), b"body"),
    Probe("send to a system topic", 310, send_fields(b="SCHEDULE_TOPIC_XXXX"), b"body"),
    Probe("send to queue 99", 310, send_fields(e=99), b"body"),
    Probe("send without default topic", 310, send_fields(b="None1", c="None2"), b"body"),
    Probe("send creates a topic", 310, send_fields(b="SameCreated", e=0), b"body"),
    Probe("send too many properties", 310, send_fields(i="k\x01" + "v" * 33000), b"body"),
    Probe("send a large body", 310, send_fields(), b"x" * (4 * 1024 * 1024 + 1)),
    Probe("send to retry of nobody", 310, send_fields(b="%RETRY%Nobody"), b"body"),
    Probe("send back of nobody", 36, {"offset": 0, "group": "Nobody", "delayLevel": 0}),
    Probe("send back of nothing", 36, {"offset": 1 << 40, "group": GROUP, "delayLevel": 0}),
]
PULLS: Final = [
    records("pull", 11, pull_fields()),
    records("pull what came", 11, pull_fields(queueId=2)),
    records("pull what is late", 11, pull_fields(topic="SCHEDULE_TOPIC_XXXX", queueId=17)),
    records("pull what is bare", 11, pull_fields(topic="SameBare")),
    records("pull without a body", 11, pull_fields(topic="SameBare", queueId=1)),
    records("pull two", 11, pull_fields(maxMsgNums=2)),
    Probe("pull a tag", 11, pull_fields(subscription="TagZ")),
    Probe("pull at the end", 11, pull_fields(queueId=1, queueOffset=1)),
    Probe("pull behind the end", 11, pull_fields(queueOffset=1000)),
    Probe("pull an empty queue", 11, pull_fields(queueId=3)),
    Probe("pull an empty queue at 5", 11, pull_fields(queueId=3, queueOffset=5)),
    Probe("pull queue 99", 11, pull_fields(queueId=99)),
    Probe("pull an unknown topic", 11, pull_fields(topic="Nothing")),
    Probe("pull of an unknown group", 11, pull_fields(consumerGroup="Unseen", sysFlag=0)),
    records("pull as subscribed", 11, pull_fields(sysFlag=0, subVersion=100)),
    Probe("pull as subscribed later", 11, pull_fields(sysFlag=0, subVersion=101)),
    Probe("pull with SQL", 11, pull_fields(subscription="a > 1", expressionType="SQL92")),
]
OFFSETS: Final = [
    Probe("unknown progress", 14, queue_fields(queueId=2)),
    Probe("unknown progress of a topic", 14, queue_fields(topic="Nothing")),
    Probe("commit progress", 15, queue_fields(commitOffset=2)),
    Probe("progress", 14, queue_fields()),
    Probe("offset by time 0", 29, {"topic": TOPIC, "queueId": 0, "timestamp": 0}),
    Probe("offset by time after all", 29, {"topic": TOPIC, "queueId": 0, "timestamp": 1 << 50}),
    Probe("maximum", 30, {"topic": TOPIC, "queueId": 0}),
    Probe("maximum of nothing", 30, {"topic": "Nothing", "queueId": 0}),
    Probe("minimum", 31, {"topic": TOPIC, "queueId": 0}),
    Probe("minimum of nothing", 31, {"topic": "Nothing", "queueId": 7}),
    Probe("first time", 32, {"topic": TOPIC, "queueId": 0}),
    Probe("first time of nothing", 32, {"topic": "Nothing", "queueId": 0}),
    Probe(
        "query nothing",
        12,
        {"topic": TOPIC, "key": "no", "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 1 << 60},
    ),
    records(
        "query",
        12,
        {"topic": TOPIC, "key": "same", "maxNum": 2, "beginTimestamp": 0, "endTimestamp": 1 << 60},
    ),
    Probe("view nothing", 33, {"offset": 1 << 40}),
    records("view", 33, {"offset": 0}),
]
CLIENTS: Final = [
    Probe("heartbeat", 34, body=json.dumps(HEARTBEAT).encode()),
    Probe("heartbeat of C++", 34, body=cpp_heartbeat()),
    Probe("C++ consumers on line", 203, {"consumerGroup": "SameCpp"}),
    Probe("members", 38, {"consumerGroup": GROUP}),
    Probe("members of nobody", 38, {"consumerGroup": "Nobody"}),
    Probe("consumers on line", 203, {"consumerGroup": GROUP}),
    Probe("consumers of nobody", 203, {"consumerGroup": "Nobody"}),
    Probe("producers on line", 204, {"producerGroup": "SameProducer"}),
    Probe("producers of nobody", 204, {"producerGroup": "Nobody"}),
    Probe("lock", 41, body=locks_body()),
    Probe("unlock", 42, body=locks_body()),
    Probe(
        "check SQL",
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
    Probe("create a topic", 17, topic_fields("SameAdmin")),
    Probe("create an illegal topic", 17, topic_fields("not legal!")),
    Probe("create an empty topic", 17, topic_fields("")),
    Probe("create a system topic", 17, topic_fields("TBW102")),
    Probe("delete an illegal topic", 215, {"topic": "not legal!"}),
    Probe("delete a system topic", 215, {"topic": "TBW102"}),
    Probe("delete an unknown topic", 215, {"topic": "Unknown"}),
    Probe("topic statistics", 202, {"topic": TOPIC}),
    Probe("topic statistics of nothing", 202, {"topic": "Nothing"}),
    Probe("consume statistics", 208, {"consumerGroup": GROUP}),
    Probe("consume statistics of nobody", 208, {"consumerGroup": "Nobody"}),
    Probe("all topics", 21),
    Probe("all groups", 201),
    Probe("all progress", 43),
    Probe("all delay offsets", 45),
    Probe("broker configuration", 26, compare_body="no"),
    Probe("update configuration without body", 25),
    Probe("update unknown configuration", 25, body=b"unknownKey=1\n"),
    Probe("run-time information", 28, compare_body="keys"),
    Probe(
        "create a group",
        200,
        body=b'{"groupName":"SameAdminGroup","retryQueueNums":2,"retryMaxTimes":3,'
        b'"consumeEnable":false,"consumeBroadcastEnable":false}',
    ),
    Probe("pull of a stopped group", 11, pull_fields(consumerGroup="SameAdminGroup")),
    Probe("all groups with the new one", 201),
    Probe("delete a group", 207, {"groupName": "SameAdminGroup"}),
    Probe("delete an unknown group", 207, {"groupName": "Nobody"}),
    Probe("unknown code", 9999),
    Probe("unused code", 13),
]
MOVED: Final = [
    *(
        Probe(f"commit queue {number}", 15, queue_fields(queueId=number, commitOffset=1))
        for number in range(4)
    ),
    Probe("reset to the end", 222, reset_fields()),
    Probe("reset backwards only", 222, reset_fields(isForce="false")),
    Probe("reset to the begin", 222, reset_fields(timestamp=0)),
    Probe("progress after a reset", 14, queue_fields()),
    Probe("reset in nothing", 222, reset_fields(topic="Nothing")),
    Probe("reset of nobody", 222, reset_fields(group="Nobody")),
    *(
        Probe(f"commit queue {n} of who is away", 15, queue_fields(**AWAY, queueId=n))
        for n in range(4)
    ),
    Probe("reset of who is away", 222, reset_fields(group="SameAway")),
    Probe("corrections", 308, {"filterGroups": "", "compareGroup": "SameAway", "topic": TOPIC}),
    Probe("corrections of nothing", 308, {"compareGroup": GROUP, "topic": "Nothing"}),
    Probe("copy", 314, copy_fields()),
    Probe("progress of the copy", 14, queue_fields(consumerGroup="SameCopy", queueId=2)),
    Probe("copy in nothing", 314, copy_fields(topic="Nothing")),
    Probe("copy of nobody", 314, copy_fields(srcGroup="Nobody")),
    Probe("state of nobody", 307, {"consumerGroup": GROUP, "clientId": "nobody"}),
    Probe("state in no group", 307, {"consumerGroup": "Nobody", "clientId": "nobody"}),
    Probe(
        "consume at nobody", 309, {"consumerGroup": GROUP, "clientId": "nobody", "msgId": FIRST_ID}
    ),
    Probe("reply to nobody", 325, reply_fields(i="REPLY_TO_CLIENT\x01nobody"), b"reply"),
    Probe("reply without requester", 325, reply_fields(), b"reply"),
    Probe("reply to queue 99", 325, reply_fields(e=99), b"reply"),
    Probe("reply to an illegal name", 325, reply_fields(b="not legal!"), b"reply"),
    Probe("reply by the old code", 324, v1_fields(**reply_fields()), b"reply"),
    records("replies kept", 11, pull_fields(topic=REPLY_TOPIC)),
    Probe("leave", 35, {"clientID": "nobody", "consumerGroup": GROUP}),
    Probe("end nothing", 37, end_fields()),
]
STATISTICS: Final = [
    Probe("who consumes", 300, {"topic": TOPIC}),
    Probe("who consumes nothing", 300, {"topic": "Nothing"}),
    Probe("time spans", 303, {"topic": TOPIC, "group": GROUP}),
    Probe("time spans of nothing", 303, {"topic": "Nothing", "group": GROUP}),
    Probe("system topics", 305),
    Probe("clean queues", 306),
    Probe("clean topics", 316),
    Probe("clean the log", 329),
    Probe("progress of all", 317, {"isOrder": "false"}),
    Probe("progress in ordered topics", 317, {"isOrder": "true"}),
    Probe(
        "statistics of a topic", 315, counted_fields("TOPIC_PUT_NUMS", TOPIC), compare_body="keys"
    ),
    Probe(
        "statistics of the cluster",
        315,
        counted_fields("BROKER_PUT_NUMS", "PeersCluster"),
        compare_body="keys",
    ),
    Probe("statistics of nobody", 315, counted_fields("TOPIC_PUT_NUMS", "Nothing")),
    Probe("statistics without a group", 315, counted_fields("GROUP_GET_NUMS", TOPIC)),
    Probe("unknown statistics", 315, counted_fields("Nothing", TOPIC)),
    Probe(
        "statistics of the disk",
        315,
        counted_fields("GROUP_GET_FROM_DISK_NUMS", f"{TOPIC}@{GROUP}"),
    ),
    Probe("entries of a queue", 321, entries_fields()),
    Probe("entries for a group", 321, entries_fields(consumerGroup=GROUP)),
    Probe("entries for nobody", 321, entries_fields(consumerGroup="Nobody")),
    Probe("entries behind the end", 321, entries_fields(index=1000)),
    Probe("entries of nothing", 321, entries_fields(topic="Nothing")),
    Probe("producers", 328),
    Probe("topic configuration of old", 22, {"topic": TOPIC}),
    Probe("delete files of old", 27),
    *(Probe(f"unused code {code}", code, {"topic": TOPIC}) for code in UNUSED),
]
NAMESRV: Final = [
    namesrv("route", 105, {"topic": TOPIC}),
    namesrv("route for an old client", 105, {"topic": TOPIC}, version=399),
    namesrv("route of nothing", 105, {"topic": "Nothing"}),
    namesrv("cluster", 106),
    namesrv("all topics", 206),
    namesrv("topics of the cluster", 224, {"cluster": "PeersCluster"}),
    namesrv("topics of no cluster", 224, {"cluster": "None"}),
    namesrv("system topics", 304),
    namesrv("unit topics", 311),
    namesrv("unit subscriptions", 312),
    namesrv("unit subscriptions without unit", 313),
    namesrv("put", 100, {"namespace": "S", "key": "k", "value": "v"}),
    namesrv("get", 101, {"namespace": "S", "key": "k"}),
    namesrv("list", 219, {"namespace": "S"}),
    namesrv("list of nothing", 219, {"namespace": "None"}),
    namesrv("delete", 102, {"namespace": "S", "key": "k"}),
    namesrv("get nothing", 101, {"namespace": "S", "key": "k"}),
    namesrv("delete nothing", 102, {"namespace": "S", "key": "k"}),
    namesrv("configuration", 319, compare_body="no"),
    namesrv("update unknown configuration", 318, body=b"unknownKey=1\n"),
    namesrv("register a broker", 103, {**REGISTERED, "bodyCrc32": 0}, registration_body()),
    namesrv("register with a wrong sum", 103, {**REGISTERED, "bodyCrc32": 5}, registration_body()),
    namesrv("route to the registered", 105, {"topic": "SameRegistered"}),
    namesrv("cluster of both", 106),
    namesrv("data version of the registered", 322, REGISTERED, b'{"counter":2,"timestamp":9}'),
    namesrv("wipe the registered", 205, {"brokerName": "same-b"}),
    namesrv("route without writing", 105, {"topic": "SameRegistered"}),
    namesrv("add to the registered", 327, {"brokerName": "same-b"}),
    namesrv("unregister", 104, REGISTERED),
    namesrv("route to the unregistered", 105, {"topic": "SameRegistered"}),
    namesrv("wipe an unknown broker", 205, {"brokerName": "none"}),
    namesrv("delete an unknown topic", 216, {"topic": "Unknown"}),
    namesrv(
        "data version",
        322,
        {"brokerName": "x", "brokerAddr": "127.0.0.1:1", "clusterName": "c", "brokerId": 0},
        body=b'{"counter":1,"timestamp":1}',
    ),
]
# Behind all routes: RocketMQ's broker keeps the address, and its next registration, which may come
# at any time, puts it into the routes.
FILTER_SERVERS: Final = [
    Probe("register a filter server", 301, {"filterServerAddr": "127.0.0.1:1"})
]
PROBES: Final = [
    *SENDS,
    *PULLS,
    *OFFSETS,
    *CLIENTS,
    *ADMIN,
    *MOVED,
    *STATISTICS,
    *NAMESRV,
    *FILTER_SERVERS,
]
