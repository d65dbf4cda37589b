# SPDX-License-Identifier: Apache-2.0
"""The blocking clients have the methods of the asynchronous ones, with the same parameters."""

import inspect
from typing import Any

import pytest

from cometmq import client
from cometmq.client import (
    ClientStateError,
    ConsumeFrom,
    LitePullOptions,
    Message,
    TransactionState,
    admin,
    sync,
)
from cometmq.client.sync import loop_thread
from cometmq.client.testing import MemoryCluster, eventually

PAIRS = [
    (getattr(client, name), getattr(sync, name))
    for name in (
        "Producer",
        "TransactionProducer",
        "Transaction",
        "PushConsumer",
        "LitePullConsumer",
        "PullConsumer",
        "ScheduledPull",
    )
]
PAIRS.append((admin.ClientAdmin, sync.ClientAdmin))
INNER = {
    "KIND",  # used by errors
    "OPTIONS",  # used by consumers' own checks
    "check",  # called by brokers
    "judge",  # called by `send_in_transaction`
    "check_outside_calls",  # called by `close`
    "note_failure",  # called by `send_in_transaction`
}
ITERATION = {"__aiter__": "__iter__", "__aenter__": "__enter__", "__aexit__": "__exit__"}


def names(kind: type[Any]) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - INNER


@pytest.mark.parametrize(("slow", "blocking"), PAIRS, ids=lambda kind: kind.__name__)
def test_the_blocking_clients_are_complete(slow: type[Any], blocking: type[Any]) -> None:
    assert names(slow) - names(blocking) == set()
    for name in sorted(names(slow)):
        ours, theirs = getattr(blocking, name), getattr(slow, name)
        if not callable(theirs):
            assert isinstance(ours, type(theirs)), name
            continue
        assert _parameters(ours) == _parameters(theirs), name
        assert not inspect.iscoroutinefunction(ours), name
    for theirs, ours in ITERATION.items():
        assert not hasattr(slow, theirs) or hasattr(blocking, ours), theirs


def _parameters(function: Any) -> list[tuple[str, object, object]]:
    return [
        (name, one.kind, one.default)
        for name, one in inspect.signature(function).parameters.items()
    ]


def test_a_transaction_is_ended_by_the_program(served: MemoryCluster) -> None:
    producer = sync.TransactionProducer(
        "pg", served.namesrv, check=lambda _: TransactionState.UNKNOWN
    )
    with producer:
        kept = producer.begin(Message("T", b"kept"))
        dropped = producer.begin(Message("T", b"dropped"))
        assert kept.is_safe
        assert kept.message.message_id == kept.transaction_id == kept.result.message_id
        assert served.messages("T") == []
        assert kept.end(TransactionState.COMMIT).state is TransactionState.COMMIT
        dropped.end(TransactionState.ROLLBACK)
        with pytest.raises(ClientStateError, match="has ended with COMMIT"):
            kept.end(TransactionState.ROLLBACK)
        loop_thread().run(_until(served, 1))
    assert [message.body for message in served.messages("T")] == [b"kept"]


async def _until(cluster: MemoryCluster, count: int) -> None:
    await eventually(lambda: len(cluster.messages("T")) == count)


def test_admin_calls_over_the_connections_of_a_client(served: MemoryCluster) -> None:
    options = LitePullOptions(consume_from=ConsumeFrom.FIRST_OFFSET, namespace="acme")
    producer = sync.Producer("pg", served.namesrv)
    with pytest.raises(ClientStateError, match="this producer is not started"):
        _ = producer.admin
    with producer:
        sent = producer.send(Message("T", b"x", keys="k"))
        admin = producer.admin
        assert len(admin.queues("T")) == 4
        assert (admin.min_offset(sent.queue), admin.max_offset(sent.queue)) == (0, 1)
        assert admin.search_offset(sent.queue, 0) == 0
        assert admin.view_message(sent.message_id, "T").body == b"x"
        found = admin.query_by_key("T", "k", count_max=1, begin_ms=0, end_ms=1 << 62)
        assert [message.message_id for message in found] == [sent.message_id]
        assert admin.query_by_key("T", "k") == found
    assert producer.group == "pg"
    assert sync.LitePullConsumer("cg", served.namesrv, options=options).group == "cg"
