# SPDX-License-Identifier: Apache-2.0
"""The consumer groups of the demo, each with its own behaviour."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.client import ConsumeFrom, MessageExt, MessageModel, PushConsumer, PushOptions
from cometmq.client.admin import AdminClient
from lag_demo import old_messages

ORDERS: Final = "Orders"
ORDER_QUEUES: Final = 4
ORDERS_PER_S: Final = 40
SLOW_PER_S: Final = 25
OLD_PER_S: Final = 1
"""Half the send rate, so unread messages come ever closer to their deletion."""
BEFORE_STOP_S: Final = 12.0
REWIND_AT: Final = 0.65
"""Fraction of the demo after which the offsets are set back."""

Listener = Callable[[list[MessageExt]], Awaitable[None]]


class Stage(msgspec.Struct, frozen=True):
    """Settings that all groups share."""

    namesrv: str
    folder: Path
    seconds: float


class Actor(msgspec.Struct, frozen=True):
    """A group and the status that the report must give it."""

    group: str
    does: str
    status: str
    """Status that the report must show."""
    play: Callable[[Stage, str], Coroutine[Any, Any, None]]
    """Runs until cancelled."""


async def consume(
    stage: Stage, group: str, listener: Listener, topic: str = ORDERS, **options: Any
) -> None:
    """Run a consumer until cancelled."""
    settings = PushOptions(
        consume_from=ConsumeFrom.FIRST_OFFSET,
        instance_name=group,
        persist_offset_interval_ms=1_000,
        rebalance_interval_ms=1_000,
        drain_ms=200,
        **options,
    )
    consumer = PushConsumer(group, stage.namesrv, listener=listener, options=settings)
    consumer.subscribe(topic)
    async with consumer:
        await asyncio.Event().wait()


def paced(rate: float) -> Listener:
    """Return a listener that consumes `rate` messages per second, one call at a time."""

    async def listen(messages: list[MessageExt]) -> None:
        await asyncio.sleep(len(messages) / rate)

    return listen


async def at_once(messages: list[MessageExt]) -> None:
    """Consume without doing any work."""


async def never(messages: list[MessageExt]) -> None:
    """Hang, like a listener that waits for a lock."""
    await asyncio.Event().wait()


async def healthy(stage: Stage, group: str) -> None:
    await consume(stage, group, at_once)


async def slow(stage: Stage, group: str) -> None:
    await consume(stage, group, paced(SLOW_PER_S), concurrency=1)


async def stuck(stage: Stage, group: str) -> None:
    """Consume with a listener that never returns."""
    await consume(stage, group, never, concurrency=1)


async def stopped(stage: Stage, group: str) -> None:
    """Consume for a few seconds, then leave."""
    try:
        async with asyncio.timeout(BEFORE_STOP_S):
            await consume(stage, group, at_once)
    except TimeoutError:
        return


async def rewound(stage: Stage, group: str) -> None:
    """Keep up until the offsets are set back, then catch up slowly."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(stage.seconds * REWIND_AT):
            await consume(stage, group, at_once)
    async with AdminClient(stage.namesrv) as admin:
        for broker in (await admin.masters()).values():
            for queue_id in range(ORDER_QUEUES):
                await broker.commit_offset(group, ORDERS, queue_id, 0)
    await consume(stage, group, paced(SLOW_PER_S), concurrency=1)


async def broadcasting(stage: Stage, group: str) -> None:
    """Start members that each read all messages and keep their own offsets."""
    model = {"message_model": MessageModel.BROADCASTING, "offsets_dir": str(stage.folder / group)}
    await consume(stage, group, at_once, **model)


async def losing(stage: Stage, group: str) -> None:
    """Read old messages too slowly to finish before they are deleted."""
    await consume(stage, group, paced(OLD_PER_S), old_messages.TOPIC, concurrency=1)


ACTORS: Final = (
    Actor("billing", "keeps up", "OK", healthy),
    Actor("warehouse", "takes 25 messages a second while 40 come", "SLOW", slow),
    Actor("newsletter", "was shut down", "STOPPED", stopped),
    Actor("search-index", "hangs in its listener", "STALLED", stuck),
    Actor("audit", "had its offsets set back", "REWIND", rewound),
    Actor("price-boards", "broadcasts", "BROADCAST", broadcasting),
    Actor("tax-archive", "reads messages that are almost three days old", "AT_RISK", losing),
)
