# SPDX-License-Identifier: Apache-2.0
"""Damages bytes in the log of a killed broker, above and below its progress.

Bytes below the progress were synced, and RocketMQ's CRC covers only bodies. From the boot id in the
abort file, the next start detects whether the host has crashed too; if so, it compares the last
files. Every reader compares what it reads.
"""

import struct
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple

import pytest

from cometmq.peers.broker.child import BrokerChild, until
from cometmq.peers.broker.client import Client
from cometmq.peers.broker.store_files import read_log
from cometmq.remoting.message.record import MessageRecord, decode_record, decode_records

TOPIC: Final = "damaged"
COUNT: Final = 60
VICTIM: Final = 25  # in the second block of the log, which is complete
BODY_BYTES: Final = 3000
PROGRESS: Final = struct.Struct(">8sq")
RETRY_IMMEDIATELY: Final = 20


class Sent(NamedTuple):
    """The messages and the progress that a killed broker has left on disk."""

    places: list[int]  # physical offset of each message
    progress: int


def changed(kind: str, old: bytes, random: Random) -> bytes:
    if kind == "zeros":
        return bytes(len(old))
    if kind == "random":
        return random.randbytes(len(old))
    return bytes((old[0] ^ 1 << random.randrange(8), *old[1:]))


def overwrite(broker: BrokerChild, place: int, where: str, kind: str, random: Random) -> None:
    """Change up to 60 bytes of one record, in its properties or in its body."""
    path = broker.store / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    record = decode_record(bytes(data), place)
    size = 60
    at = place + 100 if where == "body" else place + record.size - size
    assert where == "body" or len(record.properties_text) >= size
    data[at : at + size] = changed(kind, bytes(data[at : at + size]), random)
    path.write_bytes(data)


def keys_of(number: int) -> str:
    return f"k{number}-" + "x" * 80


async def killed(broker: BrokerChild, random: Random, *, is_below: bool) -> Sent:
    """Send messages and kill the broker; its saved progress is either after or before them."""
    await broker.start()
    async with Client(broker.address) as client:
        if not is_below:
            await until(lambda: has_checkpoint(broker.store), 20)  # the first is due at once
            await client.configure(flushIntervalConsumeQueue=3_600_000)
        for number in range(COUNT):
            body = random.randbytes(BODY_BYTES)
            await client.send(TOPIC, 0, body, keys=keys_of(number))
        if is_below:
            await until(lambda: is_covered(broker.store), 20)
    broker.kill()
    records, _ = read_log(broker.store)
    return Sent([record.physical_offset for record in records], progress_of(broker.store))


def progress_of(store: Path) -> int:
    return int(PROGRESS.unpack_from((store / "progress").read_bytes())[1])


async def has_checkpoint(store: Path) -> bool:
    return any((store / "progress").read_bytes())


async def is_covered(store: Path) -> bool:
    return progress_of(store) == read_log(store)[1]


def reboot(broker: BrokerChild) -> None:
    """Make the next start believe that the host crashed."""
    abort = broker.store / "abort"
    assert len(abort.read_text().strip()) == 36
    abort.write_text("00000000-0000-0000-0000-000000000000")


async def read_on(client: Client) -> dict[int, MessageRecord]:
    """Read the queue as RocketMQ's clients do: after each answer, continue at its next offset."""
    found: dict[int, MessageRecord] = {}
    _, end = await client.bounds(TOPIC, 0)
    offset = 0
    while offset < end:
        response = await client.pull(TOPIC, 0, offset)
        assert response.code in {0, RETRY_IMMEDIATELY}, response
        header: Any = response.header
        assert header.next_begin_offset > offset, response
        if response.code == 0:
            found |= {record.queue_offset: record for record in decode_records(response.body)}
        offset = header.next_begin_offset
    return found


@pytest.mark.parametrize("way", ["reboot", "scrub", "read"])
@pytest.mark.parametrize("kind", ["zeros", "random", "bit"])
@pytest.mark.parametrize("where", ["properties", "body"])
async def test_damage_below_the_progress_is_named_and_not_delivered(
    tmp_path: Path, random: Random, where: str, kind: str, way: str
) -> None:
    with BrokerChild(tmp_path) as broker:
        sent = await killed(broker, random, is_below=True)
        assert sent.progress > sent.places[-1]
        overwrite(broker, sent.places[VICTIM], where, kind, random)
        if way == "reboot":
            reboot(broker)
        elif way == "scrub":
            (broker.store / "checksums" / "scrub.json").unlink(missing_ok=True)  # a round is due
        await broker.start()

        async def is_named() -> bool:
            return bool(broker.events("log.damaged"))

        if way == "read":
            async with Client(broker.address) as client:
                assert VICTIM not in await read_on(client)
        await until(is_named, 20)
        (event,) = broker.events("log.damaged")
        async with Client(broker.address) as client:
            found = await read_on(client)
            assert await client.by_key(TOPIC, keys_of(VICTIM)) == []
            await client.send(TOPIC, 0, b"after")
        gone = sorted(set(range(COUNT)) - set(found))
        assert VICTIM in gone
        assert event["messages"] == f"{TOPIC}/0: {gone[0]}-{gone[-1]}"
        assert event["message_count"] == len(gone) == gone[-1] - gone[0] + 1 < COUNT
        assert all(len(record.body) == BODY_BYTES for record in found.values())
        assert all(record.keys for record in found.values())
        assert (await broker.readiness()).get("store", "ok") == "ok"
        assert await broker.stop() == 0


async def unfound(client: Client) -> list[int]:
    """Return the messages that a search by key does not find."""
    return [
        number for number in range(COUNT) if len(await client.by_key(TOPIC, keys_of(number))) != 1
    ]


@pytest.mark.parametrize("part", ["slots", "entries"])
async def test_an_index_with_zeroed_pages_finds_everything_again(
    tmp_path: Path, random: Random, part: str
) -> None:
    with BrokerChild(tmp_path, maxHashSlotNum="100", maxIndexNum="40") as broker:
        await killed(broker, random, is_below=True)
        await broker.start()
        path = min((broker.store / "index").iterdir())  # it is full
        begin, end = (40, 440) if part == "slots" else (440, 440 + 40 * 20)
        if part == "slots":  # no reader can notice that
            broker.kill()
            (broker.store / "checksums" / "scrub.json").unlink(missing_ok=True)  # a round is due
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(bytes(end - begin))
        if part == "slots":
            await broker.start()
        async with Client(broker.address) as client:

            async def is_whole() -> bool:
                return not await unfound(client)

            await until(is_whole, 20)
        (event,) = broker.events("index.damaged")
        assert event["path"] == str(path)
        assert len(broker.events("index.repaired")) == 1
        assert await broker.stop() == 0


@pytest.mark.parametrize("kind", ["zeros", "random", "bit"])
async def test_a_damaged_body_above_the_progress_ends_the_log_there(
    tmp_path: Path, random: Random, kind: str
) -> None:
    with BrokerChild(tmp_path) as broker:
        sent = await killed(broker, random, is_below=False)
        assert sent.progress <= sent.places[VICTIM]
        overwrite(broker, sent.places[VICTIM], "body", kind, random)
        await broker.start()
        assert broker.events("log.truncated")
        async with Client(broker.address) as client:
            found = await read_on(client)
        assert sorted(found) == list(range(VICTIM))
        assert await broker.stop() == 0


@pytest.mark.parametrize("kind", ["zeros", "random", "bit"])
async def test_damaged_properties_above_the_progress_cost_no_other_message(
    tmp_path: Path, random: Random, kind: str
) -> None:
    """No checksum covers these bytes yet; recovery must neither stop nor lose other messages."""
    with BrokerChild(tmp_path) as broker:
        sent = await killed(broker, random, is_below=False)
        overwrite(broker, sent.places[VICTIM], "properties", kind, random)
        await broker.start()
        async with Client(broker.address) as client:
            found = await read_on(client)
        assert set(range(COUNT)) - set(found) <= {VICTIM}
        assert all(
            record.keys == (f"k{offset}-" + "x" * 80,)
            for offset, record in found.items()
            if offset != VICTIM
        )
        assert await broker.stop() == 0
