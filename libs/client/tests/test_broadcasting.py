# SPDX-License-Identifier: Apache-2.0
"""Broadcasting: every member gets every message once, and keeps its offsets in a file."""

import errno
import fcntl
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cometmq.client import (
    ConsumeFrom,
    ConsumeResult,
    InvalidArgument,
    LitePullConsumer,
    LitePullOptions,
    Message,
    MessageModel,
    MessageQueue,
    OffsetsUnreadable,
    OffsetsUnwritable,
    PullConsumer,
    PushConsumer,
    PushOptions,
)
from cometmq.client.clock import wall_ms
from cometmq.client.consume.queues.offsets import local_offsets_path
from cometmq.client.testing import MemoryCluster, eventually
from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.bodies.offsets import QueueOffsetTable
from cometmq.remoting.codes import RequestCode
from cometmq.testing.client.listening import Recorder, consumer_of, logged, send, store, texts


def broadcast(cluster: MemoryCluster, listener: Any, folder: Path, **fields: Any) -> PushConsumer:
    options = PushOptions(
        message_model=MessageModel.BROADCASTING,
        offsets_dir=str(folder),
        consume_from=ConsumeFrom.FIRST_OFFSET,
        client_ip="10.0.0.1",
        **fields,
    )
    return consumer_of(cluster, listener, options)


def stored(path: Path) -> dict[int, int]:
    table = decode_json(QueueOffsetTable, path.read_bytes()).offset_table
    return {queue.queue_id: offset for queue, offset in table.items()}


def test_a_tilde_is_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert local_offsets_path("~/own", "id", "g") == tmp_path / "own/id/g/offsets.json"
    assert local_offsets_path("", "id", "g") == tmp_path / ".rocketmq_offsets/id/g/offsets.json"
    assert local_offsets_path("own~", "id", "g") == Path("own~/id/g/offsets.json")
    with pytest.raises(InvalidArgument, match=r"option offsets_dir='~no-such-user/x': Could not"):
        local_offsets_path("~no-such-user/x", "id", "g")


async def test_every_member_gets_every_message(cluster: MemoryCluster, tmp_path: Path) -> None:
    first, second = Recorder(), Recorder()
    one = broadcast(cluster, first, tmp_path, instance_name="one")
    two = broadcast(cluster, second, tmp_path, instance_name="two")
    async with one, two:
        assert len(one.queues) == len(two.queues) == 4
        await send(cluster, *texts(10))
        await eventually(lambda: len(first.bodies) == len(second.bodies) == 10)
    assert first.bodies == second.bodies
    assert cluster.committed("cg", "T") == {}
    assert stored(tmp_path / "10.0.0.1@one" / "cg" / "offsets.json")[0] == 10


async def test_the_next_run_continues_behind_the_offsets_in_the_file(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    """The instance keeps the name DEFAULT, so the next run finds the file."""
    for bodies in ([b"0", b"1"], [b"2", b"3"]):
        seen = Recorder()
        async with broadcast(cluster, seen, tmp_path) as consumer:
            assert consumer.client_id == "10.0.0.1@DEFAULT"
            await send(cluster, *[Message("T", body) for body in bodies])
            await eventually(lambda s=seen: len(s.bodies) == 2)  # type: ignore[arg-type, misc]
        assert seen.bodies == bodies
    assert stored(tmp_path / "10.0.0.1@DEFAULT" / "cg" / "offsets.json")[0] == 4


async def test_two_groups_of_one_process_share_the_client(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    seen = Recorder()
    other = PushConsumer(
        "other", cluster.namesrv, listener=seen, options=broadcast(cluster, seen, tmp_path).options
    )
    other.subscribe("T")
    async with broadcast(cluster, seen, tmp_path) as consumer, other:
        assert consumer.client_id == other.client_id
        await send(cluster, Message("T", b"x"))
        await eventually(lambda: len(seen.bodies) == 2)
    assert (tmp_path / "10.0.0.1@DEFAULT" / "other" / "offsets.json").exists()


async def test_failed_messages_are_not_redelivered(cluster: MemoryCluster, tmp_path: Path) -> None:
    seen = Recorder(lambda messages: ConsumeResult.RECONSUME_LATER)
    async with broadcast(cluster, seen, tmp_path) as consumer:
        await send(cluster, *texts(3))
        await eventually(lambda: consumer.stats().failed_count == 3)
        ((_, data),) = cluster.broker.groups["cg"].values()
        assert data.message_model == "BROADCASTING"
        assert {one.topic for one in data.subscription_data_set} == {"T"}
    assert seen.bodies == [b"0", b"1", b"2"]
    assert cluster.broker.requests[RequestCode.CONSUMER_SEND_MSG_BACK] == 0
    assert stored(tmp_path / "10.0.0.1@DEFAULT" / "cg" / "offsets.json")[0] == 3


async def test_a_lite_pull_consumer_may_broadcast_too(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    await send(cluster, *texts(4))
    for name in ("one", "two"):
        options = LitePullOptions(
            message_model=MessageModel.BROADCASTING,
            offsets_dir=str(tmp_path),
            consume_from=ConsumeFrom.FIRST_OFFSET,
            client_ip="10.0.0.1",
            instance_name=name,
        )
        consumer = LitePullConsumer("cg", cluster.namesrv, options=options)
        consumer.subscribe("T")
        async with consumer:
            bodies = [(await consumer.next_message()).body for _ in range(4)]  # type: ignore[union-attr]
        assert bodies == [b"0", b"1", b"2", b"3"]
        assert stored(tmp_path / f"10.0.0.1@{name}@STREAM" / "cg" / "offsets.json")[0] == 4


async def test_the_file_is_javas(cluster: MemoryCluster, tmp_path: Path) -> None:
    """In Java's file, the keys are JSON objects."""
    path = tmp_path / "10.0.0.1@DEFAULT" / "cg" / "offsets.json"
    path.parent.mkdir(parents=True)
    key = json.dumps({"brokerName": "broker-a", "queueId": 0, "topic": "T"}, separators=(",", ":"))
    path.write_text('{\n\t"offsetTable":{' + key + ":2\n\t}\n}", encoding="utf-8")
    await send(cluster, *texts(4))
    seen = Recorder()
    async with broadcast(cluster, seen, tmp_path):
        await eventually(lambda: len(seen.bodies) == 2)
    assert seen.bodies == [b"2", b"3"]


@pytest.fixture
def owner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Run a process that uses the offset file of `broadcast` until its input ends."""
    path = tmp_path / "10.0.0.1@DEFAULT" / "cg" / "offsets.json"
    code = (
        "import sys, pathlib\n"
        "from cometmq.client.consume.queues.offset_file import FileClaim\n"
        f"claim = FileClaim(pathlib.Path({str(path)!r}))\n"
        "print(repr(claim.take()), flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "''\n"
        yield process


async def test_a_second_process_with_the_same_offset_file_is_told(
    cluster: MemoryCluster,
    tmp_path: Path,
    owner: subprocess.Popen[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with broadcast(cluster, Recorder(), tmp_path):
        (line,) = logged(caplog, "offsets.shared")
    for text in ("group=cg", f"process_id={owner.pid}", "offsets.json", "instance_name"):
        assert text in line
    assert owner.stdin
    owner.stdin.close()
    owner.wait()
    for _ in range(2):  # the lock of a dead process is free, and a close releases it
        async with broadcast(cluster, Recorder(), tmp_path):
            pass
    assert len(logged(caplog, "offsets.shared")) == 1


# -- damaged offset files ---------------------------------------------------------------------


async def consumed_once(cluster: MemoryCluster, folder: Path, body: bytes) -> list[bytes]:
    """Send a message, run a consumer until it has received the message, and return all received
    bodies.
    """
    await send(cluster, Message("T", body))
    seen = Recorder()
    async with broadcast(cluster, seen, folder):
        await eventually(lambda: body in seen.bodies)
    return seen.bodies


@pytest.mark.parametrize("damage", [b"", b'{"offsetTable":{', b"\0" * 40])
async def test_damaged_offsets_refuse_the_start(
    cluster: MemoryCluster, tmp_path: Path, damage: bytes
) -> None:
    """A start without offsets would skip the unread messages or repeat the others."""
    path = tmp_path / "10.0.0.1@DEFAULT" / "cg" / "offsets.json"
    backup = path.with_name("offsets.json.bak")
    for number in range(2):
        await consumed_once(cluster, tmp_path, b"%d" % number)
    assert backup.exists()
    path.write_bytes(damage)
    backup.write_bytes(damage)
    consumer = broadcast(cluster, Recorder(), tmp_path)
    with pytest.raises(OffsetsUnreadable) as caught:
        await consumer.start()
    for text in (str(path), str(backup), "delete these files"):
        assert text in str(caught.value)
    assert path.read_bytes() == damage

    path.unlink()
    backup.unlink()
    assert sorted(await consumed_once(cluster, tmp_path, b"2")) == [b"0", b"1", b"2"]


async def test_the_backup_replaces_a_damaged_file_and_is_logged(
    cluster: MemoryCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "10.0.0.1@DEFAULT" / "cg" / "offsets.json"
    backup = path.with_name("offsets.json.bak")
    for number in range(2):
        await consumed_once(cluster, tmp_path, b"%d" % number)
    assert "offsets.restored" not in caplog.text
    kept = stored(backup)
    path.write_bytes(b"")
    await consumed_once(cluster, tmp_path, b"2")
    (line,) = logged(caplog, "offsets.restored")
    for text in ("group=cg", str(path), "the file is empty", "again"):
        assert text in line
    assert stored(path)[0] == 3
    assert stored(backup)[0] >= kept.get(0, 0)


@pytest.mark.parametrize("kind", [PushConsumer, LitePullConsumer, PullConsumer])
async def test_a_folder_that_cannot_be_written_refuses_the_start(
    cluster: MemoryCluster, tmp_path: Path, kind: type[Any]
) -> None:
    """A Java consumer starts anyway, and logs every failed save."""
    folder = tmp_path / "file"
    folder.write_text("not a folder")
    fields = {"message_model": MessageModel.BROADCASTING, "offsets_dir": str(folder)}
    more = {"listener": print} if kind is PushConsumer else {}
    consumer = kind("cg", cluster.namesrv, options=kind.OPTIONS(**fields), **more)
    (consumer.register if kind is PullConsumer else consumer.subscribe)("T")
    with pytest.raises(OffsetsUnwritable) as caught:
        await consumer.start()
    for text in (str(folder), "offsets.json", "NotADirectoryError", "set offsets_dir to a folder"):
        assert text in str(caught.value)
    assert not cluster.broker.groups.get("cg")


async def test_a_file_system_without_locks_is_no_reason_to_refuse(
    cluster: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert await consumed_once(cluster, tmp_path, b"0") == [b"0"]


async def test_queues_and_topics_that_appear_are_read_from_their_beginning(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    """A clustering member does this too: the broker says that the queues are young."""
    await send(cluster, Message("T", b"before the start"))
    seen = Recorder()
    options = PushOptions(
        message_model=MessageModel.BROADCASTING,
        offsets_dir=str(tmp_path),
        poll_namesrv_interval_ms=1_000,
        rebalance_interval_ms=100,
    )
    consumer = consumer_of(cluster, seen, options)
    consumer.subscribe("Later")
    async with consumer:
        cluster.create_topic("T", queue_count=8)
        await send(cluster, Message("T", b"new queue"), queue=MessageQueue("T", "broker-a", 7))
        cluster.create_topic("Later", queue_count=1)
        await send(
            cluster, Message("Later", b"new topic"), queue=MessageQueue("Later", "broker-a", 0)
        )
        await eventually(lambda: len(seen.bodies) == 2)
    assert set(seen.bodies) == {b"new queue", b"new topic"}


def appearing(folder: Path) -> PushOptions:
    """Options of a member that finds new queues soon, and stores no progress while it runs."""
    return PushOptions(
        message_model=MessageModel.BROADCASTING,
        offsets_dir=str(folder),
        client_ip="10.0.0.1",
        poll_namesrv_interval_ms=1_000,
        rebalance_interval_ms=100,
        persist_offset_interval_ms=600_000,
    )


async def test_a_killed_member_misses_nothing_in_queues_that_have_just_appeared(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    seen, again = Recorder(), Recorder()
    queue = MessageQueue("Later", "broker-a", 0)
    consumer = consumer_of(cluster, seen, appearing(tmp_path / "live"))
    consumer.subscribe("Later")
    async with consumer:
        cluster.create_topic("Later", queue_count=1)
        await send(cluster, Message("Later", b"before"), queue=queue)
        await eventually(lambda: bool(seen.bodies))
        shutil.copytree(tmp_path / "live", tmp_path / "killed")  # as a kill leaves it
    await send(cluster, Message("Later", b"meanwhile"), queue=queue)
    await send(cluster, Message("T", b"meanwhile, too"))
    consumer = consumer_of(cluster, again, appearing(tmp_path / "killed"))
    consumer.subscribe("Later")
    async with consumer:
        await eventually(lambda: {b"meanwhile", b"meanwhile, too"} <= set(again.bodies))


async def test_queues_that_were_added_between_two_runs_are_read_from_their_beginning(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    await send(cluster, Message("T", b"before the first run"))
    async with consumer_of(cluster, Recorder(), appearing(tmp_path)):
        pass
    cluster.create_topic("T", queue_count=8)
    await send(cluster, Message("T", b"new queue"), queue=MessageQueue("T", "broker-a", 7))
    cluster.create_topic("Other", queue_count=1)
    await send(cluster, Message("Other", b"old"), queue=MessageQueue("Other", "broker-a", 0))
    seen = Recorder()
    consumer = consumer_of(cluster, seen, appearing(tmp_path))
    consumer.subscribe("Other")  # new to this group, so it begins at the end
    async with consumer:
        await eventually(lambda: bool(seen.bodies))
        await send(cluster, Message("Other", b"new"), queue=MessageQueue("Other", "broker-a", 0))
        await eventually(lambda: len(seen.bodies) > 1)
    assert seen.bodies == [b"new queue", b"new"]


async def test_an_old_queue_that_comes_back_is_read_from_the_start_of_the_member(
    cluster: MemoryCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker may have been down; its old messages are not for this member."""
    cluster.broker.young_queue_starts_at_zero = False
    with monkeypatch.context() as patch:  # brokers look for the message nearest to the start
        patch.setattr("cometmq.client.testing.broker.wall_ms", lambda: wall_ms() - 3_600_000)
        await send(cluster, Message("T", b"old"))
    seen = Recorder()
    route, is_hidden = cluster.route, True
    cluster.route = lambda topic: None if is_hidden and topic == "T" else route(topic)  # type: ignore[method-assign]
    options = PushOptions(
        message_model=MessageModel.BROADCASTING,
        offsets_dir=str(tmp_path),
        poll_namesrv_interval_ms=1_000,
        rebalance_interval_ms=100,
    )
    async with consumer_of(cluster, seen, options):
        store(cluster, b"new")  # before the member sees the queue
        is_hidden = False
        await eventually(lambda: bool(seen.bodies))
    assert seen.bodies == [b"new"]
