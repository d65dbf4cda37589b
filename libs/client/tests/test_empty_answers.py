# SPDX-License-Identifier: Apache-2.0
"""Reads of a broker that claims a long queue and has no messages in it come to an end."""

import re

import pytest

from cometmq.client import AdminClient
from cometmq.client.admin.broker_messages import OPEN_MAX, BrokerMessages, Span, TransactionQueues
from cometmq.client.testing import MemoryCluster
from cometmq.client.transfer.pulled import EMPTY_MAX, FILTERED_MAX, EmptyAnswers, Pulled, PullStatus
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.testing.client.listening import QUEUE_0
from cometmq.testing.client.messages import message_ext

ENDLESS = 1 << 62
REFUSED = re.escape(f"answers {EMPTY_MAX + 1:,} pulls in a row of ")


def empty(offset: int) -> Pulled:
    return Pulled(PullStatus.NO_MATCHED, [], offset + 1, 0, ENDLESS)


@pytest.fixture
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let brokers answer each pull with no message and the next offset."""
    pulls = 0

    async def pull(*args: object, **_: object) -> Pulled:
        nonlocal pulls
        pulls += 1
        assert pulls <= EMPTY_MAX + 1
        offset = args[3]
        assert isinstance(offset, int)
        return empty(offset)

    monkeypatch.setattr(BrokerMessages, "pull", pull)


@pytest.mark.usefixtures("endless")
async def test_a_queue_is_not_read_for_ever(admin: AdminClient) -> None:
    with pytest.raises(RemoteProtocolError, match=REFUSED + "T, queue 0, without a message"):
        async for _ in admin.read(QUEUE_0, 0, ENDLESS):
            pass


@pytest.mark.usefixtures("endless")
async def test_half_messages_are_not_read_for_ever(admin: AdminClient) -> None:
    (master,) = (await admin.masters()).values()
    with pytest.raises(RemoteProtocolError, match=REFUSED):
        async for _ in master.read_halves(Span(0, ENDLESS)):
            pass


async def test_a_broker_does_not_choose_how_much_memory_a_list_of_transactions_takes(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AdminClient(cluster.namesrv) as admin:
        (master,) = (await admin.masters()).values()

        async def queues() -> TransactionQueues:
            return TransactionQueues(Span(0, OPEN_MAX + 1), Span(0, 0))

        monkeypatch.setattr(master, "transaction_queues", queues)
        with pytest.raises(RemoteProtocolError, match="says that 268,435,457 half messages wait"):
            async for _ in master.open_transactions():
                pass


def test_a_message_begins_the_count_anew() -> None:
    answers = EmptyAnswers(QUEUE_0)
    for _ in range(3):
        for at in range(EMPTY_MAX):
            answers.check(empty(at))
        answers.check(Pulled(PullStatus.FOUND, [message_ext(0)], 1, 0, ENDLESS))


def test_a_filter_may_reject_many_messages() -> None:
    answers = EmptyAnswers(QUEUE_0, is_filtered=True)
    for at in range(FILTERED_MAX):
        answers.check(empty(at))
    with pytest.raises(RemoteProtocolError, match="100,001 pulls"):
        answers.check(empty(0))
