# SPDX-License-Identifier: Apache-2.0
"""Admin calls refuse values that servers accept but no caller can have meant."""

import re
from typing import Any

import pytest

from cometmq.client import AdminClient, InvalidArgument
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.client.admin.namesrv import NamesrvAdmin
from cometmq.client.cluster.namesrv import Namesrv
from cometmq.client.testing import MemoryCluster
from cometmq.remoting.codes import RequestCode

# -- order configurations -----------------------------------------------------------------------


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return the order configurations that the name servers have stored."""
    found: dict[str, str] = {}

    async def put_kv(_: NamesrvAdmin, __: str, key: str, value: str) -> None:
        found[key] = value

    async def get_kv(_: NamesrvAdmin, __: str, key: str) -> str | None:
        return found.get(key)

    monkeypatch.setattr(NamesrvAdmin, "put_kv", put_kv)
    monkeypatch.setattr(NamesrvAdmin, "get_kv", get_kv)
    return found


@pytest.mark.parametrize(
    "config", ["", "broker-a", "broker-a:", "broker-a:four", ":4", "a:4,b:4", "a:4;;b:4", 4, None]
)
async def test_an_order_configuration_that_java_cannot_parse_is_not_stored(
    cluster: MemoryCluster, stored: dict[str, str], config: Any
) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        with pytest.raises(InvalidArgument, match="config must be "):
            await admin.set_order_config("T", config)
        with pytest.raises(InvalidArgument, match="name of the topic is empty"):
            await admin.set_order_config("", "broker-a:4")
    assert stored == {}


@pytest.mark.parametrize("config", ["a:16385", "a:8192;b:8193;", f"a:{'9' * 5000}"])
async def test_an_order_configuration_that_clients_refuse_is_not_stored(
    cluster: MemoryCluster, stored: dict[str, str], config: str
) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        with pytest.raises(InvalidArgument, match="and clients refuse more than 16,384"):
            await admin.set_order_config("T", config)
        stored["T"] = "a:16000"
        with pytest.raises(InvalidArgument, match="16,400 queues at all brokers"):
            await admin.set_order_queues("T", "b", 400)
    assert stored == {"T": "a:16000"}


@pytest.mark.parametrize("config", ["broker-a:4", "a:8192;b:8192", "broker-a:4;"])
async def test_an_order_configuration_is_stored_as_it_is(
    cluster: MemoryCluster, stored: dict[str, str], config: str
) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        await admin.set_order_config("T", config)
    assert stored == {"T": config}


@pytest.mark.parametrize("name", ["", "a:b", "a;b", None, 4])
async def test_queues_of_an_ordered_topic_belong_to_a_named_broker(
    admin: AdminClient, stored: dict[str, str], name: Any
) -> None:
    with pytest.raises(InvalidArgument, match="must be "):
        await admin.set_order_queues("T", name, 4)
    assert stored == {}
    await admin.set_order_queues("T", "broker-a", 4)
    assert await admin.set_order_queues("T", "broker-b", 2) == "broker-a:4;broker-b:2"


# -- settings of servers ------------------------------------------------------------------------


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the bodies of requests that change settings."""
    found: list[bytes] = []

    async def invoke(_: object, code: int, __: object = None, body: bytes = b"") -> None:
        assert code in (RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG)
        found.append(body)

    async def config(_: object) -> dict[str, str]:
        return {"fileReservedTime": "72"}

    monkeypatch.setattr(BrokerAdmin, "invoke", invoke)
    monkeypatch.setattr(Namesrv, "invoke_all", invoke)
    for kind in (BrokerAdmin, NamesrvAdmin):
        monkeypatch.setattr(kind, "config", config)
    return found


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"fileReservdTime": "48"}, "has no setting fileReservdTime: give is_forced=True to send"),
        ({"fileReservdTime": "48"}, "did you mean fileReservedTime?"),
        ({}, "the changes must be a dictionary of settings, such as {'fileReservedTime': '72'}"),
        ("fileReservedTime=48", "the changes must be a dictionary of settings"),
        ({"fileReservedTime": 48}, "value of fileReservedTime must be a string of one line"),
        ({"fileReservedTime": "48\nbrokerName=x"}, "must be a string of one line"),
        ({"": "48"}, "the name of a setting is one word, not ''"),
        ({"a=b": "48"}, "the name of a setting is one word"),
        ({4: "48"}, "the name of a setting is one word, not 4"),
    ],
)
@pytest.mark.parametrize("is_namesrv", [False, True])
async def test_settings_that_a_server_would_ignore_are_not_sent(
    cluster: MemoryCluster, sent: list[bytes], changes: Any, text: str, *, is_namesrv: bool
) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        server = admin.namesrv if is_namesrv else admin.broker(cluster.broker.address)
        with pytest.raises(InvalidArgument, match=re.escape(text)):
            await server.update_config(changes)
    assert sent == []


async def test_unknown_settings_can_be_forced(cluster: MemoryCluster, sent: list[bytes]) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        for server in (admin.namesrv, admin.broker(cluster.broker.address)):
            await server.update_config({"fileReservedTime": "48"})
            await server.update_config({"rocketmqs": "own"}, is_forced=True)
    assert sent == [b"fileReservedTime=48\n", b"rocketmqs=own\n"] * 2
