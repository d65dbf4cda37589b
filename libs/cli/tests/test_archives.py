# SPDX-License-Identifier: Apache-2.0
"""The files of backups and restores, and brokers that fail meanwhile, without a running suite."""

import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.cli.archives import backup, copying, form, progress, sending
from cometmq.cli.archives.copying import Copy
from cometmq.cli.archives.form import Lines, Plan, QueueSpan, Segment, TopicPlan
from cometmq.cli.archives.segments import Position, check, lines_of
from cometmq.cli.archives.sending import Item, Sending
from cometmq.client import Message, MessageExt, MessageQueue, SendResult, SendStatus
from cometmq.client.errors import ClientError, InvalidArgument, SendFailed
from cometmq.client.transfer.pulled import Pulled, PullStatus
from cometmq.remoting.bodies.route import BrokerData, QueueData, TopicRoute
from cometmq.remoting.errors import ConnectionLost
from cometmq.testing.remoting.hostile_json import hostile

COUNT = 40
KEY = ("T", "b", 0)
PLACE = MessageQueue("T", "b", 0)
PATIENCE_S = 60
MASTER, SLAVE = {0: "127.0.0.1:1"}, {1: "127.0.0.1:2"}


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    monkeypatch.setattr(copying, "PAUSE_S", 0)
    monkeypatch.setattr(sending, "PAUSE_S", 0)


def plan_of(count=COUNT):
    topic = TopicPlan("T", [QueueSpan("b", 0, 0, count)], 1)
    return Plan(id="i", begun="now", program="p", namesrv="n", topics=[topic])


BACKUP = form.Folder(Path("b"), plan_of())


@pytest.fixture
def folder(tmp_path):
    with form.created(tmp_path / "b", plan_of()) as folder:
        yield folder


def message(offset):
    return MessageExt(
        topic="T", body=b"x", tag=None, keys=(), properties={}, message_id=f"id-{offset}",
        offset_message_id="", queue=PLACE, queue_offset=offset, physical_offset=0, flag=0,
        sys_flag=0, reconsume_times=0, born_timestamp=0, born_host="", store_timestamp=1,
        store_host="",
    )  # fmt: skip


class Broker:
    """A broker whose queue has `count` messages; each pull that is behind its end adds one."""

    address = "127.0.0.1:1"

    def __init__(self, count=COUNT, *, grows=False):
        self._count, self._grows = count, grows

    async def pull(self, _topic, _queue, at):
        if at >= self._count:
            self._count += self._grows
            return Pulled(PullStatus.NO_NEW, [], min(at, self._count - self._grows), 0, 0)
        end = min(at + 32, self._count)
        return Pulled(PullStatus.FOUND, [message(n) for n in range(at, end)], end, 0, self._count)


class Pacer:
    """Lets some messages pass, and fails then, as a cancelled wait does."""

    def __init__(self, left):
        self._left = left

    async def wait(self):
        self._left -= 1
        if self._left < 0:
            raise RuntimeError


def copied(folder, broker, *, pace=None, patience_s=PATIENCE_S):
    """Copy the queue from a broker."""
    admin: Any = Admin(route(MASTER), broker=broker)
    copy = Copy(admin, folder, rate=None, patience_s=patience_s)
    copy._pace = pace
    asyncio.run(copy.run())


def offsets(folder):
    return [
        json.loads(line)["queue_offset"]
        for segment in folder.segments
        for line in lines_of(folder.path, segment)
    ]


@pytest.mark.parametrize("count", [5, 35])
def test_an_answer_of_which_a_part_is_written_is_copied_once(folder, count):
    with pytest.raises(ExceptionGroup):
        copied(folder, Broker(), pace=Pacer(count))
    assert offsets(folder) == list(range(count))
    copied(folder, Broker())
    assert offsets(form.load(folder.path)) == list(range(COUNT))


def test_a_slave_that_is_behind_may_catch_up(folder):
    copied(folder, Broker(10, grows=True))
    assert offsets(folder) == list(range(COUNT))


def test_a_slave_that_stays_behind_is_named(folder):
    with pytest.raises(ExceptionGroup) as failed:
        copied(folder, Broker(10), patience_s=0)
    assert failed.group_contains(ClientError, match=r"does not have offset 10 of T.*gave up")
    assert offsets(form.load(folder.path)) == list(range(10))


def route(addresses):
    queues = [QueueData(broker_name="b", read_queue_nums=1, write_queue_nums=1, perm=6)]
    return TopicRoute(broker_datas=[BrokerData(addresses, "b")], queue_datas=queues)


class Admin:
    """An admin client whose name server answers with one route after another."""

    def __init__(self, *routes, broker=None):
        self._routes, self._broker = list(routes), broker
        self.namesrv, self.addresses, self.unanswered = self, ["n"], {"b": ""}

    async def route(self, _topic):
        return self._routes.pop(0) if len(self._routes) > 1 else self._routes[0]

    async def queues(self, topic):
        return [MessageQueue(topic, "b", 0)]

    def broker(self, address, *, name):
        async def ends(*_):
            return 7

        return self._broker or SimpleNamespace(
            address=address, name=name, min_offset=ends, max_offset=ends
        )

    async def ask_all(self, brokers, question):
        return [(it, await question(it)) for it in brokers]


class Producer:
    """A producer whose first send is not answered."""

    def __init__(self):
        self.count = 0

    async def send(self, message, queue):
        self.count += 1
        if self.count == 1:
            raise SendFailed("x", brokers=("b",), may_be_stored=True) from ConnectionLost("gone")
        return SendResult(SendStatus.SEND_OK, message.message_id, "", queue, 7)


@pytest.mark.parametrize("meanwhile", [None, route(SLAVE), route({})])
def test_a_restore_waits_until_there_is_a_master_again(folder, meanwhile):
    state: Any = SimpleNamespace(end_of=lambda _: 7)
    producer: Any = Producer()
    admin: Any = Admin(meanwhile, meanwhile, route(MASTER))
    run = Sending(
        admin, producer, folder, state,
        rate=None, patience_s=PATIENCE_S, has_proof=False,
    )  # fmt: skip
    run._begun.add(PLACE)  # so that the first send is not preceded by a search
    item = Item(0, Position(0, "id"), Message("T", b"x"))
    target = progress.Target("T", "b", 0, 7)
    assert asyncio.run(run._stored([item], target)) == 7
    assert (producer.count, run.repeated_count) == (2, 1)


def test_a_plan_without_a_master_is_noted(capsys):
    admin: Any = Admin(route(SLAVE), route(SLAVE), route({}))
    (found,) = asyncio.run(backup.Wanted(["T"]).planned(admin)).topics
    assert found.queues == [QueueSpan("b", 0, 7, 7)]
    line = "cometmq: messages that only the master of b has are left out\n"
    assert capsys.readouterr().err == line
    with pytest.raises(ExceptionGroup) as failed:
        asyncio.run(backup.Wanted(["T"]).planned(admin))
    assert failed.group_contains(ClientError, match="the broker b is not in the routes")


def segment(number):
    return Segment(
        file=f"{number:06}.jsonl.gz", topic="T", broker="b", queue=0, first=number,
        next=number + 1, messages=0, plain_bytes=0, sha256="",
    )  # fmt: skip


def test_a_line_replaces_one_that_was_not_written_to_its_end(folder):
    table = folder.path / form.SEGMENTS
    folder.add(segment(1))
    with table.open("ab") as file:
        file.write(b'{"file":"torn by a full disk, longer than a line' + b"x" * 1000)
    before = table.read_bytes()
    assert len(form.load(folder.path).segments) == 1
    assert table.read_bytes() == before, "a reader must not write: the backup may be running"
    folder.add(segment(2))
    folder.finish("now")
    found = form.load(folder.path)
    assert (len(found.segments), found.end) == (2, folder.end)


def test_a_disk_that_is_full_at_the_last_line_is_named(folder, monkeypatch):
    def append(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Lines, "append", append)
        with pytest.raises(ClientError, match="cannot be written: No space left on device"):
            folder.finish("now")
    assert folder.end is None
    folder.finish("now")
    assert form.load(folder.path).end == folder.end


def test_two_backups_do_not_use_one_folder(tmp_path):
    path = tmp_path / "b"
    path.mkdir()
    (path / "backup.json.new").write_bytes(b"{")  # of a run that was killed
    with form.created(path, plan_of()):
        for begun, text in (
            (form.resumed(path), "in use by another backup"),
            (form.created(path, plan_of()), "exists and is no backup"),
        ):
            with pytest.raises(ClientError, match=text), begun:
                pass
    (path / "000009.jsonl.gz").write_bytes(b"of a run that was killed")
    with form.resumed(path) as found:
        assert [it.name for it in path.iterdir()] == [form.PLAN]
        assert found.plan == form.load(path).plan


def test_a_table_that_cannot_be_read_is_named(folder):
    (folder.path / form.SEGMENTS).mkdir()
    with pytest.raises(InvalidArgument, match=r"segments\.jsonl cannot be read"):
        form.load(folder.path)


# -- folders of strangers -------------------------------------------------------------------------


@pytest.fixture(params=["device", "pipe"])
def endless(request):
    """Return a function that puts something with no end in place of a file."""

    def put(path):
        if request.param == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/null")

    return put


@pytest.mark.parametrize(
    ("name", "read"),
    [
        (form.PLAN, lambda path: form.load(path.parent)),
        (form.SEGMENTS, lambda path: form.load(path.parent)),
        ("000001.jsonl.gz", lambda path: check(path.parent, segment(1))),
        ("000001.jsonl.gz", lambda path: list(lines_of(path.parent, segment(1)))),
        ("restore.jsonl", lambda path: progress.load(path, BACKUP)),
    ],
)
@pytest.mark.timeout(60)
def test_a_file_without_an_end_is_refused(folder, endless, name, read):
    path = folder.path / name
    path.unlink(missing_ok=True)
    endless(path)
    with pytest.raises(InvalidArgument, match=f"{name} cannot be read: it is no regular file"):
        read(path)


def test_a_first_line_of_a_progress_file_is_not_read_without_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(progress, "PLAN_BYTES_MAX", 1_000)
    path = tmp_path / "progress"
    path.write_bytes(b'{"backup":"i","topic":"T","targets":[]' + b" " * 2_000 + b"}\n")
    with pytest.raises(InvalidArgument, match=f"line 1 of {path} is no progress"):
        progress.load(path, BACKUP)


def test_nothing_is_written_through_a_link(folder, tmp_path):
    mine = tmp_path / "mine"
    mine.write_bytes(b"")
    link = folder.path / "restore.jsonl"
    link.symlink_to(mine)
    head = progress.Head(backup="i", topic="T", targets=[])
    claim = progress.claim(link, 0)
    with pytest.raises(ClientError, match="cannot be written: it is a symbolic link"), claim:
        pass
    with pytest.raises(ClientError, match="cannot be written: it is a symbolic link"):
        progress.begin(link, head, BACKUP)
    (folder.path / form.SEGMENTS).symlink_to(mine)
    with pytest.raises(ClientError, match="cannot be written: it is a symbolic link"):
        folder.finish("now")
    assert mine.read_bytes() == b""


HOSTILE = dict(hostile({}))


@pytest.mark.parametrize("name", HOSTILE)
def test_every_file_of_a_backup_that_is_no_json_is_named(folder, tmp_path, name):
    content = HOSTILE[name]
    for file in (form.SEGMENTS, form.PLAN):
        (folder.path / file).write_bytes(content + b"\n")
        with pytest.raises(InvalidArgument, match=file):
            form.load(folder.path)
    head = progress.Head(backup="i", topic="T", targets=[])
    path = tmp_path / "progress"
    progress.begin(path, head, BACKUP)
    begun = path.read_bytes()
    for damaged in (content + b"\n", begun + content + b"\n"):
        path.write_bytes(damaged)
        with pytest.raises(InvalidArgument, match=str(path)):
            progress.load(path, BACKUP)
    with pytest.raises(ClientError, match="line 1 of a backup's file is no message"):
        sending.item_of(0, content, "T")


@pytest.mark.parametrize("queues", [1, 3000])
def test_a_restore_that_was_killed_at_its_first_line_has_not_begun(tmp_path, queues):
    path = tmp_path / "progress"
    targets = [(("T", "b", n), progress.Target("T", "b", n, 0)) for n in range(queues)]
    head = progress.Head(backup="i", topic="T", targets=targets)
    whole = progress.begin(path, head, BACKUP).size
    data = path.read_bytes()
    assert len(data) == whole
    for size in (0, 5, 20, len(data) - 1):
        path.write_bytes(data[:size])
        assert progress.load(path, BACKUP) is None
        with progress.claim(path, 0):
            found = progress.begin(path, head, BACKUP)
            with (
                pytest.raises(ClientError, match="in use by another restore"),
                progress.claim(path, whole),
            ):
                pass
        found.finish()
        again = progress.load(path, BACKUP)
        assert again is not None
        assert again.is_done
    with pytest.raises(ClientError, match="another restore has written"), progress.claim(path, 0):
        pass
    path.write_bytes(b"a note of somebody")
    with pytest.raises(InvalidArgument, match=r"is no progress.*name another file"):
        progress.load(path, BACKUP)
