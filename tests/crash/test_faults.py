# SPDX-License-Identifier: Apache-2.0
"""On full and failing disks, sends fail with a clear error and resume, and reads continue."""

import asyncio
import errno
import json
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from time import monotonic
from typing import Final

import pytest

from cometmq.peers.broker.child import BrokerChild, until
from cometmq.peers.broker.client import Client
from cometmq.remoting.errors import CommandError, ServiceNotAvailable
from cometmq.store.os_disk import OsDisk

FAULTY_BROKER: Final = "tests.crash.faulty_broker"
TOPIC: Final = "T"
BODY_BYTES: Final = 2_000
SENDS_MAX: Final = 20_000
SLOW_MS: Final = 200
HEAL_TIMEOUT_S: Final = 120.0
SETTINGS: Final = {
    "diskSpaceWarningLevelRatio": "100",
    "diskSpaceCleanForciblyRatio": "100",
    "diskMaxUsedSpaceRatio": "100",
    "flushIntervalConsumeQueue": "100",
    "flushConsumerOffsetInterval": "100",
}


class Sender:
    def __init__(self, random: Random) -> None:
        self._random = random
        self.sent: list[bytes] = []

    async def send(self, client: Client) -> None:
        body = self._random.randbytes(BODY_BYTES)
        place = await client.send(TOPIC, 0, body, keys=f"k{len(self.sent)}")
        assert place.queue_offset == len(self.sent)
        self.sent.append(body)

    async def until_refused(self, client: Client) -> CommandError:
        """Send until a send is refused; return the refusal."""
        for _ in range(SENDS_MAX):
            try:
                await self.send(client)
            except CommandError as refusal:
                return refusal
        raise AssertionError("the fault was never noticed")

    async def until_accepted(self, client: Client) -> None:
        """Send until the store has recovered by itself."""
        async with asyncio.timeout(HEAL_TIMEOUT_S):
            while True:
                try:
                    return await self.send(client)
                except ServiceNotAvailable:
                    await asyncio.sleep(0.1)

    async def check(self, client: Client) -> None:
        minimum, records = await client.read_queue(TOPIC, 0)
        assert minimum == 0
        assert [record.body for record in records] == self.sent
        for position in self._random.sample(range(len(self.sent)), min(50, len(self.sent))):
            (found,) = await client.by_key(TOPIC, f"k{position}")
            assert found.queue_offset == position


@pytest.fixture
def sender(random: Random) -> Sender:
    return Sender(random)


@pytest.fixture
async def broker(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[BrokerChild]:
    settings = getattr(request, "param", {})
    with BrokerChild(tmp_path, module=FAULTY_BROKER, **SETTINGS, **settings) as child:
        await child.start()
        yield child


def set_fault(broker: BrokerChild, *rule: object) -> None:
    temporary = broker.folder / "faults.new"
    temporary.write_text(json.dumps(rule))
    temporary.replace(broker.folder / "faults.json")


def clear_fault(broker: BrokerChild) -> None:
    (broker.folder / "faults.json").unlink()


async def until_ready(broker: BrokerChild, *, check: str, is_ok: bool) -> None:
    async def holds() -> bool:
        return ((await broker.readiness())[check] == "ok") == is_ok

    await until(holds, HEAL_TIMEOUT_S)


async def check_after_kill(broker: BrokerChild, sender: Sender) -> None:
    broker.kill()
    await broker.start()
    async with Client(broker.address) as client:
        await sender.check(client)
        await sender.send(client)
        await sender.check(client)
    assert await broker.stop() == 0


def no_traceback(broker: BrokerChild) -> None:
    output = [event for event in broker.events() if "output" in event or "exception" in event]
    assert output == []


@pytest.mark.parametrize(
    "rule",
    [
        ("write", "commitlog", errno.ENOSPC),
        ("write", "commitlog", errno.EIO),
        ("create", "commitlog", errno.ENOSPC),
        ("write", "consumequeue", errno.ENOSPC),
        ("write", "index", errno.EIO),
        ("create", "index", errno.ENOSPC),
    ],
    ids=lambda rule: f"{rule[0]}-{rule[1]}-{errno.errorcode[rule[2]]}",
)
async def test_a_failing_disk_is_an_answer_and_heals(
    broker: BrokerChild, sender: Sender, rule: tuple[str, str, int]
) -> None:
    async with Client(broker.address) as client:
        await sender.send(client)
        assert (await broker.readiness())["store"] == "ok"

        set_fault(broker, *rule)
        refusal = await sender.until_refused(client)
        assert isinstance(refusal, ServiceNotAvailable), refusal
        await until_ready(broker, check="store", is_ok=False)
        await sender.check(client)
        with pytest.raises(ServiceNotAvailable):
            await client.send("other", 0, b"x")

        clear_fault(broker)
        await sender.until_accepted(client)
        await until_ready(broker, check="store", is_ok=True)
        await sender.check(client)
    no_traceback(broker)
    await check_after_kill(broker, sender)


@pytest.mark.parametrize(
    "broker",
    [
        {"flushDiskType": "SYNC_FLUSH"},
        {"flushDiskType": "ASYNC_FLUSH", "flushCommitLogThoroughInterval": "50"},
    ],
    ids=["sync", "async"],
    indirect=True,
)
async def test_a_failed_sync_is_believed_until_a_restart(
    broker: BrokerChild, sender: Sender
) -> None:
    async with Client(broker.address) as client:
        await sender.send(client)
        set_fault(broker, "sync", "commitlog", errno.EIO)
        refusal = await sender.until_refused(client)
        assert isinstance(refusal, ServiceNotAvailable), refusal
        clear_fault(broker)

        with pytest.raises(ServiceNotAvailable):
            await client.send("other", 0, b"x")
        assert (await broker.readiness())["store"] != "ok"
        _, records = await client.read_queue(TOPIC, 0)
        assert [record.body for record in records][: len(sender.sent)] == sender.sent
    no_traceback(broker)
    broker.kill()
    await broker.start()
    async with Client(broker.address) as client:
        _, records = await client.read_queue(TOPIC, 0)
        assert [record.body for record in records][: len(sender.sent)] == sender.sent
        assert (await client.send("other", 0, b"x")).queue_offset == 0


@pytest.mark.parametrize(
    "broker", [{"flushDiskType": "SYNC_FLUSH", "nativeLaneEnable": "false"}], indirect=True
)
async def test_a_slow_disk_delays_sends_and_nothing_else(broker: BrokerChild) -> None:
    async with Client(broker.address) as sending, Client(broker.address) as other:
        await sending.send(TOPIC, 0, b"x")
        set_fault(broker, "slow-sync", "commitlog", SLOW_MS)
        answered = 0
        for _ in range(4):
            began_s = monotonic()
            send = asyncio.get_running_loop().create_task(sending.send(TOPIC, 0, b"x"))
            while not send.done():
                await other.bounds(TOPIC, 0)
                answered += 1
            await send
            assert monotonic() - began_s >= SLOW_MS / 1_000
        # A loop that waits for the disk would answer one or two for each send.
        assert answered >= 20
        (line,) = [event for event in broker.events() if event.get("event") == "sync.slow"]
        assert line["elapsed_ms"] >= SLOW_MS
    no_traceback(broker)


async def test_a_table_that_cannot_be_saved_is_an_answer_and_saved_later(
    broker: BrokerChild, sender: Sender
) -> None:
    async with Client(broker.address) as client:
        await client.create_topic("before", 3)
        set_fault(broker, "write", "config", errno.ENOSPC)
        with pytest.raises(CommandError, match="No space left"):
            await client.create_topic("meanwhile", 3)
        with pytest.raises(CommandError, match="No space left"):
            await client.create_group("meanwhile", 3)
        await client.commit("G", TOPIC, 0, 7)
        await until_ready(broker, check="tables", is_ok=False)
        await sender.send(client)
        await sender.check(client)

        clear_fault(broker)
        await until_ready(broker, check="tables", is_ok=True)
        await client.create_topic("after", 3)
        await until_saved(broker, "consumerOffset.json", "T@G")
    broker.kill()
    await broker.start()
    async with Client(broker.address) as client:
        assert {"before", "after"} <= (await client.topics()).keys()
        assert await client.committed("G", TOPIC, 0) == 7
        await sender.check(client)


async def test_a_journal_that_cannot_be_written_refuses_nothing_and_heals(
    broker: BrokerChild, sender: Sender
) -> None:
    async with Client(broker.address) as client:
        await sender.send(client)
        await client.commit("G", TOPIC, 0, 7)
        set_fault(broker, "write", "config/journal/", errno.ENOSPC)
        await client.commit("G", TOPIC, 0, 8)
        await until_ready(broker, check="tables", is_ok=False)
        await sender.send(client)
        await client.create_topic("meanwhile", 3)

        clear_fault(broker)
        await until_ready(broker, check="tables", is_ok=True)
        await client.commit("G", TOPIC, 0, 9)
    no_traceback(broker)
    broker.kill()
    await broker.start()
    async with Client(broker.address) as client:
        assert await client.committed("G", TOPIC, 0) == 9
        assert "meanwhile" in await client.topics()
        await sender.check(client)


async def test_a_damaged_journal_does_not_keep_a_broker_from_starting(
    tmp_path: Path, sender: Sender
) -> None:
    with BrokerChild(tmp_path) as broker:  # offsets are not saved before the kill
        await broker.start()
        async with Client(broker.address) as client:
            await sender.send(client)
            for offset in range(20):
                await client.commit("G", TOPIC, 0, offset)
        broker.kill()
        (journal,) = (broker.store / "config" / "journal").iterdir()
        data = bytearray(journal.read_bytes())
        place = data.index(b'{"T@G":{"0":10}}')
        data[place] ^= 1
        journal.write_bytes(data)
        await broker.start()
        (event,) = broker.events("journal.damaged")
        assert event["file"] == str(journal)
        async with Client(broker.address) as client:
            assert await client.committed("G", TOPIC, 0) == 9
            await sender.check(client)
            await client.commit("G", TOPIC, 0, 21)
        broker.kill()
        await broker.start()
        assert broker.events("journal.damaged") == []
        async with Client(broker.address) as client:
            assert await client.committed("G", TOPIC, 0) == 21
        assert await broker.stop() == 0
        (_,) = (broker.store / "config" / "journal").iterdir()  # the marks


async def until_saved(broker: BrokerChild, name: str, text: str) -> None:
    path = broker.store / "config" / name

    async def holds() -> bool:
        return path.exists() and text in path.read_text()

    await until(holds, HEAL_TIMEOUT_S)


def mount(folder: Path, size: str) -> bool:
    """Mount a small file system; return False where that is not permitted."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder that fills up soon: a small file system, or a simulated one."""
    folder = tmp_path / "disk"
    is_mounted = mount(folder, "6m")
    yield folder
    if is_mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)


class Ballast:
    """Fills up a disk and frees it again; injects faults where mounting is not permitted."""

    def __init__(self, folder: Path, broker: BrokerChild) -> None:
        self._file = folder / "ballast"
        self._broker = broker
        self._is_real = folder.is_mount()

    def load(self) -> None:
        if self._is_real:
            self._file.write_bytes(bytes(3 << 20))
        else:
            set_fault(self._broker, "write", "store", errno.ENOSPC)

    def drop(self) -> None:
        if self._is_real:
            self._file.unlink()
        else:
            clear_fault(self._broker)


def check_usage_told(refusal: CommandError, folder: Path) -> None:
    if folder.is_mount():
        told = re.search(r"\((?:disk )?(\d+) % used\)", str(refusal))
        assert told is not None, refusal
        used_percent = OsDisk().usage(str(folder)).percent
        # The disk has only 6 MB, and files may be deleted before its usage is read.
        assert abs(int(told[1]) - used_percent) <= 2, refusal


async def test_a_full_disk_refuses_sends_until_there_is_space(
    tmp_path: Path, small_disk: Path, sender: Sender
) -> None:
    with BrokerChild(
        tmp_path, module=FAULTY_BROKER, **SETTINGS, storePathRootDir=str(small_disk / "store")
    ) as broker:
        ballast = Ballast(small_disk, broker)
        await broker.start()
        async with Client(broker.address) as client:
            await sender.send(client)
            ballast.load()
            refusal = await sender.until_refused(client)
            assert isinstance(refusal, ServiceNotAvailable), refusal
            check_usage_told(refusal, small_disk)
            await until_ready(broker, check="store", is_ok=False)
            await sender.check(client)
        no_traceback(broker)
        broker.kill()
        await broker.start()
        async with Client(broker.address) as client:
            await sender.check(client)
            await sender.until_refused(client)
            await sender.check(client)

            ballast.drop()
            await sender.until_accepted(client)
            await until_ready(broker, check="store", is_ok=True)
            await sender.check(client)
        no_traceback(broker)
        await check_after_kill(broker, sender)
