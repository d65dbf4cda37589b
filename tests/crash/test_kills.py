# SPDX-License-Identifier: Apache-2.0
"""After kill -9 at random moments, no acknowledged message is lost, changed or duplicated."""

import asyncio
import sys
import time
from pathlib import Path
from random import Random
from typing import Final

import pytest
from tests.crash.acknowledged import Acknowledged
from tests.crash.workload import DELAYED_TOPIC, GROUP, QUEUE_COUNT, TOPIC, Workload

from cometmq.peers.broker.child import SMALL_FILES, BrokerChild
from cometmq.peers.broker.client import Client
from cometmq.peers.broker.store_files import judge_queues, log_begin, read_log
from cometmq.store.inspection.verification import StoreState
from cometmq.store.inspection.verify import verify_store
from cometmq.store.settings import StoreSettings

KILLS_PER_STORE: Final = 10
LOAD_S_MAX: Final = 1.2
LONG_LOAD_S_MAX: Final = 3.0
ACKNOWLEDGED_MIN: Final = 150
LOAD_TIMEOUT_S: Final = 60.0
KEYS_ASKED_FOR: Final = 150
DELAY_TIMEOUT_S: Final = 30.0

SETTINGS: Final = {
    "messageDelayLevel": "300s 1s 2s",
    "flushConsumerOffsetInterval": "200",
    "flushIntervalConsumeQueue": "150",
    "cleanResourceInterval": "50",
    "diskSpaceCleanForciblyRatio": "100",
    "diskSpaceWarningLevelRatio": "100",
}
INDEX_SHAPE: Final = StoreSettings(
    max_hash_slot_num=int(SMALL_FILES["maxHashSlotNum"]),
    max_index_num=int(SMALL_FILES["maxIndexNum"]),
)
FLAVOURS: Final = {
    "sync": {"flushDiskType": "SYNC_FLUSH"},
    "async": {"flushDiskType": "ASYNC_FLUSH"},
    "sync-retention": {"flushDiskType": "SYNC_FLUSH"},
    "async-retention": {"flushDiskType": "ASYNC_FLUSH"},
}


class Run:
    """One store whose broker is killed repeatedly."""

    def __init__(self, folder: Path, random: Random, flavour: str) -> None:
        self.broker = BrokerChild(folder, **SETTINGS, **FLAVOURS[flavour])
        self.has_retention = flavour.endswith("retention")
        self.promised = Acknowledged()
        self.random = random
        self.kill_count = 0
        self.start_s = 0.5

    async def kills(self, count: int) -> None:
        """Kill `count` times; check after each start, and check everything at the end."""
        await self.broker.start()
        while self.kill_count < count:
            await self.load_and_kill()
            self.look_at_killed()
            if self.kill_count < count and self.random.random() < 0.4:
                await self.kill_while_starting()
            started = time.monotonic()
            await self.broker.start()
            self.start_s = time.monotonic() - started
            await self.look()
        await self.look_for_delayed()
        assert await self.broker.stop() == 0
        self.look_at_files()

    async def load_and_kill(self) -> None:
        is_early = self.kill_count % 5 == 4  # perhaps before anything is acknowledged

        async def die() -> None:
            if not is_early:
                await self.until_acknowledged(self.promised.count + ACKNOWLEDGED_MIN)
            if self.has_retention:
                await self.expire_files(self.random.uniform(0.1, LOAD_S_MAX))
            else:
                longest = LONG_LOAD_S_MAX if self.random.random() < 0.1 else LOAD_S_MAX
                await asyncio.sleep(self.random.uniform(0.02, longest))
            self.kill()

        workload = Workload(self.broker.address, self.promised, self.random, self.kill_count)
        await workload.until_death(die)

    async def until_acknowledged(self, count: int) -> None:
        """Wait for the load: on a busy machine, a fixed time may be over before it begins."""
        async with asyncio.timeout(LOAD_TIMEOUT_S):
            while self.promised.count < count:  # noqa: ASYNC110  # tables do not tell of changes
                await asyncio.sleep(0.005)

    async def expire_files(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        async with Client(self.broker.address) as client:
            while time.monotonic() < end:
                for ratio in (100, 1):
                    await asyncio.sleep(self.random.uniform(0.05, 0.3))
                    await client.configure(diskSpaceCleanForciblyRatio=ratio)

    async def kill_while_starting(self) -> None:
        self.broker.begin()
        await asyncio.sleep(self.random.uniform(0.2, 1.0) * self.start_s)
        self.kill()

    def look_at_killed(self) -> None:
        found = verify_store(str(self.broker.store), settings=INDEX_SHAPE)
        assert (found.state, found.findings) == (StoreState.NEEDS_RECOVERY, [])

    def kill(self) -> None:
        self.kill_count += 1
        self.broker.kill()

    async def look(self) -> None:
        async with Client(self.broker.address) as client:
            wrong = await self.judge_messages(client)
            wrong += await self.judge_keys(client)
            wrong += self.promised.judge_tables(await client.topics(), await client.groups())
            for queue_id in range(QUEUE_COUNT):
                found = await client.committed(GROUP, TOPIC, queue_id)
                wrong += self.promised.judge_commit((TOPIC, queue_id), found)
        self.fail_if(wrong)

    async def judge_messages(self, client: Client) -> list[str]:
        wrong: list[str] = []
        queues = {}
        begin = log_begin(self.broker.store)
        for queue_id in range(QUEUE_COUNT):
            queue = (TOPIC, queue_id)
            minimum, queues[queue] = await client.read_queue(*queue)
            wrong += self.promised.judge_queue(queue, minimum, queues[queue], log_begin=begin)
        return wrong + self.promised.judge_once(queues)

    async def judge_keys(self, client: Client) -> list[str]:
        begin = log_begin(self.broker.store)
        places = [place for there in self.promised.places.values() for place in there.values()]
        places = [place for place in places if place.physical_offset >= begin]
        wrong = []
        for place in self.random.sample(places, min(len(places), KEYS_ASKED_FOR)):
            found = [record.offset_message_id for record in await client.by_key(TOPIC, place.key)]
            if found != [place.message_id]:
                wrong.append(f"key {place.key} finds {found}, not {place.message_id}")
        for place in self.random.sample(places, min(len(places), 20)):
            keys = [r.properties["KEYS"] for r in await client.by_offset(place.physical_offset)]
            if keys != [place.key]:
                wrong.append(f"the id of {place} finds {keys}")
        return wrong

    async def look_for_delayed(self) -> None:
        if self.has_retention:
            return  # deletion ignores the age of files, so waiting messages may be deleted, too
        end = time.monotonic() + DELAY_TIMEOUT_S
        async with Client(self.broker.address) as client:
            while True:
                _, records = await client.read_queue(DELAYED_TOPIC, 0)
                wrong = self.promised.judge_delayed(records)
                if not wrong or time.monotonic() > end:
                    break
                await client.pull(DELAYED_TOPIC, 0, len(records), wait_ms=1000)
        self.fail_if(wrong)
        doubled = len(records) - len({record.properties["KEYS"] for record in records})
        say(f"{len(records)} delayed messages came, {doubled} more than once")

    def look_at_files(self) -> None:
        records, _ = read_log(self.broker.store)
        self.fail_if(judge_queues(self.broker.store, records))
        verification = verify_store(str(self.broker.store), settings=INDEX_SHAPE)
        assert verification.record_count == len(records)
        self.fail_if([f"{finding}" for finding in verification.findings])

    def fail_if(self, wrong: list[str]) -> None:
        lines = "\n".join(wrong[:20])
        assert not wrong, f"kill {self.kill_count}, {len(wrong)} differences:\n{lines}"


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


@pytest.mark.timeout(5400)
@pytest.mark.parametrize("flavour", FLAVOURS)
async def test_everything_acknowledged_survives(
    tmp_path: Path, random: Random, kills: int, flavour: str
) -> None:
    share = kills // len(FLAVOURS)
    acknowledged = done = 0
    while done < share:
        folder = tmp_path / str(done)
        folder.mkdir()
        run = Run(folder, random, flavour)
        try:
            await run.kills(min(KILLS_PER_STORE, share - done))
        finally:
            run.broker.kill()
        done += run.kill_count
        acknowledged += run.promised.count
        say(f"{flavour}: {done} kills, {acknowledged} messages acknowledged")
    assert acknowledged > 100 * done


@pytest.mark.parametrize("flavour", ["sync", "async"])
async def test_a_stop_under_load_ends_well_and_keeps_everything(
    tmp_path: Path, random: Random, flavour: str
) -> None:
    run = Run(tmp_path, random, flavour)

    async def stop() -> None:
        await asyncio.sleep(random.uniform(0.3, LOAD_S_MAX))
        assert await run.broker.stop() == 0

    try:
        await run.broker.start()
        await Workload(run.broker.address, run.promised, random, 0).until_death(stop)
        run.look_at_files()
        await run.broker.start()
        assert run.broker.events("recovery.started")[0]["was_clean"] is True
        await run.look()
        await run.look_for_delayed()
    finally:
        run.broker.kill()
