# SPDX-License-Identifier: Apache-2.0
"""Random sequences of pulls, requests for queue locks, and changes that affect them."""

import json

import msgspec

from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat, SubscriptionData
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.message.flags import tag_code
from cometmq.testing.broker.scripts import RandomScript, Step, frame

PEERS = 4
TOPICS = {"Orders": 4, "Payments": 1}
TAGS = ("TagA", "TagB", "TagC")
GROUPS = ("g", "h", "shy")
EXPRESSIONS = (
    "level BETWEEN 2 AND 5",
    "region = 'eu' AND level > 3",
    "NOT (region IN ('us', 'asia')) OR level IS NULL",
    "price >= 1.5 AND price < 1e3",
    "region IS NOT NULL AND level = 5000000000",
    "hot = TRUE OR region NOT IN ('eu')",
    "level <= -3 OR price = 0.5",
    "region = 'eu' OR hot",
    "region CONTAINS 'e'",  # from here on, no common shape
    "level > price",
    "5 > level",
)
"""The last three are served by the Python path."""


class Script(RandomScript):
    """A script of a few sends, followed mostly by plain pulls."""

    def __init__(self, seed: int, *, oddity: float) -> None:
        super().__init__(seed, oddity=oddity)
        self.pull_count = 0
        self.length = 0

    def write(self, turns: int) -> list[Step]:
        for group in GROUPS:
            self.steps.append(Step("receive", 0, self.heartbeat(group)))
        for _ in range(12):
            self.send(40)
        for _ in range(turns):
            for peer in range(PEERS):
                requests = [self.request() for _ in range(self.rng.randrange(7))]
                self.cut(peer, b"".join(requests), count_max=3)
            if self.odd(0.4):
                self.disturb()
            if self.rng.random() < 0.3:
                self.send(self.rng.randrange(30))
            self.steps.append(Step("settle"))
        self.steps.append(Step("end"))
        return self.steps

    def send(self, count: int) -> None:
        self.length += count
        for _ in range(count):
            self.number += 1
            ext = {
                "a": "producers", "b": self.rng.choice(["Orders"] * 4 + ["Payments"]),
                "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": str(self.number), "h": "0",
                "i": self.properties(), "j": "0", "k": "false", "m": "false",
            }  # fmt: skip
            if ext["b"] == "Orders":
                ext["e"] = str(self.rng.randrange(4))
            body = self.rng.randbytes(self.rng.choice([0, 20, 128]))
            if self.odd(0.01):
                body = self.rng.randbytes(3000)
            data = frame(310, ext, body, opaque=self.number)
            self.steps.append(Step("receive", self.rng.randrange(PEERS), data))
        self.steps.append(Step("settle"))

    def properties(self) -> str:
        rng = self.rng
        pairs = [f"TAGS\x01{rng.choice(TAGS)}"]
        pairs.append(
            "level\x01" + rng.choice(["1", "3", "4", "+5", "-7", "5000000000", "2.0", "x"])
        )
        pairs.append("region\x01" + rng.choice(["eu", "us", "asia", "", "e\u00fc"]))
        pairs.append("price\x01" + rng.choice(["1.5", " 2 ", "1e2f", ".5", "NaN", "abc", "0x1p3"]))
        pairs.append("hot\x01" + rng.choice(["TRUE", "true", "no"]))
        pairs = [pair for pair in pairs if rng.random() < 0.8]
        if self.odd(0.1):
            pairs += ["level\x014", "level\x01", "region\x01us"]
        rng.shuffle(pairs)
        return "\x02".join(pairs) + rng.choice(["", "\x02"])

    def disturb(self) -> None:
        rng = self.rng
        action = rng.choice([
            "advance", "cold", "hot", "role", "expire", "truncate", "damage", "pause", "resume",
            "close", "rot", "garbage", "checkpoint", "busy", "lapse", "drop locks", "divert",
        ])  # fmt: skip
        if action == "garbage":
            data = self.pull() + b"\0\0\0\x0c\0\0\0\x08{broken}"
            self.steps.append(Step("receive", rng.randrange(PEERS), data))
        else:
            amount = rng.choice([1, 40, 900, 6000])
            self.steps.append(Step(action, rng.randrange(PEERS), amount=amount))

    def request(self) -> bytes:
        if self.rng.random() < 0.2:
            return self.lock()
        return self.other_request() if self.odd(0.08) else self.pull()

    def lock(self) -> bytes:
        """Return a request for one of a few sets of queues, some of which two clients compete for.

        Each client has its own queue, which it asks for most often.
        """
        rng = self.rng
        self.number += 1
        client = rng.randrange(3)
        queues = [client]
        if self.odd(0.3):
            queues = rng.choice([[0, 1], [3], [3, client], [client, client], []])
        body: dict[str, object] = {
            "clientId": f"10.0.0.1@{client}", "consumerGroup": rng.choice(["g", "g", "h"]),
            "mqSet": [
                {"brokerName": "b", "queueId": queue, "topic": "Orders"} for queue in queues
            ],
        }  # fmt: skip
        if self.odd(0.05):
            body.pop(rng.choice(list(body)))
        data = json.dumps(body).encode()
        if self.odd(0.05):
            data = data[: rng.randrange(len(data))]
        code = RequestCode.UNLOCK_BATCH_MQ if self.odd(0.2) else RequestCode.LOCK_BATCH_MQ
        return frame(
            int(code), {"x": "y"} if self.odd(0.05) else {}, data, opaque=self.number,
            flag=2 if self.odd(0.05) else 0, is_binary=rng.random() < 0.3,
        )  # fmt: skip

    def heartbeat(self, group: str) -> bytes:
        rng = self.rng
        self.number += 1
        tags = rng.sample(TAGS, 2)
        codes = [tag_code(tag) for tag in tags]
        version = rng.choice([1, 1, 2, 3]) if self.oddity else 1
        subscriptions = [
            SubscriptionData(
                sub_string=" || ".join(tags), tags_set=tags, code_set=codes, topic="Orders",
                sub_version=version,
            ),
            SubscriptionData(
                expression_type="SQL92", sub_string=rng.choice(EXPRESSIONS), topic="Payments",
                sub_version=version,
            ),
        ]  # fmt: skip
        if group == "h":
            subscriptions[0] = SubscriptionData(sub_string="*", topic="Orders")
        if self.odd(0.2):
            subscriptions.pop()
        model = "BROADCASTING" if self.odd(0.1) else "CLUSTERING"
        data = ConsumerData(
            group_name=group, subscription_data_set=subscriptions, message_model=model
        )
        body = Heartbeat(client_id=f"c-{group}", consumer_data_set=[data])
        return frame(34, {}, msgspec.json.encode(body), opaque=self.number)

    def other_request(self) -> bytes:
        """Return a request other than a pull; most of them affect later pulls."""
        rng = self.rng
        self.number += 1
        group = {
            "groupName": rng.choice(GROUPS), "consumeEnable": rng.random() < 0.7,
            "brokerId": rng.choice([0, 1]), "whichBrokerWhenConsumeSlowly": 1,
        }  # fmt: skip
        code, ext, body = rng.choice([
            (RequestCode.UPDATE_AND_CREATE_TOPIC, self.topic(), b""),
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Payments"}, b""),
            (RequestCode.UPDATE_BROKER_CONFIG, {}, self.changed_settings()),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, json.dumps(group).encode()),
            (RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"}, b""),
            (RequestCode.HEART_BEAT, None, b""),
            (RequestCode.QUERY_CONSUMER_OFFSET,
             {"consumerGroup": "g", "topic": "Orders", "queueId": "0"}, b""),
            (RequestCode.SEND_MESSAGE_V2, {"a": "p", "b": "Orders"}, b"?"),
            (RequestCode.TRIM_QUEUE, self.trim(), b""),
            (RequestCode.TRIM_QUEUE, self.trim(), b""),
        ])  # fmt: skip
        if ext is None:
            return self.heartbeat(rng.choice(GROUPS))
        return frame(int(code), ext, body, opaque=self.number, is_ascii=False,
                     is_binary=rng.random() < 0.3)  # fmt: skip

    def trim(self) -> dict[str, str]:
        rng = self.rng
        return {
            "topic": rng.choice(list(TOPICS)), "queueId": str(rng.randrange(4)),
            "offset": str(rng.randrange(self.length // 4 + 2)),
        }  # fmt: skip

    def topic(self) -> dict[str, str]:
        queues = str(self.rng.choice([1, 4]))
        return {
            "topic": self.rng.choice(list(TOPICS)), "defaultTopic": "TBW102",
            "readQueueNums": queues, "writeQueueNums": "4",
            "perm": self.rng.choice(["6", "6", "2"]), "topicSysFlag": "0", "order": "false",
            "topicFilterType": "SINGLE_TAG",
        }  # fmt: skip

    def changed_settings(self) -> bytes:
        name, values = self.rng.choice([
            ("brokerPermission", ["6", "2"]),
            ("slaveReadEnable", ["true", "false"]),
            ("nativeCacheBytes", ["0", "100000", "16777216"]),
            ("maxTransferCountOnMessageInMemory", ["5", "32"]),
            ("maxTransferBytesOnMessageInMemory", ["1000", "262144"]),
            ("enablePropertyFilter", ["true", "false"]),
            ("longPollingEnable", ["true", "false"]),
        ])  # fmt: skip
        return f"{name}={self.rng.choice(values)}\n".encode()

    def pull(self) -> bytes:
        rng = self.rng
        self.number += 1
        self.pull_count += 1
        topic = rng.choice(["Orders"] * 5 + ["Payments"])
        flags = rng.choice([0, 2, 4, 4, 5, 6, 1, 3])
        length = self.length // 6
        ext = {
            "consumerGroup": rng.choice(GROUPS[:2]), "topic": topic,
            "queueId": str(rng.randrange(TOPICS[topic])),
            "queueOffset": str(rng.randrange(length * 3 // 4)),
            "maxMsgNums": rng.choice(["1", "7", "32", "32", "100"]), "sysFlag": str(flags),
            "commitOffset": str(rng.randrange(length)), "suspendTimeoutMillis": "3000",
            "subscription": rng.choice(["*", "TagA", "TagA || TagC"]), "subVersion": "0",
            "expressionType": "TAG",
        }  # fmt: skip
        if topic == "Payments":
            # The handler spreads searches with such filters over several turns.
            ext["expressionType"] = "SQL92"
            ext["subscription"] = rng.choice(EXPRESSIONS)
        if self.odd(0.2):
            ext["queueOffset"] = str(rng.choice([length, 10 * length, -1, 0]))
        if self.odd(0.1):
            ext[rng.choice(list(ext))] = rng.choice(
                ["", "-1", "x", "007", "9" * 30, "99", "ü", "a\x01"]
            )
        if self.odd(0.05):
            ext.pop(rng.choice(list(ext)))
        if self.odd(0.05):
            ext["maxMsgBytes"] = "100"
        if self.odd(0.05):
            ext["consumerGroup"] = rng.choice(["new", "shy", "bad group!"])
        if rng.random() < 0.2:
            keys = list(ext)
            rng.shuffle(keys)
            ext = {key: ext[key] for key in keys}
        code = 361 if rng.random() < 0.1 else 11
        flag = rng.choice([0] * 20 + [2, 4]) if self.oddity else 0
        data = frame(
            code, ext, opaque=self.number, flag=flag, is_ascii=False,
            is_binary=rng.random() < 0.5,
        )  # fmt: skip
        if self.odd(0.02):
            broken = bytearray(data)
            broken[rng.randrange(8, len(data))] ^= 1 << rng.randrange(8)
            return bytes(broken)
        return data


class SharedScript(Script):
    """A script whose pulls read a few places again and again, as several groups do.

    The places are near the middle of the log, where it is damaged.
    """

    def disturb(self) -> None:
        """Change the log or the queues; nothing here closes a connection."""
        action = self.rng.choice(["advance", "cold", "hot", "expire", "truncate", "damage", "rot"])
        self.steps.append(
            Step(action, self.rng.randrange(PEERS), amount=self.rng.choice([1, 900, 6000]))
        )

    def pull(self) -> bytes:
        rng = self.rng
        self.number += 1
        self.pull_count += 1
        middle = self.length // 10 // 16 * 16  # four fifths of the messages are in four queues
        ext = {
            "consumerGroup": rng.choice(GROUPS[:2]), "topic": "Orders",
            "queueId": rng.choice("01"), "queueOffset": str(middle + rng.choice([-8, 0, 8])),
            "maxMsgNums": rng.choice(["8", "8", "16"]), "sysFlag": rng.choice(["4", "5"]),
            "commitOffset": "3", "suspendTimeoutMillis": "3000", "subscription": "*",
            "subVersion": "0", "expressionType": "TAG",
        }  # fmt: skip
        return frame(11, ext, opaque=self.number, is_ascii=False, is_binary=rng.random() < 0.3)
