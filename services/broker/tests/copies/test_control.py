# SPDX-License-Identifier: Apache-2.0
"""Real brokers that obey an elector through the control API."""

import asyncio
from contextlib import AsyncExitStack

import msgspec
import pytest

from cometmq.broker.copies.discard import why_not
from cometmq.broker.exposition.monitoring import attach
from cometmq.broker.faults import elector_gap
from cometmq.broker.handlers.runtime_info import runtime_table
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.storing.disk_figures import read_disk
from cometmq.client.admin.figures import read_figures
from cometmq.control import controlled as interface
from cometmq.control.client import MemberClient
from cometmq.control.controlled import MemberUnproven, Target, elector_mark
from cometmq.ha.member import CHANGE_THE_ROLE, OrderRefusal, OrderRefused
from cometmq.ha.orders import Drop, Fence, HandOver, Rebuild
from cometmq.ha.proof import fingerprint
from cometmq.ha.role import Role
from cometmq.peers.ports import free_port
from cometmq.remoting.errors import SettingsError
from cometmq.runtime.admin_http import AdminHttp
from cometmq.testing.broker.broker_groups import BrokerGroup
from cometmq.testing.control.each_order import each_order
from cometmq.testing.runtime.pages import get


class Controlled:
    """A group whose brokers have control ports, and a client of each."""

    def __init__(self, folder):
        self.ports = [free_port() for _ in range(2)]
        self.group = BrokerGroup(folder, 2)
        self.clients = []

    async def start(self, stack):
        for ordinal, port in enumerate(self.ports):
            self.group._settings["controlPort"] = str(port)
            await self.group.start(ordinal)
            target = Target("broker-a", ordinal)
            client = MemberClient(f"127.0.0.1:{port}", target, keys=self.group.keys)
            stack.push_async_callback(client.close)
            self.clients.append(client)


@pytest.fixture
async def controlled(tmp_path):
    controlled = Controlled(tmp_path)
    async with AsyncExitStack() as stack:
        await controlled.start(stack)
        try:
            yield controlled
        finally:
            for ordinal in tuple(controlled.group.apps):
                await controlled.group.stop(ordinal)


async def test_a_broker_reports_its_state_and_obeys(controlled):
    group, first = controlled.group, controlled.clients[0]
    report = await first.status()
    assert report.group == "broker-a"
    assert report.status == group.status(0)
    assert (report.record_uid, report.confirm_offset) == ("", 0)
    assert report.version

    master = await group.until_master()
    await group.until_in_sync(0, 1)
    leading = await controlled.clients[master].status()
    assert leading.status.role is Role.MASTER
    assert leading.record_uid == group.record.uid
    assert leading.fault == ""
    following = await controlled.clients[1 - master].status()
    assert (following.status.role, following.master) == (Role.SLAVE, master)

    async with group.client(master) as client:
        assert (await client.send(b"confirmed", topic="T")).code == 0
    end = group.status(master).max_offset
    for client in controlled.clients:
        async with asyncio.timeout(60):
            while (await client.status()).confirm_offset != end:  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    await controlled.clients[master].order(HandOver(1 - master))
    await group.until(lambda: group.master == 1 - master)
    with pytest.raises(OrderRefused) as refused:
        await controlled.clients[master].order(Drop(0))
    assert refused.value.reason is OrderRefusal.NOT_MASTER
    epoch = group.record.epoch + 1
    fenced = await controlled.clients[1 - master].order(Fence(epoch))
    assert (fenced.status.role, fenced.status.promised) == (Role.FENCED, epoch)
    assert fenced.confirm_offset >= end


async def test_each_order_is_obeyed_in_the_roles_that_it_names(controlled):
    group = controlled.group
    master = await group.until_master()
    await group.until_in_sync(0, 1)
    for app in group.apps.values():
        app.discard.request_stop = lambda: None
    clients = {Role.MASTER: controlled.clients[master], Role.SLAVE: controlled.clients[1 - master]}
    for order in each_order():
        is_event, roles = type(order) in CHANGE_THE_ROLE, order.obeyed_in
        assert is_event == (not roles), f"{order} needs rows in TRANSITIONS, or `obeyed_in`"
        for role, client in clients.items():
            if role in roles:
                assert (await client.order(order)).status.role is role
            elif not is_event:
                with pytest.raises(OrderRefused, match="not"):
                    await client.order(order)


async def test_a_member_without_an_elector_says_so_and_goes_on_serving(controlled, monkeypatch):
    monkeypatch.setattr(interface, "FIRST_MS", 0)
    group, first = controlled.group, controlled.clients[0]
    broker = group.apps[0].broker
    assert (await first.status()).electors == 0
    assert "no elector looks after this member" in (elector_gap(broker) or "")
    facts = runtime_table(broker, read_disk(broker.settings, None))
    assert read_figures(facts).is_elector_missing
    admin, app = AdminHttp(), group.apps[0]
    attach(admin, broker, app._server, app.copies)
    assert b"no elector looks after" in (await get(admin, "/readyz")).content
    elector = MemberClient(
        first.address, first.target, keys=controlled.group.keys, elector=elector_mark("e", 500)
    )
    try:
        assert (await elector.status()).electors == 1
    finally:
        await elector.close()
    assert elector_gap(broker) is None
    assert b"no elector" not in (await get(admin, "/readyz")).content


async def test_a_stranger_on_loopback_is_neither_answered_nor_obeyed(controlled):
    group, first = controlled.group, controlled.clients[0]
    for keys in (lambda: (), lambda: (b"w" * 32,)):
        stranger = MemberClient(first.address, first.target, keys=keys)
        try:
            with pytest.raises(MemberUnproven):
                await stranger.status()
            with pytest.raises(MemberUnproven):
                await stranger.order(Fence(1 << 40))
        finally:
            await stranger.close()
    assert group.status(0).promised < 1 << 40
    report = await first.status()
    assert report.group_keys == tuple(map(fingerprint, group.keys()))


async def test_settings_change_as_through_mqadmin(controlled):
    client = controlled.clients[0]
    assert (await client.update_config({"fileReservedTime": "48"})).applied == ("fileReservedTime",)
    assert controlled.group.apps[0].broker.settings.file_reserved_time == 48
    with pytest.raises(SettingsError, match="unknown settings: fileReservdTime"):
        await client.update_config({"fileReservdTime": "48"})
    with pytest.raises(SettingsError, match="storePathRootDir"):
        await client.update_config({"storePathRootDir": "/x"})


async def test_a_slave_discards_its_store_and_copies_everything_again(controlled, tmp_path):
    group = controlled.group
    master = await group.until_master()
    await group.until_in_sync(0, 1)
    slave = 1 - master
    with pytest.raises(OrderRefused, match="it is master in epoch"):
        await controlled.clients[master].order(Rebuild())
    async with group.client(master) as client:
        assert (await client.send(b"kept", topic="T")).code == 0
    before = group.status(slave).copy
    accounts = tmp_path / str(slave) / "config" / "plain_acl.yml"
    accounts.write_text("accounts: []")

    stops = asyncio.Event()
    group.apps[slave].discard.request_stop = stops.set
    await controlled.clients[slave].order(Rebuild())
    await asyncio.wait_for(stops.wait(), 60)
    await group.stop(slave)
    (aside,) = tmp_path.glob(f"{slave}/discarded-*")
    assert {"commitlog", "haState.json", "epochFileCheckpoint"} <= {p.name for p in aside.iterdir()}
    assert {path.name for path in (tmp_path / str(slave)).iterdir()} <= {
        "config", "lock", aside.name,
    }  # fmt: skip
    assert [path.name for path in accounts.parent.iterdir()] == ["plain_acl.yml"]

    await group.start(slave)
    await group.until_master()
    await group.until(lambda: group.status(slave).max_offset == group.status(master).max_offset)
    await group.elect()
    await group.until_in_sync(0, 1)
    assert group.status(slave).copy != before
    assert group.status(slave).max_offset == group.status(master).max_offset > 0


async def test_a_broker_that_has_become_the_master_keeps_its_store(controlled, tmp_path):
    group = controlled.group
    master = await group.until_master()
    await group.until_in_sync(0, 1)
    slave = 1 - master
    group.apps[slave].discard.request_stop = lambda: None
    await controlled.clients[slave].order(Rebuild())
    await controlled.clients[master].order(HandOver(slave))
    await group.until(lambda: group.master == slave)
    await group.until_in_sync(0, 1)
    log = group.logs[slave]
    await group.stop(slave)  # it hands over first, so it stops as a slave
    assert [event["role"] for event in log.named("store.kept")] == ["master"]
    assert not list(tmp_path.glob(f"{slave}/discarded-*"))


def test_a_commit_log_elsewhere_is_not_moved(tmp_path):
    settings = BrokerSettings(store_path_root_dir=str(tmp_path / "store"))
    assert why_not(settings) == ""
    elsewhere = msgspec.structs.replace(settings, store_path_commit_log=str(tmp_path / "log"))
    assert "storePathCommitLog" in why_not(elsewhere)


async def test_the_record_that_a_member_reads_is_told_until_it_is_gone(controlled):
    group = controlled.group
    await group.until_master()
    watches = [app.copies.member.watch for app in group.apps.values() if app.copies is not None]
    assert len(watches) == 2
    await group.until(lambda: all(watch.uid for watch in watches))
    group.place.delete()
    await group.until(lambda: not any(watch.uid for watch in watches))


async def test_a_control_port_needs_a_group(tmp_path):
    group = BrokerGroup(tmp_path, 1, groupRecord="", controlPort="0")
    with pytest.raises(SettingsError, match="--control-port=0 has no effect without groupRecord"):
        await group.start(0)


async def test_an_open_control_port_without_certificates_is_logged(tmp_path):
    settings = {"controlPort": "0", "controlBindAddress": "0.0.0.0", "groupKeyFile": ""}
    group = BrokerGroup(tmp_path, 1, **settings)
    await group.start(0)
    try:
        (event,) = group.logs[0].named("control.unprotected")
        assert event["host"] == "0.0.0.0"
    finally:
        await group.stop(0)
