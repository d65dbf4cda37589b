# SPDX-License-Identifier: Apache-2.0
"""Stores in memory that are filled, stopped and read."""

from cometmq.store.reads import finish
from cometmq.store.results import PutStatus
from cometmq.testing.store.builders import StoreRig, make_message, records_of

LOG = "/store/commitlog/"


def fill(rig, count, start=0, topic="T", queues=2):
    for number in range(start, start + count):
        message = make_message(
            topic, number % queues, b"body-%d" % number, keys=f"k{number}", tags="A"
        )
        assert rig.put(message).status is PutStatus.PUT_OK


def bodies(rig, topic="T", queues=2):
    found = []
    for queue_id in range(queues):
        records = records_of(rig.store, topic, queue_id)
        first = rig.store.reader.min_offset(topic, queue_id)
        assert [it.queue_offset for it in records] == list(range(first, first + len(records)))
        found += [it.body for it in records]
    return sorted(found, key=lambda body: int(body.split(b"-")[1]))


def sent(count):
    return [b"body-%d" % number for number in range(count)]


def found_by_key(rig, key, topic="T"):
    return [
        record.body for record in finish(rig.store.reader.query(topic, key, 10, 0, 1 << 62)).records
    ]


def stopped_store(disk, stop, rounds=3):
    """Leave a store of 50 messages, closed or crashed after some rounds of background jobs."""
    rig = StoreRig(disk)
    fill(rig, 50)
    rig.work(rounds)
    if stop == "clean":
        rig.store.close()
    else:
        disk.crash()


def all_files(disk, folder):
    return {path: bytes(data) for path, data in disk.contents.items() if path.startswith(folder)}


def damage(disk, physical_offset):
    name = f"{physical_offset // 4096 * 4096:020d}"
    position = physical_offset % 4096
    disk.contents[LOG + name][position + 4 : position + 20] = bytes(16)
