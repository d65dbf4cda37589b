# SPDX-License-Identifier: Apache-2.0
"""Every limit of the table is filled to its bound: the next entry is refused, and says why."""

import asyncio
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cometmq.namesrv.handlers import HANDLERS
from cometmq.namesrv.kv_config import KvConfig
from cometmq.namesrv.limits import LIMITS
from cometmq.namesrv.namesrv import Namesrv
from cometmq.namesrv.settings import NamesrvSettings
from cometmq.remoting.bodies.topic_config import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigTable,
    encode_register_body,
)
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call
from cometmq.remoting.commands.namesrv import (
    DeleteKvConfig,
    DeleteTopicInNamesrv,
    PutKvConfig,
    RegisterBroker,
)
from cometmq.runtime.incremental import finish
from cometmq.runtime.limits import LimitReached
from cometmq.runtime.settings import load
from cometmq.testing.runtime.clock import FakeClock

BOUNDS = {
    "brokersMax": 12,
    "connectionBrokersMax": 5,
    "topicsPerBrokerMax": 10,
    "routeEntriesMax": 25,
    "kvEntriesMax": 9,
    "kvBytesMax": 2_000,
}
VERSIONS = count(1)
LARGE_BODY = b"{" + b" " * ((16 << 20) - 1_000) + b"}"


class Connection:
    def __init__(self, address: str = "10.0.0.1:4000") -> None:
        self.address = address
        self.is_open = True

    def close(self) -> None: ...


ONE = Connection()


async def _no_file(_path: Path, _encode: Callable[[], bytes]) -> None: ...


@pytest.fixture
def namesrv() -> Namesrv:
    bounds = {name: str(bound) for name, bound in BOUNDS.items()} | {"peerShareMax": "100"}
    settings = load(NamesrvSettings, prefix="COMETMQ_TEST", env={}, cli=bounds)
    return Namesrv(settings, KvConfig(), clock=FakeClock(), save_file=_no_file)


async def register(
    namesrv: Namesrv,
    name: str = "b",
    *topics: str,
    address: str = "",
    connection: Connection = ONE,
    filter_servers: tuple[str, ...] = (),
) -> None:
    table = {topic: TopicConfig(topic_name=topic) for topic in topics}
    body = RegisterBrokerBody(
        list(filter_servers), TopicConfigTable(DataVersion(next(VERSIONS), 1), table)
    )
    header = RegisterBroker(
        broker_name=name, broker_addr=address or f"{name}:1", cluster_name="C",
        ha_server_addr="h:1", broker_id=0,
    )  # fmt: skip
    await answer(
        namesrv,
        Code.REGISTER_BROKER,
        header,
        encode_register_body(body, compressed=False),
        connection,
    )


async def answer(
    namesrv: Namesrv,
    code: Code,
    header: Any,
    body: bytes = b"",
    connection: Connection = ONE,
) -> None:
    result: Any = HANDLERS[code](
        namesrv, Call(int(code), header, body=body, peer=connection, version=401)
    )
    if hasattr(result, "__await__"):
        await result


async def put(namesrv: Namesrv, key: str, value: str = "v") -> None:
    await answer(namesrv, Code.PUT_KV_CONFIG, PutKvConfig("NS", key, value))


async def begin_large(namesrv: Namesrv, _number: int, connection: Connection = ONE) -> None:
    """Begin a registration of 16 MiB, and raise its refusal."""
    header = RegisterBroker(
        broker_name="b", broker_addr="b:1", cluster_name="C", ha_server_addr="h:1", broker_id=0
    )
    work = asyncio.get_running_loop().create_task(
        answer(namesrv, Code.REGISTER_BROKER, header, LARGE_BODY, connection)
    )
    await asyncio.sleep(0)
    if work.done():
        await work


FILLS: Mapping[str, Callable[[Namesrv, int], Any]] = {
    "brokers": lambda namesrv, number: register(
        namesrv, f"b{number}", connection=Connection(f"10.0.0.1:{number}")
    ),
    "connection_brokers": lambda namesrv, number: register(namesrv, f"b{number}"),
    "broker_topics": lambda namesrv, number: register(namesrv, "b", f"T{number}"),
    "route_entries": lambda namesrv, number: register(namesrv, f"b{number // 8}", f"T{number}"),
    "registration_bytes": begin_large,
    "filter_servers": lambda namesrv, number: register(
        namesrv, filter_servers=tuple(f"f{i}" for i in range(number + 1))
    ),
    "all_filter_servers": lambda namesrv, number: register(
        namesrv,
        f"b{number}",
        connection=Connection(f"10.0.0.1:{number}"),
        filter_servers=tuple(f"f{i}" for i in range(8)),
    ),
    "name_chars": lambda namesrv, number: register(namesrv, "b" * (number + 1), address="b:1"),
    "kv_entries": lambda namesrv, number: put(namesrv, f"k{number}"),
    "kv_bytes": lambda namesrv, number: put(namesrv, "k", "v" * 100 * number),
}


async def first_refusal(
    namesrv: Namesrv, fill: Callable[[Namesrv, int], Any], count_max: int
) -> LimitReached:
    for number in range(count_max):
        try:
            await fill(namesrv, number)
        except LimitReached as error:
            return error
    raise AssertionError("nothing was refused")


async def test_namespaces_without_keys_do_not_pile_up(namesrv: Namesrv) -> None:
    for number in range(100):
        await answer(namesrv, Code.PUT_KV_CONFIG, PutKvConfig(f"N{number}", "k", "v"))
        await answer(namesrv, Code.DELETE_KV_CONFIG, DeleteKvConfig(f"N{number}", "k"))
    assert len(namesrv.kv_config.encode()) < 500


def test_every_limit_is_tried_here() -> None:
    assert {limit.name for limit in LIMITS} == FILLS.keys()


@pytest.mark.parametrize("name", FILLS)
async def test_a_full_table_refuses_and_says_why(namesrv: Namesrv, name: str) -> None:
    limit, fill = next(one for one in LIMITS if one.name == name), FILLS[name]
    bound = namesrv.limits.maximum(limit)

    refusal = await first_refusal(namesrv, fill, 3 * bound)

    assert refusal.code == limit.answer
    assert "limit reached: " + limit.counts in refusal.remark
    assert (limit.setting or "the limit is fixed") in refusal.remark
    assert namesrv.limits.refused[name] == 1
    if name in namesrv.limits.used:
        assert 0 < namesrv.limits.used[name]() <= bound


async def test_an_address_leaves_room_for_the_registrations_of_others(namesrv: Namesrv) -> None:
    namesrv.settings = namesrv.settings.updated({"peerShareMax": "50"})
    refusal = await first_refusal(namesrv, begin_large, 100)
    assert "one peer may have 67108864, 50 percent of 134217728" in refusal.remark
    other = Connection("10.0.0.2:4000")
    await begin_large(namesrv, 0, other)
    async with asyncio.timeout(60):
        while namesrv.reading_bytes:  # noqa: ASYNC110  # no event
            await asyncio.sleep(0)
    await begin_large(namesrv, 0)


async def test_what_exists_is_refreshed_at_every_limit(namesrv: Namesrv) -> None:
    topics = [f"T{number}" for number in range(BOUNDS["topicsPerBrokerMax"])]
    await register(namesrv, "b", *topics)
    await register(namesrv, "b", *topics)
    for number in range(BOUNDS["kvEntriesMax"]):
        await put(namesrv, f"k{number}")
    await put(namesrv, "k0", "w")
    assert namesrv.kv_config.get("NS", "k0") == "w"


async def test_filter_servers_of_one_broker_are_counted_once(namesrv: Namesrv) -> None:
    servers = tuple(f"f{number}" for number in range(64))
    for _ in range(3):
        await register(namesrv, "b", filter_servers=servers)
    await register(namesrv, "b", filter_servers=servers[:63])
    await register(namesrv, "c", filter_servers=("f",))
    with pytest.raises(LimitReached, match="Filter servers of all brokers"):
        await register(namesrv, "d", filter_servers=("f",))
    await register(namesrv, "d")


async def test_entries_that_are_gone_make_room(namesrv: Namesrv) -> None:
    for round_ in range(5):
        await register(namesrv, "b", *(f"{round_}-{number}" for number in range(10)))
        for number in range(10):
            header = DeleteTopicInNamesrv(f"{round_}-{number}")
            await answer(namesrv, Code.DELETE_TOPIC_IN_NAMESRV, header)
        assert namesrv.routes.topics.entry_count == 0
        for number in range(9):
            await put(namesrv, f"{round_}-{number}")
            await answer(namesrv, Code.DELETE_KV_CONFIG, DeleteKvConfig("NS", f"{round_}-{number}"))
        assert (namesrv.kv_config.count, namesrv.kv_config.size) == (0, 0)
    for _ in range(5):
        connection = Connection()
        for number in range(4):
            await register(namesrv, f"b{number}", "T", connection=connection)
        namesrv.routes.disconnected(connection)
    assert finish(namesrv.routes.topics.selecting()) == []


async def test_no_address_registers_all_brokers(namesrv: Namesrv) -> None:
    value = msgspec.structs.replace(namesrv.settings.value, peer_share_max=50)
    namesrv.settings = msgspec.structs.replace(namesrv.settings, value=value)
    refusal = await first_refusal(namesrv, FILLS["brokers"], BOUNDS["brokersMax"])
    assert "the address 10.0.0.1 has 6" in refusal.remark
    await register(namesrv, "other", connection=Connection("10.0.0.2:1"))
