# SPDX-License-Identifier: Apache-2.0
"""Which hosts may be slaves: those of the setting, and those that name servers list."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.broker.copies.streams.rocketmq import slave_addresses
from cometmq.broker.copies.streams.rocketmq.frames import Transfer
from cometmq.broker.copies.streams.rocketmq.slave_addresses import (
    FRESH_MS,
    WAIT_MS,
    SlaveAddresses,
    parse_allowed,
)
from cometmq.broker.copies.unfit import Unfit
from cometmq.broker.registration.identity import slave_hosts
from cometmq.remoting.errors import SettingsError
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.broker.member_nodes import MemberNode
from cometmq.testing.broker.replicas import Node, RawSlave, until
from cometmq.testing.runtime.clock import FakeClock

HERE = "192.0.2.1"


class NameServers:
    """What the name servers answer."""

    def __init__(self, *hosts: str) -> None:
        self.hosts: list[str] | None = list(hosts)
        self.asked_count = 0

    async def look_up(self) -> list[str] | None:
        self.asked_count += 1
        return self.hosts


def addresses(
    setting: str = "registered", names: NameServers | None = None, clock: FakeClock | None = None
) -> SlaveAddresses:
    return SlaveAddresses(
        parse_allowed(setting),
        (names or NameServers()).look_up,
        now_ms=(clock or FakeClock()).monotonic_ms,
        log=RecordingLog(),
    )


@asynccontextmanager
async def asking(one: SlaveAddresses) -> AsyncIterator[None]:
    task = asyncio.get_running_loop().create_task(one.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


# The setting


@pytest.mark.parametrize(
    ("setting", "host", "is_allowed"),
    [
        ("registered", "127.0.0.1", True),
        ("registered", "127.9.9.9", True),
        ("registered", "::1", True),
        ("registered", HERE, True),  # a slave on the same host
        ("registered", "::ffff:192.0.2.1", True),
        ("registered", "192.0.2.2", False),
        ("registered", "", False),
        ("*", "192.0.2.2", True),
        ("192.0.2.0/24", "192.0.2.2", True),
        ("192.0.2.0/24", "192.0.3.2", False),
        ("192.0.2.2", "127.0.0.1", False),
        ("192.0.2.2, 2001:db8::/32 ;", "2001:db8:1::5", True),
        ("registered;192.0.2.2", "127.0.0.1", True),
        ("", "127.0.0.1", False),
    ],
)
def test_the_setting_names_hosts(setting: str, host: str, is_allowed: bool) -> None:
    assert addresses(setting).is_allowed(host, HERE) is is_allowed


@pytest.mark.parametrize("setting", ["slave-1", "10.0.0.300", "10.0.0.0/40", "Registered"])
def test_a_malformed_setting_is_refused_with_the_part(setting: str) -> None:
    with pytest.raises(SettingsError, match=f"haSlaveAddresses: '{setting}' is no IP address"):
        parse_allowed(f"10.0.0.1;{setting}")


# Name servers


async def test_registered_slaves_are_allowed_once_name_servers_have_answered() -> None:
    names, clock = NameServers("192.0.2.7", "2001:db8::7"), FakeClock()
    one = addresses(names=names, clock=clock)
    assert not one.is_allowed("192.0.2.7", HERE)
    async with asking(one):
        one.ask()
        await until(lambda: one.is_allowed("192.0.2.7", HERE))
        assert one.is_allowed("2001:db8:0::7", HERE)
        assert not one.is_allowed("192.0.2.8", HERE)


async def test_an_old_answer_counts_only_if_no_name_server_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slave_addresses, "LOOK_UP_INTERVAL_MS", 0)
    names, clock = NameServers("192.0.2.7"), FakeClock()
    one = addresses(names=names, clock=clock)
    async with asking(one):
        one.ask()
        await until(lambda: one.is_allowed("192.0.2.7", HERE))
        clock.advance(FRESH_MS + 1)
        assert not one.is_allowed("192.0.2.7", HERE)
        assert one.is_known("192.0.2.7", HERE)
        names.hosts = None
        one.ask()
        await until(lambda: one.is_allowed("192.0.2.7", HERE))
        names.hosts = ["192.0.2.8"]
        one.ask()
        await until(lambda: one.is_allowed("192.0.2.8", HERE))
        assert not one.is_known("192.0.2.7", HERE)


async def test_hosts_that_are_registered_by_name_are_resolved() -> None:
    one = addresses(names=NameServers("localhost", "no-such-host.invalid", "192.0.2.7"))
    async with asking(one):
        one.ask()
        await until(lambda: one.is_allowed("192.0.2.7", HERE))


async def test_a_flood_of_hosts_asks_once_per_interval() -> None:
    names = NameServers()
    one = addresses(names=names)
    async with asking(one):
        for _ in range(1_000):
            one.ask()
            await asyncio.sleep(0)
        assert names.asked_count == 1


async def test_name_servers_list_the_slaves_of_a_name() -> None:
    class Namesrvs:
        async def invoke(self, address: str, *_: object, **__: object) -> object:
            if address == "down":
                raise SettingsError("not reachable")
            return type("Answer", (), {"body": bodies[address]})

    table = '{"brokerAddrTable":{"a":{"brokerAddrs":%s,"brokerName":"a","cluster":"c"}}}'
    bodies = {
        "one": (table % '{"0":"10.0.0.1:10911","1":"10.0.0.2:10911"}').encode(),
        "two": (table % '{"3":"[2001:db8::5]:10911"}').encode(),
        "none": b"{}",
    }
    client: object = Namesrvs()
    assert await slave_hosts(client, ["one", "down", "two"], "a") == ["10.0.0.2", "2001:db8::5"]  # type: ignore[arg-type]
    assert await slave_hosts(client, ["one"], "b") == []  # type: ignore[arg-type]
    assert await slave_hosts(client, ["none"], "a") == []  # type: ignore[arg-type]
    assert await slave_hosts(client, ["down"], "a") is None  # type: ignore[arg-type]
    assert await slave_hosts(client, [], "a") is None  # type: ignore[arg-type]


# Connections


async def test_a_slave_that_is_not_allowed_gets_nothing() -> None:
    async with Node(ha_slave_addresses="192.0.2.1") as node:
        for _ in range(2):
            slave = await RawSlave.connect(node.address)
            slave.report(0)
            assert await slave.is_closed()
            await slave.close()
        (event,) = node.log.named("slave.refused")
        assert event["reason"] == "address"
        assert "127.0.0.1 is not in haSlaveAddresses" in str(event["error"])
        assert "haSlaveAddresses" in str(event["action"])
        assert node.state.slaves.refused_counts[Unfit.ADDRESS] == 2
        assert not len(node.server.openings)


async def test_a_slave_that_registers_while_it_connects_is_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = NameServers()
    async with Node() as node:
        one = addresses(names=names, clock=node.clock)
        one.changed = node.server.addresses.changed
        node.server.addresses = one
        monkeypatch.setattr(one, "_is_given", lambda *_: False)  # as if it came from elsewhere
        async with asking(one):
            slave = await RawSlave.connect(node.address)
            slave.report(0)
            await until(lambda: names.asked_count)
            assert not node.state.slaves.connected
            names.hosts = ["127.0.0.1"]
            one.ask()
            assert await slave.receive(0) == [Transfer(0, b"")]
            await slave.close()


async def test_an_unknown_host_is_refused_after_a_while_and_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slave_addresses, "LOOK_UP_INTERVAL_MS", 0)
    names = NameServers()
    async with Node() as node:
        one = addresses(names=names, clock=node.clock)
        one.changed = node.server.addresses.changed
        node.server.addresses = one
        monkeypatch.setattr(one, "_is_given", lambda *_: False)
        async with asking(one):
            first = await RawSlave.connect(node.address)
            first.report(0)
            await until(lambda: names.asked_count)
            node.clock.advance(WAIT_MS)
            node.server.tick()
            assert await first.is_closed()
            (event,) = node.log.named("slave.refused")
            assert "no registered slave of this broker" in str(event["error"])
            names.hosts = ["127.0.0.1"]
            again = await RawSlave.connect(node.address)
            again.report(0)
            assert await again.receive(0) == [Transfer(0, b"")]
            await first.close()
            await again.close()


@pytest.mark.parametrize(
    ("setting", "is_served"), [("registered", False), ("127.0.0.0/8", True), ("*", True)]
)
async def test_a_group_with_a_key_serves_slaves_that_the_setting_names(
    tmp_path: Path, setting: str, is_served: bool
) -> None:
    async with MemberNode(tmp_path, 0, ha_slave_addresses=setting) as master:
        await master.lead(1)
        slave = await RawSlave.connect(master.address)
        slave.report(0)
        if is_served:
            assert await slave.receive(0) == [Transfer(0, b"")]
        else:
            assert await slave.is_closed()
            (event,) = master.log.named("slave.refused")
            assert event["reason"] == "unproven"
        await slave.close()


async def test_a_slave_of_a_group_acknowledges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with MemberNode(tmp_path, 0, keys=()) as master:
        acknowledged: list[int] = []
        monkeypatch.setattr(master.driver.sends, "note_replicated", acknowledged.append)
        await master.lead(1)
        await master.fill(3)
        slave = await RawSlave.connect(master.address)
        slave.report(0)
        await slave.receive(master.end)
        acknowledged.clear()  # by the master itself
        slave.report(master.end)
        await until(lambda: master.state.slaves.acked_offset() == master.end)
        await asyncio.sleep(0)
        assert acknowledged == []
        await slave.close()
