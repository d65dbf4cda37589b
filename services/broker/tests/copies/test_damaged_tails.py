# SPDX-License-Identifier: Apache-2.0
"""Bytes behind a member's last checkpoint that change while it is killed."""

import struct
from pathlib import Path
from typing import Final

import pytest

from cometmq.store.recovery.checkpoint import Progress
from cometmq.store.upkeep.checkpointer import Checkpointer
from cometmq.testing.broker.broker_groups import BrokerGroup, running_group

SAVED_COUNT: Final = 20
COUNT: Final = 60
VICTIM: Final = b"%06d" % 40
BODY_AT: Final = 88

DAMAGE: Final = {
    "queue offset": (20, struct.pack(">q", 1_000)),
    "queue id": (12, struct.pack(">i", 3)),
    "topic": (BODY_AT + len(VICTIM) + 1, b"V"),
    "properties": (BODY_AT + len(VICTIM) + 4, b"\xff\xff"),
    "body": (BODY_AT, b"x"),
}


def log_of(folder: Path, ordinal: int) -> Path:
    return folder / str(ordinal) / "commitlog" / ("0" * 20)


def saved_end(folder: Path, ordinal: int) -> int:
    """Return the end of the log at the last checkpoint of a killed member."""
    progress = Progress.decode((folder / str(ordinal) / "progress").read_bytes())
    return 0 if progress is None else progress.offset


def damage(folder: Path, ordinal: int, kind: str) -> None:
    path = log_of(folder, ordinal)
    data = bytearray(path.read_bytes())
    start = data.index(VICTIM) - BODY_AT
    assert start > saved_end(folder, ordinal)
    at, changed = DAMAGE[kind]
    data[start + at : start + at + len(changed)] = changed
    path.write_bytes(data)


async def send(group: BrokerGroup, numbers: range) -> None:
    async with group.client(group.open_master) as client:
        for number in numbers:
            assert (await client.send(b"%06d" % number)).code == 0


async def until_equal(group: BrokerGroup) -> None:
    logs = [app.broker.store.commit_log for app in group.apps.values()]
    await group.until(lambda: logs[0].confirm_offset == logs[1].confirm_offset)


async def fill(group: BrokerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send messages of which the last ones are behind each member's checkpoint."""
    await send(group, range(SAVED_COUNT))
    await until_equal(group)
    monkeypatch.setattr(Checkpointer, "is_due", lambda *_: False)
    await send(group, range(SAVED_COUNT, COUNT))
    await until_equal(group)


async def check(group: BrokerGroup, folder: Path, ordinal: int) -> None:
    """The member has lost nothing, and is a copy of its master again."""
    await group.until_in_sync(0, 1)
    await send(group, range(COUNT, COUNT + 10))
    await until_equal(group)
    logs = [log_of(folder, number).read_bytes() for number in (0, 1)]
    assert logs[0] == logs[1]
    assert VICTIM in logs[0]
    await group.until_in_sync(0, 1)  # a slow machine may have left a member behind meanwhile
    await group.stop(1 - ordinal)
    await group.until_master(1 - ordinal)  # the member that was damaged
    async with group.client(ordinal) as client:
        found = [record.body for record in await client.all_messages()]
    assert found == [b"%06d" % number for number in range(COUNT + 10)]
    assert not group.logs[ordinal].named("records.damaged")


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("is_master", [True, False], ids=["master", "follower"])
async def test_a_damaged_record_is_replicated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, is_master: bool
) -> None:
    async with running_group(tmp_path, 2) as group:
        master = group.open_master
        await fill(group, monkeypatch)
        hurt = master if is_master else 1 - master
        await group.kill(hurt)
        damage(tmp_path, hurt, kind)
        if is_master:
            await group.until_master(master)
        await group.start(hurt)
        assert group.logs[hurt].named("log.truncated")
        await check(group, tmp_path, hurt)


async def test_a_damaged_record_of_one_of_two_killed_members_is_replicated_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_group(tmp_path, 2) as group:
        await fill(group, monkeypatch)
        master = group.open_master
        for ordinal in (0, 1):
            await group.kill(ordinal)
        damage(tmp_path, master, "properties")
        for ordinal in (0, 1):
            await group.start(ordinal)
        assert await group.until_master(master) == 1 - master  # the copy that lacks nothing
        await check(group, tmp_path, master)
