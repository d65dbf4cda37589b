# SPDX-License-Identifier: Apache-2.0
"""A topic is deleted and created again, and the broker is killed soon afterwards."""

import asyncio
from pathlib import Path
from typing import Final

import pytest

from cometmq.remoting.codes import RequestCode
from cometmq.remoting.commands.send import SendMessageV2
from cometmq.remoting.commands.topics import DeleteTopicInBroker
from cometmq.remoting.names import AUTO_CREATE_TOPIC
from cometmq.store.recovery.checkpoint import Progress
from cometmq.testing.broker.broker_groups import running_group
from cometmq.testing.broker.clients import Client
from cometmq.testing.broker.process import BrokerProcess

QUEUE_COUNT: Final = 4
TROUBLES: Final = {"log.damaged", "log.truncated", "records.damaged", "queues.rebuilt"}


async def send(client: Client, body: bytes, queue_id: int = 0) -> None:
    header = SendMessageV2("P", "T", AUTO_CREATE_TOPIC, QUEUE_COUNT, queue_id, 0, 0, 0, "")
    await client.invoke(RequestCode.SEND_MESSAGE_V2, header, body)


async def delete(client: Client) -> None:
    await client.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker("T"))


async def until_saved(store: Path, count: int) -> None:
    """Wait until a checkpoint covers `count` messages."""
    async with asyncio.timeout(120):
        while (progress := saved(store)) is None or progress.entry_count < count:  # noqa: ASYNC110  # a file
            await asyncio.sleep(0.02)


def saved(store: Path) -> Progress | None:
    path = store / "progress"
    return Progress.decode(path.read_bytes()) if path.exists() else None


async def check(broker: BrokerProcess, expected: list[bytes]) -> None:
    """The restarted broker has the messages of the new topic, and no others."""
    broker.events.clear()
    await broker.start()
    assert not TROUBLES & {event["event"] for event in broker.events}
    client = Client(broker.address)
    assert [record.body for record in await client.all_messages()] == expected
    await client.send(b"next")
    assert [record.body for record in await client.all_messages()] == [*expected, b"next"]
    await client.close()


@pytest.mark.parametrize("pause_ms", [0, 50, 200, 600])
@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "unsaved"])
@pytest.mark.parametrize("native", ["true", "false"])
async def test_an_acknowledged_message_of_a_new_topic_survives_a_kill(
    tmp_path: Path, native: str, pause_ms: int, *, is_saved: bool
) -> None:
    async with BrokerProcess(tmp_path, nativeLaneEnable=native) as broker:
        client = Client(broker.address)
        for number in range(5):
            await send(client, b"old %d" % number)
        if is_saved:
            await until_saved(tmp_path / "store", 5)
        await delete(client)
        await send(client, b"new")
        await asyncio.sleep(pause_ms / 1000)
        await broker.kill()
        await client.close()
        await check(broker, [b"new"])


@pytest.mark.parametrize("native", ["true", "false"])
async def test_a_large_topic_that_is_deleted_twice(tmp_path: Path, native: str) -> None:
    async with BrokerProcess(tmp_path, nativeLaneEnable=native) as broker:
        client = Client(broker.address)
        for start in range(0, 2_000, 100):
            numbers = range(start, start + 100)
            async with asyncio.TaskGroup() as group:
                for number in numbers:
                    group.create_task(send(client, b"old %d" % number, number % QUEUE_COUNT))
        await until_saved(tmp_path / "store", 2_000)
        for number in range(2):
            await delete(client)
            await send(client, b"new %d" % number)
        await broker.kill()
        await client.close()
        await check(broker, [b"new 1"])
        client = Client(broker.address)
        for queue_id in range(1, QUEUE_COUNT):
            await send(client, b"other", queue_id)
        await client.close()


@pytest.mark.parametrize("native", ["true", "false"])
async def test_a_deleted_topic_stays_deleted_after_a_kill(tmp_path: Path, native: str) -> None:
    async with BrokerProcess(tmp_path, nativeLaneEnable=native) as broker:
        client = Client(broker.address)
        await send(client, b"old")
        await until_saved(tmp_path / "store", 1)
        await delete(client)
        await broker.kill()
        await client.close()
        broker.events.clear()
        await broker.start()
        client = Client(broker.address)
        await client.send(b"new")  # creates the topic again
        assert [record.body for record in await client.all_messages()] == [b"new"]
        await client.close()


async def test_two_killed_members_agree_on_the_new_topic(tmp_path: Path) -> None:
    async with running_group(tmp_path, 2) as group:
        master = group.open_master
        async with group.client(master) as client:
            for number in range(5):
                await client.send(b"old %d" % number)
            for ordinal in (0, 1):
                await until_saved(tmp_path / str(ordinal), 5)
            await delete(client)
            assert (await client.send(b"new")).code == 0
        for ordinal in (0, 1):
            await group.kill(ordinal)
        for ordinal in (0, 1):
            await group.start(ordinal)
        await group.until_master()  # the record names it as in sync before it is open
        await group.until_in_sync(0, 1)
        async with group.client(group.open_master) as client:
            assert [record.body for record in await client.all_messages()] == [b"new"]
