# SPDX-License-Identifier: Apache-2.0
"""A broker with the native lane has the same files, tables, figures and answers as one without."""

import asyncio
import errno
import itertools
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.broker.native import IS_BUILT
from cometmq.broker.storing import store_driver
from cometmq.broker.testing.scripted import ScriptedBroker, frames_of
from cometmq.broker.testing.scripts import RandomScript, Step, frame
from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.header import decode_header
from cometmq.remoting.message.batch import BatchItem, join_batch
from cometmq.remoting.transport import dispatch, protocol
from cometmq.remoting.transport.flow import room, starts, turns
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.runtime.acl.accounts import Accounts

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

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


def prepare(broker: ScriptedBroker) -> None:
    for queue_nums, topic in ((4, TOPIC), (4, "Payments")):
        broker.broker.tables.topics.create(topic, queue_nums=queue_nums)
    for _ in range(PEERS):
        broker.connect()


async def play(broker: ScriptedBroker, steps: list[Step]) -> None:
    for step in steps:
        peer, wire = broker.connections[step.peer]
        match step.action:
            case "receive":
                if peer.is_open and not wire.is_closing():
                    broker.receive(peer, step.data)
            case "settle":
                await broker.settle()
            case "advance":
                broker.clock.advance(step.amount)
            case "fail":
                broker.disk.fault = lambda operation, path: (
                    errno.ENOSPC if operation == "write" and "commitlog" in path else 0
                )
            case "heal":
                broker.disk.fault = None
                broker.clock.advance(5_000)
                broker.broker.driver.tick()
                broker.broker.driver.tick()
                broker.broker.store.writer.note_replicated(broker.broker.store.commit_log.end)
            case "replicate":
                store = broker.broker.store
                store.writer.note_replicated(store.commit_log.end - step.amount)
            case "pause":
                peer.pause_writing()
            case "resume":
                peer.resume_writing()
            case "close":
                if len(broker.connections) < 12:
                    peer.connection_lost(None)
                    broker.connections[step.peer] = broker.connect()
                    broker.connections.pop()
            case "tick":
                broker.broker.driver.tick()
            case "role":
                broker.broker.store.write_state.role_writable = step.amount > 100


def state_of(broker: ScriptedBroker, wires: list[Any]) -> dict[str, Any]:
    store, stats = broker.broker.store, broker.broker.stats
    return {
        "log": broker.log_bytes(),
        "queues": broker.queue_entries(),
        "answers": [bytes(wire.sent) for wire in wires],
        "reading": [wire.is_reading for wire in wires],
        "closed": [wire.is_closing() for wire in wires],
        "in flight": [peer.in_flight for peer, _ in broker.connections],
        "transport": msgspec.to_builtins(broker.hub.stats),
        "store": store.stats()._asdict(),
        "topics": msgspec.json.encode(broker.broker.tables.topics.as_table()),
        "statistics": {
            topic: (one.put_count, one.put_bytes, one.request_count, one.is_active)
            for topic, one in stats.topics.items()
        },
        "counts": (stats.put_count, stats.put_failed_count, stats.busy_count,
                   stats.any_queue_count, stats.get_count),
        "levels": {
            level: (one.put_count, one.put_bytes, one.is_active)
            for level, one in stats.levels.items()
        },
        "waiting": broker.broker.driver.sends.waiting_count,
    }  # fmt: skip


class Case(NamedTuple):
    """The settings of both brokers."""

    options: dict[str, str]
    server: ServerSettings = ServerSettings()
    needs_replicas: bool = False
    accounts: Accounts | None = None


CASES = {
    "asynchronous": Case({}),
    "IPv6": Case({"brokerIP1": "fd00::1"}),
    "small files": Case({"mappedFileSizeCommitLog": "40000", "maxIndexNum": "90"}),
    "synchronous": Case({"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": "100000"}),
    "replicated": Case({}, needs_replicas=True),
    "both": Case({"flushDiskType": "SYNC_FLUSH"}, needs_replicas=True),
    "no index": Case({"messageIndexEnable": "false"}),
    "bounded": Case(
        {
            "sendThreadPoolQueueCapacity": "9",
            "flushDiskType": "SYNC_FLUSH",
            "batchMessagesMax": "3",
        },
        ServerSettings(in_flight_per_connection_max=11, in_flight_max=30),
    ),
}


class Panicking:
    """Native code that panics in one of its methods."""

    def __init__(self, native: Any, method: str) -> None:
        self._native = native
        self._method = method

    def __getattr__(self, name: str) -> Any:
        if name == self._method:
            return self._panic
        found = getattr(self._native, name)
        if name in {"keep_halves", "encode"}:
            return lambda other: found(other._native)
        return found

    def sends(self) -> None:
        """Leave all sends to `stage`, because `Sockets` takes no other object for the lane."""

    def _panic(self, *_: Any, **__: Any) -> None:
        from cometmq import accel  # optional

        raise accel.PanicException("a bug")

    def place(self, *args: Any) -> Any:
        if self._method == "place":
            self._panic()
        *placed, groups = self._native.place(*args)
        return *placed, [(waits, Panicking(one, self._method)) for waits, one in groups]


def run(
    case: Case,
    steps: list[Step],
    *,
    lane: bool,
    is_direct: bool = False,
    panics_in: str = "",
    player: Callable[[ScriptedBroker, list[Step]], Awaitable[None]] = play,
    more: Callable[[ScriptedBroker], dict[str, Any]] = lambda _: {},
) -> tuple[dict[str, Any], int]:
    async def main(root: str) -> tuple[dict[str, Any], int]:
        options: Any = {
            "storePathRootDir": root,  # for the tables; the store is in memory
            "brokerIP1": "10.1.2.3", "maxMessageSize": "4096", "maxHashSlotNum": "2000",
            "maxIndexNum": "100000", "mappedFileSizeConsumeQueue": "20000",
            "mappedFileSizeCommitLog": "1000000",
        }  # fmt: skip
        options |= case.options | {"nativeLaneEnable": str(lane).lower()}
        broker = ScriptedBroker(
            server=case.server, is_direct=is_direct, accounts=case.accounts, **options
        )
        broker.broker.store.writer.needs_replicas = case.needs_replicas
        assert (broker.lane is not None) is lane
        if panics_in:
            assert broker.lane is not None
            if panics_in == "sends":
                assert broker.direct is not None
                broker.direct.sockets = FaultySockets(broker.direct.sockets)
            else:
                panicking = Panicking(broker.lane._native, panics_in)
                broker.lane._native = panicking  # type: ignore[assignment]
                broker.lane._answers._native = panicking  # type: ignore[assignment]
                broker.lane.sends = panicking.sends  # type: ignore[method-assign]
        wires: list[Any] = []
        connect = broker.connect

        def connect_and_keep(**options: Any) -> Any:
            connected = connect(**options)
            wires.append(connected.wire)
            return connected

        broker.connect = connect_and_keep  # type: ignore[method-assign]
        prepare(broker)
        await player(broker, steps)
        state = state_of(broker, wires) | more(broker)
        broker.broker.store.close()
        state["files"] = {
            path.removeprefix(root): bytes(data) for path, data in broker.disk.contents.items()
        }
        return state, broker.lane.request_count if broker.lane else 0

    with tempfile.TemporaryDirectory() as root:
        return asyncio.run(main(root))


def compare(case: Case, steps: list[Step]) -> int:
    """Compare a broker without the lane to one with it, and to one with direct input as well;
    return how many requests the lane handled.
    """
    without, _ = run(case, steps, lane=False)
    counts = []
    for is_direct in (False, True):
        with_lane, count = run(case, steps, lane=True, is_direct=is_direct)
        for name, value in without.items():
            if name == "answers":
                for one, other in zip(value, with_lane[name], strict=True):
                    assert frames_of(other) == frames_of(one)
            assert with_lane[name] == value, name
        counts.append(count)
    assert counts[0] == counts[1]
    return counts[0]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("seed", range(3))
def test_plain_sends_give_the_same_broker_through_the_lane(name, seed):
    script = Script(seed, oddity=0)
    steps = script.write(turns=30)
    count = compare(CASES[name], steps)
    if name != "bounded":
        assert count > 0.95 * script.plain_count


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32), oddity=st.sampled_from([0.1, 0.3, 1.0]))
def test_odd_sends_and_disturbances_give_the_same_broker(name, seed, oddity):
    script = Script(seed, oddity=oddity)
    compare(CASES[name], script.write(turns=25))


def test_a_slow_machine_changes_nothing_that_is_compared(monkeypatch):
    steps = Script(166067721, oddity=1.0).write(turns=25)
    quick = run(CASES["IPv6"], steps, lane=False)
    seconds = itertools.count()
    for module in (dispatch, protocol, room, starts, turns):
        monkeypatch.setattr(module, "monotonic", lambda: float(next(seconds)))
    assert run(CASES["IPv6"], steps, lane=False) == quick


def test_a_commit_in_the_middle_of_a_chunk_loses_no_later_send(monkeypatch):
    monkeypatch.setattr(store_driver, "STAGED_BYTES_MAX", 300)
    script = Script(5, oddity=0)
    steps = []
    for _ in range(3):
        parts = [script.send() + script.send() + script.send() for _ in range(3)]
        steps += [Step("receive", 0, frame(9999, {}).join(parts)), Step("settle")]
    case = CASES["asynchronous"]
    without, _ = run(case, steps, lane=False)
    with_lane, count = run(case, steps, lane=True)
    assert count > 0
    assert with_lane["log"] == without["log"]
    answers = [sorted(frames_of(state["answers"][0])) for state in (with_lane, without)]
    assert answers[0] == answers[1]  # their order depends on where the commits end


class FaultySockets:
    """Native sockets that report a bug in the staging of sends."""

    def __init__(self, sockets: Any) -> None:
        self._sockets = sockets

    def take_rows(self, *arguments: Any) -> Any:
        from cometmq import accel  # optional

        *taken, staged = self._sockets.take_rows(*arguments)
        if staged is not None:
            staged = (*staged[:-1], accel.PanicException("a bug"))
        return *taken, staged

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sockets, name)


@pytest.mark.parametrize("method", ["stage", "sends", "encode"])
def test_a_panic_before_the_answers_changes_nothing_but_the_path(method):
    steps = Script(1, oddity=0).write(turns=10)
    without, _ = run(CASES["asynchronous"], steps, lane=False)
    panicked, count = run(CASES["asynchronous"], steps, lane=True, is_direct=True, panics_in=method)
    assert panicked == without
    assert (count > 0) is (method != "stage")


def test_sends_that_a_panic_kept_from_the_log_are_refused_and_later_ones_stored():
    steps = Script(1, oddity=0).write(turns=10)
    panicked, count = run(CASES["asynchronous"], steps, lane=True, panics_in="place")
    codes = [
        decode_header(serialization, head).code
        for sent in panicked["answers"]
        for serialization, head, _ in frames_of(sent)
    ]
    assert codes.count(ResponseCode.SYSTEM_ERROR) == count > 0
    assert codes.count(ResponseCode.SUCCESS) > count
    without, _ = run(CASES["asynchronous"], steps, lane=False)
    put_count = panicked["counts"][0]
    assert without["counts"][0] - put_count >= count  # a batch is one send of several messages
