# SPDX-License-Identifier: Apache-2.0
"""A record in files: writers that stop, crash or fail at any step, and the earlier format."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import pytest

from cometmq.ha.durable import OsFiles
from cometmq.ha.places.file import KEPT, FileRecord
from cometmq.ha.port import Answer, Outcome, RecordUnreachable
from cometmq.ha.record import RecordDamaged, Versioned
from cometmq.peers.long_forms import case_count
from cometmq.testing.ha.failing_disk import Crash, Disk, Process
from cometmq.testing.ha.port_contract import FIRST, SECOND, new_record
from cometmq.testing.remoting.hostile_json import hostile

PATH = Path("/group/record")
STEPS_MAX = 20
"""More calls than one write makes, including conversion."""


def existing(versioned: Versioned | None) -> Versioned:
    assert versioned
    return versioned


NONCES = count(1)


def record_of(files) -> FileRecord:
    return FileRecord(PATH, files=files, new_nonce=lambda: f"{next(NONCES):016x}")


class Group:
    """A record on an in-memory disk, and the outcomes of all writes."""

    def __init__(self) -> None:
        self.disk = Disk(PATH.parent)
        self.told: list[tuple[Versioned, Outcome]] = []
        """The bases and outcomes of all writes that returned."""
        self.seen: list[Versioned] = []
        """All records read, in order."""

    def create(self) -> Versioned:
        return existing(record_of(Process(self.disk)).create_blocking(new_record()).written)

    def read(self) -> Versioned:
        found = existing(record_of(Process(self.disk)).read_blocking())
        self.seen.append(found)
        return found

    def write(self, before: Callable[[int], None] = lambda step: None, files=None) -> Answer | None:
        """Write once, based on the current record; return None if the disk failed."""
        base = self.read()
        port = record_of(files or Process(self.disk, before))
        try:
            outcome = port.replace_blocking(base, base.record.renewed())
        except OSError:
            return None
        self.told.append((base, outcome))
        return outcome.answer

    def judge(self, unknown_max: int) -> None:
        """Check that the applied writes form a chain, and that readers saw it in order."""
        applied = [(base, it.written) for base, it in self.told if it.answer is Answer.APPLIED]
        assert len({base.version for base, _ in applied}) == len(applied), "one base, two writes"
        serials = [found.record.serial for found in self.seen]
        assert serials == sorted(serials), "a version was read after its successor"
        assert len(applied) <= self.read().record.serial <= len(applied) + unknown_max


def at(step: int, call: Callable[[], object]) -> Callable[[int], None]:
    def before(now: int) -> None:
        if now == step:
            call()

    return before


def crash() -> None:
    raise Crash


@pytest.mark.parametrize("others", [1, 2, KEPT - 1, KEPT, KEPT + 1, 3 * KEPT])
@pytest.mark.parametrize("step", range(STEPS_MAX))
def test_a_writer_that_is_stopped_at_any_step_blocks_nobody_and_overwrites_nothing(step, others):
    group = Group()
    group.create()

    def meanwhile():
        for _ in range(others):
            assert group.write() is Answer.APPLIED

    answer = group.write(at(step, meanwhile))
    group.judge(unknown_max=answer is Answer.UNKNOWN)
    assert group.write() is Answer.APPLIED


@pytest.mark.long
@pytest.mark.parametrize("others", [1, case_count(KEPT + 1, long=2 * KEPT)])
@pytest.mark.parametrize("first", range(STEPS_MAX))
def test_two_writers_stopped_at_any_step_leave_one_order_of_writes(first, others):
    for second in range(STEPS_MAX):
        group = Group()
        group.create()

        def run_others(group=group):
            for _ in range(others):
                assert group.write() is Answer.APPLIED

        def run_second(group=group, second=second, run_others=run_others):
            group.write(at(second, run_others))

        group.write(at(first, run_second))
        unknown = sum(it.answer is Answer.UNKNOWN for _, it in group.told)
        group.judge(unknown_max=unknown)
        assert group.write() is Answer.APPLIED


@pytest.mark.parametrize("is_power_lost", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("step", range(STEPS_MAX))
def test_a_crash_at_any_step_of_a_write_leaves_the_old_or_the_new_version(step, is_power_lost):
    for seed in range(10 if is_power_lost else 1):  # only a power loss draws
        random = Random(f"{step} {seed}")
        group = Group()
        group.create()
        for _ in range(KEPT + 3):
            group.write()
        before = group.read().record.serial
        with contextlib.suppress(Crash):
            group.write(at(step, crash))
        seen = group.read().record.serial
        if is_power_lost:
            group.disk.lose_power(random)
        after = group.read().record.serial
        assert after in (before, before + 1)
        assert after == seen, "a version that was read is durable"
        assert group.write() is Answer.APPLIED
        assert all(len(names) <= KEPT for names in group.disk.folders.values())


@pytest.mark.parametrize("is_power_lost", [False, True], ids=["kill", "power"])
@pytest.mark.parametrize("step", range(STEPS_MAX))
def test_a_crash_at_any_step_of_a_creation_leaves_a_record_or_none(step, is_power_lost):
    for seed in range(10 if is_power_lost else 1):  # only a power loss draws
        disk = Disk(PATH.parent)
        with contextlib.suppress(Crash):
            record_of(Process(disk, at(step, crash))).create_blocking(new_record())
        found = record_of(Process(disk)).read_blocking()
        if is_power_lost:
            disk.lose_power(Random(f"{step} {seed}"))
        assert record_of(Process(disk)).read_blocking() == found
        again = record_of(Process(disk)).create_blocking(new_record("uid-2"))
        if found is None:
            assert again.answer is Answer.APPLIED
        else:
            assert found.record == new_record()
            assert again.answer is Answer.CONFLICT


@pytest.mark.parametrize("step", range(STEPS_MAX))
def test_of_two_that_create_at_once_one_succeeds(step):
    disk = Disk(PATH.parent)
    other: list[Outcome] = []

    def create_other():
        other.append(record_of(Process(disk)).create_blocking(new_record("uid-2")))

    mine = record_of(Process(disk, at(step, create_other))).create_blocking(new_record())
    if other:
        assert {mine.answer, other[0].answer} == {Answer.APPLIED, Answer.CONFLICT}
    winner = mine.written or other[0].written
    assert record_of(Process(disk)).read_blocking() == winner


@pytest.mark.parametrize("is_recreated", [False, True])
@pytest.mark.parametrize("step", range(STEPS_MAX))
def test_a_write_during_a_deletion_is_not_applied_and_never_reaches_the_next_record(
    step, is_recreated
):
    group = Group()
    group.create()
    successor: list[Outcome] = []

    def delete():
        group.disk.set(PATH, None)
        if is_recreated:
            successor.append(record_of(Process(group.disk)).create_blocking(new_record("uid-2")))

    answer = group.write(at(step, delete))
    is_deleted = bool(successor) or PATH.name not in group.disk.folders[PATH.parent]
    assert (answer is Answer.APPLIED) is not is_deleted
    if is_deleted:
        found = record_of(Process(group.disk)).read_blocking()
        assert found == (successor[0].written if successor else None)


@pytest.mark.parametrize("step", range(STEPS_MAX))
def test_a_disk_that_fails_at_any_step_is_an_unknown_outcome_and_repaired_by_the_next(step):
    def fail():
        raise OSError(5, "Input/output error")

    group = Group()
    group.create()
    answer = group.write(at(step, fail))
    assert answer in {None, Answer.APPLIED}
    group.judge(unknown_max=answer is None)
    assert group.write() is Answer.APPLIED


def test_old_versions_that_could_not_be_removed_are_removed_in_ascending_order():
    class Kept(Process):
        def remove(self, path: Path) -> None:
            raise OSError(30, "Read-only file system")

    class Observed(Process):
        def remove(self, path: Path) -> None:
            if path.name.isdigit():
                removed.append(int(path.name))
            super().remove(path)

    removed: list[int] = []
    group = Group()
    group.create()
    for number in range(2, KEPT + 3):
        group.write(files=Kept(group.disk))
        assert group.read().version.startswith(f"{number}-")
    group.write(files=Observed(group.disk))
    assert removed == [1, 2, 3]


# ---- real files and processes ----------------------------------------------------------------

WRITER = """
import asyncio, sys
from pathlib import Path
from cometmq.ha.places.file import FileRecord
from cometmq.ha.port import Answer

async def main():
    port = FileRecord(Path(sys.argv[1]))
    for _ in range(int(sys.argv[2])):
        answer = None
        while answer is not Answer.APPLIED:
            base = await port.read()
            answer = (await port.replace(base, base.record.renewed())).answer
            assert answer is not Answer.UNKNOWN
        print(flush=True)

asyncio.run(main())
"""


async def start_writer(path: Path, writes: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", WRITER, str(path), str(writes)),
        stdout=asyncio.subprocess.PIPE,
    )


async def test_processes_lose_no_write_of_each_other(tmp_path):
    port = FileRecord(tmp_path / "record")
    await port.create(new_record())
    writers = [await start_writer(tmp_path / "record", 25) for _ in range(3)]
    for writer in writers:
        await writer.communicate()
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    assert existing(await port.read()).record.serial == 75


@pytest.mark.parametrize("signal_number", [signal.SIGSTOP, signal.SIGKILL])
async def test_a_process_that_is_stopped_while_it_writes_blocks_nobody(tmp_path, signal_number):
    port = FileRecord(tmp_path / "record")
    await port.create(new_record())
    for _ in range(10):
        writer = await start_writer(tmp_path / "record", 1_000_000)
        try:
            assert writer.stdout
            await writer.stdout.readline()
            writer.send_signal(signal_number)
            if signal_number is signal.SIGKILL:
                await writer.wait()
            else:
                await asyncio.to_thread(os.waitid, os.P_PID, writer.pid, os.WSTOPPED | os.WNOWAIT)
            base = existing(await port.read())
            assert (await port.replace(base, base.record.renewed())).answer is Answer.APPLIED
        finally:
            with contextlib.suppress(ProcessLookupError):
                writer.kill()
            await writer.communicate()
    (folder,) = (tmp_path / "record.d").iterdir()
    base = existing(await port.read())
    await port.replace(base, base.record.renewed())
    assert len(list(folder.iterdir())) <= KEPT


class FailingFiles(OsFiles):
    def link(self, path: Path, name: Path) -> None:
        super().link(path, name)
        raise OSError(5, "Input/output error")


class UnreadableFiles(OsFiles):
    def read(self, path: Path) -> bytes | None:
        raise OSError(5, "Input/output error")


async def test_a_failing_disk_is_an_unknown_outcome_and_an_unreachable_record(tmp_path):
    port = FileRecord(tmp_path / "record", files=FailingFiles())
    outcome = await port.create(new_record())
    assert outcome.answer is Answer.UNKNOWN
    assert "Input/output error" in outcome.reason
    base = existing(await port.read())
    assert (await port.replace(base, base.record.renewed())).answer is Answer.UNKNOWN
    with pytest.raises(RecordUnreachable, match="Input/output error"):
        await FileRecord(tmp_path / "record", files=UnreadableFiles()).read()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"{", "cannot be read"),
        (b'{"format":3,"versions":"0123456789abcdef"}', "format"),
        (b'{"format":2,"versions":"../../etc"}', "versions"),
        (b'{"format":2,"versions":"0123456789abcdef"}', "0123456789abcdef is missing"),
        (b'{"uid":"u"}', "missing required field"),
        *(pytest.param(content, "record", id=name) for name, content in hostile({})),
    ],
)
async def test_a_damaged_file_is_named(tmp_path, content, words):
    (tmp_path / "record").write_bytes(content)
    with pytest.raises(RecordDamaged, match=words) as raised:
        await FileRecord(tmp_path / "record").read()
    assert str(tmp_path / "record") in str(raised.value)


async def test_a_damaged_version_is_named_and_never_replaced_by_an_older_one(tmp_path):
    port = FileRecord(tmp_path / "record")
    base = existing((await port.create(new_record())).written)
    await port.replace(base, base.record.renewed([FIRST, SECOND]))
    (folder,) = (tmp_path / "record.d").iterdir()
    whole = (folder / "2").read_bytes()
    for damaged in (b"", whole[:40], whole[:-20], whole.replace(b"orders", b"ordres")):
        (folder / "2").write_bytes(damaged)
        with pytest.raises(RecordDamaged, match="checksum") as raised:
            await port.read()
        assert str(folder / "2") in str(raised.value)
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(RecordDamaged, match="no version"):
        await port.read()


class DeafFiles(OsFiles):
    """Files of which the first read fails."""

    has_failed = False

    def read(self, path):
        if not self.has_failed:
            self.has_failed = True
            raise OSError(5, "Input/output error", str(path))
        return super().read(path)


async def test_a_watch_goes_on_after_a_failed_read(tmp_path):
    written = (await FileRecord(tmp_path / "record").create(new_record())).written
    port = FileRecord(tmp_path / "record", files=DeafFiles(), poll_interval_ms=1)
    async with asyncio.timeout(60):
        assert await anext(aiter(port.watch())) == written
