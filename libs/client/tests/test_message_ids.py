# SPDX-License-Identifier: Apache-2.0
import subprocess
import sys

import pytest

from cometmq.client import AdminClient, BrokerMissing, InvalidArgument, Message, Producer
from cometmq.client.testing import MemoryCluster
from cometmq.client.testing.broker import MemoryBroker
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.errors import QueryNotFound, ServerError
from cometmq.remoting.message.ids import pack_host

FORKING = """
import os
from cometmq.client.namespace import unique_ids
from cometmq.client.settings import ClientOptions

ids = unique_ids(ClientOptions(client_ip="127.0.0.1"))
print(ids.next_id(), flush=True)
child = os.fork()
if child:
    os.waitpid(child, 0)
print(ids.next_id(), flush=True)
"""


def test_a_forked_child_makes_other_ids() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING], capture_output=True, check=True, text=True, timeout=180
    )
    before, child, parent = done.stdout.split()
    assert len(before) == len(child) == 32
    assert child[:20] != before[:20]
    assert parent[:20] == before[:20]


async def test_all_attempts_of_a_send_have_one_id(cluster: MemoryCluster) -> None:
    cluster.broker.fail(RequestCode.SEND_MESSAGE_V2, ServerError("lost"), times=2)
    async with Producer("pg", cluster.namesrv) as producer:
        message = Message("T", b"x")
        result = await producer.send(message)
        again = await producer.send(message)
    assert message.message_id is None
    assert result.message_id != again.message_id
    assert [m.message_id for m in cluster.messages("T")].count(result.message_id) == 1


async def test_a_message_may_be_sent_again_under_its_id(cluster: MemoryCluster) -> None:
    async with Producer("pg", cluster.namesrv) as producer:
        message = Message("T", b"x", message_id=producer.new_message_id())
        first = await producer.send(message)
        second = await producer.send(message)
        batch = await producer.send_batch([message])
    assert first.message_id == second.message_id == batch.message_id == message.message_id
    assert {m.message_id for m in cluster.messages("T")} == {message.message_id}


@pytest.mark.parametrize("day", [0, 30])
async def test_a_message_is_found_by_its_key_whatever_time_the_key_tells(
    cluster: MemoryCluster, day: int
) -> None:
    """mqadmin 4.9.4 begins its search at the day of the key, for which it guesses the month."""
    async with (
        Producer("pg", cluster.namesrv) as producer,
        AdminClient(cluster.namesrv) as admin,
    ):
        now = producer.new_message_id()
        key = f"{now[:-12]}{day * 86_400_000:08X}{now[-4:]}"
        await producer.send(Message("T", b"x", message_id=key))
        assert [it.body for it in await admin.query_by_unique_key("T", key)] == [b"x"]


async def test_an_id_of_the_wrong_kind_names_the_right_call(cluster: MemoryCluster) -> None:
    """Both kinds are 32 hex digits, so only brokers can tell them apart."""
    async with (
        Producer("pg", cluster.namesrv) as producer,
        AdminClient(cluster.namesrv) as admin,
    ):
        sent = await producer.send(Message("T", b"x", keys="k"))
        unique, by_offset = sent.message_id, sent.offset_message_id
        assert len(unique) == len(by_offset) == 32

        with pytest.raises(BrokerMissing, match=r"use view_message\(message_id, topic\)"):
            await admin.stored_message(unique)
        with pytest.raises(InvalidArgument, match=r"32 or 56 hex.*use view_message\(message_id"):
            await admin.stored_message("order-17")
        with pytest.raises(InvalidArgument, match=r"offset message id, .* use stored_message\("):
            await admin.query_by_unique_key("T", by_offset)
        for key, text in (
            (unique, r"unique key of a message .* use query_by_unique_key\("),
            (by_offset, r"offset message id, .* use stored_message\("),
        ):
            for query in (admin.query_by_key, producer.admin.query_by_key):
                with pytest.raises(InvalidArgument, match=text):
                    await query("T", key)

        ours = unique[:8] + "0" * 24
        assert await admin.query_by_key("T", ours) == []
        assert await admin.query_by_unique_key("T", ours) == []
        assert await admin.query_by_key("T", "order-17") == []
        for message_id in (unique, by_offset):
            assert (await admin.view_message(message_id, "T")).body == b"x"
        assert [m.body for m in await admin.query_by_unique_key("T", unique)] == [b"x"]
        assert [m.body for m in await admin.query_by_key("T", "k")] == [b"x"]


@pytest.mark.parametrize("address", [bytes((10, 9, 0, 1)), bytes(15) + b"\1"], ids=["v4", "v6"])
async def test_a_message_is_found_after_its_broker_has_moved(
    monkeypatch: pytest.MonkeyPatch, address: bytes
) -> None:
    """Its id contains the address at which it was stored, such as that of a former container."""
    async with (
        MemoryCluster(("broker-a", "broker-b")) as cluster,
        Producer("pg", cluster.namesrv) as producer,
        AdminClient(cluster.namesrv) as admin,
    ):
        cluster.create_topic("T", queue_count=1)
        ports = {"broker-a": 1, "broker-b": 2}
        with monkeypatch.context() as before:
            host = property(lambda broker: pack_host(address, ports[broker.name]))
            before.setattr(MemoryBroker, "store_host", host)
            sent = [
                await producer.send(Message("T", b"then"), queue=queue)
                for queue in await admin.queues("T")
            ]
        assert {it.queue.broker_name for it in sent} == ports.keys()
        for result in sent:
            message_id = result.offset_message_id
            assert message_id.startswith(address.hex().upper())
            found = await admin.view_message(message_id, "T")
            assert (found.message_id, found.queue) == (result.message_id, result.queue)
            assert (await admin.stored_message(message_id.lower())).queue == result.queue
            with pytest.raises(InvalidArgument, match=r"use stored_message\("):
                await admin.query_by_key("T", message_id)
        with pytest.raises(QueryNotFound):
            await admin.view_message("0A090009" + sent[0].offset_message_id[8:], "T")
