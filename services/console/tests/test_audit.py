# SPDX-License-Identifier: Apache-2.0
"""The audit log records each change before it is made, and its outcome."""

import asyncio
import errno
import json
import os
import stat

import msgspec
import pytest

from cometmq.client.errors import ClientError
from cometmq.console import audit as audit_module
from cometmq.console.audit import Audit, AuditEntry, Unaudited
from cometmq.remoting.log import NO_LOG
from cometmq.runtime.clock import SystemClock
from cometmq.testing.remoting.hostile_json import hostile

ENTRY = AuditEntry(
    at_ms=1,
    id="1",
    user="ada",
    how="token",
    address="",
    action="topic.create",
    subject="orders",
    outcome="begun",
    after={"queues": 4},
)


@pytest.fixture
def audit(tmp_path):
    audit = Audit(tmp_path / "folder", mib_max=1, clock=SystemClock(), log=NO_LOG)
    yield audit
    audit.close()


def lines(tmp_path):
    found = [json.loads(it) for it in (tmp_path / "folder/audit.log").read_text().splitlines()]
    return [(it["outcome"], it.get("text", ""), it.get("after")) for it in found]


async def test_a_change_is_noted_before_it_is_made_and_with_its_outcome(audit, tmp_path):
    async with audit.noted(ENTRY) as outcome:
        assert lines(tmp_path) == [("begun", "", {"queues": 4})]
        outcome.text = "orders exists now"
    assert lines(tmp_path)[1:] == [("done", "orders exists now", None)]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ClientError("the broker refuses"), "the broker refuses"),
        (RuntimeError("a fault"), "the program was stopped, or has a fault"),
    ],
)
async def test_a_change_that_fails_is_noted_with_its_reason(audit, tmp_path, error, text):
    with pytest.raises(type(error)):
        async with audit.noted(ENTRY):
            raise error
    assert lines(tmp_path)[1:] == [("failed", text, None)]


async def test_a_change_that_cannot_be_noted_is_not_made(audit, tmp_path):
    (tmp_path / "folder").write_text("a file in place of the folder")
    with pytest.raises(Unaudited, match="nothing was changed"):
        async with audit.noted(ENTRY):
            pytest.fail("the change was made")


async def test_an_outcome_that_cannot_be_noted_is_told(audit, tmp_path):
    async def change():
        async with audit.noted(ENTRY) as outcome:
            (tmp_path / "folder/audit.log").unlink()
            (tmp_path / "folder/audit.log").mkdir()
            outcome.text = "orders exists now"

    with pytest.raises(Unaudited, match="done: orders exists now; the audit log cannot be written"):
        await change()


@pytest.mark.parametrize("name", ["write", "fsync"])
async def test_an_entry_that_is_not_written_whole_is_taken_back(audit, tmp_path, monkeypatch, name):
    await audit.write(ENTRY)
    write = os.write

    def full(descriptor, data):
        if len(data) < 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:19])

    def broken(descriptor):
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, name, full if name == "write" else broken)
        with pytest.raises(Unaudited, match="nothing was changed"):
            async with audit.noted(ENTRY):
                pytest.fail("the change was made")
    await audit.write(ENTRY)
    assert lines(tmp_path) == [("begun", "", {"queues": 4})] * 2


async def test_an_entry_does_not_join_a_line_that_a_crash_has_torn(audit, tmp_path):
    await audit.write(ENTRY)
    with (tmp_path / "folder/audit.log").open("ab") as file:
        file.write(b'{"at_ms":')
    await audit.write(ENTRY)
    assert await audit.newest(9) == [ENTRY, ENTRY]


async def test_lines_that_are_no_entry_hide_no_other(audit, tmp_path):
    await audit.write(ENTRY)
    with (tmp_path / "folder/audit.log").open("ab") as file:
        for _, text in hostile({}):
            file.write(text + b"\n")
    await audit.write(ENTRY)
    assert await audit.newest(9) == [ENTRY, ENTRY]


async def test_new_names_are_synced_before_entries(tmp_path, monkeypatch):
    audit = Audit(tmp_path, mib_max=0, clock=SystemClock(), log=NO_LOG)
    synced, fsync = [], os.fsync

    def noted(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            synced.append({it.name: it.stat().st_size > 0 for it in tmp_path.iterdir()})
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    await audit.write(ENTRY)
    await audit.write(ENTRY)
    first = {"audit.lock": False, "audit.log": False}
    assert synced == [first, {**first, "audit.log.1": True}]
    audit.close()


def two_programs(folder):
    """Two programs that write one log; a lock is held by an open file, not by a process."""
    return [Audit(folder, mib_max=1, clock=SystemClock(), log=NO_LOG) for _ in range(2)]


async def test_programs_that_write_one_log_lose_no_entry_when_it_is_full(tmp_path):
    programs = two_programs(tmp_path)
    size = len(msgspec.json.encode(ENTRY)) + 20
    for program in programs:
        program._bytes_max = 12 * size

    async def write(program, name):
        for number in range(40):
            await program.write(msgspec.structs.replace(ENTRY, id=f"{name}{number:03}"))

    async with asyncio.TaskGroup() as writing:
        for program, name in zip(programs, "ab", strict=True):
            writing.create_task(write(program, name))
    found = await programs[0].newest(1_000)
    assert sorted(it.id for it in found) == [f"{it}{n:03}" for it in "ab" for n in range(40)]
    older = [it for it in tmp_path.iterdir() if it.name.startswith("audit.log.")]
    assert all(it.stat().st_size > 10 * size for it in older)
    for program in programs:
        program.close()


async def test_an_entry_is_shown_once_while_its_file_is_renamed(tmp_path):
    reader, writer = two_programs(tmp_path)
    for number in range(4):
        await writer.write(msgspec.structs.replace(ENTRY, id=f"{number}"))
    found = reader._entries()
    ids = [next(found).id]
    writer._bytes_max = 1
    await writer.write(msgspec.structs.replace(ENTRY, id="later"))
    ids += [it.id for it in found]
    assert ids == ["3", "2", "1", "0"]
    reader.close()
    writer.close()


async def test_a_change_is_refused_while_another_program_keeps_the_lock(tmp_path, monkeypatch):
    monkeypatch.setattr(audit_module, "LOCK_S", 0.0)
    one, other = two_programs(tmp_path)
    with one._locked(), pytest.raises(Unaudited, match="another program holds its lock"):
        async with other.noted(ENTRY):
            pytest.fail("the change was made")
    one.close()
    other.close()
