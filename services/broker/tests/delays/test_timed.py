# SPDX-License-Identifier: Apache-2.0
"""Messages with a delivery time, on a broker without sockets, threads or files."""

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker import refusals
from cometmq.broker.delays.delays import BATCH_INTERVAL_MS
from cometmq.broker.delays.recalled import OnItsWay, find_delayed
from cometmq.broker.handlers import HANDLERS
from cometmq.peers.long_forms import examples
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands.send import ConsumerSendMsgBack, RecallMessage, SendMessageV2
from cometmq.remoting.commands.transactions import EndTransaction
from cometmq.remoting.errors import IllegalOperation
from cometmq.remoting.message.batch import BatchItem, join_batch
from cometmq.remoting.message.properties import render_properties
from cometmq.remoting.message.recall_handle import RecallHandle
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import SCHEDULE_TOPIC
from cometmq.runtime.tasks import Alarm
from cometmq.store.delay_levels import DelayLevels
from cometmq.store.queues.consume_queue import entry_at
from cometmq.store.reads import finish
from cometmq.testing.broker.scripted import ScriptedBroker
from cometmq.testing.broker.stored import ask, call_with

CHECK_MS = 100
DAY_MS = 86_400_000
LEVELS = "1s 5s 10s 30s 1m 2h"
SETTINGS: dict[str, Any] = {
    "brokerIP1": "10.1.2.3", "maxHashSlotNum": "2000",
    "maxIndexNum": "100000", "mappedFileSizeConsumeQueue": "20000",
    "mappedFileSizeCommitLog": "4000000", "messageDelayLevel": LEVELS,
}  # fmt: skip


def new_broker(folder: Path, **given: str) -> ScriptedBroker:
    broker = ScriptedBroker(**(SETTINGS | given), storePathRootDir=str(folder))
    broker.broker.tables.topics.create("T", queue_nums=1)
    return broker


@pytest.fixture(params=["true", "false"])
async def broker(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[ScriptedBroker]:
    """The parameter says whether due messages are delivered natively."""
    broker = new_broker(tmp_path, nativeLaneEnable=request.param)
    yield broker
    broker.broker.store.close()


def send(broker: ScriptedBroker, key: str, *, topic: str = "T", flag: int = 0, **more: Any) -> Any:
    text = render_properties({"UNIQ_KEY": key, **{k: str(v) for k, v in more.items()}})
    header = SendMessageV2("P", topic, "TBW102", 4, 0, flag, 0, 0, text)
    return ask(broker.broker, call_with(Code.SEND_MESSAGE_V2, header, key.encode()))


def now_ms(broker: ScriptedBroker) -> int:
    return broker.clock.now_ms()


async def step(broker: ScriptedBroker, after_ms: int = 0) -> None:
    broker.clock.advance(after_ms)
    broker.broker.driver.tick()
    broker.broker.deferred.delays.step(now_ms(broker))
    for _ in range(6):
        await asyncio.sleep(0)


async def run_for(broker: ScriptedBroker, duration_ms: int, step_ms: int = CHECK_MS) -> None:
    for _ in range(duration_ms // step_ms):
        await step(broker, step_ms)


def records(broker: ScriptedBroker, topic: str = "T", queue_id: int = 0) -> list[MessageRecord]:
    reader = broker.broker.store.reader
    queue = reader.queue(topic, queue_id)
    found: list[MessageRecord] = []
    if queue is None:
        return found
    for offset in range(queue.max_offset):
        entry = entry_at(queue, offset)
        record = finish(reader.read_record(entry.physical_offset))  # type: ignore[union-attr]
        assert record is not None
        found.append(record)
    return found


def keys(broker: ScriptedBroker) -> list[str | None]:
    return [record.unique_key for record in records(broker)]


def hop_count(broker: ScriptedBroker) -> int:
    return sum(len(records(broker, SCHEDULE_TOPIC, level)) for level in range(6))


TABLES = ("1s", "1s 5s 10s 30s", "5s 1s", "2s 3s", "10s 1m", "0s 1s 0s 4s", "3s 3s")


@given(
    table=st.sampled_from(TABLES),
    delays_ms=st.lists(st.integers(1, 40_000), min_size=1, max_size=12),
    pause_ms=st.integers(1, 900),
    native=st.sampled_from(["true", "false"]),
)
@examples(10, long=30)
def test_each_message_is_delivered_once_in_time(
    table: str, delays_ms: list[int], pause_ms: int, native: str
) -> None:
    async def main(folder: str) -> None:
        broker = new_broker(Path(folder), nativeLaneEnable=native, messageDelayLevel=table)
        due: dict[str, int] = {}
        for number, delay_ms in enumerate(delays_ms):
            due[str(number)] = now_ms(broker) + delay_ms
            assert send(broker, str(number), TIMER_DELIVER_MS=due[str(number)]).code == 0
            await step(broker, pause_ms)
        await run_for(broker, 60_000)
        found = {str(it.unique_key): it.store_timestamp for it in records(broker)}
        assert len(records(broker)) == len(due) == len(found)
        shortest_ms = min(ms for ms in DelayLevels.parse(table).delays_ms if ms)
        for key, at_ms in due.items():
            late_ms = found[key] - at_ms
            assert 0 <= late_ms <= shortest_ms + max(CHECK_MS, pause_ms), (key, late_ms)
        broker.broker.store.close()

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))


@pytest.mark.parametrize("native", ["true", "false"])
async def test_steps_when_the_alarm_rings_deliver_in_time(
    tmp_path: Path, native: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other steps are rare, and no message waits for them."""
    rings: list[int] = []
    monkeypatch.setattr(Alarm, "ring_at", lambda _alarm, time_ms: rings.append(time_ms))
    broker = new_broker(tmp_path, nativeLaneEnable=native)
    delays = broker.broker.deferred.delays
    step_count = 0

    async def pause() -> None:
        nonlocal step_count
        usual_ms = delays.step_interval_ms()
        rung_ms = min(rings, default=DAY_MS + now_ms(broker)) - now_ms(broker)
        rings.clear()
        step_count += 1
        await step(broker, min(usual_ms, max(rung_ms, BATCH_INTERVAL_MS)))

    for _ in range(3):
        await pause()
    due: dict[str | None, int] = {}
    for key, delay_ms in (("a", 137), ("b", 1_733), ("c", 1_777), ("d", 8_005)):
        due[key] = now_ms(broker) + delay_ms
        send(broker, key, TIMER_DELAY_MS=delay_ms)
    send(broker, "e", DELAY=1)
    due["e"] = now_ms(broker) + 1_000
    half = send(broker, "f", flag=4, TRAN_MSG="true", PGROUP="P", TIMER_DELAY_MS=99)
    due["f"] = now_ms(broker) + 99
    offset = int(half.header.msg_id[16:], 16)
    header = EndTransaction("P", half.header.queue_offset, offset, 8, "f")
    ask(broker.broker, call_with(Code.END_TRANSACTION, header))
    step_count = 0
    while len(records(broker)) < len(due):
        await pause()
    for it in records(broker):
        in_front_ms = 1_000 if it.unique_key == "f" else 0
        late_ms = it.store_timestamp - due[it.unique_key]
        assert 0 <= late_ms <= BATCH_INTERVAL_MS + in_front_ms, it.unique_key
    assert step_count < 70
    broker.broker.store.close()


async def test_a_message_passes_through_the_longest_levels_that_fit(broker: ScriptedBroker) -> None:
    due_ms = now_ms(broker) + 76_300
    send(broker, "a", TIMER_DELIVER_MS=due_ms, KEYS="k")
    levels = []
    while not records(broker):
        levels = [len(records(broker, SCHEDULE_TOPIC, level)) for level in range(6)]
        await step(broker, CHECK_MS)
    assert levels == [2, 1, 1, 0, 1, 0], "1 s twice: the second hop is shorter"
    (found,) = records(broker)
    assert 0 <= found.store_timestamp - due_ms <= CHECK_MS
    assert (found.topic, found.queue_id, found.body) == ("T", 0, b"a")
    assert found.properties["TIMER_OUT_MS"] == str(due_ms)
    assert found.properties["KEYS"] == "k"
    delays = broker.broker.deferred.delays
    assert (delays.counts.delivered, delays.counts.moved) == (1, 4)


async def test_three_days_take_few_hops(broker: ScriptedBroker) -> None:
    send(broker, "a", TIMER_DELAY_SEC=3 * 86_400)
    await run_for(broker, 3 * DAY_MS + 120_000, step_ms=20_000)
    assert keys(broker) == ["a"]
    assert hop_count(broker) <= 36 + 120


@pytest.mark.parametrize(
    ("given", "delay_ms"),
    [
        ({"TIMER_DELAY_SEC": 2, "TIMER_DELAY_MS": 7_000, "TIMER_DELIVER_MS": 0}, 2_000),
        ({"TIMER_DELAY_MS": 7_000, "TIMER_DELIVER_MS": 0}, 7_000),
        ({"TIMER_DELIVER_MS": 0}, 0),
        ({"TIMER_DELAY_SEC": 0}, 0),
        ({"TIMER_DELAY_MS": 7_000, "TIMER_OUT_MS": 5}, 0),
        ({"TIMER_DELAY_SEC": "x", "TIMER_OUT_MS": 5}, 0),
        ({"DELAY": 2, "TIMER_DELAY_SEC": 60, "TIMER_OUT_MS": 9 * 10**17}, 5_000),
        ({"DELAY": 0, "TIMER_DELAY_SEC": 2}, 2_000),
    ],
)
async def test_the_properties_decide_as_in_rocketmq_5(
    broker: ScriptedBroker, given: dict[str, Any], delay_ms: int
) -> None:
    send(broker, "a", **given)
    if delay_ms:
        await run_for(broker, delay_ms - CHECK_MS)
        assert not records(broker)
        await run_for(broker, 1_000 + CHECK_MS)
    (found,) = records(broker)
    if given.get("DELAY"):
        assert "TIMER_" not in found.properties_text


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"TIMER_DELAY_SEC": 3 * 86_400 + 1}, "than the max delay 259200000ms"),
        ({"TIMER_DELAY_MS": 3 * DAY_MS + 1}, "TIMER_DELAY_MS is 259200001, which is 259200001ms"),
        ({"TIMER_DELIVER_MS": 9 * 10**15}, "than the max delay 259200000ms"),
        ({"TIMER_DELIVER_MS": "9" * 400}, "must be a number of at most 18 digits, not '999"),
        (
            {"TIMER_DELAY_SEC": -1},
            "TIMER_DELAY_SEC must be a number of at most 18 digits, not '-1'",
        ),
        ({"TIMER_DELAY_MS": "soon"}, "must be a number"),
        ({"TIMER_DELAY_MS": "1.5"}, "must be a number"),
        ({"TIMER_DELIVER_MS": "\u0661"}, "must be a number"),
    ],
)
async def test_wrong_times_are_refused_also_in_transactions(
    broker: ScriptedBroker, given: dict[str, Any], text: str
) -> None:
    end = broker.broker.store.commit_log.end
    cases: list[dict[str, Any]] = [{}, {"TRAN_MSG": "true", "PGROUP": "P"}]
    for more in cases:
        reply = send(broker, "a", **given, **more)
        assert reply.code == 13
        assert text in reply.remark
    assert broker.broker.store.commit_log.end == end


async def test_short_levels_shorten_the_longest_delay(tmp_path: Path) -> None:
    broker = new_broker(tmp_path, messageDelayLevel="1s 30s")
    assert send(broker, "a", TIMER_DELAY_SEC=1_500).code == 0
    assert "50 times the longest level" in send(broker, "a", TIMER_DELAY_SEC=1_501).remark
    broker.broker.store.close()


async def test_without_the_timer_the_properties_mean_nothing(tmp_path: Path) -> None:
    broker = new_broker(tmp_path, timerWheelEnable="false")
    send(broker, "a", TIMER_DELAY_SEC="x", TIMER_DELIVER_MS=9 * 10**17)
    assert "TIMER_DELAY_SEC\x01x" in records(broker)[0].properties_text
    broker.broker.store.close()


async def test_batches_with_a_time_are_refused(broker: ScriptedBroker) -> None:
    items = [
        BatchItem(0, b"x", "UNIQ_KEY\x01a"),
        BatchItem(0, b"y", "UNIQ_KEY\x01b\x02TIMER_DELAY_SEC\x015"),
    ]
    for body, text in ((join_batch(items), ""), (join_batch(items[:1]), "TIMER_DELAY_SEC\x015")):
        header = SendMessageV2("P", "T", "TBW102", 4, 0, 0, 0, 0, text, batch=True)
        reply = ask(broker.broker, call_with(Code.SEND_MESSAGE_V2, header, body))
        assert (reply.code, reply.remark) == (13, refusals.BATCH_TIMED)
    assert not records(broker)
    past = [BatchItem(0, b"y", "UNIQ_KEY\x01b\x02TIMER_DELIVER_MS\x015")]
    header = SendMessageV2("P", "T", "TBW102", 4, 0, 0, 0, 0, "", batch=True)
    assert ask(broker.broker, call_with(Code.SEND_MESSAGE_V2, header, join_batch(past))).code == 0


async def test_a_committed_message_waits_from_its_commit(broker: ScriptedBroker) -> None:
    half = send(broker, "a", flag=4, TRAN_MSG="true", PGROUP="P", TIMER_DELAY_MS=1_500)
    assert half.code == 0
    await run_for(broker, 3_000)
    assert not records(broker)
    offset = int(half.header.msg_id[16:], 16)
    header = EndTransaction("P", half.header.queue_offset, offset, 8, "a")
    call = call_with(Code.END_TRANSACTION, header)
    reply = ask(broker.broker, call)
    assert reply.code == 0
    await run_for(broker, 1_400)
    assert not records(broker)
    await run_for(broker, 1_000)
    assert keys(broker) == ["a"]
    await run_for(broker, 3_000)
    assert keys(broker) == ["a"]


async def test_a_message_sent_back_waits_for_its_retry_only(broker: ScriptedBroker) -> None:
    send(broker, "a", TIMER_DELAY_MS=500)
    await run_for(broker, 1_200)
    (found,) = records(broker)
    broker.clock.jump(now_ms(broker) - 3_600_000)  # the delivery time is in the future again
    broker.broker.group("G")
    header = ConsumerSendMsgBack(found.physical_offset, "G", 0, "a", "T")
    assert ask(broker.broker, call_with(Code.CONSUMER_SEND_MSG_BACK, header)).code == 0
    await run_for(broker, 10_000 + CHECK_MS)
    (again,) = records(broker, "%RETRY%G")
    assert "TIMER_OUT_MS" not in again.properties
    assert again.properties["TIMER_DELAY_MS"] == "500"


async def test_a_clock_that_jumps_delays_no_longer_than_the_time(broker: ScriptedBroker) -> None:
    due_ms = now_ms(broker) + 60_000
    send(broker, "a", TIMER_DELIVER_MS=due_ms)
    broker.clock.jump(now_ms(broker) - 3_600_000)
    await run_for(broker, 2_000)
    assert not records(broker), "it waits for its time by the new clock"
    broker.clock.advance(due_ms - now_ms(broker) - 300)
    await run_for(broker, 2_000)
    assert [it.store_timestamp >= due_ms for it in records(broker)] == [True]


async def test_a_crash_repeats_no_hop(broker: ScriptedBroker) -> None:
    """The levels return to their first messages, as after a crash that lost all positions."""
    delays = broker.broker.deferred.delays
    due_ms = now_ms(broker) + 9_500
    for key in ("a", "b"):
        send(broker, key, TIMER_DELIVER_MS=due_ms)
    for _ in range(8):
        await run_for(broker, 1_500)
        for level in delays.positions.levels.values():
            level.place(0, 0)
        delays.expect_copies(now_ms(broker))
        await step(broker)
    await run_for(broker, 5_000)
    assert sorted(map(str, keys(broker))) == ["a", "b"]


async def recall(broker: ScriptedBroker, key: str) -> None:
    handle = RecallHandle("T", broker.broker.settings.broker_name, 0, key).encode()
    call = call_with(Code.RECALL_MESSAGE, RecallMessage("T", handle, "P"))
    await HANDLERS[Code.RECALL_MESSAGE](broker.broker, call)  # type: ignore[misc]


@pytest.mark.parametrize("after_ms", [0, 5_100, 10_300, 15_400, 17_050])
async def test_a_message_is_recalled_at_each_hop(broker: ScriptedBroker, after_ms: int) -> None:
    send(broker, "a", TIMER_DELAY_MS=17_400)
    send(broker, "b", TIMER_DELAY_MS=17_400)
    await run_for(broker, after_ms)
    await recall(broker, "a")
    await recall(broker, "a")
    await run_for(broker, 20_000)
    assert keys(broker) == ["b"]
    for key, text in (("b", "is due now or has been delivered"), ("a", "is due now or has been")):
        with pytest.raises(IllegalOperation, match=text):
            await recall(broker, key)


async def test_a_recall_survives_a_restart_before_the_hop_is_saved(broker: ScriptedBroker) -> None:
    send(broker, "a", TIMER_DELAY_MS=7_400)
    await run_for(broker, 5_100)
    delays = broker.broker.deferred.delays
    positions = delays.positions
    for level in positions.levels.values():
        level.saved_offset = 0
    await recall(broker, "a")
    positions.restart()
    await run_for(broker, 20_000)
    assert keys(broker) == []


async def test_a_recall_waits_for_a_hop(broker: ScriptedBroker) -> None:
    send(broker, "a", TIMER_DELAY_MS=7_400)
    await run_for(broker, 4_900)
    delays = broker.broker.deferred.delays
    broker.clock.advance(200)
    delays.step(now_ms(broker))  # the hop is staged, and not yet stored
    found = finish(
        find_delayed(broker.broker.store.reader, "T", "a", lambda: True, delays.positions.is_past)
    )
    assert found
    with pytest.raises(OnItsWay):
        delays.recall(found, "a", now_ms(broker))
    await recall(broker, "a")
    await run_for(broker, 20_000)
    assert keys(broker) == []
    assert delays.counts.moved == 1


async def test_more_hops_than_copies_do_not_hinder_a_recall(broker: ScriptedBroker) -> None:
    delays = broker.broker.deferred.delays
    send(broker, "a", TIMER_DELAY_SEC=3 * 86_400 - 1)
    await run_for(broker, 3 * DAY_MS - 8_200, step_ms=100_000)
    await run_for(broker, 100_000 - 8_200 - 9_000)
    assert delays.counts.moved > 34
    await recall(broker, "a")
    await run_for(broker, 120_000, step_ms=1_000)
    assert keys(broker) == []
