# SPDX-License-Identifier: Apache-2.0
"""A broker counts each request that a handler serves instead of the lane, once, by its reason."""

from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.handlers.runtime_info import runtime_table
from cometmq.broker.native import IS_BUILT
from cometmq.broker.statistics.detours import SlowReason
from cometmq.broker.storing.disk_figures import DiskFigures
from cometmq.testing.broker.scripted import ScriptedBroker
from cometmq.testing.broker.scripts import frame

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

SEND = {
    "a": "producers", "b": "Orders", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1",
    "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
}  # fmt: skip
SEND_V1 = {
    "producerGroup": "producers", "topic": "Orders", "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1",
    "flag": "0", "properties": "", "reconsumeTimes": "0", "unitMode": "false", "batch": "false",
}  # fmt: skip
PULL = {
    "consumerGroup": "group", "topic": "Orders", "queueId": "0", "queueOffset": "0",
    "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
    "subscription": "*", "subVersion": "0", "expressionType": "TAG",
}  # fmt: skip
TRANSACTION = {
    "producerGroup": "producers", "tranStateTableOffset": "0", "commitLogOffset": "0",
    "fromTransactionCheck": "false", "msgId": "0",
}  # fmt: skip
COUNT = 7
DISK = DiskFigures(Path("commitlog"), 10, 5, 50, -1)
NO_NATIVE_FORM, FIRST, EMPTY = SlowReason.NO_NATIVE_FORM, SlowReason.FIRST, SlowReason.EMPTY


class Requests:
    """A broker, and a connection to it."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.scripted = ScriptedBroker(storePathRootDir=str(root), **settings)
        self.broker = self.scripted.broker
        self.peer, self.wire = self.scripted.connect()

    async def ask(self, code: int, ext: dict[str, str], count: int = 1, **options: int) -> None:
        for number in range(count):
            data = frame(code, ext, b"body", opaque=number + 1, **options)
            self.peer.data_received(data)
            await self.scripted.settle()

    @property
    def native_count(self) -> int:
        lane = self.scripted.lane
        assert lane is not None
        return lane.request_count + lane.pull_count


@pytest.fixture
async def requests(tmp_path: Path) -> Requests:
    return Requests(tmp_path, brokerIP1="10.1.2.3")


async def test_each_slow_request_is_counted_by_code_and_reason(requests: Requests) -> None:
    """The first send creates the topic, and the second one is the first to a known topic."""
    await requests.ask(310, SEND, COUNT)
    await requests.ask(10, SEND_V1)
    await requests.ask(310, {**SEND, "b": "%RETRY%group"})
    await requests.ask(11, PULL, COUNT)
    await requests.ask(361, {**PULL, "queueOffset": str(COUNT + 1)}, 3)
    await requests.ask(30, {"topic": "Orders", "queueId": "0"}, 2)
    await requests.ask(37, {"commitOrRollback": "8"} | TRANSACTION)
    await requests.ask(37, {"commitOrRollback": "8"} | TRANSACTION, flag=2)

    counts = requests.broker.measured.detours.counts
    assert counts == {
        (310, FIRST): 2, (10, NO_NATIVE_FORM): 1, (310, NO_NATIVE_FORM): 1,
        (11, FIRST): 1, (361, EMPTY): 3, (30, NO_NATIVE_FORM): 2,
        (37, NO_NATIVE_FORM): 1, (37, SlowReason.UNUSUAL): 1,
    }  # fmt: skip
    assert requests.native_count == 2 * COUNT - 3
    asked = 2 * COUNT + 9
    assert requests.native_count + requests.broker.measured.detours.total == asked
    table = runtime_table(requests.broker, DISK)
    assert table["nativeRequests"] == str(requests.native_count)
    assert table["slowRequests"].startswith("361:empty=3,")


async def test_the_memory_of_the_process_is_told_by_parts(requests: Requests) -> None:
    await requests.ask(310, SEND, COUNT)
    await requests.ask(11, PULL, COUNT)
    requests.broker.process.unread_bytes = lambda: 77
    text = runtime_table(requests.broker, DISK)["memory"]
    told = {name: int(size) for name, _, size in (it.partition("=") for it in text.split(","))}
    assert list(told) == ["resident", "program", "pullCache", "unread", "peak", "limit"]
    assert 0 < told["program"] < told["resident"] <= told["peak"]
    assert told["pullCache"] > 0
    assert told["unread"] == 77


async def test_sends_are_first_again_after_a_change(requests: Requests) -> None:
    await requests.ask(310, SEND, COUNT)
    requests.broker.measured.detours.counts.clear()
    requests.broker.tables.topics.create("Payments", queue_nums=4)
    await requests.ask(310, SEND, COUNT)
    assert requests.broker.measured.detours.counts == {(310, FIRST): 1}


async def test_a_send_to_a_busy_broker_says_so(requests: Requests) -> None:
    await requests.ask(310, SEND, 2)
    requests.broker.measured.detours.counts.clear()
    requests.broker.config.checks_sends = True
    await requests.ask(310, SEND, COUNT)
    assert requests.broker.measured.detours.counts == {(310, SlowReason.BUSY): COUNT}


async def test_a_held_pull_is_counted_once(requests: Requests) -> None:
    await requests.ask(310, SEND, 2)
    requests.broker.measured.detours.counts.clear()
    held = {**PULL, "queueOffset": "2", "sysFlag": "6", "suspendTimeoutMillis": "20000"}
    await requests.ask(11, held)
    await requests.ask(310, SEND)
    assert requests.broker.pending.hold.count == 0
    assert requests.broker.measured.detours.counts == {(11, EMPTY): 1}


async def test_without_a_native_path_nothing_is_counted(tmp_path: Path) -> None:
    requests = Requests(tmp_path, nativeLaneEnable="false")
    await requests.ask(310, SEND, COUNT)
    await requests.ask(30, {"topic": "Orders", "queueId": "0"}, 2)
    assert requests.broker.measured.detours.total == 0
    assert "slowRequests" not in runtime_table(requests.broker, DISK)
