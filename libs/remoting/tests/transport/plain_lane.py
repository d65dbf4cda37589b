# SPDX-License-Identifier: Apache-2.0
"""A lane, and the system calls for direct input and output, in plain Python."""

import asyncio
import os
import select
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from cometmq.remoting import RawCommand, Reply
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header
from cometmq.remoting.transport.lane import Answered, Part
from cometmq.remoting.transport.peer.lane_intake import PULLS, SENDS
from cometmq.testing.remoting.frames import encode_frame

PLAIN = 9001
"""The code of the requests that `PlainLane` takes."""


def plain(opaque: int, body: bytes = b"") -> bytes:
    return encode_frame(RawCommand(code=PLAIN, opaque=opaque, body=body))


class PythonSockets:
    """A slow equivalent of `cometmq.accel.Sockets`; `bytes_max` bounds each write.

    The lane's part is an object with two methods: `answer_chunk` returns the frames of the answers,
    their number, and where the rest of the chunk begins; `stage_chunk` returns the number of the
    staged requests, or -1.
    """

    def __init__(self, bytes_max: int = 1 << 30) -> None:
        self.bytes_max = bytes_max
        self.received_count = 0
        self._answers: list[tuple[Any, bytes]] = []

    def receive(
        self, epoll: int, peers: dict[int, Any], count_max: int, pulling: Any, sending: Any
    ) -> tuple[list[tuple[Any, bytes]], list[Any], Any, Any]:
        chunks, ended = [], []
        poll = select.epoll.fromfd(os.dup(epoll))
        with poll:
            events = poll.poll(0, count_max)
        for fd, flags in events:
            data = self._receive(fd) if flags == select.EPOLLIN else None
            if data:
                chunks.append((peers[fd], data))
            elif data is None:
                ended.append(peers[fd])
        next_row, left, answered, staged = self.take_rows(chunks, 0, pulling, sending)
        return left + chunks[next_row:], ended, answered, staged

    def take_rows(
        self, rows: list[tuple[Any, bytes]], first: int, pulling: Any, sending: Any
    ) -> tuple[int, list[tuple[Any, bytes]], Any, Any]:
        after, left, answered = self._answer_rows(rows, first, pulling)
        if sending is None:
            return after, left, answered, None
        lane, _, count_max = sending
        kept, staged, counts = [], [], []
        for peer, data in left:
            count = lane.stage_chunk(peer, data, count_max) if peer.habit == SENDS else -1
            if count < 0:
                kept.append((peer, data))
            else:
                staged.append((peer, data))
                counts.append(count)
        return after, kept, answered, (staged, sum(counts), 0, counts, None) if staged else None

    def _answer_rows(
        self, rows: list[tuple[Any, bytes]], first: int, pulling: Any
    ) -> tuple[int, list[tuple[Any, bytes]], Any]:
        if pulling is None:
            return len(rows), rows[first:], None
        lane, _, _, count_max, in_flight_max, room, _ = pulling
        left: list[tuple[Any, bytes]] = []
        received = count = 0
        is_known = False  # whether a chunk has reached the lane
        after = len(rows)
        for row, (peer, data) in enumerate(rows[first:], first + 1):
            if peer.habit != PULLS or peer.in_flight > in_flight_max:
                left.append((peer, data))
                continue
            is_known = True
            frames, done, rest = lane.answer_chunk(peer, data, count_max, room)
            if done:
                self._answers.append((peer, frames))
            received, count = received + rest, count + done
            if rest < len(data):
                left.append((peer, data[rest:]))
                after = row
                break
        answered: Any = (count, received, 0, [], bool(count), None, None)
        return after, left, answered if is_known else None

    def send_answers(self) -> tuple[int, list[tuple[Any, bytes, bool | None]]]:
        total, answers, self._answers = 0, self._answers, []
        unsent: list[tuple[Any, bytes, bool | None]] = []
        for peer, data in answers:
            peer.has_received = True
            if peer.direct_fd < 0 or peer.is_dirty:
                unsent.append((peer, data, None))
                continue
            sent = self.send(peer.direct_fd, data)
            total += sent
            peer.direct_bytes += sent
            if sent < len(data):
                unsent.append((peer, data[sent:], True))
        return total, unsent

    def _receive(self, fd: int) -> bytes | None:
        try:
            data = os.read(fd, 256 * 1024)
        except BlockingIOError:
            return b""
        except OSError:
            return None
        self.received_count += bool(data)
        return data or None

    def send(self, fd: int, data: bytes) -> int:
        try:
            return os.write(fd, data[: self.bytes_max])
        except OSError:
            return 0

    def send_rows(
        self, rows: Sequence[tuple[Any, bytes, int]]
    ) -> tuple[int, list[tuple[int, bytes | None]]]:
        total, full = 0, set()
        unsent: list[tuple[int, bytes | None]] = []
        for index, (peer, data, _) in enumerate(rows):
            if peer.direct_fd < 0:
                unsent.append((index, None))
                continue
            sent = 0 if peer.direct_fd in full else self.send(peer.direct_fd, data)
            total += sent
            if sent < len(data):
                full.add(peer.direct_fd)
                unsent.append((index, data[sent:]))
        return total, unsent

    def secure(self, _fd: int, _session: Any) -> None:
        raise AssertionError("there are no native sessions")

    def release(self, _fd: int) -> None:
        raise AssertionError("there are no native sessions")

    def take_overhead(self) -> int:
        return 0


class NoLane:
    """Leaves all requests to the handlers."""

    def stage(self, _peer: Any, _data: bytes, _count_max: int) -> None:
        return

    def sends(self, count_max: int) -> tuple[Any, int | None, int] | None:
        return None

    def sends_failed(self, _fault: BaseException) -> None:
        raise AssertionError("nothing is staged")

    def put(self, _count: int, _staged_bytes: int, *, at_once: bool = False) -> int | None:
        raise AssertionError("nothing is staged")

    def answer(self, _first: int, _count: int, _room: int) -> Answered:
        raise AssertionError("nothing is staged")

    def frame(self, _index: int) -> tuple[int, int]:
        raise AssertionError("nothing is staged")

    def pulls(self, _count_max: int) -> tuple[Any, Any, int] | None:
        return None

    def pulled(self, effects: Any, fault: BaseException | None) -> None:
        assert effects is fault is None

    def drop(self) -> None:
        return

    def begin_turn(self) -> None:
        return

    def end_turn(self) -> None:
        return


class PlainLane(NoLane):
    """Takes PLAIN, and answers with the body of the request: at the end of a read of many sockets,
    or else in a later turn of the loop.
    """

    def __init__(self, *, commits: bool = True) -> None:
        """If `commits` is false, the test calls `commit`."""
        self._encode = Codec(COMMANDS).encoder.encode_reply
        self._commits = commits
        self._is_in_turn = False
        self._staged: list[tuple[Any, int, bytes]] = []
        self._waiting: list[tuple[Any, int, bytes]] = []
        self.row_count = 0  # requests that `stage_chunk` has taken
        self.drop_count = 0
        self.fault: Exception | None = None

    def stage(self, peer: Any, data: bytes, count_max: int) -> list[Part] | None:  # type: ignore[override]
        count = self._stage(peer, data, count_max)
        return None if count < 0 else [(count, 0, 0, len(data))]

    def sends(self, count_max: int) -> tuple[Any, int | None, int] | None:
        return self, None, count_max

    def stage_chunk(self, peer: Any, data: bytes, count_max: int) -> int:
        """Stage a chunk for `PythonSockets`."""
        count = self._stage(peer, data, count_max)
        self.row_count += max(0, count)
        return count

    def _stage(self, peer: Any, data: bytes, count_max: int) -> int:
        frames = FrameReader()
        found = [
            (decode_header(serialization, head), body)
            for serialization, head, body in frames.feed(data)
        ]
        is_whole = not frames.buffered_bytes and 0 < len(found) <= count_max
        if not is_whole or any(command.code != PLAIN for command, _ in found):
            return -1
        self._staged += [(peer, command.opaque, body) for command, body in found]
        return len(found)

    def put(self, count: int, _staged_bytes: int, *, at_once: bool = False) -> int | None:
        if self.fault is not None:
            raise self.fault
        if not self._waiting and self._commits and not self._is_in_turn and not at_once:
            asyncio.get_running_loop().call_soon(self.commit)
        self._waiting += self._staged[:count]
        del self._staged[:count]
        if at_once:
            self.end_turn()
        return count

    def drop(self) -> None:
        self.drop_count += 1
        self._staged.clear()

    def begin_turn(self) -> None:
        self._is_in_turn = True

    def end_turn(self) -> None:
        self._is_in_turn = False
        if self._commits:
            self.commit()

    def commit(self) -> None:
        waiting, self._waiting = self._waiting, []
        answers: dict[Any, list[bytes]] = defaultdict(list)
        for peer, opaque, body in waiting:
            out: list[Any] = []
            self._encode(out, 0, opaque, Reply(body=body))
            answers[peer].append(b"".join(out))
        rows = [(peer, b"".join(frames), len(frames)) for peer, frames in answers.items()]
        if rows:
            rows[0][0].reply_rows(rows)
