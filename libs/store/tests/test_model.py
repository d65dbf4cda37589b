# SPDX-License-Identifier: Apache-2.0
"""After any sequence of operations, the store behaves like a list of messages."""

from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cometmq.peers.long_forms import case_count
from cometmq.remoting.message.record import decode_record
from cometmq.store.index import index
from cometmq.store.inspection.verify import verify_store
from cometmq.store.queues import unsaved_queues
from cometmq.store.reads import finish
from cometmq.store.results import GetStatus, PutStatus
from cometmq.store.upkeep import checkpointer
from cometmq.testing.store.builders import SteppingClock, StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

QUEUES = [("A", 0), ("A", 1), ("B", 0)]
SETTINGS = small_settings(mapped_file_size_commit_log=1024)


class StoreMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.bounds = ExitStack()
        small = mock.patch.multiple(checkpointer, SPILL_BYTES=500, SPILL_QUEUE_BYTES=100)
        self.bounds.enter_context(small)
        self.bounds.enter_context(mock.patch.object(index, "UNWRITTEN_BYTES_MAX", 200))
        self.bounds.enter_context(mock.patch.object(unsaved_queues, "PORTION_QUEUES", 1))
        self.disk = MemoryDisk()
        self.clock = SteppingClock()
        self.sent = []  # topic, queue id and body, in log order
        self.next_number = 0
        self.open()

    def open(self):
        self.rig = StoreRig(self.disk, SETTINGS, self.clock)

    def message(self, place: Any, size):
        self.next_number += 1
        body = b"%d-" % self.next_number + bytes(size)
        key = f"k{self.next_number}"
        topic, queue_id = place
        return make_message(topic, queue_id, body, keys=key, tags="A"), body

    def note(self, place, body, result):
        self.remember(place, result.status, [body])

    def remember(self, place, status, group):
        assert status is PutStatus.PUT_OK
        self.sent += [(*place, body) for body in group]

    @rule(
        place=st.sampled_from(QUEUES), sizes=st.lists(st.integers(0, 700), min_size=1, max_size=8)
    )
    def put(self, place, sizes):
        for size in sizes:
            message, body = self.message(place, size)
            self.rig.store.writer.put(message, partial(self.note, place, body))
        self.rig.store.writer.commit()

    @rule(
        place=st.sampled_from(QUEUES), sizes=st.lists(st.integers(0, 100), min_size=1, max_size=4)
    )
    def put_batch(self, place, sizes):
        made = [self.message(place, size) for size in sizes]
        self.rig.store.writer.put_batch(
            [message for message, _ in made],
            lambda result: self.remember(place, result.status, [body for _, body in made]),
        )
        self.rig.store.writer.commit()

    @rule(rounds=st.integers(1, 4))
    def work(self, rounds):
        self.rig.work(rounds)

    @rule(rounds=st.integers(1, 3))
    def work_between_checkpoints(self, rounds):
        self.rig.work(rounds, elapsed_ms=10)

    @rule()
    def restart(self):
        self.rig.store.close()
        self.open()
        assert self.rig.store.upkeep.recovered.record_count == 0

    @rule()
    def kill(self):
        self.disk.crash()
        self.open()

    @rule()
    def lose_power(self):
        """The log may be shortened, but it keeps all synced data and never has a gap."""
        flushed = self.rig.store.stats().flushed_offset
        self.disk.lose_power()
        self.open()
        assert self.rig.store.commit_log.end >= flushed
        count = sum(self.rig.store.reader.max_offset(*place) for place in QUEUES)
        assert count <= len(self.sent)
        del self.sent[count:]

    @rule()
    def full_disk(self):
        self.disk.fault = lambda operation, _: 28 if operation in {"write", "create"} else 0
        message, _ = self.message(QUEUES[0], 10)
        statuses = []
        self.rig.store.writer.put(message, lambda result: statuses.append(result.status))
        self.rig.store.writer.commit()
        assert statuses == [PutStatus.SERVICE_NOT_AVAILABLE]
        self.rig.work(2)
        self.disk.fault = None
        self.rig.work(20)
        assert self.rig.store.write_state.is_writable

    @invariant()
    def every_queue_is_what_was_sent(self):
        if not hasattr(self, "rig"):
            return
        for place in QUEUES:
            expected = [body for topic, queue_id, body in self.sent if (topic, queue_id) == place]
            assert self.rig.store.reader.max_offset(*place) == len(expected)
            found: list[Any] = []
            while len(found) < len(expected):
                result = self.rig.store.reader.get_messages(*place, len(found), 32)
                assert result.status is GetStatus.FOUND
                found += [decode_record(record, check_crc=True).body for record in result.records]
            assert found == expected

    @rule(data=st.data())
    def look_up_a_key(self, data):
        if not self.sent:
            return
        topic, _, body = data.draw(st.sampled_from(self.sent))
        key = f"k{body.split(b'-')[0].decode()}"
        records = finish(self.rig.store.reader.query(topic, key, 10, 0, 1 << 62)).records
        assert [record.body for record in records] == [body]

    def teardown(self):
        if not hasattr(self, "rig"):
            return
        self.bounds.close()
        self.rig.store.close()
        found = verify_store("/store", disk=self.disk, settings=SETTINGS)
        assert found.findings == []
        assert found.record_count == len(self.sent)


TestStore = StoreMachine.TestCase
TestStore.settings = settings(
    max_examples=case_count(20, long=60),
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
