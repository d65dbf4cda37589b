# SPDX-License-Identifier: Apache-2.0
"""A message that cannot be stored where it belongs holds up no other message, and is never stored
twice: it is refused when it is sent, or parked with the reason.
"""

import asyncio
import errno
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.broker.broker import Broker
from cometmq.broker.delays import parking
from cometmq.broker.delays.parking import Reason
from cometmq.broker.messages import delay
from cometmq.broker.native import IS_BUILT
from cometmq.broker.transactions.transactions import prepare
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.command import Reply
from cometmq.remoting.commands.send import ConsumerSendMsgBack, SendMessageV2
from cometmq.remoting.commands.transactions import EndTransaction, SetTransactionAside
from cometmq.remoting.message.new_message import NewMessage
from cometmq.remoting.message.properties import PropertyKey
from cometmq.remoting.message.record import MessageRecord
from cometmq.remoting.names import HALF_TOPIC, OP_HALF_TOPIC, PARKED_TOPIC, SCHEDULE_TOPIC
from cometmq.store.queues.queue_files import ENTRY
from cometmq.store.reads import finish
from cometmq.store.results import PutResult
from cometmq.testing.broker.scripted import ScriptedBroker
from cometmq.testing.broker.stored import ask, call_with, clock_of, last_answer, stored_broker

HOST = bytes([10, 0, 0, 9, 0, 0, 0x9C, 0x40])
COMMIT = 8
FILE_BYTES = 20_000
DELAY_MS = 1_000


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with stored_broker(
        tmp_path, messageDelayLevel="1s 5s", mappedFileSizeCommitLog=str(FILE_BYTES)
    ) as broker:
        broker.tables.topics.create("Orders", queue_nums=4)
        yield broker


def records(broker: Broker, topic: str) -> list[MessageRecord]:
    """Return all messages of a topic."""
    found = []
    for name, queue_id in broker.store.reader.queue_ids():
        queue = broker.store.reader.queue(name, queue_id)
        if name != topic or queue is None:
            continue
        count = queue.max_offset - queue.min_offset
        for offset, size, _ in ENTRY.iter_unpack(
            finish(queue.plan(queue.min_offset, count).entries())
        ):
            if size:
                record = finish(broker.store.reader.read_record(offset))
                assert record is not None
                found.append(record)
    return found


def bodies(broker: Broker, topic: str) -> list[bytes]:
    return [record.body for record in records(broker, topic)]


def new(body: bytes, *, topic: str = "Orders", queue_id: int = 0, text: str = "") -> NewMessage:
    text = text or f"UNIQ_KEY\x01{body[:32].hex()}"
    return NewMessage(topic, queue_id, 0, 0, 1, HOST, HOST, body, text, wait=False)


def put(broker: Broker, message: NewMessage) -> None:
    broker.driver.put(message, lambda _: None)


def put_delayed(broker: Broker, body: bytes, **fields: Any) -> None:
    """Store a delayed message without the checks that a send passes."""
    message = new(body, **fields)
    delay(message, 1)
    put(broker, message)


def step(broker: Broker, *, advance_ms: int = DELAY_MS) -> None:
    broker.driver.commit()
    clock_of(broker).advance(advance_ms)
    for _ in range(6):
        broker.deferred.delays.step(broker.clock.now_ms())
        broker.driver.commit()


def send(broker: Broker, topic: str, body: bytes, text: str, **fields: Any) -> Reply:
    header = SendMessageV2("P", topic, "TBW102", 4, 0, 0, 7, 3, text)
    return ask(broker, call_with(310, msgspec.structs.replace(header, **fields), body))


# -- at the door ------------------------------------------------------------------------------


def test_a_group_whose_retry_topic_has_no_legal_name_cannot_send_back(broker: Broker) -> None:
    put(broker, new(b"one"))
    broker.driver.commit()
    group = "g" * 121
    header = ConsumerSendMsgBack(0, group, 1, "U", "Orders", max_reconsume_times=16)
    reply = ask(broker, call_with(Code.CONSUMER_SEND_MSG_BACK, header, version=401))
    assert (reply.code, "at most 120" in (reply.remark or "")) == (1, True)
    assert broker.tables.topics.get("%RETRY%" + group) is None
    put_delayed(broker, b"of somebody else")
    step(broker)
    assert bodies(broker, "Orders") == [b"one", b"of somebody else"]


@pytest.mark.parametrize("text", ["DELAY\x011", "TRAN_MSG\x01true\x02PGROUP\x01P"])
def test_a_message_that_could_not_be_stored_again_is_refused(broker: Broker, text: str) -> None:
    long = "t" * 128  # such a topic may be in the file of another broker
    broker.tables.topics.table[long] = msgspec.structs.replace(
        broker.tables.topics.table["Orders"], topic_name=long
    )
    assert send(broker, long, b"x", text).code == ResponseCode.MESSAGE_ILLEGAL
    full = bytes(FILE_BYTES - 300)
    assert send(broker, "Orders", full, text).code == ResponseCode.MESSAGE_ILLEGAL
    assert send(broker, "Orders", full, "UNIQ_KEY\x01A").code == ResponseCode.SUCCESS
    assert records(broker, SCHEDULE_TOPIC) + records(broker, HALF_TOPIC) == []


# -- later --------------------------------------------------------------------------------------


BAD: dict[str, tuple[dict[str, Any], Reason]] = {
    "deleted topic": ({"topic": "Deleted"}, Reason.TOPIC_MISSING),
    "long topic": ({"topic": "t" * 128}, Reason.PLACE_ILLEGAL),
    "folder": ({"topic": "a/b"}, Reason.PLACE_ILLEGAL),
    "negative queue": ({"queue_id": -1}, Reason.PLACE_ILLEGAL),
    "huge queue": ({"queue_id": 1 << 31}, Reason.PLACE_ILLEGAL),
    "schedule topic": ({"topic": SCHEDULE_TOPIC}, Reason.SYSTEM_TOPIC),
    "half topic": ({"topic": HALF_TOPIC}, Reason.SYSTEM_TOPIC),
    "no topic": ({"topic": ""}, Reason.NO_TOPIC),
}


@pytest.mark.parametrize("name", BAD)
def test_a_delayed_message_without_a_place_is_parked(broker: Broker, name: str) -> None:
    fields, reason = BAD[name]
    put_delayed(broker, b"before")
    put_delayed(broker, b"bad", **fields)
    put_delayed(broker, b"behind")
    step(broker)
    step(broker)

    assert bodies(broker, "Orders") == [b"before", b"behind"]
    (parked,) = records(broker, PARKED_TOPIC)
    assert parked.body == b"bad"
    assert parked.properties[parking.REASON_KEY].startswith("delay: ")
    assert parked.properties[PropertyKey.UNIQUE_KEY] == b"bad".hex()
    assert broker.deferred.parking.counts[reason] == 1
    assert broker.deferred.delays.positions.offsets() == {1: 3}


def test_the_queues_of_a_deleted_topic_get_no_messages(broker: Broker) -> None:
    """Recovery builds them again from the log, and nobody reads them."""
    put(broker, new(b"old", topic="Deleted"))
    put_delayed(broker, b"late", topic="Deleted")
    step(broker)
    assert (bodies(broker, "Deleted"), bodies(broker, PARKED_TOPIC)) == ([b"old"], [b"late"])


def test_a_message_that_fits_into_no_file_is_parked_without_its_body(broker: Broker) -> None:
    body = bytes(FILE_BYTES - 400)
    broker.tables.topics.create("t" * 127, queue_nums=1)
    put_delayed(broker, body, topic="t" * 127)
    put_delayed(broker, b"behind")
    step(broker)
    (parked,) = records(broker, PARKED_TOPIC)
    (delayed, _) = records(broker, SCHEDULE_TOPIC)
    assert parked.body == b""
    assert parked.properties[parking.ID_KEY].endswith(f"{delayed.physical_offset:016X}")
    assert bodies(broker, "Orders") == [b"behind"]


def test_a_lowered_limit_holds_back_no_message(broker: Broker) -> None:
    """Bodies that an earlier limit admitted are delivered, sent back and committed."""
    text = "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01H"
    body = bytes(5_000)
    assert send(broker, "Orders", body, "DELAY\x011").code == 0
    assert send(broker, "Orders", body, text).code == 0
    assert send(broker, "Orders", body, "UNIQ_KEY\x01A").code == 0
    (half,) = records(broker, HALF_TOPIC)
    (plain,) = records(broker, "Orders")
    broker.store.apply(msgspec.structs.replace(broker.settings, max_message_size=1_000))
    end = EndTransaction("P", 0, half.physical_offset, COMMIT, "H")
    assert ask(broker, call_with(Code.END_TRANSACTION, end)).code == 0
    back = ConsumerSendMsgBack(plain.physical_offset, "G", 1, "U", "Orders", max_reconsume_times=16)
    assert ask(broker, call_with(Code.CONSUMER_SEND_MSG_BACK, back, version=401)).code == 0
    step(broker)
    step(broker)
    assert bodies(broker, "Orders") == [body] * 3
    assert bodies(broker, "%RETRY%G") == [body]
    assert records(broker, PARKED_TOPIC) == []


def test_a_message_whose_queue_was_removed_goes_to_another_one(broker: Broker) -> None:
    put_delayed(broker, b"a", queue_id=3)
    broker.tables.topics.put(
        msgspec.structs.replace(
            broker.tables.topics.table["Orders"], read_queue_nums=2, write_queue_nums=2
        )
    )
    step(broker)
    assert [(it.queue_id, it.body) for it in records(broker, "Orders")] == [(1, b"a")]


def test_a_retry_topic_that_was_deleted_comes_back_with_its_group(broker: Broker) -> None:
    broker.group("G")
    put_delayed(broker, b"a", topic="%RETRY%G")
    put_delayed(broker, b"b", topic="%RETRY%gone")
    step(broker)
    assert bodies(broker, "%RETRY%G") == [b"a"]
    assert bodies(broker, PARKED_TOPIC) == [b"b"]


def test_a_message_that_cannot_be_sent_back_is_parked_and_answered(broker: Broker) -> None:
    """Otherwise its consumer would send it back, or consume it, again and again."""
    text = "UNIQ_KEY\x01A\x02x\x01" + "x" * (FILE_BYTES - 500)
    assert send(broker, "Orders", b"", text).code == 0
    header = ConsumerSendMsgBack(0, "G", 1, "U", "Orders", max_reconsume_times=16)
    reply = ask(broker, call_with(Code.CONSUMER_SEND_MSG_BACK, header, version=401))
    assert reply.code == ResponseCode.SUCCESS
    (parked,) = records(broker, PARKED_TOPIC)
    assert parked.properties[parking.TOPIC_KEY] == "%RETRY%G"
    assert records(broker, SCHEDULE_TOPIC) == []


@pytest.mark.parametrize("is_recent", [True, False])
def test_a_half_message_without_a_place_is_parked_when_it_is_committed(
    broker: Broker, *, is_recent: bool
) -> None:
    text = "TRAN_MSG\x01true\x02PGROUP\x01P\x02UNIQ_KEY\x01H"
    broker.tables.topics.create("Later", queue_nums=1)
    assert send(broker, "Later", b"bad", text).code == 0
    broker.tables.topics.remove("Later")
    if not is_recent:
        broker.deferred.transactions.recent.clear()
    (half,) = records(broker, HALF_TOPIC)
    end = EndTransaction("P", 0, half.physical_offset, COMMIT, "H")
    for _ in range(2):
        assert ask(broker, call_with(Code.END_TRANSACTION, end)).code == 0
    (parked,) = records(broker, PARKED_TOPIC)
    assert (parked.body, parked.properties[parking.TOPIC_KEY]) == (b"bad", "Later")
    assert bodies(broker, OP_HALF_TOPIC) == [b"0"]
    assert broker.deferred.parking.counts[Reason.TOPIC_MISSING] == 1


def test_a_half_message_that_cannot_be_set_aside_is_parked(broker: Broker) -> None:
    message = new(bytes(FILE_BYTES - 200), text="PGROUP\x01P")
    prepare(message, wait=None)
    put(broker, message)
    broker.driver.commit()
    header = SetTransactionAside(0, 0)
    call = call_with(Code.SET_TRANSACTION_ASIDE, header)
    ask(broker, call)
    for _ in range(3):
        broker.driver.commit()
    assert last_answer(call).code == 0
    assert len(records(broker, PARKED_TOPIC)) == 1
    assert bodies(broker, OP_HALF_TOPIC) == [b"0"]


def test_a_store_that_accepts_nothing_parks_nothing(broker: Broker) -> None:
    put_delayed(broker, b"a")
    put_delayed(broker, b"bad", topic="Deleted")
    broker.driver.commit()
    broker.store.write_state.role_writable = False
    step(broker)
    assert not any(broker.deferred.parking.counts.values())
    broker.store.write_state.role_writable = True
    step(broker)
    assert (bodies(broker, "Orders"), bodies(broker, PARKED_TOPIC)) == ([b"a"], [b"bad"])


async def test_after_a_crash_parked_messages_are_not_parked_again(broker: Broker) -> None:
    put_delayed(broker, b"a")
    put_delayed(broker, b"bad", topic="Deleted")
    step(broker)
    broker.deferred.delays.positions.restart()  # back to the saved positions
    assert broker.deferred.delays.positions.offsets() == {}
    broker.deferred.delays.expect_copies(broker.clock.now_ms())
    step(broker)
    assert (bodies(broker, "Orders"), bodies(broker, PARKED_TOPIC)) == ([b"a"], [b"bad"])
    assert broker.deferred.delays.counts.skipped == 2


def test_the_log_has_one_line_a_minute(broker: Broker) -> None:
    lines: list[dict[str, Any]] = []

    class Recorder:
        def warning(self, event: str, **details: Any) -> None:
            lines.append(details)

    broker.deferred.parking.log = Recorder()  # type: ignore[assignment]
    for _ in range(3):
        put_delayed(broker, b"bad", topic="De\x02leted")
    step(broker)
    put_delayed(broker, b"bad", topic="De\x02leted")
    step(broker, advance_ms=parking.LOG_INTERVAL_MS)
    assert [line["count"] for line in lines] == [1, 3]
    assert lines[0]["topic"] == "De"


# -- any mixture --------------------------------------------------------------------------------


class Mixture:
    """Random delayed, half and sent-back messages; some of them can be stored nowhere."""

    def __init__(self, scripted: ScriptedBroker, seed: int) -> None:
        self.scripted = scripted
        self.broker = scripted.broker
        self.rng = random.Random(seed)  # repeats a run, hides nothing
        self.good: Counter[bytes] = Counter()
        self.retried: Counter[bytes] = Counter()
        self.bad: Counter[bytes] = Counter()
        self.count = 0

    def body(self) -> bytes:
        self.count += 1
        return b"%06d" % self.count

    def delayed(self) -> None:
        body = self.body()
        fields: dict[str, Any] = {"queue_id": self.rng.randrange(4)}
        expected = self.good
        if self.rng.random() < 0.3:
            fields, _ = self.rng.choice(list(BAD.values()))
            expected = self.bad
        message = new(body, **fields)
        delay(message, 1)
        self.broker.driver.put(message, partial(self.note, body, expected))

    def half(self) -> None:
        body, is_bad = self.body(), self.rng.random() < 0.3
        topic = self.rng.choice(["Deleted", "t" * 128]) if is_bad else "Orders"
        message = new(body, topic=topic, text="PGROUP\x01P")
        prepare(message, wait=None)
        expected = self.bad if is_bad else self.good
        self.broker.driver.put(message, partial(self.note, body, expected))
        self.broker.driver.commit()
        self.end_all()

    def note(self, body: bytes, expected: Counter[bytes], result: PutResult) -> None:
        expected[body] += result.status.is_stored

    def end_all(self) -> None:
        """Commit every half message, including those whose transaction has ended."""
        for half in records(self.broker, HALF_TOPIC):
            header = EndTransaction("P", half.queue_offset, half.physical_offset, COMMIT, "U")
            ask(self.broker, call_with(Code.END_TRANSACTION, header))

    def send_back(self) -> None:
        body, is_bad = self.body(), self.rng.random() < 0.3
        text = "x\x01" + "x" * (FILE_BYTES - 500) if is_bad else ""
        put(self.broker, new(body, topic="Consumed", text=text))
        self.broker.driver.commit()
        found = [it for it in records(self.broker, "Consumed") if it.body == body]
        if not found:
            return  # the disk refused it
        header = ConsumerSendMsgBack(found[0].physical_offset, "G", 1, "U", "Consumed")
        call = call_with(Code.CONSUMER_SEND_MSG_BACK, header, version=100)
        if (reply := ask(self.broker, call)) is not None and reply.code == 0:
            (self.bad if is_bad else self.retried)[body] += 1

    async def play(self, steps: int) -> None:
        for _ in range(steps):
            self.rng.choice([self.delayed, self.delayed, self.delayed, self.half, self.send_back])()
            if self.rng.random() < 0.2:
                await self.idle()
                self.scripted.clock.advance(self.rng.choice([100, 1_000]))
                if self.rng.random() < 0.3:
                    self.scripted.disk.fault = lambda operation, path: (
                        errno.ENOSPC if operation == "write" and "commitlog" in path else 0
                    )
                self.broker.deferred.delays.step(self.scripted.clock.now_ms())
                await self.idle()
                self.heal()
        await self.idle()
        for _ in range(4):
            self.end_all()
            self.scripted.clock.advance(DELAY_MS)
            self.broker.deferred.delays.step(self.scripted.clock.now_ms())
            await self.idle()

    def heal(self) -> None:
        self.scripted.disk.fault = None
        self.scripted.clock.advance(5_000)
        self.broker.driver.tick()
        self.broker.driver.tick()

    @staticmethod
    async def idle() -> None:
        for _ in range(40):
            await asyncio.sleep(0)


@pytest.mark.parametrize("native", ["true", "false"] if IS_BUILT else ["false"])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_everything_behind_a_bad_message_is_delivered_exactly_once(native, seed):
    async def main(root: str) -> None:
        scripted = ScriptedBroker(
            storePathRootDir=root, brokerIP1="10.1.2.3", maxHashSlotNum="2000",
            maxIndexNum="100000", mappedFileSizeConsumeQueue="20000",
            mappedFileSizeCommitLog=str(FILE_BYTES), messageDelayLevel="1s 5s",
            nativeLaneEnable=native,
        )  # fmt: skip
        broker = scripted.broker
        for topic in ("Orders", "Consumed"):
            broker.tables.topics.create(topic, queue_nums=4)
        mixture = Mixture(scripted, seed)
        await mixture.play(30)
        assert Counter(bodies(broker, "Orders")) == mixture.good
        assert Counter(bodies(broker, "%RETRY%G")) == mixture.retried
        assert Counter(bodies(broker, PARKED_TOPIC)) == mixture.bad
        assert sum(broker.deferred.parking.counts.values()) == mixture.bad.total()
        broker.store.close()

    with tempfile.TemporaryDirectory() as root:
        asyncio.run(main(root))
