# SPDX-License-Identifier: Apache-2.0
"""A broker whose index is lost starts in 256 MB with millions of messages, and serves them."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import pytest

from cometmq.peers.broker.child import BrokerChild
from cometmq.peers.broker.client import Client
from cometmq.remoting.message.record import decode_records

TOPIC: Final = "T"
COUNT: Final = 14_000_000
QUEUE_COUNT: Final = 8
FILE_BYTES: Final = 1 << 30
LIMIT_BYTES: Final = 256 << 20
PEAK_BYTES: Final = 200 << 20
STORED_MS: Final = 1_790_000_000_000
BODY: Final = b"x" * 90
KEY_AT: Final = 24  # of the digits of a number in the unique key
MAGIC: Final = -626843481
BLANK: Final = -875286124
FIXED: Final = struct.Struct(">iiiiiqqiq4siq4siiqi")
FULL_SIZE: Final = {
    "mappedFileSizeCommitLog": str(FILE_BYTES), "mappedFileSizeConsumeQueue": "6000000",
    "maxHashSlotNum": "5000000", "maxIndexNum": "20000000",
}  # fmt: skip
GROUPS: Final = Path("/sys/fs/cgroup")


def template() -> bytes:
    properties = b"UNIQ_KEY\x01" + b"0" * 32 + b"\x02WAIT\x01true"
    size = FIXED.size + len(BODY) + 1 + len(TOPIC) + 2 + len(properties)
    host = b"\x7f\0\0\1", 10911
    fields = size, MAGIC, crc32(BODY) & 0x7FFFFFFF, 0, 0, 0, 0, 0, STORED_MS, *host, STORED_MS
    fixed = FIXED.pack(*fields, *host, 0, 0, len(BODY))
    tail = bytes([len(TOPIC)]) + TOPIC.encode() + struct.pack(">h", len(properties)) + properties
    return fixed + BODY + tail


def write_log(folder: Path, count: int) -> None:
    """Write a log of messages with unique keys, as a broker would that has lost all else."""
    folder.mkdir(parents=True)
    record = template()
    size, key_at = len(record), record.index(b"UNIQ_KEY") + 9 + KEY_AT
    portion = 10_000
    per_file = (FILE_BYTES - 8) // size // portion * portion
    for start in range(0, count, per_file):
        base = start // per_file * FILE_BYTES
        with (folder / f"{base:020d}").open("wb") as file:
            stop = min(start + per_file, count)
            for first in range(start, stop, portion):
                data = bytearray(record * min(portion, stop - first))
                for at, number in zip(range(0, len(data), size), range(first, stop), strict=False):
                    offset = base + (number - start) * size
                    struct.pack_into(">i", data, at + 12, number % QUEUE_COUNT)
                    struct.pack_into(">qq", data, at + 20, number // QUEUE_COUNT, offset)
                    struct.pack_into("8s", data, at + key_at, b"%08X" % number)
                file.write(data)
            if stop < count:
                file.write(struct.pack(">ii", FILE_BYTES - (stop - start) * size, BLANK))
            file.truncate(FILE_BYTES)


@pytest.fixture
def limited() -> Iterator[list[str]]:
    """Return a command that runs another one in a memory control group of LIMIT_BYTES.

    Without the right to make one, the peak alone is measured.
    """
    version_1 = GROUPS / "memory"
    root = version_1 if version_1.is_dir() else GROUPS
    group = root / f"cometmq-test-{os.getpid()}"
    try:
        group.mkdir()
        name = "memory.limit_in_bytes" if root is version_1 else "memory.max"
        (group / name).write_text(str(LIMIT_BYTES))
    except OSError:
        yield []
        return
    yield ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    group.rmdir()


def peak_bytes(pid: int) -> int:
    (line,) = (
        it for it in Path(f"/proc/{pid}/status").read_text().splitlines() if it.startswith("VmHWM")
    )
    return int(line.split()[1]) << 10


@pytest.mark.timeout(900)
async def test_a_broker_that_has_lost_its_index_starts_in_256_mb(
    tmp_path: Path, limited: list[str]
) -> None:
    with BrokerChild(tmp_path, prefix=limited, **FULL_SIZE) as broker:
        write_log(broker.store / "commitlog", COUNT)
        await broker.start(timeout_s=600)
        async with Client(broker.address) as client:
            last = COUNT // QUEUE_COUNT - 1
            answer: Any = await client.pull(TOPIC, 0, last)
            (record,) = decode_records(answer.body)
            assert record.queue_offset == last
            key = "0" * KEY_AT + f"{COUNT - QUEUE_COUNT:08X}"
            (found,) = await client.by_key(TOPIC, key)
            assert found.queue_offset == last
        assert peak_bytes(broker.pid) < PEAK_BYTES
        assert await broker.stop() == 0
