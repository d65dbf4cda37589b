# SPDX-License-Identifier: Apache-2.0
"""The driver of one member: order of actions, promises on disk, reads of the record."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.ha import member as rules
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import Drop, Fence, HandOver, Resize
from cometmq.ha.port import Answer
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.testing.broker.member_rig import ME, Rig, X, record, running
from cometmq.testing.ha.memory import Fault
from cometmq.testing.ha.model import Model
from cometmq.testing.ha.world import Bounds


@asynccontextmanager
async def leading(folder: Path) -> AsyncIterator[Rig]:
    async with running(folder) as rig:
        rig.write(record(1))
        await rig.until(lambda: rig.role is Role.MASTER)
        rig.duties.calls.clear()
        yield rig


async def test_a_member_that_the_record_names_promises_before_it_begins(tmp_path: Path):
    async with running(tmp_path) as rig:
        rig.write(record(1))
        await rig.until(lambda: rig.role is Role.MASTER)

        assert rig.duties.calls == [("stop",), ("begin", 1), ("lead",)]
        assert rig.duties.promises == [0, 1, 1]
        status = rig.member.status()
        assert (status.promised, status.epoch, status.max_offset, status.tables) == (1, 1, 100, 5)
        assert (status.last_log_epoch, status.lag_bytes, status.copy) == (2, 7, ME)


async def test_a_slave_promises_before_it_follows(tmp_path: Path):
    async with running(tmp_path) as rig:
        rig.write(record(4, holder=X))
        await rig.until(lambda: rig.member.status().epoch == 4)

        assert rig.duties.calls == [("stop",), ("start", 1, 4)]
        assert rig.duties.promises == [0, 4]
        assert rig.role is Role.SLAVE


async def test_a_change_of_the_record_is_followed_without_an_order(tmp_path: Path):
    async with running(tmp_path) as rig:
        rig.write(record(1, holder=X))
        await rig.until(lambda: rig.member.status().epoch == 1)
        rig.write(record(2))
        await rig.until(lambda: rig.role is Role.MASTER)
        rig.write(record(3, holder=X))
        await rig.until(lambda: rig.member.status().epoch == 3)
        assert rig.duties.calls[-3:] == [("close",), ("stop",), ("start", 1, 3)]


async def test_a_restarted_holder_elects_itself(tmp_path: Path):
    async with running(tmp_path, promised=4) as rig:
        rig.write(record(4))
        await rig.until(lambda: rig.role is Role.MASTER)
        assert rig.place.current is not None
        assert rig.place.current.record.epoch == 5
        assert rig.member.status().promised == 5


async def test_a_claim_whose_answer_is_lost_is_settled_by_a_read(tmp_path: Path):
    async with running(tmp_path, promised=4) as rig:
        await rig.until(lambda: rig.role is Role.SLAVE)
        rig.port.faults.extend([None, Fault.LOSE_ANSWER])
        rig.write(record(4))
        await rig.until(lambda: rig.role is Role.MASTER)
        assert rig.member.status().epoch == 5


async def test_a_record_that_cannot_be_read_is_read_again(tmp_path: Path):
    async with running(tmp_path) as rig:
        rig.port.faults.extend([Fault.UNREACHABLE] * 3)
        rig.write(record(1))
        await rig.until(lambda: rig.role is Role.MASTER)
        assert len(rig.log.named("record.unreachable")) == 1
        assert len(rig.log.named("record.reachable")) == 1
        assert rig.member.watch.fault == ""


async def test_a_read_that_began_in_another_state_does_not_count(tmp_path: Path):
    """The read may be older than a fence order that arrived after it began (R4)."""
    gate = asyncio.Event()
    gate.set()

    async def delay() -> None:
        await gate.wait()

    rig = Rig(tmp_path, delay=delay)
    member = rig.member
    task = asyncio.get_running_loop().create_task(rig.member.run())
    try:
        rig.write(record(1, holder=X))
        gate.clear()
        rig.member.observe(rules.Recovered())
        await asyncio.sleep(0.05)  # the read is under way
        assert (await member.obey(Fence(7))).role is Role.FENCED
        gate.set()
        await asyncio.sleep(0.1)
        assert member.status().role is Role.FENCED
        assert ("start", 1, 1) not in rig.duties.calls
    finally:
        task.cancel()
        await asyncio.wait([task])
        rig.worker.close()


async def test_a_status_shows_a_promise_only_once_it_is_kept(tmp_path: Path):
    async with leading(tmp_path) as rig:
        rig.duties.waiting.clear()
        fencing = asyncio.get_running_loop().create_task(rig.member.obey(Fence(9)))
        await asyncio.sleep(0.05)
        before = rig.member.status()
        assert (before.role, before.promised) == (Role.MASTER, 1)
        rig.duties.waiting.set()
        after = await fencing
        assert (after.role, after.promised) == (Role.FENCED, 9)
        assert rig.saved.promised == 9


async def test_a_stale_order_is_refused_and_changes_nothing(tmp_path: Path):
    async with leading(tmp_path) as rig:
        with pytest.raises(OrderRefused) as caught:
            await rig.member.obey(Fence(0))
        assert caught.value.reason is OrderRefusal.STALE_EPOCH
        assert rig.role is Role.MASTER
        assert rig.duties.calls == []


async def test_a_disk_that_fails_ends_the_membership(tmp_path: Path):
    async with running(tmp_path) as rig:
        await rig.until(lambda: rig.role is Role.SLAVE)
        rig.duties.error = OSError("no space")
        rig.write(record(1))
        await rig.until(lambda: rig.role is Role.FAILED)
        assert ("lead",) not in rig.duties.calls
        (facts,) = rig.log.named("member.failed")[:1]
        assert facts["error"] == "OSError: no space"


async def test_a_hand_over_holds_requests_and_then_follows(tmp_path: Path):
    async with leading(tmp_path) as rig:
        rig.duties.result = (Answer.APPLIED, 2)
        status = await rig.member.obey(HandOver(1, leaves=True))
        assert rig.duties.calls[:3] == [("hold", 1), ("hand over", 1, True), ("forward", 1)]
        assert (status.role, status.epoch, status.promised) == (Role.SLAVE, 2, 2)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (None, "did not catch up in time"),
        ((Answer.CONFLICT, 2), "did not confirm broker 1"),
        ((Answer.UNKNOWN, 2), "did not confirm broker 1"),
    ],
)
async def test_a_hand_over_that_fails_goes_on_as_master(tmp_path: Path, result, text):
    async with leading(tmp_path) as rig:
        rig.duties.result = result
        with pytest.raises(OrderRefused, match=text):
            await rig.member.obey(HandOver(1))
        assert rig.role is Role.MASTER
        assert rig.duties.calls == [("hold", 1), ("hand over", 1, False), ("serve",)]
        (facts,) = rig.log.named("hand_over.failed")
        assert text in str(facts["error"])


@pytest.mark.parametrize("answer", [Answer.APPLIED, Answer.UNKNOWN])
async def test_a_hand_over_may_be_seen_before_its_answer(tmp_path: Path, answer: Answer):
    """No connection is closed, because the requests that were held are forwarded."""
    async with leading(tmp_path) as rig:
        rig.duties.answered.clear()
        rig.duties.result = (answer, 2)
        handing_over = asyncio.get_running_loop().create_task(rig.member.obey(HandOver(1)))
        await rig.until(lambda: rig.role is Role.HANDING_OVER)
        rig.write(record(2, holder=X))
        await rig.until(lambda: rig.role is Role.SLAVE)
        rig.duties.answered.set()
        status = await handing_over
        assert (status.role, status.epoch, status.promised) == (Role.SLAVE, 2, 2)
        assert rig.duties.calls == [
            ("hold", 1), ("hand over", 1, False), ("forward", 1), ("stop",), ("start", 1, 2),
        ]  # fmt: skip


async def test_only_a_master_changes_the_set(tmp_path: Path):
    async with running(tmp_path) as rig:
        rig.write(record(4, holder=X))
        await rig.until(lambda: rig.member.status().epoch == 4)
        for order in (
            rig.member.obey(Drop(1)),
            rig.member.obey(Resize(3)),
            rig.member.obey(HandOver(1)),
        ):
            with pytest.raises(OrderRefused) as caught:
                await order
            assert caught.value.reason is OrderRefusal.NOT_MASTER
    async with leading(tmp_path) as rig:
        await rig.member.obey(Drop(1))
        await rig.member.obey(Resize(3))
        assert rig.duties.calls == [("drop", 1), ("resize", 3)]
        with pytest.raises(OrderRefused, match="hand over first"):
            await rig.member.obey(Drop(0))
        with pytest.raises(OrderRefused, match="give it 1 or more"):
            await rig.member.obey(Resize(0))


async def test_a_store_that_was_in_sync_is_proven_for_good(tmp_path: Path):
    async with running(tmp_path) as rig:
        rig.write(record(4, holder=X, in_sync=(X,)))
        await rig.until(lambda: rig.member.status().epoch == 4)
        assert rig.member.status().standing is Standing.NEW
        rig.write(record(4, holder=X))
        await rig.until(lambda: rig.member.status().standing is Standing.PROVEN)
        assert rig.saved.standing is Standing.PROVEN


async def test_a_status_never_mixes_two_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    async with running(tmp_path) as rig:
        begun, may_open = asyncio.Event(), asyncio.Event()

        async def perform(action: rules.Duty) -> None:
            if isinstance(action, rules.BeginEpoch):
                begun.set()
                await may_open.wait()

        monkeypatch.setattr(rig.duties, "perform", perform)
        rig.write(record(5))
        await asyncio.wait_for(begun.wait(), 60)
        assert rig.saved.promised == 5
        status = rig.member.status()
        assert (status.role, status.promised, status.epoch) == (Role.SLAVE, 0, 0)
        may_open.set()
        await rig.until(lambda: rig.role is Role.MASTER)
        assert rig.member.status().promised == 5


async def test_a_member_keeps_the_in_sync_set_of_a_record_that_is_deleted(tmp_path: Path):
    """Without a record, the set shows which stores may have the newest messages (R10)."""
    async with running(tmp_path) as rig:
        rig.write(record(4, holder=X, in_sync=(ME, X)))
        await rig.until(lambda: rig.saved.last_in_sync == (ME, X))
        rig.write(record(4, holder=X, in_sync=(X,)))
        await rig.until(lambda: rig.saved.last_in_sync == (X,))
        rig.place.delete()
        rig.member.watch.read_wanted.set()
        await rig.until(lambda: rig.member.watch.uid == "")
        assert rig.member.status().last_in_sync == rig.saved.last_in_sync == (X,)


class Tired(msgspec.Struct, frozen=True):
    """A made-up event."""


class Rest(rules.Serving, frozen=True):
    """A made-up action."""


async def test_a_made_up_action_needs_its_rule_and_the_step_of_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Neither the driver nor the exhaustive check has a case for it."""
    row: dict[tuple[Role, type], Any] = {
        (Role.MASTER, Tired): lambda member, event: (member, (Rest(),))
    }
    monkeypatch.setattr(rules, "TRANSITIONS", {**rules.TRANSITIONS, **row})
    async with leading(tmp_path) as rig:
        rig.member.observe(Tired())  # type: ignore[arg-type]  # made up
        await rig.until(lambda: rig.duties.calls)
        assert rig.duties.calls == [("rest",)]
    model = Model(Bounds())
    world = model.first()
    assert model.perform(world, 0, Rest()) is world  # type: ignore[arg-type]  # made up
