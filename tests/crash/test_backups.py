# SPDX-License-Identifier: Apache-2.0
"""Copies of a stopped and of a running broker's folder, made as the guides describe."""

import asyncio
import copy
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import pytest
from tests.crash.acknowledged import Acknowledged
from tests.crash.workload import DELAYED_TOPIC, GROUP, QUEUE_COUNT, TOPIC, Workload

from cometmq.peers.backups import copy_in_order, stream_in_order
from cometmq.peers.broker.child import SMALL_FILES, BrokerChild, until
from cometmq.peers.broker.client import Client
from cometmq.peers.broker.store_files import judge_queues, read_log
from cometmq.store.inspection.verification import StoreState
from cometmq.store.inspection.verify import verify_store
from cometmq.store.settings import StoreSettings

SETTINGS: Final = {
    "messageDelayLevel": "300s 1s 2s",
    "flushIntervalConsumeQueue": "150",
    "mappedFileSizeCommitLog": str(4 << 20),
    "diskSpaceCleanForciblyRatio": "100",
    "diskSpaceWarningLevelRatio": "100",
}
INDEX_SHAPE: Final = StoreSettings(
    max_hash_slot_num=int(SMALL_FILES["maxHashSlotNum"]),
    max_index_num=int(SMALL_FILES["maxIndexNum"]),
)
COPY_COUNT: Final = 4
MESSAGES_BETWEEN: Final = 1_500
WAIT_S: Final = 240


class Moment(NamedTuple):
    """A copy of the folder, and everything acknowledged before it began."""

    folder: Path
    promised: Acknowledged


def running(broker: BrokerChild, to: Path) -> None:
    copy_in_order(broker.store, to)


def streamed(broker: BrokerChild, to: Path) -> None:
    stream_in_order(broker.store, to)


def snapshot(broker: BrokerChild, to: Path) -> None:
    """Suspend the process and copy its folder, so that all files are from the same moment."""
    os.kill(broker.pid, signal.SIGSTOP)
    try:
        os.waitpid(broker.pid, os.WUNTRACED)  # threads complete their system calls first
        shutil.copytree(broker.store, to)
    finally:
        os.kill(broker.pid, signal.SIGCONT)


def acknowledged_now(promised: Acknowledged) -> Acknowledged:
    now = copy.copy(promised)  # later messages in the copy are attempted ones, too
    now.places = {queue: dict(there) for queue, there in promised.places.items()}
    now.delayed, now.topics = dict(promised.delayed), dict(promised.topics)
    now.groups, now.commit_min = dict(promised.groups), dict(promised.commit_min)
    now.deleted_topics = set(promised.deleted_topics)
    return now


async def copy_under_load(
    broker: BrokerChild, random: Random, folder: Path, make: Callable[[BrokerChild, Path], None]
) -> list[Moment]:
    """Copy the running broker's folder several times, and kill the broker."""
    promised, moments = Acknowledged(), []

    async def die() -> None:
        for number in range(1, COPY_COUNT + 1):

            async def has_work(least: int = number * MESSAGES_BETWEEN) -> bool:
                return promised.count >= least

            await until(has_work, WAIT_S)
            moments.append(Moment(folder / str(number), acknowledged_now(promised)))
            moments[-1].folder.mkdir()
            await asyncio.to_thread(make, broker, moments[-1].folder / "store")
        broker.kill()

    await Workload(broker.address, promised, random, 0).until_death(die)
    for moment in moments:  # topics that were deleted later may be deleted in the copy
        kept = moment.promised.topics.keys() & promised.topics.keys()
        moment.promised.topics = {name: promised.topics[name] for name in kept}
    return moments


async def look(broker: BrokerChild, promised: Acknowledged) -> list[str]:
    """Return the acknowledged data missing from a broker started on a copy."""
    wrong, queues = [], {}
    async with Client(broker.address) as client:
        for queue in [(TOPIC, queue_id) for queue_id in range(QUEUE_COUNT)]:
            minimum, queues[queue] = await client.read_queue(*queue)
            wrong += promised.judge_queue(queue, minimum, queues[queue], log_begin=0)
            wrong += promised.judge_commit(queue, await client.committed(GROUP, *queue))
        wrong += promised.judge_once(queues)
        wrong += promised.judge_tables(await client.topics(), await client.groups())

        async def has_delayed() -> bool:
            return not promised.judge_delayed((await client.read_queue(DELAYED_TOPIC, 0))[1])

        await until(has_delayed, WAIT_S)
    return wrong


async def use(folder: Path, promised: Acknowledged) -> None:
    """Start a broker on a copy, compare everything, and stop it cleanly."""
    with BrokerChild(folder, **SETTINGS) as broker:
        await broker.start()
        assert not (await look(broker, promised))
        assert await broker.stop() == 0
    assert not judge_queues(broker.store, read_log(broker.store)[0])
    assert verify_store(str(broker.store), settings=INDEX_SHAPE).state is StoreState.HEALTHY


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("make", [running, streamed, snapshot])
async def test_a_copy_of_a_running_broker_has_all_that_was_acknowledged_before(
    tmp_path: Path, random: Random, make: Callable[[BrokerChild, Path], None]
) -> None:
    with BrokerChild(tmp_path, **SETTINGS) as broker:
        await broker.start()
        moments = await copy_under_load(broker, random, tmp_path, make)
    assert len(moments) == COPY_COUNT
    for moment in moments:
        found = verify_store(str(moment.folder / "store"), settings=INDEX_SHAPE)
        assert (found.state, found.findings) == (StoreState.NEEDS_RECOVERY, [])
        await use(moment.folder, moment.promised)


@pytest.mark.timeout(1800)
async def test_a_copy_of_a_stopped_broker_has_everything(tmp_path: Path, random: Random) -> None:
    broker, promised = BrokerChild(tmp_path, **SETTINGS), Acknowledged()

    async def stop() -> None:
        async def has_work() -> bool:
            return promised.count >= MESSAGES_BETWEEN

        await until(has_work, WAIT_S)
        assert await broker.stop() == 0

    with broker:
        await broker.start()
        await Workload(broker.address, promised, random, 0).until_death(stop)
    folder = tmp_path / "copy"
    folder.mkdir()
    shutil.copytree(broker.store, folder / "store")
    found = verify_store(str(folder / "store"), settings=INDEX_SHAPE)
    assert (found.state, found.findings) == (StoreState.HEALTHY, [])
    await use(folder, promised)
