# SPDX-License-Identifier: Apache-2.0
"""Messages that a broker deletes between planning and reading: losses are told, never silent."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.peers.comet import CometCluster
from cometmq.peers.content import create_topic
from cometmq.peers.processes import wait_until
from cometmq.peers.wire import call
from cometmq.spark.batch import MessageReader
from cometmq.spark.errors import DataLoss
from cometmq.spark.metadata import Metadata
from cometmq.spark.offsets_json import Queue, to_json
from cometmq.spark.options import Options, parse
from cometmq.spark.planning import QueueRange
from cometmq.spark.schemas import table_schema
from cometmq.spark.stream import MessageStreamReader
from cometmq.spark.testing import fill

UPDATE_BROKER_CONFIG = 25
TOPIC = "forgotten"
COUNT = 12_000


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[CometCluster]:
    """A broker that takes its disk for full when told to, and deletes all but the last file."""
    conf = {
        "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 20_000,
        "diskSpaceCleanForciblyRatio": 1,
        "cleanFileForciblyEnable": False,
        "deletePhysicFilesInterval": 1,
        "deleteConsumeQueueFilesInterval": 1,
        "cleanResourceInterval": 200,
    }
    with CometCluster(tmp_path, conf) as cluster:
        create_topic(cluster.namesrv_addr, cluster.broker_addrs, TOPIC, queue_count=1)
        fill(cluster.namesrv_addr, TOPIC, COUNT)
        yield cluster


def options_of(cluster: CometCluster, **more: str) -> Options:
    return parse({"nameServer": cluster.namesrv_addr, "subscribe": TOPIC, **more})


def forget(cluster: CometCluster) -> int:
    """Have the broker delete what it may; return the first offset that is left."""
    with Metadata(options_of(cluster)) as metadata:
        (queue,) = metadata.queues()

        def first() -> int:
            return metadata.ends([queue])[queue][0]

        before = first()
        body = b"cleanFileForciblyEnable=true"
        assert call(cluster.broker_addrs[0], UPDATE_BROKER_CONFIG, {}, body).code == 0
        wait_until(lambda: first() > before, 30, "messages deleted")
        return first()


def rows_of(reader: MessageReader | MessageStreamReader, parts: list[QueueRange]) -> list[int]:
    return [
        offset
        for part in parts
        for batch in reader.read(part)
        for offset in batch.column("queue_offset").to_pylist()
    ]


def test_a_batch_that_was_planned_before_fails(forgetful: CometCluster) -> None:
    options = options_of(forgetful, failOnDataLoss="false")
    reader = MessageReader(options, table_schema(options))
    parts = reader.partitions()
    forget(forgetful)

    with pytest.raises(DataLoss, match=rf"messages of {TOPIC} broker-a 0 from offset \d+ on"):
        rows_of(reader, parts)
    assert rows_of(reader, reader.partitions())[-1] == COUNT - 1  # a new plan reads what is left


def test_a_stream_fails_or_goes_on_with_what_is_left(forgetful: CometCluster) -> None:
    strict, lenient = (
        MessageStreamReader(options, table_schema(options))
        for options in (
            options_of(forgetful, startingOffsets="earliest"),
            options_of(forgetful, startingOffsets="earliest", failOnDataLoss="false"),
        )
    )
    queue = Queue(TOPIC, "broker-a", 0)
    begin, end = to_json({queue: 0}), to_json({queue: COUNT})
    planned = strict.partitions(begin, end)
    planned_leniently = lenient.partitions(begin, end)
    first = forget(forgetful)

    with pytest.raises(DataLoss, match="are gone"):
        rows_of(strict, planned)  # in a task that was planned before
    with pytest.raises(DataLoss, match=rf"{first} messages of .* from offset 0 on are gone"):
        strict.partitions(begin, end)  # before any task starts
    assert rows_of(lenient, planned_leniently) == list(range(first, COUNT))
    assert rows_of(lenient, lenient.partitions(begin, end)) == list(range(first, COUNT))
    strict.stop()
    lenient.stop()
