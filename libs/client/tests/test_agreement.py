# SPDX-License-Identifier: Apache-2.0
"""Warnings about members of a group that consume differently; each warning shows both sides."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client import ClientOptions, MessageModel, PushConsumer, PushOptions, ServerError
from cometmq.client.consume.queues import agreement
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.codes import RequestCode
from cometmq.testing.client.listening import logged

ASKED = RequestCode.GET_CONSUMER_CONNECTION_LIST
MISMATCHED = "subscription.mismatched"


@pytest.fixture(autouse=True)
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "SETTLE_MS", 0)


def member(
    cluster: MemoryCluster, *topics: str, options: PushOptions | None = None
) -> PushConsumer:
    consumer = PushConsumer("cg", cluster.namesrv, listener=print, options=options)
    for topic in topics:
        name, _, tags = topic.partition(":")
        consumer.subscribe(name, tags or "*")
    return consumer


@pytest.mark.parametrize(
    ("first", "second", "topic", "filters"),
    [
        (["T:a"], ["T:b || c"], "T", {"a", "'b || c'"}),
        (["T"], ["U"], "T", {"*", "nothing"}),
        (["T"], ["T", "U"], "U", {"*", "nothing"}),
    ],
)
async def test_members_that_subscribe_differently(
    cluster: MemoryCluster,
    caplog: pytest.LogCaptureFixture,
    first: list[str],
    second: list[str],
    topic: str,
    filters: set[str],
) -> None:
    async with member(cluster, *first) as one:
        await asyncio.sleep(0.01)  # versions of subscriptions are in milliseconds
        async with member(cluster, *second) as other:
            # Both members may warn, each about a different topic, in the order of their heartbeats.
            await eventually(
                lambda: any(f" topic={topic} " in text for text in logged(caplog, MISMATCHED))
            )
            line = next(text for text in logged(caplog, MISMATCHED) if f" topic={topic} " in text)
            ids = (one.client_id, other.client_id)
    assert f"group=cg topic={topic} client_id=" in line
    assert all(f"wants={text} " in line for text in filters)
    assert all(client_id in line for client_id in ids)
    assert "the same subscriptions" in line


def options_of(model: MessageModel, folder: Path, *, heartbeat_ms: int = 30_000) -> PushOptions:
    return PushOptions(
        message_model=model,
        instance_name=model.value,
        offsets_dir=str(folder),
        heartbeat_interval_ms=heartbeat_ms,
    )


@pytest.mark.parametrize("first", MessageModel)
async def test_the_first_member_warns_of_a_member_that_consumes_differently(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, tmp_path: Path, first: MessageModel
) -> None:
    (second,) = set(MessageModel) - {first}
    async with (
        member(cluster, "T", options=options_of(first, tmp_path)) as one,
        member(cluster, "T", options=options_of(second, tmp_path)) as other,
    ):
        await eventually(lambda: logged(caplog, "group.mixed"))
        (line,) = logged(caplog, "group.mixed")
        assert f"group=cg client_id={one.client_id} message_model={first} " in line
        assert f"other_client_id={other.client_id} other_message_model={second} " in line
        assert "give all members the same message_model" in line
    assert not logged(caplog, MISMATCHED)


async def test_each_member_warns_once_of_a_mixed_group(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """The later member sees the other model only after a heartbeat of the earlier member."""
    one, other = (
        member(cluster, "T", options=options_of(model, tmp_path, heartbeat_ms=interval_ms))
        for model, interval_ms in zip(MessageModel, (200, 330), strict=True)
    )
    async with one, other:
        await eventually(lambda: len(logged(caplog, "group.mixed")) == 2)
        count = cluster.broker.requests[ASKED]
        for consumer in (one, other):
            consumer._work.member.wake()  # type: ignore[union-attr]
        await eventually(lambda: cluster.broker.requests[ASKED] >= count + 4)
        ids = {one.client_id, other.client_id}
    texts = logged(caplog, "group.mixed")
    assert len(texts) == 2
    assert {text.split("client_id=")[1].split()[0] for text in texts} == ids


async def test_equal_members_are_compared_quietly(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture
) -> None:
    async with member(cluster, "T:a||b") as one, member(cluster, "T:b || a"):
        await eventually(lambda: cluster.broker.requests[ASKED] >= 2)
        count = cluster.broker.requests[ASKED]
        one._work.member.wake()  # type: ignore[union-attr]
        await eventually(lambda: cluster.broker.requests[ASKED] > count)
    assert not logged(caplog, MISMATCHED)
    assert not logged(caplog, "group.mixed")


async def test_a_broker_that_refuses_the_comparison_is_asked_again_later(
    cluster: MemoryCluster, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    cluster.broker.fail(ASKED, ServerError("not for clients"), times=2)
    one, other = (
        member(cluster, "T", options=options_of(model, tmp_path, heartbeat_ms=200))
        for model in MessageModel
    )
    async with one, other:
        await eventually(lambda: logged(caplog, "group.mixed"))
        assert cluster.broker.requests[ASKED] > 2


NOW_MS = 1_000_000


class Beating:
    """A client instance, reduced to the times of its heartbeats."""

    def __init__(self, age_ms: int) -> None:
        self.options = ClientOptions(heartbeat_interval_ms=30_000)
        self.heartbeats = SimpleNamespace(sent_ms=NOW_MS - age_ms)


@pytest.mark.parametrize(
    ("age_ms", "rounds", "pause_ms"),
    [
        (0, 0, 27_000),
        (0, 1, 29_000),
        (0, 2, 29_700),
        (0, 3, 297_000),
        (0, 4, 299_000),
        (20_000, 0, 7_000),
        (27_000, 0, 30_000),
        (27_000, 1, 32_000),  # 2 s would be before the same heartbeat
        (31_000, 2, 30_000),
    ],
)
def test_comparisons_come_shortly_before_heartbeats(
    monkeypatch: pytest.MonkeyPatch, age_ms: int, rounds: int, pause_ms: int
) -> None:
    monkeypatch.setattr(agreement, "monotonic_ms", lambda: NOW_MS)
    parts: Any = SimpleNamespace(
        instance=Beating(age_ms), group="cg", subscriptions={}, options=PushOptions()
    )
    checks = agreement.Agreement(parts)
    checks._round = rounds
    assert checks._pause_ms() == pause_ms
