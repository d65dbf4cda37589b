# SPDX-License-Identifier: Apache-2.0

from pathlib import Path

from cometmq.remoting.codes import RequestCode, ResponseCode
from cometmq.remoting.commands.pull import PullMessage, PullMessageReply
from cometmq.remoting.commands.send import SendMessageReply, SendMessageV2
from cometmq.remoting.commands.transactions import EndTransaction
from cometmq.remoting.message.flags import TRANSACTION_COMMIT
from cometmq.remoting.message.ids import parse_offset_message_id
from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.settings import ClientSettings
from cometmq.runtime.clock import SystemClock
from cometmq.testing.broker.process import BrokerProcess

TIMEOUT_MS = 60_000
COUNT = 200  # far more lookups than one turn of the loop allows
HALF = "UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02PGROUP\x01P"
SUBSCRIPTION, SUSPEND = 4, 2


def _client() -> RemotingClient:
    return RemotingClient(ClientSettings(), clock_ms=SystemClock().monotonic_ms)


async def _prepare(client: RemotingClient, address: str) -> EndTransaction:
    """Store a half message; return the request that commits it."""
    header = SendMessageV2("P", "T", "TBW102", 4, 0, 4, 0, 0, HALF)
    response = await client.invoke(
        address, RequestCode.SEND_MESSAGE_V2, header, b"body", timeout_ms=TIMEOUT_MS
    )
    reply = response.header
    assert isinstance(reply, SendMessageReply)
    place = parse_offset_message_id(reply.msg_id).physical_offset
    return EndTransaction("P", reply.queue_offset, place, TRANSACTION_COMMIT, "K")


async def _committed_count(client: RemotingClient, address: str) -> int:
    """Wait until no new messages arrive in the queue; return its end offset."""
    flags, end = SUBSCRIPTION | SUSPEND, 0
    while end < COUNT:
        header = PullMessage("G", "T", 0, end, 1, flags, 0, TIMEOUT_MS // 4, 0, "*")
        response = await client.invoke(
            address, RequestCode.PULL_MESSAGE, header, timeout_ms=TIMEOUT_MS,
            ok=(ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND),
        )  # fmt: skip
        assert isinstance(response.header, PullMessageReply)
        if response.code == ResponseCode.PULL_NOT_FOUND:
            break
        end = response.header.max_offset
    return end


async def test_every_end_of_a_producer_that_disconnects_counts(tmp_path: Path) -> None:
    async with BrokerProcess(tmp_path) as broker:
        producer = _client()
        ends = [await _prepare(producer, broker.address) for _ in range(COUNT)]
        for end in ends:
            await producer.invoke_oneway(
                broker.address, RequestCode.END_TRANSACTION, end, timeout_ms=TIMEOUT_MS
            )
        await producer.close()
        consumer = _client()
        try:
            assert await _committed_count(consumer, broker.address) == COUNT
        finally:
            await consumer.close()
