# SPDX-License-Identifier: Apache-2.0
"""Native answers to pulls and to requests for locks, and where they are sent."""

import contextlib
import select
import socket
import struct
from functools import partial
from typing import Any
from zlib import crc32

import pytest

from cometmq.remoting.header import decode_header
from cometmq.remoting.raw import RawCommand
from cometmq.remoting.types import Serialization
from cometmq.store.log.damage import DamagedRange as Range
from cometmq.testing.remoting.frames import encode_frame

from .native_rig import PullWorld, View, accel, send


def test_a_pull_is_answered_with_the_records_from_its_offset_on():
    world = PullWorld()
    assert world.learn()
    assert not world.learn()
    data = world.head(1)
    frames, done, start, end, is_odd, effects = world.answer(data)
    totals, commits, renewed, left = effects
    raw = decode_header(0, frames[8 : 8 + int.from_bytes(frames[5:8], "big")])
    assert (raw.code, raw.opaque, raw.remark) == (0, 9, "FOUND")
    assert raw.ext == {
        "suggestWhichBrokerId": "0", "nextBeginOffset": "3", "minOffset": "0", "maxOffset": "3",
    }  # fmt: skip
    assert frames.endswith(world.log[92:])
    assert (done, start, end, is_odd) == (1, 0, 0, False)
    assert totals == [("T", "g", 1, 2, 184)]
    assert commits == [("g", "T", 0, 1)]
    assert renewed == []
    assert left == 99  # only filters count
    assert world.reads == [("entries", 0, 3), ("log", 0, 276)]
    assert world.answer(data)[0] == frames
    assert len(world.reads) == 2
    assert world.lane.cached_bytes == 276 + 60


def test_the_records_of_a_repeated_read_are_kept_for_other_groups():
    world = PullWorld()
    world.learn()
    data = world.head(1, maxMsgNums="2")
    first = world.answer(data)
    assert world.lane.cached_bytes == 276 + 60
    assert world.answer(data) == first
    assert world.lane.cached_bytes == 276 + 60 + 184
    assert world.answer(data) == first
    world.queue.max_offset = 9
    (frames, *_, effects) = world.answer(data)
    assert b'"maxOffset":"9"' in frames
    assert frames.endswith(world.log[92:])
    assert effects[0] == [("T", "g", 1, 2, 184)]
    assert world.answer(data, first=93)[1] == 0
    world.queue.life += 1
    assert world.answer(data)[0] == frames
    assert [kind for kind, *_ in world.reads] == ["entries", "log", "entries"]
    world.lane.clear()
    assert world.lane.cached_bytes == 0


def test_readers_that_are_unknown_or_forgotten_are_left_to_python():
    world = PullWorld()
    data = world.head()
    assert world.stage(data) == [(0, 0, 0, len(data))]
    world.learn()
    assert world.stage(data + data) == [(-2, 0, 0, 2 * len(data))]
    other = world.head(consumerGroup="other")
    assert [part[0] for part in world.stage(data + other + send() + data)] == [-1, 0, 1, -1]
    world.lane.forget()
    assert world.lane.reader_count == 0
    assert world.lane.frame(1)[1] == len(data + other + send() + data)
    done = world.lane.answer(0, 1, 1000, View(0, 276, 1 << 20), 99_999)
    assert done[:5] == (b"", 0, 0, len(data), True)
    assert world.stage(data) == [(0, 0, 0, len(data))]


@pytest.mark.parametrize("view", [
    {"damage": (Range(100, 101),)}, {"end": 275}, {"first": 92},
])  # fmt: skip
def test_what_is_not_in_order_is_left_to_python(view):
    world = PullWorld()
    world.learn()
    data = world.head()
    assert world.answer(data, **view)[:5] == (b"", 0, 0, len(data), True)
    assert world.answer(data)[1] == 1


@pytest.mark.parametrize("found", [None, b"", b"x" * 275, "text", bytes(276)])
def test_what_cannot_be_read_is_left_to_python_and_not_kept(found):
    world = PullWorld()
    world.learn()
    world.answer_to_read = lambda _: found
    assert world.answer(world.head())[1] == 0
    world.lane.clear()

    def fail(_data):
        raise OSError(5, "gone")

    world.answer_to_read = fail
    assert world.answer(world.head())[1] == 0
    world.answer_to_read = bytearray
    assert world.answer(world.head())[1] == 1


def always(answer, _data):
    return answer


def test_an_open_file_is_read_without_python(tmp_path):
    world = PullWorld()
    world.learn()
    data = world.head()
    expected = world.answer(data)[0]
    world.lane.clear()
    path = tmp_path / "log"
    path.write_bytes(b"xy" + world.log)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(path.open("rb"))
        fd = file.fileno()
        world.answer_to_read = lambda _: (file, file, fd, 2, None)
        assert world.answer(data)[0] == expected
        world.lane.clear()
        size, crc = world.size, crc32(world.log[: world.size])
        entries = [(size, crc), (size, crc ^ 1), (1 << 20, crc), (0, 0)]
        sums = stack.enter_context((tmp_path / "checksums").open("wb+", buffering=0))
        for number, entry in enumerate(entries):  # all of them for the block at 0
            sums.write(struct.pack(">III", *entry, crc32(struct.pack(">qII", 0, *entry), 65536)))
            place = (file, file, fd, 2, (sums, sums.fileno(), 0, number, number + 1))
            world.answer_to_read = partial(always, place)
            world.lane.clear()
            fits = number in {0, 3}  # the last one says nothing
            assert world.answer(data)[:2] == ((expected, 1) if fits else (b"", 0))
        # not its own entry, none, no position, no file, no entries, and not as many values
        world.lane.clear()
        other = (sums, sums.fileno(), 65536, 1, 2)
        world.answer_to_read = partial(always, (file, file, fd, 2, other))
        assert world.answer(data)[0] == expected
        odd: list[Any] = [
            (file, file, fd, 2, (sums, sums.fileno(), 0, 4, 5)),
            (file, file, fd, 2, (sums, sums.fileno(), 0, 2, 1)),
            (file, file, fd, 2, (sums, -1, 0, 0, 1)),
            (file, file, fd, 2, []),
            (file, file, fd, 3, None),
            (file, file, fd, -1, None),
            (file, file, fd, "2", None),
            (None, None, -1, 2, None),
            (file, file, fd, 2),
            (None, 2),
            (),
        ]
        for place in odd:
            world.lane.clear()
            world.answer_to_read = partial(always, place)
            assert world.answer(data)[1] == 0


class OpenFile:
    """A file as the store knows it; it has one descriptor."""

    def __init__(self, file):
        self.file = file
        self.number = file.fileno()
        self.is_open = True

    def descriptor(self):
        return self if self.is_open else None


def test_a_block_with_checksums_is_loaded_again_without_a_question_but_not_without_a_comparison(
    tmp_path,
):
    world = PullWorld(cache_bytes=1)  # it keeps one block, and each record is one
    world.learn()
    data, view = world.head(), {"file_size": world.size}
    expected = world.answer(data, **view)[0]
    path = tmp_path / "log"
    path.write_bytes(world.log)
    with path.open("rb+", buffering=0) as log, (tmp_path / "sums").open("wb+", buffering=0) as sums:
        file = OpenFile(log)
        for start in range(0, len(world.log), world.size):
            entry = (world.size, crc32(world.log[start : start + world.size]))
            proof = crc32(struct.pack(">qII", start, *entry), 65536)
            sums.write(struct.pack(">III", *entry, proof))

        def place(start, known):
            number = start // world.size
            sealed = (sums, sums.fileno(), start, number, number + 1)
            return file, log, log.fileno(), start + known, sealed

        world.answer_to_read = lambda _: place(world.reads[-1][1], 0)
        world.lane.clear()
        world.reads.clear()
        for _ in range(3):
            assert world.answer(data, **view)[:2] == (expected, 1)
        asked = [(kind, start) for kind, start, _ in world.reads if kind == "log"]
        assert asked == [("log", start) for start in range(0, len(world.log), world.size)]
        log.seek(150)
        log.write(b"!")
        assert world.answer(data, **view)[:2] == (b"", 0)
        log.seek(150)
        log.write(world.log[150:151])
        assert world.answer(data, **view)[:2] == (expected, 1)
        file.is_open = False
        assert world.answer(data, **view)[:2] == (expected, 1)
        assert len([kind for kind, *_ in world.reads if kind == "log"]) == 6
        world.lane.clear()
        world.reads.clear()
        assert world.answer(data, **view)[:2] == (expected, 1)
        assert len([kind for kind, *_ in world.reads if kind == "log"]) == 3


def test_a_queue_that_begins_again_is_read_again():
    world = PullWorld()
    world.learn()
    world.answer(world.head())
    world.queue.life += 1
    assert world.answer(world.head())[1] == 1
    assert [kind for kind, *_ in world.reads] == ["entries", "log", "entries"]


def test_answers_stop_above_the_room_and_filters_choose():
    world = PullWorld()
    world.learn(codes=[2, 1])
    data = world.head()
    world.stage(data * 3)
    view = View(0, 276, 1 << 20)
    frames, done, start, end, is_odd, *_ = world.lane.answer(0, 3, 0, view, 99_999)
    assert (done, start, end, is_odd) == (1, len(data), 2 * len(data), False)
    assert frames.endswith(b"401}" + world.log[92:])
    assert world.lane.answer(1, 2, 1 << 20, view, 99_999)[0] == frames * 2


class Puller:
    """A connection whose last chunk contained only pulls, and which has no socket."""

    def __init__(self, habit: int = 2, in_flight: int = 0, direct_fd: int = -1) -> None:
        self.habit = habit
        self.is_polled = True
        self.in_flight = in_flight
        self.direct_fd = direct_fd
        self.is_dirty = False
        self.direct_bytes = 0
        self.has_received = False


def test_chunks_of_several_connections_are_answered_until_one_is_not_plain():
    world = PullWorld()
    world.learn()
    pull, late, other = world.head(), world.head(99), world.head(consumerGroup="other")
    view = View(0, 276, 1 << 20)
    frames = world.answer(pull)[0]
    sockets = accel.Sockets()

    def answer(*chunks, first=0, count_max=3, room=1 << 20, peers=None):
        peers = peers or [Puller() for _ in chunks]
        rows = list(zip(peers, chunks, strict=True))
        pulling = (world.lane, view, 99, count_max, 5, room, True)
        after, left, answered, _ = sockets.take_rows(rows, first, pulling)
        total, unsent = sockets.send_answers()
        assert total == 0
        counts = [(peers.index(peer), len(data) // len(frames)) for peer, data, _ in unsent]
        assert [(data, is_sealed) for _, data, is_sealed in unsent] == [
            (frames * count, None) for _, count in counts
        ]
        assert sum(peer.has_received for peer in peers) == len(counts)
        count = sum(count for _, count in counts)
        if answered is None:
            return counts, None, after, [(peers.index(peer), data) for peer, data in left]
        found, received, *sent, is_kept, effects, fault = answered
        totals, commits, renewed, budget, seconds = effects
        assert (found, sent, is_kept) == (count, [0, []], count > 0)
        assert (renewed, budget, fault) == ([], 99, None)
        assert 0 < seconds < 60
        assert totals == ([("T", "g", count, 3 * count, 276 * count)] if count else [])
        assert commits == [("g", "T", 0, 1)] * count
        return counts, received, after, [(peers.index(peer), data) for peer, data in left]

    size = len(pull)
    assert answer(pull, pull * 2) == ([(0, 1), (1, 2)], 3 * size, 2, [])
    assert answer(pull, pull * 2, first=1) == ([(1, 2)], 2 * size, 2, [])
    assert answer(pull, pull + late, pull) == ([(0, 1), (1, 1)], 2 * size, 2, [(1, late)])
    for chunk in (pull + other, pull + pull[:9], pull * 4, send(), late):
        assert answer(pull, chunk, pull) == ([(0, 1)], size, 2, [(1, chunk)])
    assert answer(pull * 2, pull, room=1) == ([(0, 1)], size, 1, [(0, pull)])
    for peer in (Puller(habit=1), Puller(in_flight=6)):
        peers = [Puller(), peer, Puller(in_flight=5)]
        expected = ([(0, 1), (2, 1)], 2 * size, 3, [(1, pull)])
        assert answer(pull, pull, pull, peers=peers) == expected
        assert answer(pull, peers=[peer]) == ([], None, 1, [(0, pull)])
    rows = [(Puller(), pull)]
    assert sockets.take_rows(rows, 0, None) == sockets.take_rows(rows, 0) == (1, rows, None, None)


def test_a_bug_leaves_a_chunk_to_python_and_loses_no_other():
    world = PullWorld()
    world.learn()
    pull, sockets = world.head(), accel.Sockets()
    rows = [(Puller(), pull), (Puller(), pull)]
    pulling = (world.lane, object(), 99, 3, 5, 1 << 20, True)
    after, left, answered, _ = sockets.take_rows(rows, 0, pulling)
    *counts, is_kept, effects, fault = answered
    assert (after, left, counts, is_kept, effects) == (1, rows[:1], [0, 0, 0, []], False, None)
    assert isinstance(fault, AttributeError)
    assert sockets.send_answers() == (0, [])


class Wired(PullWorld):
    """Connections that are read and written directly."""

    def __init__(self, stack, count):
        super().__init__()
        self.learn()
        self.sockets, self.epoll = accel.Sockets(), select.epoll()
        stack.callback(self.epoll.close)
        self.peers, self.fars = [], []
        for _ in range(count):
            near, far = socket.socketpair()
            stack.enter_context(near).setblocking(False)
            self.fars.append(stack.enter_context(far))
            self.peers.append(Puller(direct_fd=near.fileno()))
            self.epoll.register(near, select.EPOLLIN | select.EPOLLRDHUP)
            far.settimeout(60)

    def receive(self, *, sends_now=True, room=1 << 20):
        peers = {peer.direct_fd: peer for peer in self.peers}
        pulling = (self.lane, View(0, 276, 1 << 20), 99, 3, 5, room, sends_now)
        return self.sockets.receive(self.epoll.fileno(), peers, 128, pulling)[:3]


def test_pulls_without_a_commit_are_answered_where_they_are_received():
    with contextlib.ExitStack() as stack:
        world = Wired(stack, 3)
        pull, late = world.head(sysFlag="4"), world.head(99, sysFlag="4")
        assert world.receive() == ([], [], None)
        for far in world.fars[:2]:
            far.sendall(pull)
        frames = world.answer(pull)[0]
        chunks, ended, answered = world.receive()
        assert (chunks, ended) == ([], [])
        size = 2 * len(pull)
        assert answered[:5] == (2, size, 2 * len(frames), [], False)
        assert [far.recv(1 << 16) for far in world.fars[:2]] == [frames] * 2
        seen = [(peer.has_received, peer.direct_bytes) for peer in world.peers]
        assert seen == [(True, len(frames))] * 2 + [(False, 0)]
        assert world.sockets.send_answers() == (0, [])

        for far in world.fars:
            far.sendall(pull + late)
        left, _, answered = world.receive()
        assert answered[:5] == (3, 3 * len(pull), 3 * len(frames), [], False)
        assert {id(peer): rest for peer, rest in left} == {id(peer): late for peer in world.peers}
        assert [far.recv(1 << 16) for far in world.fars] == [frames] * 3


@pytest.mark.parametrize(("flags", "sends_now"), [("5", True), ("4", False)])
def test_answers_to_commits_and_answers_that_have_to_wait_are_kept(flags, sends_now):
    with contextlib.ExitStack() as stack:
        world = Wired(stack, 2)
        pull = world.head(sysFlag=flags)
        frames = world.answer(pull)[0]
        for far in world.fars:
            far.sendall(pull)
        _, _, answered = world.receive(sends_now=sends_now)
        assert answered[:5] == (2, 2 * len(pull), 0, [], True)
        assert answered[5][1] == ([("g", "T", 0, 1)] * 2 if flags == "5" else [])
        world.peers[0].is_dirty = True
        total, unsent = world.sockets.send_answers()
        assert (total, unsent) == (len(frames), [(world.peers[0], frames, None)])
        assert world.fars[1].recv(1 << 16) == frames


def test_what_the_kernel_does_not_take_is_returned_and_ends_the_call():
    with contextlib.ExitStack() as stack:
        world = Wired(stack, 1)
        pull = world.head(sysFlag="4")
        frames = world.answer(pull)[0]
        total = sent = 0
        rest: list[Any] = []
        while not rest:
            world.fars[0].sendall(pull * 3)
            _, _, (count, _, sent, rest, is_kept, *_) = world.receive()
            assert (count, is_kept) == (3, False)
            total += sent
        ((peer, data, is_sealed),) = rest
        assert (peer, is_sealed, len(data)) == (world.peers[0], True, 3 * len(frames) - sent)
        assert peer.direct_bytes == total


def test_filters_take_no_more_steps_than_they_may():
    world = PullWorld()
    world.learn(codes=[0, 1, 2])
    data = world.head()
    view = View(0, 276, 1 << 20)
    for budget, done, found, left in ((9, 2, 6, 3), (6, 2, 6, 0), (5, 2, 5, 0), (2, 1, 2, 0)):
        world.stage(data * 2)
        answered = world.lane.answer(0, 2, 1 << 20, view, 256 * budget)
        assert (answered[1], answered[4], answered[5][3]) == (done, done < 2, 256 * left)
        assert sum(total[3] for total in answered[5][0]) == found
    for budget in (255, 0, -1):
        world.stage(data * 2)
        assert world.lane.answer(0, 2, 1 << 20, view, budget)[1:5:3] == (0, True)


@pytest.mark.parametrize("serialization", Serialization)
def test_a_request_for_locks_gets_the_answer_of_its_twin(serialization):
    world = PullWorld()
    world.learn()

    def request(body, opaque):
        command = RawCommand(code=41, opaque=opaque, body=body, serialization=serialization)
        return encode_frame(command)

    known = request(b"queues", 1)
    head = known[8 : -len(b"queues")]
    locks = [object()]
    assert world.lane.learn_renewal(int(serialization), head, b"queues", b"granted", locks)
    assert not world.lane.learn_renewal(int(serialization), head, b"queues", b"other", [])
    assert world.stage(request(b"others", 1))[0][0] == 0
    data = world.head() + request(b"queues", 70_000)
    frames, done, _, _, is_odd, (totals, _, renewed, *_) = world.answer(data)
    assert (done, is_odd, len(totals)) == (2, False, 1)
    assert [id(one) for one in renewed] == [id(locks)]
    answer = frames[4 + int.from_bytes(frames[:4], "big") :]
    found = decode_header(answer[4], answer[8 : -len(b"granted")])
    assert (found.code, found.flag, found.opaque, found.ext) == (0, 1, 70_000, {})
    assert answer.endswith(b"granted")
    world.stage(data)
    world.lane.forget_renewals()
    answered = world.lane.answer(0, 2, 1 << 20, View(0, 276, 1 << 20), 99_999)
    assert (answered[1], answered[4], answered[5][2]) == (1, True, [])


def test_impossible_pulls_raise():
    world = PullWorld()
    with pytest.raises(IndexError):
        world.lane.answer(0, 1, 0, View(0, 276, 1 << 20), 99_999)
    with pytest.raises(IndexError):
        world.lane.frame(0)
    for condition in [("cast", 1), ("like", 0), ("integer", 0, "!=", 1, False)]:
        with pytest.raises((IndexError, ValueError)):
            world.learn(names=["a"], condition=condition)
    with pytest.raises(ValueError, match="more than 8"):
        world.learn(names=["a"] * 9, condition=("cast", 0))
