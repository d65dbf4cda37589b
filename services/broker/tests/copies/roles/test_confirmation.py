# SPDX-License-Identifier: Apache-2.0
"""A master's epoch: confirming and acknowledging sends, writing the record, holding the lease."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from cometmq.broker.copies.roles.confirmation import Reign
from cometmq.broker.copies.streams.follower_stream import Heard
from cometmq.ha import in_sync
from cometmq.ha.fencing import Timing
from cometmq.ha.in_sync import Ack, Leadership
from cometmq.ha.port import Answer
from cometmq.ha.record import Copy, Record, RecordDamaged
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.ha.memory import Fault, MemoryPlace

ME, X, Y = Copy(0, "m"), Copy(1, "x"), Copy(2, "y")
TIMING = Timing(
    renew_deadline_ms=1_000, lease_duration_ms=1_300, heard_within_ms=200, lag_timeout_ms=500
)


class NotedReign(Reign):
    """Notes what the copies confirm."""

    def __init__(self, view: Leadership, **options: Any) -> None:
        self.confirms: list[int] = []
        self.acknowledges: list[int] = []
        self.has_enough: list[bool] = []
        self.lapsed_count = 0
        self.deposed_count = 0
        super().__init__(view, timing=TIMING, **options)

    def confirmed(self, offset: int) -> None:
        self.confirms.append(offset)

    def acknowledged(self, offset: int) -> None:
        self.acknowledges.append(offset)

    def in_sync_changed(self, *, has_enough: bool) -> None:
        self.has_enough.append(has_enough)

    def lapsed(self) -> None:
        self.lapsed_count += 1

    def deposed(self) -> None:
        self.deposed_count += 1


class Rig:
    """A leader of epoch 3, whose log ended at offset 100 when the epoch opened."""

    def __init__(self, *members: Copy, min_in_sync: int = 1, deposed: Copy | None = None) -> None:
        self.place = MemoryPlace()
        record = Record(
            uid="u", group="g", epoch=3, holder=ME, in_sync=tuple(sorted((ME, *members))),
            copies=3, deposed=deposed,
        )  # fmt: skip
        self.place.create(record)
        assert self.place.current is not None
        self.port = self.place.port()
        self.log = RecordingLog()
        self.now_ms = 10_000
        self.reign = NotedReign(
            in_sync.lead(ME, self.place.current, start=100),
            now_ms=lambda: self.now_ms,
            min_in_sync=min_in_sync,
            record=self.port,
            log=self.log,
        )
        self.reign.open()

    def report(self, copy: Copy, offset: int, tables: int = 0, epoch: int = 3) -> None:
        self.reign.heard([Heard(Ack(copy, epoch, offset, tables), self.now_ms)])

    @property
    def members(self) -> list[int]:
        assert self.place.current is not None
        return [copy.ordinal for copy in self.place.current.record.in_sync]

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(60):
            while not condition():  # noqa: ASYNC110  # an arbitrary condition has no event
                await asyncio.sleep(0.002)


@asynccontextmanager
async def running(*members: Copy, **options: Any) -> AsyncIterator[Rig]:
    rig = Rig(*members, **options)
    task = asyncio.get_running_loop().create_task(rig.reign.keep_record())
    try:
        yield rig
    finally:
        rig.reign.end()
        await asyncio.wait_for(task, 60)


async def test_a_master_alone_confirms_what_it_has():
    rig = Rig()
    rig.reign.appended(150, 0)
    assert rig.reign.confirms[-1] == 150
    assert rig.reign.acknowledges == [150]
    assert rig.reign.may_read()


async def test_a_put_waits_for_every_member():
    rig = Rig(X, Y)
    rig.reign.appended(150, 0)
    rig.report(X, 150)
    assert rig.reign.acknowledges == []
    assert not rig.reign.may_read()
    rig.report(Y, 120)
    assert rig.reign.confirms[-1] == 120
    assert rig.reign.acknowledges == []
    rig.report(Y, 150)
    assert rig.reign.acknowledges == [150]


async def test_a_put_waits_for_the_tables_changed_before_it():
    """If a send creates its topic, the copies get the topic before the sender gets its answer."""
    rig = Rig(X)
    rig.reign.appended(150, 1)
    rig.report(X, 150, tables=0)
    assert rig.reign.confirms[-1] == 150
    assert rig.reign.acknowledges == []
    rig.report(X, 150, tables=1)
    assert rig.reign.acknowledges == [150]
    assert rig.reign.has_confirmed_tables(1)


async def test_nothing_is_confirmed_after_the_end():
    rig = Rig(X)
    rig.reign.appended(150, 0)
    rig.reign.end()
    rig.report(X, 150)
    rig.reign.appended(160, 0)
    assert rig.reign.acknowledges == []
    assert rig.reign.is_lapsed()
    assert not rig.reign.may_read()


async def test_puts_are_refused_while_too_few_copies_are_in_sync():
    async with running(min_in_sync=2) as rig:
        assert rig.reign.has_enough == [False]
        rig.reign.appended(150, 0)
        assert rig.reign.acknowledges == []
        rig.report(X, 150)
        rig.reign.tick()
        await rig.until(lambda: rig.reign.has_enough == [False, True])
        assert rig.members == [0, 1]
        rig.reign.appended(160, 0)
        rig.report(X, 160)
        assert rig.reign.acknowledges[-1] == 160


async def test_a_copy_joins_when_it_has_caught_up_and_leaves_when_it_is_silent():
    async with running() as rig:
        rig.report(X, 100)
        rig.reign.tick()
        await rig.until(lambda: rig.members == [0, 1])
        assert [facts["brokers"] for facts in rig.log.named("in_sync.changed")] == [[0, 1]]

        rig.now_ms += 266
        assert rig.reign.copies() == (0, 1)
        rig.now_ms += 1

        def is_alone() -> bool:
            rig.reign.tick()  # repeated: the answer to the last write may be in flight
            return rig.members == [0]

        await rig.until(is_alone)
        await asyncio.sleep(0.05)
        rig.reign.tick()
        await asyncio.sleep(0.05)
        assert rig.members == [0]  # its last report alone does not add it again


async def test_a_copy_stays_whose_first_report_comes_before_it_has_heard_the_master():
    """A first report echoes no timestamp of the master; the copy has as long as others to echo
    one.
    """
    rig = Rig(X)
    rig.reign.heard([Heard(Ack(X, 3, 100, 0), 0)])
    rig.now_ms += 266
    assert rig.reign.copies() == (0, 1)
    rig.now_ms += 1
    assert rig.reign.copies() == (0,)
    rig.report(X, 100)
    assert rig.reign.copies() == (0, 1)


async def test_a_copy_whose_broker_stops_leaves_at_once_and_may_return():
    async with running(X) as rig:
        rig.report(X, 100)
        rig.reign.left(X)
        await rig.until(lambda: rig.members == [0])
        rig.reign.appended(150, 0)
        assert rig.reign.acknowledges[-1] == 150  # sends do not wait for this copy

        rig.report(X, 150)
        rig.reign.tick()
        await rig.until(lambda: rig.members == [0, 1])


async def test_a_copy_that_reports_but_lags_leaves():
    async with running(X) as rig:
        rig.report(X, 100)
        for _ in range(7):
            rig.now_ms += 100
            rig.reign.appended(rig.reign.view.end + 50, 0)
            rig.report(X, 101)
            rig.reign.tick()
        await rig.until(lambda: rig.members == [0])
        assert rig.reign.acknowledges[-1] == rig.reign.view.end


async def test_a_dropped_copy_stays_out():
    async with running(X) as rig:
        rig.report(X, 100)
        rig.reign.drop(1)
        await rig.until(lambda: rig.members == [0])
        rig.report(X, 100)
        rig.reign.tick()
        await asyncio.sleep(0.05)
        assert rig.members == [0]


async def test_a_number_of_copies_is_recorded():
    async with running(X) as rig:
        rig.reign.resize(5)
        await rig.until(lambda: rig.reign.view.base.record.copies == 5)


async def test_a_removal_without_an_answer_keeps_its_ack_required():
    async with running(X, Y) as rig:
        await rig.until(lambda: rig.reign.view.base.version == "2")
        rig.port.is_cut_off = True
        for copy in (X, Y):
            rig.report(copy, 100)
        rig.now_ms += 390
        rig.report(Y, 100)
        rig.now_ms += 50
        rig.reign.appended(150, 0)
        rig.report(Y, 150)
        rig.reign.tick()
        await asyncio.sleep(0.05)
        assert rig.reign.acknowledges == []
        rig.port.is_cut_off = False
        rig.report(Y, 150)
        await rig.until(lambda: rig.members == [0, 2])
        await rig.until(lambda: rig.reign.acknowledges == [150])


async def test_a_lost_answer_is_settled_by_a_read():
    async with running() as rig:
        await rig.until(lambda: rig.reign.view.base.version == "2")
        rig.port.faults.append(Fault.LOSE_ANSWER)
        rig.report(X, 100)
        rig.reign.tick()
        await rig.until(lambda: rig.reign.view.possible == ((ME, X),))
        assert rig.members == [0, 1]


async def test_a_damaged_record_is_a_write_without_an_answer(monkeypatch: pytest.MonkeyPatch):
    async def damaged(*_: object) -> None:
        raise RecordDamaged("the record cannot be read")

    async with running(X) as rig:
        await rig.until(lambda: rig.reign.view.base.version == "2")
        monkeypatch.setattr(rig.port, "replace", damaged)
        rig.reign.drop(1)
        await rig.until(lambda: rig.reign.view.must_read)
        monkeypatch.undo()
        await rig.until(lambda: rig.members == [0])


async def test_a_record_of_another_master_deposes():
    async with running(X) as rig:
        await rig.until(lambda: rig.reign.view.base.version == "2")
        assert rig.place.current is not None
        rig.place.replace(rig.place.current, rig.place.current.record.elected(X, 4))
        rig.reign.record_seen(rig.place.current)
        await rig.until(lambda: rig.reign.deposed_count)


async def test_a_master_alone_lapses_when_it_cannot_renew():
    async with running() as rig:
        await rig.until(lambda: rig.reign.view.base.version == "2")
        rig.port.is_cut_off = True
        rig.now_ms += 999
        assert not rig.reign.is_lapsed()
        rig.now_ms += 2
        assert rig.reign.is_lapsed()
        rig.reign.appended(150, 0)
        assert rig.reign.lapsed_count == 1
        assert rig.reign.acknowledges == []


async def test_a_master_whose_copies_answer_needs_no_renewal():
    async with running(X) as rig:
        await rig.until(lambda: rig.reign.view.base.version == "2")
        rig.port.is_cut_off = True
        for _ in range(30):
            rig.now_ms += 100
            rig.report(X, 100)
        assert not rig.reign.is_lapsed()
        rig.now_ms += 201
        assert rig.reign.is_lapsed()


async def test_unlogged_requests_wait_for_the_predecessors_permission_to_end():
    rig = Rig(X, deposed=Copy(1, "old"))
    rig.report(X, 100)
    assert not rig.reign.may_answer_unlogged()
    rig.now_ms += 221
    assert not rig.reign.may_answer_unlogged()  # the copy was not heard from recently
    rig.report(X, 100)
    assert rig.reign.may_answer_unlogged()
    assert Rig().reign.may_answer_unlogged()


async def hand_over(rig: Rig, *, wait_ms: int = 50, is_ready: bool = True) -> Any:
    return await rig.reign.write_successor(
        1, leaves=False, deadline_ms=rig.now_ms + wait_ms, is_ready=lambda: is_ready
    )


async def test_a_hand_over_waits_until_the_target_has_caught_up():
    rig = Rig(X)
    rig.reign.appended(150, 1)
    task = asyncio.get_running_loop().create_task(hand_over(rig, wait_ms=5_000))
    await asyncio.sleep(0.02)
    assert not task.done()
    rig.report(X, 150, tables=0)
    await asyncio.sleep(0.02)
    assert not task.done()
    rig.report(X, 150, tables=1)
    assert await task == (Answer.APPLIED, 4)
    assert rig.place.current is not None
    assert rig.place.current.record.holder == X
    assert rig.place.current.record.deposed is None
    assert rig.members == [0, 1]


@pytest.mark.parametrize("is_ready", [False, True])
async def test_a_hand_over_in_vain_writes_nothing(is_ready):
    rig = Rig(X)
    rig.report(X, 100 if not is_ready else 50)
    task = asyncio.get_running_loop().create_task(hand_over(rig, is_ready=is_ready))
    await asyncio.sleep(0.02)
    rig.now_ms += 51
    assert await task is None
    assert rig.place.current is not None
    assert rig.place.current.record.holder == ME


async def test_a_hand_over_without_an_answer_is_settled_by_a_read():
    async with running(X) as rig:
        await rig.until(lambda: rig.reign.view.base.version == "2")
        rig.report(X, 100)
        rig.port.faults.append(Fault.LOSE_ANSWER)
        assert await hand_over(rig) == (Answer.UNKNOWN, 4)
        await rig.until(lambda: rig.reign.deposed_count)


async def test_a_master_is_cut_off_once_all_copies_should_have_left_but_are_in_the_record():
    rig = Rig(X, Y)
    rig.report(X, 100)
    rig.now_ms += 290
    rig.report(Y, 100)
    rig.now_ms += 290
    assert not rig.reign.is_cut_off()
    rig.now_ms += 20
    assert rig.reign.is_cut_off()
    rig.report(X, 100)
    assert not rig.reign.is_cut_off()
    rig.now_ms += 500
    rig.reign.end()
    assert not rig.reign.is_cut_off()
