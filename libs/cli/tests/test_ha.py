# SPDX-License-Identifier: Apache-2.0
"""`cometmq ha` as a process, with fake members and a record in a file."""

import asyncio
import json
from contextlib import AsyncExitStack

import msgspec
import pytest

from cometmq.control.controlled import Electors, Target, elector_mark
from cometmq.control.server import ControlServer
from cometmq.ha.member import OrderRefusal, OrderRefused
from cometmq.ha.orders import HandOver, Promote, Rebuild
from cometmq.ha.places.file import FileRecord
from cometmq.ha.record import Copy, Record
from cometmq.ha.role import Role
from cometmq.ha.state import Standing
from cometmq.peers.comet import PROGRAM
from cometmq.testing.control.obedient import ObedientMember

from .conftest import COMMAND_TIMEOUT_S, Result

ELECTOR = elector_mark("e", 60_000)


class Group:
    def __init__(self, folder):
        self.path = folder / "orders.json"
        self.record = FileRecord(self.path)
        self.members = [
            ObedientMember(Target("orders", ordinal), self.record) for ordinal in range(3)
        ]
        self.stdin = b""

    async def lead(self, in_sync=(0, 1, 2)):
        """Make broker 0 the master of epoch 4."""
        copies = [self.members[n].now.status.copy for n in in_sync]
        record = Record(
            uid="u", group="orders", epoch=4, holder=copies[0], in_sync=tuple(copies), copies=3
        )
        await self.record.create(record)
        for member in self.members:
            member.becomes(role=Role.SLAVE, epoch=4, promised=4, standing=Standing.PROVEN)
            member.server.electors.heard(ELECTOR)
        self.members[0].becomes(role=Role.MASTER)

    async def found(self):
        found = await self.record.read()
        assert found is not None
        return found

    async def elect(self, ordinal, epoch):
        """Elect a member once broker 0 is fenced, as an elector does."""
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            while self.members[0].now.status.role is not Role.FENCED:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        found = await self.found()
        copy = self.members[ordinal].now.status.copy
        await self.record.replace(found, found.record.elected(copy, epoch))
        await self.members[ordinal].obey(Promote(epoch))

    async def ha(self, *words, group="orders"):
        members = ";".join(f"{n}=127.0.0.1:{m.server.port}" for n, m in enumerate(self.members))
        options = ["--group", group, "--record", f"file:{self.path}"]
        if "--members" not in words:
            options += ["--members", members]
        process = await asyncio.create_subprocess_exec(
            str(PROGRAM), "ha", *map(str, words), *options,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            out, err = await process.communicate(self.stdin)
        return Result(process.returncode or 0, out.decode(), err.decode())

    @property
    def orders(self):
        return [member.orders for member in self.members]


@pytest.fixture
async def group(tmp_path):
    group = Group(tmp_path)
    async with AsyncExitStack() as stack:
        for member in group.members:
            await member.server.start("127.0.0.1", 0)
            stack.push_async_callback(member.server.stop)
        yield group


def forget_electors(member):
    """Make a member as old as one that no elector has ever asked."""
    times = iter([0])
    member.server.electors = Electors(lambda: next(times, 60_000))


async def test_a_group_without_an_elector_is_not_complete(group):
    await group.lead()
    for member in group.members:
        forget_electors(member)
    shown = await group.ha("status")
    assert shown.status == 1
    assert "elector  0" in shown.out
    assert "group orders: no elector has asked brokers [0, 1, 2] for 5 s" in shown.err
    group.members[0].server.electors.heard(ELECTOR)
    shown = await group.ha("status")
    assert shown.status == 1
    assert "elector  1" in shown.out
    assert "no elector reaches brokers [1, 2]" in shown.err


async def test_a_command_proves_itself_with_the_key_of_the_group(group, tmp_path):
    keys = (b"k" * 32,)
    for member in group.members:
        member.server = ControlServer(member, keys=lambda: keys)
        await member.server.start("127.0.0.1", 0)
    await group.lead()
    try:
        shown = await group.ha("status")
        assert shown.status == 1
        assert "set groupKeyFile to a file with one of its keys" in shown.err
        path = tmp_path / "group.key"
        path.write_bytes(keys[0] + b"\n")
        shown = await group.ha("status", "--group-key-file", path)
        assert (shown.status, shown.err) == (0, "")
        path.write_bytes(b"short\n")
        shown = await group.ha("status", "--group-key-file", path)
        assert f"--group-key-file={path}: the key in line 1 has 5 bytes" in shown.err
    finally:
        for member in group.members:
            await member.server.stop()


async def test_status_of_a_complete_group_fits_80_columns(group):
    await group.lead()
    group.members[1].becomes(lag_bytes=1_234_567)
    shown = await group.ha("status")
    assert (shown.status, shown.err) == (0, "")
    facts, table = shown.out.split("\n\n")
    assert "master   0" in facts
    assert "in sync  0,1,2" in facts
    assert "elector  1" in facts
    head, *rows = [line.split() for line in table.splitlines()]
    assert head == ["Broker", "Role", "Epoch", "In", "sync", "Behind", "Address", "State"]
    assert [row[:4] for row in rows] == [
        ["0", "master", "4", "yes"],
        ["1", "slave", "4", "yes"],
        ["2", "slave", "4", "yes"],
    ]
    assert rows[1][4] == "1,234,567"
    assert {row[-1] for row in rows} == {"ok"}
    assert max(map(len, table.splitlines())) <= 80

    found = (await group.ha("status", "--json")).json
    assert (found["master"], found["epoch"]) == (0, 4)
    assert found["in_sync"] == [0, 1, 2]
    assert [one["incarnation"] for one in found["members"]] == ["i0", "i1", "i2"]
    assert found["members"][1]["behind"] == 1_234_567


async def test_status_says_that_strangers_can_speak_as_members(group):
    await group.lead()
    assert (await group.ha("status", "--json")).json["risk"] is None
    member = group.members[1]
    member.now = msgspec.structs.replace(member.now, risk="the group has no groupKeyFile")
    shown = await group.ha("status")
    assert (shown.status, shown.err) == (0, "")
    assert "risk     the group has no groupKeyFile" in shown.out


async def test_status_names_what_is_missing_and_ends_with_1(group):
    await group.lead(in_sync=(0, 1))
    await group.members[1].server.stop()
    group.members[0].becomes(role=Role.FENCED, epoch=0)
    shown = await group.ha("status")
    assert shown.status == 1
    assert "no answer" in shown.out
    assert "catching up" in shown.out
    first, second, third = shown.err.splitlines()
    assert "broker 0 is the master of epoch 4, but is not open" in first
    assert "if this lasts, start one (cometmq elector)" in first
    assert "broker 1 of group 'orders' at 127.0.0.1" in second
    assert "Connection refused; start it, or look at its log" in second
    assert "broker 2 is not in sync, and cannot catch up until a master is open" in third


async def test_the_facts_have_the_same_names_without_a_record(group):
    fields = [
        "group", "record", "epoch", "master", "in_sync", "copies", "elector", "risk",
    ]  # fmt: skip
    without = json.loads((await group.ha("status", "--json")).out)
    assert list(without) == [*fields, "members"]
    assert without["in_sync"] == []


@pytest.mark.parametrize("in_sync", [(0,), (0, 1)])
async def test_status_without_any_broker_in_sync_does_not_advise_waiting(group, in_sync):
    """No elector replaces this master, because the other brokers lack acknowledged messages."""
    await group.lead(in_sync=in_sync)
    for ordinal in in_sync:
        await group.members[ordinal].server.stop()
    shown = await group.ha("status")
    assert shown.status == 1
    first, *_, last = shown.err.splitlines()
    assert "an elector replaces" not in first
    assert "no elector replaces it, because the others lack acknowledged messages" in first
    them = {(0,): "broker 0", (0, 1): "one of the brokers [0, 1]"}[in_sync]
    assert f"start {them} again with its store. Only if these stores are lost for good" in first
    assert "cometmq ha restore --accept-loss" in first
    assert "is not in sync, and cannot catch up until a master is open" in last


class Greeter(asyncio.Protocol):
    """A server of a different protocol in which the server sends first."""

    def connection_made(self, transport):
        transport.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        transport.close()


@pytest.fixture
async def other_program():
    """Listen on a port and send the opening bytes of a different protocol; return the port."""
    loop = asyncio.get_running_loop()
    async with await loop.create_server(Greeter, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


async def test_status_tells_a_wrong_port_from_a_member_that_is_down(group, other_program):
    await group.lead()
    members = f"0=127.0.0.1:{other_program}"
    shown = await group.ha("status", "--members", members)
    assert shown.status == 1
    assert "broker 0 is the master of epoch 4, but does not answer this command" in shown.err
    assert f"broker 0 of group 'orders' at 127.0.0.1:{other_program} does not answer" in shown.err


@pytest.mark.parametrize("in_sync", [(0, 1, 2), (0, 1)])
async def test_status_without_all_members_names_the_others(group, in_sync):
    await group.lead(in_sync)
    group.members.pop()
    shown = await group.ha("status")
    assert shown.status == 1
    if 2 in in_sync:
        assert "cometmq: broker 2 of group orders is in sync, but not asked: add ID=" in shown.err
    else:
        assert "cometmq: group orders has 3 copies, but only 2 were asked: add the " in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize("loss", ["silent master", "stopped master", "other epoch"])
async def test_status_shows_no_lag_of_a_slave_that_does_not_hear_its_master(group, loss):
    """The last known lag of such a slave, usually 0, would make it look up to date."""
    await group.lead()
    group.members[1].becomes(lag_bytes=0, has_lost_master=loss == "silent master")
    if loss == "stopped master":
        await group.members[0].server.stop()
    if loss == "other epoch":
        group.members[1].becomes(epoch=3)
    shown = await group.ha("status", "--json")
    assert json.loads(shown.out)["members"][1]["behind"] is None
    table = (await group.ha("status")).out.split("\n\n")[1].splitlines()
    assert table[2].split()[:5] == ["1", "slave", "3" if loss == "other epoch" else "4", "yes", "-"]


async def test_status_without_a_record_says_what_to_start(group):
    shown = await group.ha("status")
    assert shown.status == 1
    assert shown.err == (
        "cometmq: group orders has no record yet: start an elector (cometmq elector); if one runs,"
        " see the event group.blocked in its log\n"
    )


async def test_status_without_a_record_says_what_blocks_an_elector(group):
    for member in group.members:
        member.becomes(role=Role.FENCED, promised=3, standing=Standing.PROVEN, last_log_epoch=2)
        member.server.electors.heard(ELECTOR)
    group.members[1].becomes(standing=Standing.SUSPECT)
    assert (await group.ha("status")).err == (
        "cometmq: group orders: no elector can elect a master (SuspectCopy): there is no record,"
        " and the stores of brokers [1] may have lost messages that no other has: a person has to"
        " accept that, with cometmq ha restore --accept-loss\n"
    )
    await group.members[2].server.stop()
    first, second = (await group.ha("status")).err.splitlines()
    assert first == (
        "cometmq: group orders: no elector can elect a master (MembersMissing): there is no record,"
        " and brokers [2] do not answer; all must answer"
    )
    assert "broker 2 of group 'orders'" in second
    group.members[0].now = msgspec.structs.replace(group.members[0].now, record_uid="u")
    first, *_ = (await group.ha("status")).err.splitlines()  # then the members that do not answer
    assert "but brokers [0] read one: give --record as in their settings" in first


def test_a_group_that_is_not_described_says_which_options_describe_it(call):
    result = call("ha", "status")
    assert result.status == 2
    assert result.err.startswith("cometmq: brokerName must be set: the name of the broker group\n")
    assert all(line.startswith("cometmq: ") for line in result.err.splitlines())
    assert "give --group, --record and --members" in result.err


async def test_a_switchover_waits_until_the_next_master_is_open(group):
    await group.lead()
    group.members[1].becomes(lag_bytes=9)

    async def elect():  # acts like an elector when the record names a different holder
        while (await group.found()).record.epoch != 5:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await group.members[2].obey(Promote(5))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(elect())
        switched = await group.ha("switchover", "--json")
    assert {**switched.json, "took_ms": 0} == {
        "group": "orders", "master": 2, "epoch": 5, "took_ms": 0,
    }  # fmt: skip
    assert group.members[0].orders == [HandOver(2)]
    (await group.ha("switchover", "--to", 2)).assert_refused(1, "broker 2 is the master already")


async def test_a_switchover_to_an_unfit_broker_is_refused_with_the_reason(group):
    await group.lead()
    group.members[1].becomes(lag_bytes=1 << 30)
    refused = await group.ha("switchover", "--to", 1)
    refused.assert_refused(1, "broker 1 is not one that is in sync, follows epoch 4 and lags by")
    (await group.ha("switchover", "--to", 7)).assert_refused(
        2, "group 'orders' has no broker 7; it has 0, 1, 2"
    )
    group.members[0].refusal = OrderRefused(
        OrderRefusal.NOT_IN_SYNC, "broker 2 did not catch up in time"
    )
    (await group.ha("switchover")).assert_refused(
        1, "broker 0 did not hand over: broker 2 did not catch up in time"
    )
    assert group.orders == [[], [], []]


async def test_fence_asks_and_stops_only_a_master(group):
    await group.lead()
    (await group.ha("fence", 0)).assert_refused(2, "Stop the master of group orders, broker 0?")
    (await group.ha("fence", 1, "--yes")).assert_refused(1, "broker 1 is slave, not the master")
    assert group.orders == [[], [], []]
    assert (await group.ha("fence", 0, "--yes", "--json", "--wait", 0)).json == {
        "broker": 0, "role": "fenced", "promised": 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("winner", "status", "words"),
    [
        (2, 0, ""),
        (0, 1, "broker 0 was elected again, because no other broker in sync answered"),
    ],
)
async def test_fence_waits_for_the_next_master(group, winner, status, words):
    await group.lead()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(group.elect(winner, 6))
        shown = await group.ha("fence", 0, "--yes", "--json", "--wait", COMMAND_TIMEOUT_S)
    assert shown.status == status
    assert json.loads(shown.out) == {
        "broker": 0, "role": "fenced", "promised": 5, "master": winner,
    }  # fmt: skip
    assert words in shown.err


async def test_fence_without_an_elector_ends_after_the_wait(group):
    await group.lead()
    shown = await group.ha("fence", 0, "--yes", "--json", "--wait", 1)
    assert shown.status == 1
    assert json.loads(shown.out)["master"] is None
    assert "no broker was open as the master after 1 s: see cometmq ha status" in shown.err


async def test_rebuild_asks_and_never_discards_what_is_needed(group):
    await group.lead()
    (await group.ha("rebuild", 1)).assert_refused(2, "Discard the store of broker 1 of group")
    (await group.ha("rebuild", 0, "--yes")).assert_refused(1, "broker 0 is the master: hand over")
    assert (await group.ha("rebuild", 1, "--yes", "--json")).json == {"broker": 1, "role": "slave"}
    assert group.orders == [[], [Rebuild()], []]

    found = await group.record.read()
    await group.record.replace(found, found.record.renewed(found.record.in_sync[:1]))
    assert (await group.ha("rebuild", 2, "--yes")).status == 0
    master = group.members[0].now.status.copy
    for change in ({"copy": Copy(0, "replaced")}, {"copy": master, "role": Role.FENCED}):
        group.members[0].becomes(**change)
        (await group.ha("rebuild", 2, "--yes")).assert_refused(
            1, "no broker of group orders is open as the master, so there is nothing to copy from"
        )


async def test_restore_needs_a_person_where_messages_may_be_lost(group):
    await group.lead()
    (await group.ha("restore", "--yes")).assert_refused(1, "group orders has a record in file:")
    group.path.unlink()
    group.members[0].becomes(standing=Standing.SUSPECT, max_offset=50, last_log_epoch=4)
    group.members[1].becomes(max_offset=40, last_log_epoch=4)
    refused = await group.ha("restore", "--yes")
    assert refused.status == 1
    assert "the stores of brokers [0] may have lost messages" in refused.err
    (await group.ha("restore", "--accept-loss")).assert_refused(2, "Stop all brokers of group")
    made = (await group.ha("restore", "--accept-loss", "--yes", "--json")).json
    assert made["master"] == 0
    found = await group.record.read()
    assert found.record.in_sync == (group.members[0].now.status.copy,)
    assert found.record.epoch == made["epoch"] > 5


async def test_restore_without_a_store_that_was_in_sync_needs_a_person(group):
    await group.lead(in_sync=(2,))
    group.path.unlink()
    known = (group.members[2].now.status.copy,)
    for member in group.members[:2]:
        member.becomes(last_in_sync=known, max_offset=40, last_log_epoch=4)
    del group.members[2]
    refused = await group.ha("restore", "--yes")
    refused.assert_refused(1, "there is no record, and brokers [2], which were in sync when")
    assert refused.err.rstrip().endswith("accept that, with cometmq ha restore --accept-loss")
    shown = await group.ha("status")
    assert "no elector can elect a master (CopyLeftOut)" in shown.err
    assert (await group.ha("restore", "--accept-loss", "--yes", "--json")).json["master"] == 0


async def test_restore_creates_no_second_record(group):
    group.members[2].now = msgspec.structs.replace(group.members[2].now, record_uid="u")
    refused = await group.ha("restore", "--yes")
    refused.assert_refused(1, "brokers read a record where this command finds none")
    assert group.orders == [[], [], []]
    assert not group.path.exists()


async def test_restore_gives_the_reason_if_the_record_cannot_be_written(group):
    group.path.with_name(f"{group.path.name}.d").write_text("a file in the place of the folder")
    refused = await group.ha("restore", "--yes")
    refused.assert_refused(
        1,
        "the creation of the record was not confirmed: cannot write the record"
        f" {group.path}: [Errno 17] File exists",
    )


async def test_bad_options_are_one_line(group, tmp_path):
    await group.lead()
    assert "--group is empty" in (await group.ha("status", group="")).err
    wrong = await group.ha("status", group="bills")
    wrong.assert_refused(
        1, f"the record file:{group.path} is that of group 'orders', not of 'bills'"
    )
    group.path.write_text("nonsense")
    (await group.ha("status")).assert_refused(1, f"the record in {group.path} cannot be read")


async def test_an_electors_file_describes_the_group(group, tmp_path):
    await group.lead()
    members = ";".join(f"{n}=127.0.0.1:{m.server.port}" for n, m in enumerate(group.members))
    (tmp_path / "elector.conf").write_text(
        f"brokerName=orders\ngroupRecord=file:{group.path}\ncontrolMembers={members}\n"
    )
    process = await asyncio.create_subprocess_exec(
        str(PROGRAM), "ha", "status", "-c", str(tmp_path / "elector.conf"), "--json",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, _ = await process.communicate()
    assert json.loads(out)["master"] == 0


async def test_dry_runs_foresee_what_the_commands_do_and_give_no_order(group):
    await group.lead()
    group.members[1].becomes(lag_bytes=9)
    found = (await group.ha("switchover", "--dry-run", "--json")).json
    assert found == {
        "would": "make broker 2 the master of group orders", "at": ["orders"], "master": 0,
        "in_sync": [0, 1, 2], "behind": 0, "sends": "wait until it is open; none fails",
        "changed": False,
    }  # fmt: skip
    (await group.ha("switchover", "--dry-run", "--to", 0)).assert_refused(
        1, "broker 0 is the master already"
    )
    assert "stop broker 0, the master" in (await group.ha("fence", 0, "--dry-run")).out
    (await group.ha("fence", 1, "--dry-run")).assert_refused(1, "broker 1 is slave")
    assert "discard the store of broker 1" in (await group.ha("rebuild", 1, "--dry-run")).out
    assert group.orders == [[], [], []]
    before = await group.found()
    (await group.ha("restore", "--dry-run")).assert_refused(1, "group orders has a record in file:")
    group.path.unlink()
    group.members[0].becomes(standing=Standing.SUSPECT, max_offset=50, last_log_epoch=4)
    refused = await group.ha("restore", "--dry-run")
    assert (refused.status, "with cometmq ha restore --accept-loss" in refused.err) == (1, True)
    shown = await group.ha("restore", "--dry-run", "--accept-loss")
    assert f"make broker {before.record.holder.ordinal} the master of group orders" in shown.out
    assert await group.record.read() is None
    assert group.orders == [[], [], []]
