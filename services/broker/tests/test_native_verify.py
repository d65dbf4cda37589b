# SPDX-License-Identifier: Apache-2.0
"""`store verify` finds the same with native code as without it, whatever is damaged."""

from random import Random

import pytest

from cometmq.broker.native import IS_BUILT, range_reader
from cometmq.remoting.log import NO_LOG
from cometmq.store.inspection.range_check import IndexReplay
from cometmq.store.inspection.verification import StoreState, Verification
from cometmq.store.inspection.verify import verify_store
from cometmq.store.parts import NO_NATIVE_CODE, NativeCode
from cometmq.testing.store.builders import StoreRig, make_message, small_settings
from cometmq.testing.store.memory_disk import MemoryDisk

pytestmark = pytest.mark.skipif(not IS_BUILT, reason="cometmq-accel is built only with cargo")

SETTINGS = small_settings(
    mapped_file_size_commit_log=64 << 10, mapped_file_size_consume_queue=20_000,
    max_hash_slot_num=100, max_index_num=300,
)  # fmt: skip
COUNT = 1_000


def filled(disk: MemoryDisk, random: Random) -> StoreRig:
    rig = StoreRig(disk, SETTINGS)
    for number in range(COUNT):
        topic = random.choice(["T", "U", "SCHEDULE_TOPIC_XXXX"])
        keys = " ".join(f"k{number}-{it}" for it in range(random.randrange(3)))
        body = random.randbytes(random.randrange(200))
        queue_id = random.randrange(3)
        rig.put(make_message(topic=topic, queue_id=queue_id, body=body, keys=keys, tags="a"))
    if random.random() < 0.3:
        rig.store.delete_topic("U")
    rig.work(3)
    return rig


def verified(disk: MemoryDisk, native: NativeCode) -> tuple[Verification, list[int]]:
    told: list[int] = []
    found = verify_store(
        "/store", disk=disk, settings=SETTINGS, native=native,
        on_progress=lambda done, total: told.append(100 * done // total),
    )  # fmt: skip
    return found, told


@pytest.mark.parametrize("how", ["stopped", "killed", "running"])
@pytest.mark.parametrize("part", ["nothing", "commitlog", "consumequeue", "index", "checksums"])
@pytest.mark.parametrize("seed", range(4))
def test_native_code_finds_the_same(
    monkeypatch: pytest.MonkeyPatch, how: str, part: str, seed: int
) -> None:
    random, disk = Random(f"{seed}{part}"), MemoryDisk()
    rig = filled(disk, random)
    if how == "stopped":
        rig.store.close()
    elif how == "killed":
        disk.crash()
    paths = [path for path in disk.contents if f"/{part}/" in path and path[-1].isdigit()]
    for _ in range(3) if paths else ():
        content = disk.contents[random.choice(paths)]
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    proven: set[str] = set()
    finish = IndexReplay.finish

    def noted(replay: IndexReplay) -> None:
        finish(replay)
        proven.update(replay.proven)

    monkeypatch.setattr(IndexReplay, "finish", noted)
    slow, _ = verified(disk, NO_NATIVE_CODE)
    assert not proven
    native = NativeCode(read_range=range_reader(NO_LOG))
    fast, told = verified(disk, native)
    assert told == sorted(told) or fast.state is not StoreState.HEALTHY
    assert sorted(fast.findings) == sorted(slow.findings)
    fast.findings = slow.findings = []
    assert fast == slow
    if part == "nothing":
        assert fast.is_good
        assert told[-1] == 100
        assert len(proven) > 3, "all files of the index, in one pass"


@pytest.mark.parametrize("seed", range(3))
def test_native_code_rebuilds_the_same_index(seed: int) -> None:
    random, disk = Random(seed), MemoryDisk()
    filled(disk, random).store.close()
    whole = {path: bytes(data[40:]) for path, data in disk.contents.items() if "/index/" in path}
    damaged = random.sample(sorted(whole), 2)
    rig = StoreRig(disk, SETTINGS, native=NativeCode(read_range=range_reader(NO_LOG)))
    for path in damaged:
        disk.contents[path][40:] = bytes(len(disk.contents[path]) - 40)
    rig.clock.advance(200 * 3_600_000)
    for _ in range(6):
        rig.work(2)
        rig.scrub(6)
    assert rig.store.stats().repaired_index_count == 2
    rig.store.close()
    for path, data in whole.items():
        assert disk.contents[path][40:] == data
