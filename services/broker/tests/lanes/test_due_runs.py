# SPDX-License-Identifier: Apache-2.0
"""A broker that delivers delayed messages natively has the same log, queues, positions and figures
as one that delivers them in Python.

The messages are plain, or unusual in ways that the native code leaves to Python: text that is not
UTF-8, queues and topics in unusual forms. Between them, the log contains other messages, damage and
the ends of files. At times the disk fails, or levels return to their saved positions.
"""

import asyncio
import errno
import random
import tempfile
from contextlib import suppress
from dataclasses import asdict
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.broker import Broker
from cometmq.broker.delays.due_runs import RUN_COUNT_MAX
from cometmq.broker.delays.finder import BATCH_COUNT_MAX
from cometmq.broker.delays.recalled import AlreadyDue, Delayed
from cometmq.broker.messages import delay
from cometmq.broker.native import IS_BUILT, accel
from cometmq.peers.long_forms import examples, seeds
from cometmq.remoting.message.flags import tag_code
from cometmq.remoting.message.new_message import NewMessage, encode_record
from cometmq.remoting.message.properties import index_keys, parse_properties
from cometmq.remoting.names import HALF_TOPIC, SCHEDULE_TOPIC
from cometmq.store.errors import DiskError
from cometmq.store.log.damage import DamagedRange
from cometmq.store.queues.consume_queue import entry_at
from cometmq.store.queues.queue_files import ENTRY, FILLER
from cometmq.store.reader import Reader
from cometmq.store.reads import finish
from cometmq.testing.broker.scripted import ScriptedBroker

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

HOSTS = bytes([10, 0, 0, 9, 0, 0, 0x9C, 0x40]), bytes(range(20))
STORE_HOSTS = bytes([10, 1, 2, 3, 0, 0, 0x2A, 0x9F]), bytes(range(20, 40))
LEVELS_MS = (1_000, 5_000, 10_000)
IDLE_TURNS = 40
BACKLOG_COUNT = 2 * RUN_COUNT_MAX + 3 * BATCH_COUNT_MAX + 7


class Step(NamedTuple):
    action: str
    messages: tuple[NewMessage, ...] = ()
    amount: int = 0


class Script:
    """Random steps from a seed; `oddity` scales the share of odd messages and disturbances."""

    def __init__(self, seed: int, *, levels: int, oddity: float) -> None:
        self.rng = random.Random(seed)  # repeats a run, hides nothing
        self.levels = levels
        self.oddity = oddity
        self.count = 0

    def odd(self, share: float) -> bool:
        return self.rng.random() < share * self.oddity

    def write(self, turns: int) -> list[Step]:
        steps = []
        for _ in range(turns):
            count = self.rng.randrange(30)
            steps.append(Step("put", tuple(self.message() for _ in range(count))))
            if self.odd(0.5):
                actions = ["fail", "restart", "copies", "damage", "tick"]
                steps.append(Step(self.rng.choice(actions), amount=self.rng.randrange(8_000)))
            steps.append(Step("advance", amount=self.rng.choice([1, 100, 999, 1_000, 4_000])))
            steps.append(Step("heal" if self.odd(0.5) else "step"))
        return [*steps, Step("heal"), *[Step("advance", amount=20_000), Step("step")] * 2]

    def message(self) -> NewMessage:
        rng = self.rng
        self.count += 1
        pairs = [f"UNIQ_KEY\x01{rng.getrandbits(64):016X}", "DELAY\x011", "CLUSTER\x01c"]
        pairs += rng.sample(
            ["TAGS\x01a", "TAGS\x01b", "KEYS\x01k1 k2", "q\x01ü€😀", "x\x01y\x01z"], 2
        )
        if rng.random() < 0.1:
            pairs += ["TIMER_DELIVER_MS\x011000", "TIMER_OUT_MS\x011000"]
        if self.odd(0.1):
            pairs += ["TIMER_OUT_MS\x01" + rng.choice(["4102444800000", "x", "9" * 20])]
        if self.odd(0.2):
            pairs += [rng.choice(["TAGS\x01Ünï", "KEYS\x01ключ", "x\x01", "\x01", "z\x01\0"])]
        text = "\x02".join(pairs) + rng.choice(["", "\x02"])
        topic = rng.choice(["Orders", "Orders", "Payments", "%RETRY%group"])
        size = rng.choice([0, 10, 128, 128, 700])
        body = bytes([rng.randrange(256)]) * size
        message = NewMessage(
            topic, rng.randrange(4), rng.choice([0, 7]), rng.choice([0, 0, 1, 2, 0x100]),
            1_700_000_000_000 + self.count, rng.choice(HOSTS), rng.choice(STORE_HOSTS), body,
            text, rng.choice([0, 3]),
        )  # fmt: skip
        if self.odd(0.1):
            message.body = bytes(rng.choice([9_000, 20_000]))
        if rng.random() < 0.85:
            delay(message, rng.randrange(self.levels) + 1)
        if self.odd(0.15):
            message.properties = self.distort(message.properties)
        properties = parse_properties(message.properties)
        message.tag_code = tag_code(properties.get("TAGS"))
        message.keys = index_keys(properties.get("UNIQ_KEY"), properties.get("KEYS"))
        message.wait = False
        return message

    def distort(self, text: str) -> str:
        """Change the destination of a delayed message."""
        pair = self.rng.choice([
            "REAL_QID\x01 3", "REAL_QID\x01+1", "REAL_QID\x01x", "REAL_QID\x015000", "REAL_QID\x01",
            "REAL_QID\x011_0", "REAL_QID\x01\u0663", "REAL_QID\x01007", "REAL_TOPIC\x01ünïcode",
            f"REAL_TOPIC\x01{HALF_TOPIC}", f"REAL_TOPIC\x01{SCHEDULE_TOPIC}\x02REAL_QID\x010",
            "REAL_TOPIC\x01",
            "REAL_TOPIC\x01" + "t" * 127, "REAL_QID\x011\x01",
        ])  # fmt: skip
        if self.rng.random() < 0.2:
            return text.replace("REAL_", "UNREAL_")
        return f"{text}\x02{pair}" if self.rng.random() < 0.5 else f"{pair}\x02{text}"


async def play(broker: ScriptedBroker, steps: list[Step]) -> None:
    delays, driver, store = broker.broker.deferred.delays, broker.broker.driver, broker.broker.store
    for step in steps:
        match step.action:
            case "put":
                for message in step.messages:
                    driver.put(copy_of(message), lambda _: None)
            case "advance":
                broker.clock.advance(step.amount)
            case "fail":
                await idle()
                broker.disk.fault = lambda operation, path: (
                    errno.ENOSPC if operation == "write" and "commitlog" in path else 0
                )
            case "heal" | "step":
                if step.action == "heal":
                    heal(broker)
                delays.step(broker.clock.now_ms())
            case "tick":
                driver.tick()
            case "restart":
                delays.positions.restart()
            case "recall":
                recall_one(broker.broker, step.amount)
            case "copies":
                delays.expect_copies(broker.clock.now_ms() - step.amount)
            case "damage":
                end = max(0, store.commit_log.end - step.amount)
                store.commit_log.set_damage([DamagedRange(end // 2, end // 2 + 100)])
        await idle()


def recall_one(broker: Broker, number: int) -> None:
    """Recall a message that waits in some level."""
    delays = broker.deferred.delays
    level = number % len(delays.levels.delays_ms) + 1
    offset = delays.positions.offsets().get(level, 0) + number % 7
    queue = broker.store.reader.queue(SCHEDULE_TOPIC, level - 1)
    entry = None if queue is None else entry_at(queue, offset)
    if entry is None:
        return
    record = finish(broker.store.reader.read_record(entry.physical_offset))
    assert record is not None
    delayed = Delayed(level, offset, entry.tag_code)
    with suppress(AlreadyDue):
        delays.recall([delayed], record.properties["UNIQ_KEY"], broker.clock.now_ms())


def copy_of(message: NewMessage) -> NewMessage:
    """Return a copy of the message for one of the brokers, because a store keeps the message until
    its commit.
    """
    fields = (getattr(message, name) for name in NewMessage.__struct_fields__)
    return NewMessage(*fields)


def heal(broker: ScriptedBroker) -> None:
    broker.disk.fault = None
    broker.clock.advance(5_000)
    broker.broker.driver.tick()
    broker.broker.driver.tick()


async def idle() -> None:
    for _ in range(IDLE_TURNS):
        await asyncio.sleep(0)


def state_of(broker: ScriptedBroker) -> dict[str, Any]:
    stats, delays = broker.broker.stats, broker.broker.deferred.delays
    store = broker.broker.store.stats()._asdict()
    del store["commit_count"], store["failed_put_count"]  # batches differ in size
    delays.step(broker.clock.now_ms())
    return {
        "log": broker.log_bytes(),
        "queues": broker.queue_entries(),
        "offsets": dict(delays.positions.offsets()),
        "positions": delays.positions.encode_for_file(),
        "parked": dict(broker.broker.deferred.parking.counts),
        "delays": asdict(delays.counts),
        "counts": (stats.put_count, stats.get_count),
        "topics": {
            topic: (one.put_count, one.put_bytes, one.request_count, one.is_active)
            for topic, one in stats.topics.items()
        },
        "levels": {
            level: (one.put_count, one.get_count, one.get_bytes, one.is_active)
            for level, one in stats.levels.items()
        },
        "groups": {
            key: (one.pull_count, one.get_count, one.get_bytes) for key, one in stats.groups.items()
        },
        "store": store,
    }


def run(options: dict[str, str], steps: list[Step], *, native: bool) -> tuple[dict[str, Any], int]:
    async def main(root: str) -> tuple[dict[str, Any], int]:
        given: dict[str, Any] = {
            "storePathRootDir": root, "brokerIP1": "10.1.2.3", "maxHashSlotNum": "2000",
            "maxIndexNum": "100000", "mappedFileSizeConsumeQueue": "20000",
            "mappedFileSizeCommitLog": "4000000", "messageDelayLevel": "1s 5s 10s",
            "enableScheduleMessageStats": "true",
        }  # fmt: skip
        given |= options | {"nativeLaneEnable": str(native).lower()}
        broker = ScriptedBroker(**given)
        for topic in ("Orders", "Payments", "%RETRY%group"):
            broker.broker.tables.topics.create(topic, queue_nums=4)
        await play(broker, steps)
        state = state_of(broker)
        runs = broker.broker.deferred.delays.finder.runs
        assert (runs is not None) is native
        broker.broker.store.close()
        state["files"] = {
            path.removeprefix(root): bytes(data)
            for path, data in broker.disk.contents.items()
            if "journal" not in path
        }
        return state, 0 if runs is None else runs.delivered_count

    with tempfile.TemporaryDirectory() as root:
        return asyncio.run(main(root))


def compare(options: dict[str, str], steps: list[Step]) -> tuple[int, int]:
    """Run both brokers, compare them, and return the number of delivered messages, in total and
    natively.
    """
    without, _ = run(options, steps, native=False)
    natively, count = run(options, steps, native=True)
    for name, value in without.items():
        assert natively[name] == value, name
    return without["delays"]["delivered"], count


CASES = {
    "plain": {},
    "IPv6": {"brokerIP1": "fd00::1"},
    "small files": {"mappedFileSizeCommitLog": "20500"},
    "no index": {"messageIndexEnable": "false"},
    "no statistics": {"enableScheduleMessageStats": "false"},
}


@pytest.mark.parametrize("name", CASES)
@seeds(1, long=3)
def test_plain_messages_are_delivered_natively_to_the_same_log(name, seed):
    steps = Script(seed, levels=3, oddity=0).write(turns=25)
    delivered, natively = compare(CASES[name], steps)
    assert delivered > 100
    assert natively == delivered


@pytest.mark.parametrize("name", CASES)
@examples(2, long=6)
@given(seed=st.integers(0, 2**32), oddity=st.sampled_from([0.1, 0.3, 1.0]))
def test_odd_messages_and_disturbances_give_the_same_log(name, seed, oddity):
    # One level, because other levels would come in between when an odd message splits a batch.
    compare(
        CASES[name] | {"messageDelayLevel": "1s"},
        Script(seed, levels=1, oddity=oddity).write(turns=20),
    )


@pytest.mark.parametrize("seed", range(4))
def test_both_paths_skip_the_same_recalled_messages(seed):
    script = Script(seed, levels=1, oddity=0)  # a batch that ends at one leaves the level's turn
    steps: list[Step] = []
    for number in range(40):
        steps += script.write(turns=1)[:-5]
        steps += [Step("recall", amount=script.rng.randrange(1_000)) for _ in range(number % 3)]
    steps += [Step("advance", amount=20_000), Step("step")] * 2
    without, _ = run({}, steps, native=False)
    natively, count = run({}, steps, native=True)
    for name, value in without.items():
        assert natively[name] == value, name
    assert without["delays"]["recalled"] > 1
    assert 0 < count < without["counts"][0]


def test_a_backlog_is_delivered_in_order_and_in_one_step():
    script = Script(1, levels=1, oddity=0)
    messages = tuple(script.message() for _ in range(BACKLOG_COUNT))
    steps = [Step("put", messages), Step("advance", amount=1_000), Step("step")]
    delivered, natively = compare({}, steps)
    assert delivered == natively > 2 * RUN_COUNT_MAX


def test_a_bug_of_the_native_code_holds_up_no_message(monkeypatch):
    def fail(*_args: Any, **_options: Any) -> None:
        raise accel.PanicException("a bug")

    messages = tuple(Script(1, levels=1, oddity=0).message() for _ in range(40))
    steps = [Step("put", messages), Step("advance", amount=1_000), Step("step"), Step("step")]
    expected, _ = run({}, steps, native=False)
    with monkeypatch.context() as patch:
        patch.setattr(accel, "select_due", fail)
        found, natively = run({}, steps, native=True)
    assert (found["log"], natively) == (expected["log"], 0)

    class Broken:
        """Records that cannot be placed."""

        count = 5
        staged_bytes = 100
        targets = staticmethod(lambda: [("Orders", 1)])
        place = staticmethod(fail)

    with monkeypatch.context() as patch:
        patch.setattr(accel, "DueRecords", lambda *_args, **_options: Broken())
        found, natively = run({}, steps, native=True)
    assert (found["log"], natively) == (expected["log"], 0)


def test_python_delivers_what_precedes_a_failed_read(monkeypatch):
    def fail(*_args: Any) -> None:
        raise DiskError("read", "commitlog", errno.EIO)

    messages = tuple(Script(1, levels=1, oddity=0).message() for _ in range(40))
    steps = [Step("put", messages), Step("advance", amount=1_000), Step("step"), Step("step")]
    expected, _ = run({}, steps, native=False)
    monkeypatch.setattr(Reader, "read_span", fail)
    found, natively = run({}, steps, native=True)
    assert (found["log"], natively) == (expected["log"], 0)


def test_a_run_ends_at_a_record_that_is_not_the_next_of_its_level():
    def staged(*places: tuple[int, int]) -> int:
        """Return how many of these messages are delivered, given as level and queue offset."""
        log, entries = b"", b""
        for level, queue_offset in places:
            text = f"UNIQ_KEY\x01{queue_offset}\x02DELAY\x01{level}\x02"
            message = NewMessage("Orders", 0, 0, 0, 0, HOSTS[0], HOSTS[0], b"body", text)
            delay(message, level)
            record = encode_record(message, queue_offset, len(log), 0)
            entries += ENTRY.pack(len(log), len(record), 0)
            log += record
        records = accel.DueRecords(
            entries, [(0, log)], store_host=HOSTS[0], body_bytes_max=100, record_bytes_max=1_000,
            delayed_topic=SCHEDULE_TOPIC, half_topic=HALF_TOPIC, now_ms=0,
        )  # fmt: skip
        return records.count

    assert staged((1, 7), (1, 8), (1, 9)) == 3
    assert staged((1, 7), (1, 9)) == 1
    assert staged((1, 7), (1, 8), (1, 8)) == 2
    assert staged((1, 7), (2, 8)) == 1


def test_selections_end_where_messages_are_not_due_or_not_plain():
    def select(*entries: bytes, bytes_max: int = 10_000, copied_until: int = 0) -> Any:
        return accel.select_due(
            b"".join(entries), now_ms=100, due_at_most=1_100, copied_until=copied_until,
            file_size=1 << 20, bytes_max=bytes_max,
        )  # fmt: skip

    def entry(offset: int, size: int = 200, due_ms: int = 50) -> bytes:
        return ENTRY.pack(offset, size, due_ms)

    assert select() == (0, False, [])
    assert select(entry(0), entry(200)) == (2, False, [(0, 400)])
    assert select(entry(0), entry(8_392)) == (2, False, [(0, 8_592)])
    assert select(entry(0), entry(8_393)) == (2, False, [(0, 200), (8_393, 200)])
    assert select(entry(400), entry(0)) == (2, False, [(400, 200), (0, 200)])
    file_end = (1 << 20) - 200
    assert select(entry(file_end), entry(1 << 20)) == (2, False, [(file_end, 200), (1 << 20, 200)])
    assert select(entry(0, 20_000), entry(20_000)) == (1, False, [(0, 20_000)])
    assert select(entry(0), entry(200, due_ms=101), entry(400)) == (1, True, [(0, 200)])
    assert select(entry(0, due_ms=1_101), entry(200)) == (2, False, [(0, 400)])
    assert select(entry(0), FILLER, entry(200)) == (1, False, [(0, 200)])
    assert select(entry(0, due_ms=30), copied_until=30) == (0, False, [])
    assert select(entry(-1), entry(0)) == (0, False, [])
    assert select(entry(2**63 - 100), entry(0, size=0)) == (0, False, [])
    places = [entry(10_000 * number) for number in range(40)]
    assert select(*places) == (16, False, [(10_000 * number, 200) for number in range(16)])
