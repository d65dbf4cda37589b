# SPDX-License-Identifier: Apache-2.0
"""Pages of queue entries change on the disk while a consumer group reads: it gets every message."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

import pytest

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    Message,
    MessageExt,
    Producer,
    ProducerOptions,
    PushConsumer,
    PushOptions,
)
from cometmq.peers.suite import Suite, running_suite

TOPIC: Final = "paged"
COUNT: Final = 2_000
ENTRY_BYTES: Final = 20
PAGE_BYTES: Final = 4_096
DEADLINE_S: Final = 120


async def send(suite: Suite, filler: bytes) -> None:
    async with Producer("makers", options=ProducerOptions(namesrv=suite.namesrv)) as producer:
        for start in range(0, COUNT, 50):
            async with asyncio.TaskGroup() as group:
                for number in range(start, start + 50):
                    body = b"%d " % number + filler
                    group.create_task(producer.send(Message(TOPIC, body, tag=f"t{number % 2}")))


def queue_files(suite: Suite) -> list[Path]:
    return [it for it in suite.data.rglob(f"consumequeue/{TOPIC}/*/*") if it.is_file()]


def entry_count(path: Path) -> int:
    return -(-len(path.read_bytes().rstrip(b"\0")) // ENTRY_BYTES)


async def until_written(suite: Suite) -> dict[Path, int]:
    """Return the files of the queues and their sizes, once they have all entries."""
    async with asyncio.timeout(DEADLINE_S):
        while sum(map(entry_count, queue_files(suite))) < COUNT:  # noqa: ASYNC110  # files
            await asyncio.sleep(0.1)
    return {it: entry_count(it) * ENTRY_BYTES for it in queue_files(suite)}


def damage(path: Path, end: int, random: Random, kind: str) -> None:
    """Change the page, or an entry, at a random place of a file's entries."""
    size = PAGE_BYTES if kind == "page" else ENTRY_BYTES
    place = random.randrange(end) // size * size
    with path.open("r+b") as file:
        file.seek(place)
        file.write(bytes(size) if kind == "page" else random.randbytes(12))


@pytest.mark.parametrize("expression", ["*", "t0 || t1"])
@pytest.mark.parametrize("kind", ["page", "entry"])
async def test_a_group_gets_every_message_once(
    tmp_path: Path, random: Random, kind: str, expression: str
) -> None:
    got: Counter[bytes] = Counter()
    is_complete = asyncio.Event()

    async def listen(messages: list[MessageExt]) -> ConsumeResult:
        got.update(it.body.split()[0] for it in messages)
        if len(got) == COUNT:
            is_complete.set()
        return ConsumeResult.SUCCESS

    with running_suite(tmp_path) as suite:
        await send(suite, bytes(500))
        files = await until_written(suite)
        for path, end in files.items():
            damage(path, end, random, kind)
        options = PushOptions(
            namesrv=suite.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET, pull_interval_ms=20
        )
        consumer = PushConsumer(f"readers-{kind}", listener=listen, options=options)
        consumer.subscribe(TOPIC, expression)
        async with consumer:
            while not is_complete.is_set():
                path = random.choice(list(files))
                damage(path, files[path], random, kind)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await is_complete.wait()
        assert set(got.values()) == {1}
        log = (tmp_path / "log").read_text()
        assert "records.damaged" not in log
        assert "queue.repaired" in log
