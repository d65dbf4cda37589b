# SPDX-License-Identifier: Apache-2.0
"""A group with one address: what its members register, and how hanging connections are broken."""

from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.copies.roles import watchdog
from cometmq.broker.registration.addresses import packed_host
from cometmq.broker.settings import BrokerSettings
from cometmq.broker.start_checks import check_settings
from cometmq.ha.orders import HandOver
from cometmq.remoting.bodies.dialect import decode_json, encode_json
from cometmq.remoting.bodies.heartbeat import ConsumerData, Heartbeat
from cometmq.remoting.bodies.queues import ConsumerIdList
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.clients import GetConsumerListByGroup
from cometmq.remoting.commands.send import SendMessageReply
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.runtime.incremental import Steps
from cometmq.runtime.settings import load
from cometmq.testing.broker.broker_groups import running_group

ADDRESS = "192.0.2.100:10911"


async def test_the_master_registers_the_address_of_the_group_and_messages_carry_it(
    tmp_path: Path,
) -> None:
    async with running_group(tmp_path, 2, groupAddress=ADDRESS) as group:
        old = group.open_master
        async with group.client(old) as client:
            sent = (await client.send(b"before")).header
            assert isinstance(sent, SendMessageReply)
            host = parse_offset_message_id(sent.msg_id).host
            assert host == packed_host("192.0.2.100", 10911)
        await group.kill(old)
        new = await group.until_master(old)
        await group.start(old)
        await group.until_in_sync(0, 1)
        addresses = {
            ordinal: app.broker.registration.registrant.identity.broker_addr
            for ordinal, app in group.apps.items()
        }
    assert addresses == {new: ADDRESS, old: group.address(old)}


async def test_a_slave_hints_its_consumers_once_when_the_master_falls_silent(
    tmp_path: Path,
) -> None:
    async with running_group(tmp_path, 2, groupAddress=ADDRESS) as group:
        old = group.open_master
        consumers = group.apps[1 - old].broker.clients.consumers
        hints: list[int | None] = []

        def hint() -> Steps[None]:
            hints.append(group.master)
            yield from ()

        consumers.hint = hint  # type: ignore[method-assign]
        await group.kill(old)
        await group.until(lambda: hints)
        await group.until_master(old)
        assert hints == [None]


async def test_a_master_that_is_cut_off_closes_the_connections_of_clients(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2, groupAddress=ADDRESS) as group:
        old = group.open_master
        app = group.apps[old]
        async with group.client(old) as client:
            await client.send(b"before")
            assert app.copies is not None
            leading = app.copies.roles.leading
            assert leading is not None
            leading.is_cut_off = lambda: True  # type: ignore[method-assign]
            server = app._server
            assert server is not None
            await group.until(lambda: not tuple(server.peers))
        assert [one["epoch"] for one in group.logs[old].named("master.cut_off")] == [
            group.record.epoch
        ]


async def test_a_client_that_knows_two_addresses_of_the_master_is_one_member(
    tmp_path: Path,
) -> None:
    """A consumer keeps the connection to a slave that becomes the master; the queues of a second
    member would be read by nobody.
    """
    beat = Heartbeat(client_id="c", consumer_data_set=[ConsumerData(group_name="g")])
    async with running_group(tmp_path, 2, groupAddress=ADDRESS) as group:
        async with group.client(group.open_master) as one, group.client(group.open_master) as other:
            for client in (one, other):
                await client.invoke(RequestCode.HEART_BEAT, None, encode_json(beat))
            answer = await one.invoke(
                RequestCode.GET_CONSUMER_LIST_BY_GROUP, GetConsumerListByGroup("g")
            )
        assert decode_json(ConsumerIdList, answer.body).consumer_id_list == ["c"]


async def test_a_former_master_closes_the_connections_that_have_stayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "AFTER_MS", (300, 600, 900))
    async with running_group(tmp_path, 2, groupAddress=ADDRESS) as group:
        old = group.open_master
        server = group.apps[old]._server
        assert server is not None
        async with group.client(old) as client:
            await client.send(b"before")
            await group.member(old).obey(HandOver(1 - old))
            await client.send(b"forwarded")
            await group.until(lambda: not tuple(server.peers))


def test_a_connection_is_closed_when_none_of_its_requests_is_under_way() -> None:
    now_ms, busy = 0, {"b"}
    closed: list[str] = []

    class Connection:
        def __init__(self, name: str) -> None:
            self.name = name

        @property
        def is_open(self) -> bool:
            return self.name not in closed

        def reset(self) -> None:
            closed.append(self.name)

    clients: list[Any] = [Connection("a"), Connection("b")]
    away = watchdog.StaleClients(
        lambda: clients,
        lambda one: isinstance(one, Connection) and one.name in busy,
        lambda: now_ms,
    )
    away.begin()
    away.tick()
    assert closed == []
    now_ms = watchdog.AFTER_MS[0]
    away.tick()
    assert closed == ["a"]
    busy.clear()
    away.tick()
    assert closed == ["a", "b"]
    clients.append(Connection("c"))
    away.end()
    now_ms = watchdog.AFTER_MS[-1]
    away.tick()
    assert closed == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"groupAddress": "10.0.0.1"}, "--group-address: '10.0.0.1' is not HOST:PORT"),
        ({"groupAddress": "0.0.0.0:10911"}, "others cannot connect to 0.0.0.0"),
        ({"groupAddress": ADDRESS}, "has no effect without groupRecord"),
        ({"roleHook": "/bin/true"}, "--role-hook=/bin/true has no effect without groupRecord"),
    ],
)
def test_a_wrong_address_is_refused(given: dict[str, str], fault: str) -> None:
    loaded = load(BrokerSettings, prefix="COMETMQ_TEST", env={}, cli=given)
    with pytest.raises(SettingsError) as caught:
        check_settings(loaded)
    assert fault in str(caught.value)
