# SPDX-License-Identifier: Apache-2.0
"""The oldest files of a log: removed by hand, they are reported; deleted by retention, never."""

import pytest

from cometmq.store.inspection.verification import FindingKind, StoreState
from cometmq.store.inspection.verify import verify_store
from cometmq.testing.store.builders import SMALL, Events, StoreRig
from cometmq.testing.store.memory_disk import MemoryDisk

from .stores import LOG, bodies, fill, sent

SUMS = "/store/checksums/"


def filled(disk):
    rig = StoreRig(disk)
    fill(rig, 100)
    rig.work(6)
    return rig


def restarted(disk):
    events = Events()
    return StoreRig(disk, log=events), events.of("log.files_lost")


@pytest.mark.parametrize("stop", ["clean", "crash"])
@pytest.mark.parametrize("count", [1, 2])
def test_oldest_files_removed_by_hand_are_reported_and_come_back(disk, stop, count):
    rig = filled(disk)
    rig.store.close() if stop == "clean" else disk.crash()
    lost = [LOG + name for name in disk.names(LOG)[:count]]
    kept = {path: disk.contents.pop(path) for path in lost}
    rig, events = restarted(disk)
    (report,) = events
    assert report["count"] == count
    assert (report["first"], report["last"]) == (lost[0], lost[-1])
    assert "put the files back" in report["advice"]
    found = bodies(rig)
    assert found == sent(100)[-len(found) :] != sent(100)
    rig.store.close()

    rig, events = restarted(disk)
    assert not events  # once is enough
    rig.work(6)
    rig.store.close()
    disk.contents |= kept
    rig, events = restarted(disk)
    assert not events
    assert bodies(rig) == sent(100)


def test_a_kill_or_power_failure_during_a_deletion_is_not_reported_as_a_loss(disk):
    rig = filled(disk)
    names = disk.names(LOG)
    rig.clock.advance(100 * 3_600_000)
    moments = []

    def keep_moment(operation, path):
        if operation == "delete" and path.startswith((LOG, SUMS)):
            moments.append({key: bytearray(data) for key, data in disk.contents.items()})
        return 0

    disk.fault = keep_moment
    rig.store.upkeep.cleaner.ask()
    rig.work(6)
    assert len(disk.names(LOG)) < len(names)
    assert len(moments) == 2 * (len(names) - len(disk.names(LOG)))
    for contents in [*moments, disk.contents]:
        killed = MemoryDisk()
        killed.contents, killed.folders = contents, set(disk.folders)
        rig, events = restarted(killed)
        assert not events
        found = bodies(rig)
        assert found == sent(100)[len(sent(100)) - len(found) :]


def test_checksums_are_gone_durably_before_their_log_files(disk):
    rig = filled(disk)
    rig.clock.advance(100 * 3_600_000)
    steps = []
    disk.fault = lambda operation, path: steps.append((operation, path)) or 0
    rig.store.upkeep.cleaner.ask()
    rig.work(6)
    first_log = next(at for at, step in enumerate(steps) if step[0] == "delete" and LOG in step[1])
    last_sum = max(at for at, step in enumerate(steps) if step[0] == "delete" and SUMS in step[1])
    assert last_sum < steps.index(("sync", SUMS.rstrip("/"))) < first_log


def test_files_that_rocketmq_deleted_with_newer_messages_are_not_reported(disk):
    filled(disk).store.close()
    disk.contents["/store/progress"][:] = bytes(len(disk.contents["/store/progress"]))
    disk.remove(LOG + disk.names(LOG)[0])
    _, events = restarted(disk)
    assert not events


def check(disk):
    return verify_store("/store", disk=disk, settings=SMALL)


@pytest.mark.parametrize("stop", ["clean", "crash"])
def test_a_check_names_lost_files_until_a_start_has_reported_them(disk, stop):
    rig = filled(disk)
    if stop == "clean":
        rig.store.close()
        assert check(disk).is_good
    else:
        disk.crash()
    lost = [LOG + name for name in disk.names(LOG)[:2]]
    for path in lost:
        del disk.contents[path]
    found = check(disk)
    assert found.state is StoreState.DAMAGED
    (finding,) = [it for it in found.findings if it.kind is FindingKind.LOG_FILES_LOST]
    assert finding.place == lost[0]
    assert finding.text.startswith("2 of the oldest files")
    assert lost[1] in finding.text

    rig, events = restarted(disk)
    assert len(events) == 1
    rig.work(6)
    rig.store.close()
    assert FindingKind.LOG_FILES_LOST not in check(disk).counts
