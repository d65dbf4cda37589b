# SPDX-License-Identifier: Apache-2.0
"""Followers that a master refuses, and masters that a follower refuses."""

from pathlib import Path

import msgspec
import pytest

from cometmq.broker.copies.state import FollowState
from cometmq.broker.copies.streams.handshake import Identity
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.ha.proof import Keys
from cometmq.ha.record import Copy
from cometmq.store.log.damage import DamagedRange
from cometmq.testing.broker.member_nodes import CLUSTER, KEY, MemberNode, is_equal
from cometmq.testing.broker.replicas import until


async def test_a_follower_with_a_later_promise_is_refused_and_heard(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(3)
        await slave.follow_member(master, 4)
        await until(lambda: master.epochs_seen)
        assert master.epochs_seen[0] == 4
        await until(lambda: slave.state.following.state is FollowState.CONNECTING)
        assert slave.state.following.unfit is None
        assert slave.end == 0


async def test_a_follower_of_an_old_epoch_hears_of_the_new_one(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(3)
        await slave.follow_member(master, 2)
        await until(lambda: slave.epochs_seen)
        assert slave.epochs_seen[0] == 3


async def test_a_member_that_does_not_lead_says_so(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as other, MemberNode(tmp_path, 1) as slave:
        await slave.follow_member(other, 2)
        await until(lambda: slave.log.named("replica.disconnected"))
        assert slave.log.alarms == []

        def is_lost_after_a_while() -> object:
            slave.clock.advance(100)
            return slave.log.named("replica.lost")

        await until(is_lost_after_a_while)
        briefs = slave.log.named("replica.disconnected")  # they precede the warning
        assert any("not the master now" in str(brief["error"]) for brief in briefs)
        assert slave.state.following.unfit is None
        (deferred,) = other.log.named("slave.deferred")
        assert deferred["reason"] == Unfit.NOT_MASTER.value
        assert not other.log.named("slave.refused")


async def test_a_switchover_alarms_nobody(tmp_path: Path) -> None:
    async with (
        MemberNode(tmp_path, 0) as old,
        MemberNode(tmp_path, 1) as new,
        MemberNode(tmp_path, 2) as third,
    ):
        await old.lead(1, [new, third])
        for node in (new, third):
            await node.follow_member(old, 1)
        await until(lambda: len(old.sender.followers()) == 2)
        await old.depose()
        await until(lambda: old.log.named("slave.deferred"))  # a follower has tried again
        for node in (old, third):
            await node.follow_member(new, 2)
        await until(lambda: new.log.named("slave.deferred"))  # the next master was not ready
        await new.lead(2)
        await until(lambda: len(new.sender.followers()) == 2)
        assert third.log.named("replica.disconnected")
        for node in (old, new, third):
            assert node.log.alarms == []


async def test_a_refusal_is_reported_again_after_the_slave_has_followed(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1)
        for count in (1, 2):
            error = UnfitLog(Unfit.DIVERGED, "other bytes")
            master.server.note_refused("127.0.0.1:1", error)
            master.server.note_refused("127.0.0.1:2", error)
            assert len(master.log.named("slave.refused")) == count
            await slave.follow_member(master, 1)
            await until(lambda: len(master.log.named("follower.connected")) == count)  # noqa: B023
            await slave.depose()


@pytest.mark.parametrize(
    ("keys", "counted", "words"),
    [((), Unfit.FOREIGN, "group 'broker-b'"), ((KEY,), Unfit.UNPROVEN, "broker-b/0 is wanted")],
)
async def test_another_group_is_refused_with_words(
    tmp_path: Path, keys: Keys, counted: Unfit, words: str
) -> None:
    async with (
        MemberNode(tmp_path, 0, keys=keys) as master,
        MemberNode(tmp_path, 1, group="broker-b", keys=keys) as slave,
    ):
        await master.lead(1)
        await slave.follow_member(master, 1)
        await until(lambda: slave.state.following.unfit)
        assert slave.state.following.unfit is Unfit.FOREIGN
        assert words in slave.state.following.unfit_detail
        await until(lambda: master.state.slaves.refused_counts[counted] >= 1)  # it hears later


async def test_two_stores_with_one_id_do_not_take_turns(tmp_path: Path) -> None:
    async with (
        MemberNode(tmp_path, 0) as master,
        MemberNode(tmp_path, 1) as slave,
        MemberNode(tmp_path, 1) as twin,
    ):
        await master.lead(1)
        await slave.follow_member(master, 1)
        await until(master.sender.followers)
        other = Identity(CLUSTER, "broker-a", Copy(1, "other"))
        twin.member_follower._proving = msgspec.structs.replace(twin.proving, identity=other)
        await twin.follow_member(master, 1)
        await until(lambda: twin.state.following.unfit is Unfit.DUPLICATE)
        assert [view.copy for view in master.sender.followers()] == [slave.copy]

        def is_other() -> bool:
            if [one.copy.incarnation for one in master.sender.followers()] == ["other"]:
                return True
            master.clock.advance(2_000)  # the first follower is silent; repeated: see below
            return False

        await until(is_other)


async def test_logs_with_other_bytes_are_not_cut(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.fill(10, body=b"a")
        await slave.fill(10, body=b"b")
        await slave.fill(3)
        await master.lead(1)
        end = slave.end
        await slave.follow_member(master, 1)
        await until(lambda: slave.state.following.unfit is Unfit.DIFFERENT)
        assert slave.end == end
        assert "bytes from 0 on differ" in slave.state.following.unfit_detail
        assert not (slave.folder / "cut").exists()


async def test_a_log_behind_the_masters_first_file_is_refused(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1)
        await master.fill(5)
        await slave.follow_member(master, 1)
        await until(lambda: is_equal(slave, master))
        await slave.depose()
        await master.fill(150)
        master.store.commit_log.forget_first(1)
        await slave.follow_member(master, 1)
        await until(lambda: slave.state.following.unfit is Unfit.EXPIRED)


async def test_damaged_bytes_are_not_sent(tmp_path: Path) -> None:
    async with MemberNode(tmp_path, 0) as master, MemberNode(tmp_path, 1) as slave:
        await master.lead(1)
        await master.fill(20)
        place = master.rig.entry("T", 0, 5).physical_offset
        master.store.commit_log.set_damage([DamagedRange(place + 10, place + 20)])
        await slave.follow_member(master, 1)
        await until(lambda: slave.state.following.unfit is Unfit.DAMAGED)
        assert slave.end == place
        assert slave.log_bytes() == master.log_bytes()[:place]
