# SPDX-License-Identifier: Apache-2.0
"""Random sequences of sends, most of them plain, and changes that affect them."""

from cometmq.remoting.codes import RequestCode
from cometmq.remoting.message.batch import BatchItem, join_batch
from cometmq.testing.broker.scripts import RandomScript, Step, frame

TOPIC = "Orders"


PEERS = 5


class Script(RandomScript):
    """A script of mostly plain sends."""

    def __init__(self, seed: int, *, oddity: float) -> None:
        super().__init__(seed, oddity=oddity)
        self.plain_count = 0
        self.takes_delays = True

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    def write(self, turns: int) -> list[Step]:
        for _ in range(turns):
            for peer in range(PEERS):
                data = b"".join(self.request() for _ in range(self.rng.randrange(8)))
                self.cut(peer, data, count_max=4)
            if self.odd(0.3):
                self.disturb()
            self.steps.append(Step("settle"))
        self.steps.append(Step("heal"))
        self.steps.append(Step("settle"))
        return self.steps

    def disturb(self) -> None:
        rng = self.rng
        action = rng.choice(["advance", "fail", "heal", "replicate", "pause", "resume", "close",
                             "tick", "role", "garbage"])  # fmt: skip
        if action == "garbage":
            data = self.request() + rng.choice(
                [bytes(rng.randrange(256) for _ in range(40)), b"\0\0\0\x0c\0\0\0\x08{broken}"]
            )
            self.steps.append(Step("receive", rng.randrange(PEERS), data))
        else:
            amount = rng.choice([1, 40, 900, 6000])
            self.steps.append(Step(action, rng.randrange(PEERS), amount=amount))

    def request(self) -> bytes:
        if self.odd(0.06):
            return self.other_request()
        return self.batch() if self.chance(0.1) else self.send()

    def other_request(self) -> bytes:
        """Return a request that is not a send; some of these affect later sends."""
        rng = self.rng
        self.number += 1
        code, ext, body = rng.choice([
            (RequestCode.UPDATE_AND_CREATE_TOPIC, self.topic(), b""),
            (RequestCode.UPDATE_AND_CREATE_TOPIC, self.topic(), b""),
            (RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": rng.choice(["New0", "New1"])}, b""),
            (RequestCode.UPDATE_BROKER_CONFIG, {}, self.changed_settings()),
            (RequestCode.GET_MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}, b""),
            (RequestCode.PULL_MESSAGE, self.pull(), b""),
            (RequestCode.GET_ALL_TOPIC_CONFIG, {}, b""),
            (9999, {}, b"?"),
        ])  # fmt: skip
        return frame(int(code), ext, body, opaque=self.number, is_binary=self.chance(0.3))

    def topic(self) -> dict[str, str]:
        queues = str(self.rng.choice([1, 4, 8]))
        return {
            "topic": self.rng.choice([TOPIC, "New0", "New1"]), "defaultTopic": "TBW102",
            "readQueueNums": queues, "writeQueueNums": self.rng.choice([queues, "2"]),
            "perm": self.rng.choice(["6", "6", "4"]), "topicSysFlag": "0", "order": "false",
            "topicFilterType": self.rng.choice(["SINGLE_TAG", "SINGLE_TAG", "MULTI_TAG"]),
        }  # fmt: skip

    def pull(self) -> dict[str, str]:
        return {
            "consumerGroup": "g", "topic": TOPIC, "queueId": "0", "queueOffset": "0",
            "maxMsgNums": "4", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
            "subscription": "*", "subVersion": "0",
        }  # fmt: skip

    def changed_settings(self) -> bytes:
        name, values = self.rng.choice([
            ("maxMessageSize", ["200", "4096", "65536"]),
            ("regionId", ["DefaultRegion", "east", "50% off"]),
            ("traceOn", ["true", "false"]),
            ("brokerPermission", ["6", "4"]),
            ("startAcceptSendRequestTimeStamp", ["0", "1700000000500"]),
            ("flushDiskType", ["SYNC_FLUSH", "ASYNC_FLUSH"]),
            ("sendThreadPoolQueueCapacity", ["7", "10000"]),
            ("rejectTransactionMessage", ["true", "false"]),
        ])  # fmt: skip
        return f"{name}={self.rng.choice(values)}\n".encode()

    def properties(self, *, is_item: bool = False) -> str:
        rng = self.rng
        pairs = [f"UNIQ_KEY\x01{rng.getrandbits(128):032X}"]
        if self.chance(0.5) and not is_item:
            pairs.append("WAIT\x01" + rng.choice(["true", "true", "true", "false", "TRUE", "no"]))
        if self.chance(0.4):
            pairs.append("TAGS\x01" + rng.choice(["TagA", "TagB", "x" * 70]))
        if self.chance(0.4):
            pairs.append("KEYS\x01" + rng.choice(["k1", "order_1 order_2", " a  b ", "k1 k1"]))
        if self.chance(0.15) and not is_item and self.takes_delays:
            pairs.append("DELAY\x01" + rng.choice(["1", "2", "18", "19", "0", "003"]))
        if self.chance(0.2):
            pairs.append(
                rng.choice(["a\x01b", "a\x01ü€😀", 'q\x01"quoted\\ / \n\t', "x\x01y\x01z"])
            )
        if self.odd(0.2):
            pairs.append(rng.choice([
                "CLUSTER\x01other", "a\x01", "\x01b", "novalue", "UNIQ_KEY\x01again", "\x01",
                "TAGS\x01Ünï", "KEYS\x01ключ", "WAIT\x01", "CLUSTER\x01",
            ]))  # fmt: skip
        if self.odd(0.03) and not is_item:
            pairs.append(rng.choice(["long\x01" + "é" * 16300, "long\x01" + "w" * 40000]))
        if self.odd(0.06):
            pairs.append(rng.choice([
                "DELAY\x013", "DELAY\x01x", "DELAY\x010", "DELAY\x01-1", "DELAY\x0199999",
                "DELAY\x01 2", "DELAY\x01", "REAL_TOPIC\x01T", "REAL_QID\x015", "TRAN_MSG\x01true",
                "TRAN_MSG\x01false", "TIMER_DELAY_MS\x01700", "TIMER_DELIVER_MS\x015",
                "TIMER_DELAY_SEC\x01-1", "TIMER_OUT_MS\x015",
            ]))  # fmt: skip
        rng.shuffle(pairs)
        return "" if self.odd(0.03) else "\x02".join(pairs) + rng.choice(["", "", "\x02"])

    def header(self, *, is_batch: bool) -> dict[str, str]:
        rng = self.rng
        topics = [TOPIC] * 12 + ["Payments"] * 4
        if self.oddity:
            topics += ["New0", "New1", "bad topic!", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "t" * 128]
        ext = {
            "a": "producers", "b": rng.choice(topics), "c": "TBW102", "d": "4",
            "e": str(rng.randrange(4)), "f": rng.choice(["0", "0", "0", "1", "769", "2"]),
            "g": str(1_700_000_000_000 + self.number), "h": rng.choice(["0", "7"]),
            "i": self.properties(), "j": rng.choice(["0", "1"]), "k": "false",
            "m": "true" if is_batch else "false",
        }  # fmt: skip
        if self.chance(0.1):
            ext["l"] = "16"
        if self.odd(0.1):
            ext[rng.choice("fhe")] = str(rng.choice([-1, 4, 8, 12, 16, 32, 2**31 - 1, 2**31]))
        if self.odd(0.08):
            ext.pop(rng.choice("abcdefghijkm"))
        if self.odd(0.08):
            ext[rng.choice("bdefghjklm")] = rng.choice(
                ["+3", "x", "", "007", "99999999999", "-1", "1e3", " 1", "ü", "TRUE", "\u0663"]
            )
        if self.odd(0.05):
            ext["n" if self.chance(0.5) else "zz"] = "broker-a"
        if self.chance(0.3):
            keys = list(ext)
            rng.shuffle(keys)
            ext = {key: ext[key] for key in keys}
        return ext

    def framed(self, code: int, ext: dict[str, str], body: bytes) -> bytes:
        rng = self.rng
        flag = rng.choice([0] * 20 + [2, 4]) if self.oddity else 0
        opaque = rng.choice([self.number, 2**31 - 1 - self.number])
        if self.odd(0.05):
            opaque = -self.number
        data = frame(
            code, ext, body, opaque=opaque, flag=flag, is_binary=self.chance(0.5),
            is_ascii=self.chance(0.5),
        )  # fmt: skip
        if self.odd(0.02):  # a random bit of the header is flipped
            broken = bytearray(data)
            broken[rng.randrange(8, len(data) - len(body))] ^= 1 << rng.randrange(8)
            return bytes(broken)
        return data

    def send(self) -> bytes:
        self.number += 1
        self.plain_count += 1
        size = self.rng.choice([0, 1, 50, 128, 300])
        if self.odd(0.03):
            size = 5000
        return self.framed(310, self.header(is_batch=False), self.rng.randbytes(size))

    def batch(self) -> bytes:
        self.number += 1
        self.plain_count += 1
        rng = self.rng
        self.takes_delays = bool(self.oddity)  # a batch with a delay is refused
        items = [
            BatchItem(rng.choice([0, 5]), rng.randbytes(rng.choice([0, 30, 100])),
                      self.properties(is_item=True))
            for _ in range(rng.randrange(0 if self.odd(0.3) else 1, 6))
        ]  # fmt: skip
        body = join_batch(items)
        if self.odd(0.1):
            body = rng.choice([body[:-1], body + b"\0", rng.randbytes(40)])
        code = rng.choice([310, 320, 320])
        header = self.header(is_batch=code == 310 or self.chance(0.9))
        self.takes_delays = True
        return self.framed(code, header, body)
