# SPDX-License-Identifier: Apache-2.0
"""Queues that recovery makes from the log alone have the entries of the first write, byte for byte.

Random requests fill a broker's store: plain, delayed and timed messages, transactions, batches,
retries, dead letters, parked messages. A second store gets nothing but the files of the log.
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.broker.native import IS_BUILT, range_reader
from cometmq.peers.long_forms import examples
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.commands.send import ConsumerSendMsgBack, SendMessageV2
from cometmq.remoting.commands.transactions import EndTransaction
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.message.batch import BatchItem, join_batch
from cometmq.remoting.message.properties import render_properties
from cometmq.remoting.names import PARKED_TOPIC, SCHEDULE_TOPIC
from cometmq.store.message_store import MessageStore
from cometmq.store.parts import NativeCode
from cometmq.store.queues.consume_queue import entries_from
from cometmq.store.queues.queue_files import ENTRY
from cometmq.testing.broker.scripted import ScriptedBroker
from cometmq.testing.broker.stored import ask, call_with
from cometmq.testing.store.memory_disk import MemoryDisk

SETTINGS: dict[str, Any] = {
    "brokerIP1": "10.1.2.3", "maxHashSlotNum": "2000",
    "maxIndexNum": "100000", "mappedFileSizeConsumeQueue": "20000",
    "mappedFileSizeCommitLog": "20000", "maxMessageSize": "8000",
    "messageDelayLevel": "1s 5s 10s 30s",
}  # fmt: skip
both_paths = pytest.mark.parametrize("is_native", [False, True] if IS_BUILT else [False])
TIMERS = ("TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_OUT_MS")


class Filler:
    """Sends requests to a broker; the messages stored so far are sent back and committed."""

    def __init__(self, folder: str, *, is_native: bool) -> None:
        native = "true" if is_native else "false"
        self.scripted = ScriptedBroker(**SETTINGS, storePathRootDir=folder, nativeLaneEnable=native)
        self.broker = self.scripted.broker
        for topic in ("T", "U"):
            self.broker.tables.topics.create(topic, queue_nums=2)
        self.broker.group("G")
        self.halves: list[Any] = []
        self.stored: list[int] = []
        self.count = 0

    def send(self, topic: str, given: dict[str, str], *, flag: int = 0, body: bytes = b"") -> None:
        self.count += 1
        text = render_properties({"UNIQ_KEY": f"{self.count:04}", **given})
        is_batch, queue_id = bool(body), self.count % 2
        header = SendMessageV2("P", topic, "TBW102", 4, queue_id, flag, 0, 0, text, batch=is_batch)
        reply = ask(self.broker, call_with(Code.SEND_MESSAGE_V2, header, body or b"body"))
        if reply.code != 0 or is_batch:
            return
        (self.halves if flag else self.stored).append(reply.header)

    def half(self, given: dict[str, str]) -> None:
        self.send("T", {"TRAN_MSG": "true", "PGROUP": "P", **given}, flag=4)

    def batch(self, texts: list[dict[str, str]]) -> None:
        items = [BatchItem(0, b"x", render_properties(given)) for given in texts]
        self.send("T", {}, body=join_batch(items))

    def end(self, decision: int) -> None:
        if self.halves:
            half = self.halves.pop(0)
            offset = int(half.msg_id[16:], 16)
            header = EndTransaction("P", half.queue_offset, offset, decision, "")
            ask(self.broker, call_with(Code.END_TRANSACTION, header))

    def send_back(self, level: int) -> None:
        if self.stored:
            offset = int(self.stored[-1].msg_id[16:], 16)  # type: ignore[attr-defined]
            header = ConsumerSendMsgBack(offset, "G", level, "a", "T")
            ask(self.broker, call_with(Code.CONSUMER_SEND_MSG_BACK, header))

    def lose_topic(self) -> None:
        """Messages that wait for the topic will be parked."""
        self.broker.tables.topics.table.pop("U", None)

    async def run_for(self, duration_ms: int) -> None:
        for _ in range(-(-duration_ms // 500)):
            self.scripted.clock.advance(500)
            self.broker.driver.tick()
            self.broker.deferred.delays.step(self.scripted.clock.now_ms())
            for _ in range(6):
                await asyncio.sleep(0)


def entries_of(store: MessageStore) -> dict[tuple[str, int], bytes]:
    found = {}
    for key in sorted(store.reader.queue_ids()):
        queue = store.reader.queue(*key)
        assert queue is not None
        rows = entries_from(queue, queue.min_offset, queue.max_offset - queue.min_offset)
        found[key] = b"".join(ENTRY.pack(*row) for row in rows)
    return found


def rebuilt(scripted: ScriptedBroker, *, is_native: bool) -> dict[tuple[str, int], bytes]:
    """Return the entries that recovery makes from the log alone."""
    disk, layout = MemoryDisk(), scripted.broker.store.layout
    for path, data in scripted.disk.contents.items():
        if path.startswith(layout.commit_log):
            disk.create(path, len(data), temporary=layout.temporary(path))
            disk.contents[path][:] = data
    disk.create(layout.abort, 0, temporary=layout.temporary(layout.abort))
    store = MessageStore.open(
        scripted.broker.settings,
        disk=disk,
        clock_ms=scripted.clock.now_ms,
        monotonic_ms=scripted.clock.monotonic_ms,
        log=NO_LOG,
        native=NativeCode(range_reader(NO_LOG) if is_native else None),
    )
    try:
        return entries_of(store)
    finally:
        store.close()


numbers = st.integers(0, 9_000).map(str)
given_properties = st.fixed_dictionaries(
    {},
    optional={
        "TAGS": st.sampled_from(["a", "TagB", "ünï", "x" * 40]),
        "KEYS": st.sampled_from(["k", "k l"]),
        "DELAY": st.sampled_from(["0", "1", "2", "4", "9"]),
        "TIMER_DELAY_MS": numbers,
        "TIMER_DELAY_SEC": st.sampled_from(["0", "1", "7", "36"]),
        "TIMER_OUT_MS": st.sampled_from(["x", "5", "1900000000000"]),
        "WAIT": st.sampled_from(["true", "false"]),
    },
)
untimed = given_properties.map(
    lambda given: {name: value for name, value in given.items() if name not in TIMERS}
)
ops = st.one_of(
    st.tuples(st.just("send"), st.sampled_from(["T", "T", "U", "%RETRY%G"]), given_properties),
    st.tuples(st.just("half"), given_properties),
    st.tuples(st.just("batch"), st.lists(untimed, min_size=1, max_size=3)),
    st.tuples(st.just("end"), st.sampled_from([8, 8, 12])),
    st.tuples(st.just("send_back"), st.sampled_from([-1, 0, 1, 2])),
    st.tuples(st.just("run_for"), st.sampled_from([500, 1_500, 6_000])),
    st.tuples(st.just("lose_topic")),
)


async def fill(filler: Filler, script: list[tuple[Any, ...]]) -> None:
    for name, *arguments in script:
        result = getattr(filler, name)(*arguments)
        if asyncio.iscoroutine(result):
            await result


@both_paths
@given(st.lists(ops, min_size=1, max_size=25))
@examples(20, long=60)
def test_recovery_makes_the_entries_of_the_first_write(
    is_native: bool, script: list[tuple[Any, ...]]
) -> None:
    async def main(folder: str) -> None:
        filler = Filler(folder, is_native=is_native)
        await fill(filler, script)
        assert rebuilt(filler.scripted, is_native=is_native) == entries_of(filler.broker.store)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(folder))


@both_paths
async def test_each_kind_of_message_is_rebuilt(tmp_path: Path, is_native: bool) -> None:
    filler = Filler(str(tmp_path), is_native=is_native)
    timed = {"TIMER_DELAY_MS": "1300", "TAGS": "a"}
    await fill(
        filler,
        [
            ("send", "T", {"TAGS": "a"}),
            ("send_back", 0),
            ("send_back", -1),
            ("send", "T", {"DELAY": "2"}),
            ("send", "T", timed),
            ("send", "U", timed),
            ("half", timed),
            ("end", 8),
            ("lose_topic",),
            ("run_for", 1_000),
        ],
    )
    found = entries_of(filler.broker.store)
    assert rebuilt(filler.scripted, is_native=is_native) == found
    due = [ms for *_, ms in ENTRY.iter_unpack(found[SCHEDULE_TOPIC, 0])]
    assert len(due) == 6
    assert [late - early for early, late in zip(due[:3], due[3:], strict=True)] == [300] * 3
    await filler.run_for(12_000)
    found = entries_of(filler.broker.store)
    assert rebuilt(filler.scripted, is_native=is_native) == found
    assert found.keys() >= {("%RETRY%G", 0), ("%DLQ%G", 0), (PARKED_TOPIC, 0)}
