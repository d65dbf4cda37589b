# SPDX-License-Identifier: Apache-2.0
"""A master and its slave as separate processes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cometmq.peers.ports import free_broker_port
from cometmq.remoting.codes import ResponseCode
from cometmq.remoting.errors import CommandError
from cometmq.testing.broker.clients import Client, connected
from cometmq.testing.broker.process import BrokerProcess, RecordingNamesrv

DEADLINE_S = 60
FILES = {"mappedFileSizeCommitLog": "65536", "mappedFileSizeConsumeQueue": "2000"}


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  # looks at logs and files
            await asyncio.sleep(0.02)


def broker(folder: Path, namesrv: RecordingNamesrv, **settings: str) -> BrokerProcess:
    folder.mkdir()
    values = {
        "namesrvAddr": namesrv.address,
        "listenPort": str(free_broker_port()),
        "slaveSyncDelayMills": "100",
        "slaveSyncIntervalMills": "200",
        **FILES,
    }
    return BrokerProcess(folder, **{**values, **settings})


@asynccontextmanager
async def pair(
    folder: Path, namesrv: RecordingNamesrv | None = None, **settings: str
) -> AsyncIterator[tuple[BrokerProcess, BrokerProcess]]:
    namesrv = namesrv or RecordingNamesrv()
    await namesrv.start()
    try:
        async with broker(folder / "master", namesrv, **settings) as master:
            of_slave = {**settings, "brokerRole": "SLAVE", "brokerId": "1"}
            async with broker(folder / "slave", namesrv, **of_slave) as slave:
                await until(lambda: has_event(slave, "replica.following"))
                yield master, slave
    finally:
        await namesrv.stop()


def has_event(process: BrokerProcess, name: str) -> bool:
    return any(event.get("event") == name for event in process.events)


async def send_all(client: Client, start: int, count: int) -> list[bytes]:
    bodies = [b"%d " % number * 20 for number in range(start, start + count)]
    for first in range(0, count, 50):
        async with asyncio.TaskGroup() as group:
            for body in bodies[first : first + 50]:
                group.create_task(client.send(body))
    return bodies


async def stored(client: Client) -> list[bytes]:
    return [record.body for record in await client.all_messages()]


async def wait_for_messages(client: Client, count: int) -> list[bytes]:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                found = await stored(client)
            except CommandError as error:
                if error.code != ResponseCode.TOPIC_NOT_EXIST:  # not copied yet
                    raise
                found = []
            if len(found) >= count:
                return found
            await asyncio.sleep(0.05)


async def has_committed(client: Client, offset: int) -> bool:
    try:
        return await client.committed() == offset
    except CommandError:  # the group or its offset is not copied yet
        return False


def log_of(process: BrokerProcess) -> bytes:
    folder = process.folder / "store" / "commitlog"
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


async def test_a_slave_serves_what_its_master_stores(tmp_path: Path) -> None:
    namesrv = RecordingNamesrv()
    async with (
        pair(tmp_path, namesrv) as (master, slave),
        connected(master) as client,
        connected(slave) as reader,
    ):
        sent = await send_all(client, 0, 1_000)
        await client.commit(77)
        found = await wait_for_messages(reader, len(sent))
        assert sorted(found) == sorted(sent)
        await until(lambda: log_of(master).rstrip(b"\0") == log_of(slave).rstrip(b"\0"))
        async with asyncio.timeout(DEADLINE_S):
            while not await has_committed(reader, 77):  # noqa: ASYNC110  # asks a broker
                await asyncio.sleep(0.05)
        with pytest.raises(CommandError) as refused:
            await reader.send(b"no")
        assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
        async with asyncio.TaskGroup() as group:
            held = group.create_task(reader.pull(len(sent), wait_ms=50_000))
            await asyncio.sleep(0.2)
            assert not held.done()
            await client.send(b"wakes the slave's pull")
            assert (await asyncio.wait_for(held, 60)).code == 0
        await master.stop()
        assert len(await stored(reader)) == len(sent) + 1
        await slave.stop()
    assert [left.broker_id for left in namesrv.unregistered] == [0, 1]


async def test_kills_of_both_sides_end_in_equal_logs(tmp_path: Path) -> None:
    sent: list[bytes] = []
    async with pair(tmp_path) as (master, slave):
        for round_number in range(3):
            async with connected(master) as client:
                sent += await send_all(client, len(sent), 700)
                if round_number == 1:
                    await slave.kill()
                    sent += await send_all(client, len(sent), 700)
                    await slave.start()
            if round_number == 2:
                await master.kill()
                await master.start()
        async with connected(master) as client, connected(slave) as reader:
            sent += await send_all(client, len(sent), 50)
            assert sorted(await wait_for_messages(reader, len(sent))) == sorted(sent)
            assert await stored(reader) == await stored(client)
        await until(lambda: log_of(master).rstrip(b"\0") == log_of(slave).rstrip(b"\0"))


async def test_a_sync_master_tells_whether_a_slave_has_the_message(tmp_path: Path) -> None:
    async with (
        pair(tmp_path, brokerRole="SYNC_MASTER") as (master, slave),
        connected(master) as client,
    ):
        assert await code_of(client) == ResponseCode.SUCCESS
        await slave.kill()
        await until(lambda: has_event(master, "slave.disconnected"))
        assert await code_of(client) == ResponseCode.SLAVE_NOT_AVAILABLE
        assert await code_of(client, properties="WAIT\1false") == ResponseCode.SUCCESS
        await slave.start()
        async with asyncio.timeout(DEADLINE_S):
            while await code_of(client) == ResponseCode.SLAVE_NOT_AVAILABLE:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert await code_of(client) == ResponseCode.SUCCESS


async def code_of(client: Client, *, properties: str = "") -> int:
    """Send a message; return the answer's code."""
    try:
        return (await client.send(b"body", properties=properties)).code
    except CommandError as error:
        return error.code


async def test_a_slave_with_another_file_size_is_told_why(tmp_path: Path) -> None:
    namesrv = RecordingNamesrv()
    await namesrv.start()
    async with broker(tmp_path / "master", namesrv) as master:
        changes = {"brokerRole": "SLAVE", "brokerId": "1", "mappedFileSizeCommitLog": "131072"}
        async with connected(master) as client:
            await client.send(b"one")
        async with broker(tmp_path / "slave", namesrv, **changes) as slave:
            await until(lambda: has_event(slave, "replica.unfit"))
            (event,) = [one for one in slave.events if one.get("event") == "replica.unfit"]
            assert event["reason"] == "file-size"
            assert "mappedFileSizeCommitLog" in event["error"]
    await namesrv.stop()


async def test_a_slave_without_name_servers_follows_the_address_of_its_setting(
    tmp_path: Path,
) -> None:
    namesrv = RecordingNamesrv()  # never started
    port = free_broker_port()
    none = {"namesrvAddr": ""}
    address = {"haMasterAddress": f"127.0.0.1:{port + 1}"}
    role = {"brokerRole": "SLAVE", "brokerId": "1"}
    async with (
        broker(tmp_path / "master", namesrv, listenPort=str(port), **none) as master,
        broker(tmp_path / "slave", namesrv, **none, **address, **role) as slave,
        connected(master) as client,
    ):
        await send_all(client, 0, 100)
        await until(lambda: log_of(master).rstrip(b"\0") == log_of(slave).rstrip(b"\0") != b"")
        await until(lambda: has_event(slave, "replica.following"))


async def test_a_wrong_address_of_the_master_is_named(tmp_path: Path) -> None:
    settings = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": "no address"}
    process = BrokerProcess(tmp_path, **settings)
    with pytest.raises(AssertionError, match="haMasterAddress=no address: must be host:port"):
        await process.start()
    await process.kill()


async def test_a_slave_needs_an_id(tmp_path: Path) -> None:
    process = BrokerProcess(tmp_path, brokerRole="SLAVE")
    with pytest.raises(AssertionError, match="brokerId"):
        await process.start()
    await process.kill()
