# SPDX-License-Identifier: Apache-2.0
"""Checks that every implementation of `RecordPort` must pass; each takes two ports to one record.

The tests of the built-in backends run all of `CHECKS`; authors of other backends can run them, too.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from cometmq.ha.port import Answer, RecordPort
from cometmq.ha.record import Copy, Record, Versioned

FIRST: Final = Copy(0, "a0")
SECOND: Final = Copy(1, "b0")

Delete = Callable[[], Awaitable[None]]
"""Removes the record without using the ports."""


def new_record(uid: str = "uid-1") -> Record:
    """Return the first record of a group with one in-sync member."""
    return Record(uid=uid, group="orders", epoch=1, holder=FIRST, in_sync=(FIRST,))


async def _created(port: RecordPort, record: Record) -> Versioned:
    outcome = await port.create(record)
    assert outcome.answer is Answer.APPLIED
    assert outcome.written
    return outcome.written


async def reads_what_was_written(one: RecordPort, other: RecordPort, delete: Delete) -> None:
    """Check that a write is visible to all ports, with the version in its outcome."""
    assert await one.read() is None
    written = await _created(one, new_record())
    assert written.record == new_record()
    assert await other.read() == written
    outcome = await other.replace(written, written.record.renewed([FIRST, SECOND]))
    assert outcome.answer is Answer.APPLIED
    assert outcome.written
    assert outcome.written.version != written.version
    assert await one.read() == outcome.written
    assert outcome.written.record.in_sync == (FIRST, SECOND)


async def creates_once(one: RecordPort, other: RecordPort, delete: Delete) -> None:
    """Check that an existing record is never created again, even with the same content."""
    written = await _created(one, new_record())
    assert (await other.create(new_record("uid-2"))).answer is Answer.CONFLICT
    assert (await one.create(new_record())).answer is Answer.CONFLICT
    assert await one.read() == written


async def refuses_an_old_version(one: RecordPort, other: RecordPort, delete: Delete) -> None:
    """Check that of two writes based on the same version, only one is applied."""
    base = await _created(one, new_record())
    assert (await one.replace(base, base.record.renewed())).answer is Answer.APPLIED
    late = base.record.elected(SECOND, 2)
    assert (await other.replace(base, late)).answer is Answer.CONFLICT
    found = await other.read()
    assert found
    assert found.record.holder == FIRST


async def writes_nothing_after_a_deletion(
    one: RecordPort, other: RecordPort, delete: Delete
) -> None:
    """Check that a write neither recreates a deleted record nor changes its successor (R10)."""
    base = await _created(one, new_record())
    await delete()
    assert await other.read() is None
    assert (await one.replace(base, base.record.renewed())).answer is Answer.CONFLICT
    assert await other.read() is None
    successor = await _created(other, new_record("uid-2"))
    assert (await one.replace(base, base.record.renewed())).answer is Answer.CONFLICT
    assert await other.read() == successor


async def refuses_another_uid(one: RecordPort, other: RecordPort, delete: Delete) -> None:
    """Check that a write with the right version but a different uid is refused (R10)."""
    base = await _created(one, new_record())
    assert (await one.replace(base, new_record("uid-2").renewed())).answer is Answer.CONFLICT
    assert await other.read() == base


async def counts_every_write(one: RecordPort, other: RecordPort, delete: Delete) -> None:
    """Check that of several concurrent writes only one succeeds, and that none is lost."""
    await _created(one, new_record())

    async def add(port: RecordPort) -> None:
        for _ in range(10):
            answer = None
            while answer is not Answer.APPLIED:
                base = await port.read()
                assert base
                answer = (await port.replace(base, base.record.renewed())).answer
                assert answer is not Answer.UNKNOWN

    async with asyncio.TaskGroup() as group:
        for port in (one, other, one, other):
            group.create_task(add(port))
    found = await other.read()
    assert found
    assert found.record.serial == 40


async def watch_sees_changes(one: RecordPort, other: RecordPort, delete: Delete) -> None:
    """Check that a watch yields the current record first and finally the latest one."""
    async with asyncio.timeout(60):
        watched = aiter(other.watch())
        assert await anext(watched) is None
        base = await _created(one, new_record())
        assert await anext(watched) == base
        outcome = await one.replace(base, base.record.renewed())
        assert await anext(watched) == outcome.written
        await delete()
        assert await anext(watched) is None


CHECKS: Final[Sequence[Callable[[RecordPort, RecordPort, Delete], Awaitable[None]]]] = (
    reads_what_was_written,
    creates_once,
    refuses_an_old_version,
    writes_nothing_after_a_deletion,
    refuses_another_uid,
    counts_every_write,
    watch_sees_changes,
)
