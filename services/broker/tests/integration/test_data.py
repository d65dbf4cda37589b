# SPDX-License-Identifier: Apache-2.0

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.commands.send import RecallMessage, RecallMessageReply
from cometmq.remoting.commands.topics import DeleteTopicInBroker
from cometmq.remoting.errors import CommandError
from cometmq.remoting.message.recall_handle import RecallHandle
from cometmq.remoting.message.record import decode_records
from cometmq.testing.broker.clients import Client, connected
from cometmq.testing.broker.process import BrokerProcess


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
async def test_acknowledged_messages_survive_a_kill(tmp_path: Path, flush: str) -> None:
    acknowledged: list[bytes] = []
    async with BrokerProcess(tmp_path, flushDiskType=flush) as broker:
        async with connected(broker) as client:

            async def produce(number: int) -> None:
                for count in range(50):
                    body = b"%d-%d" % (number, count)
                    await client.send(body)
                    acknowledged.append(body)

            async with asyncio.TaskGroup() as group:
                for number in range(8):
                    group.create_task(produce(number))
        await broker.kill()
        await broker.start()
        async with connected(broker) as client:
            stored = [record.body for record in await client.all_messages()]

    assert sorted(stored) == sorted(acknowledged)
    for number in range(8):
        mine = [body for body in stored if body.startswith(b"%d-" % number)]
        assert mine == [b"%d-%d" % (number, count) for count in range(50)]


async def has_topic(client: Client, topic: str) -> bool:
    found = await client.invoke(RequestCode.GET_ALL_TOPIC_CONFIG)
    return topic in json.loads(found.body)["topicConfigTable"]


async def test_a_deleted_topic_does_not_return_after_a_kill(tmp_path: Path) -> None:
    """Recovery builds the topic's queues again from the log."""
    async with BrokerProcess(tmp_path) as broker:
        async with connected(broker) as client:
            await client.send(b"old", topic="Old")
            await client.invoke(RequestCode.DELETE_TOPIC_IN_BROKER, DeleteTopicInBroker("Old"))
            await broker.kill()
        await broker.start()
        async with connected(broker) as client:
            assert not await has_topic(client, "Old")


async def test_a_topic_whose_configuration_was_removed_returns(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path) as broker:
        async with connected(broker) as client:
            await client.send(b"kept", topic="Kept")
        await broker.kill()
        for file in (tmp_path / "store/config").glob("topics.json*"):
            file.unlink()
        await broker.start()
        async with connected(broker) as client:
            assert await has_topic(client, "Kept")
            assert [one.body for one in await client.all_messages("Kept")] == [b"kept"]


async def test_a_held_pull_is_answered_by_the_next_send(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path) as broker, connected(broker) as client:
        await client.send(b"first")
        async with asyncio.TaskGroup() as group:
            held = group.create_task(client.pull(1, wait_ms=50_000))
            response = await client.pull(0)
            assert not held.done()
            await client.send(b"second")
            answer = await held

    assert response.code == 0
    assert [record.body for record in decode_records(answer.body)] == [b"second"]


async def test_a_stop_answers_held_pulls_and_keeps_everything(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path) as broker:
        async with connected(broker) as client, connected(broker) as other:
            await client.send(b"kept")
            await client.commit(1)
            async with asyncio.TaskGroup() as group:
                held = group.create_task(client.pull(1, wait_ms=50_000))
                await other.pull(0)
                assert await broker.stop() == 0
                answer = await held
            assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert not (tmp_path / "store" / "abort").exists()
        await broker.start()
        async with connected(broker) as client:
            assert [record.body for record in await client.all_messages()] == [b"kept"]
            assert await client.committed() == 1


async def test_a_recalled_message_is_not_delivered_after_a_kill(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path, messageDelayLevel="5s") as broker:
        async with connected(broker) as client:
            for key in ("A", "B"):
                await client.send(key.encode(), properties=f"DELAY\x011\x02UNIQ_KEY\x01{key}")
            handle = RecallHandle("T", "broker-a", 0, "A").encode()
            answer = await client.invoke(RequestCode.RECALL_MESSAGE, RecallMessage("T", handle))
            assert answer.header == RecallMessageReply("A")
        await broker.kill()
        await broker.start()
        async with connected(broker) as client:
            assert (await client.pull(0, wait_ms=30_000)).code == 0
            assert [record.body for record in await client.all_messages()] == [b"B"]


async def test_delayed_messages_are_delivered_once_across_a_kill(tmp_path: Path) -> None:
    settings = {"messageDelayLevel": "200s 5s", "flushCommitLogThoroughInterval": "100"}
    async with BrokerProcess(tmp_path, **settings) as broker:
        async with connected(broker) as client:
            for number in range(5):
                await client.send(b"%d" % number, properties=f"DELAY\x012\x02UNIQ_KEY\x01U{number}")
            assert await client.all_messages() == []
            first = await client.pull(0, wait_ms=30_000)
            assert first.code == 0
        await broker.kill()
        await broker.start()
        async with connected(broker) as client:
            stored: list[Any] = []
            while len(stored) < 5:
                response = await client.pull(len(stored), wait_ms=30_000)
                stored += decode_records(response.body)
            late = await client.pull(5, wait_ms=1_500)

    assert late.code == ResponseCode.PULL_NOT_FOUND
    assert [record.body for record in stored] == [b"0", b"1", b"2", b"3", b"4"]
    assert all(record.properties["REAL_TOPIC"] == "T" for record in stored)


async def test_the_second_port_serves_everything_but_pulls(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path) as broker, connected(broker) as client:
        host, _, port = broker.address.rpartition(":")
        vip = Client(f"{host}:{int(port) - 2}")
        await vip.send(b"x")
        with pytest.raises(CommandError, match="request type 11 not supported"):
            await client.pull(0, address=f"{host}:{int(port) - 2}")
        await vip.close()


def run_broker(file: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cometmq.cli", "broker", "-c", str(file)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


async def test_errors_that_users_can_fix_are_one_line_and_exit_2(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path) as broker:
        port = broker.address.rpartition(":")[2]
        (tmp_path / "port.conf").write_text(
            f"listenPort={port}\nbindAddress=127.0.0.1\nstorePathRootDir={tmp_path}/other\n"
        )
        (tmp_path / "lock.conf").write_text(
            f"listenPort=0\nbindAddress=127.0.0.1\nstorePathRootDir={tmp_path}/store\n"
        )
        (tmp_path / "bad.conf").write_text("listenPort=many\n")
        (tmp_path / "accounts.yml").write_text("accounts: many\n")
        (tmp_path / "acl.conf").write_text(
            f"listenPort=0\naclEnable=true\naclFile={tmp_path}/accounts.yml\n"
            f"storePathRootDir={tmp_path}/guarded\n"
        )
        (tmp_path / "tls.conf").write_text(
            f"listenPort=0\ntls.server.certPath={tmp_path}/no.pem\nstorePathRootDir={tmp_path}/tls\n"
        )
        answers = {
            name: await asyncio.to_thread(run_broker, tmp_path / f"{name}.conf")
            for name in ("port", "lock", "bad", "acl", "tls")
        }

    expected = {
        "port": port,
        "lock": "locked",
        "bad": "listenPort=many",
        "acl": "accounts.yml: accounts is not a list of mappings",
        "tls": "tls.server.certPath",
    }
    for name, word in expected.items():
        assert answers[name].returncode == 2, answers[name].stderr
        line = answers[name].stderr.splitlines()[-1]
        assert line.startswith("cometmq: ")
        assert word in line
