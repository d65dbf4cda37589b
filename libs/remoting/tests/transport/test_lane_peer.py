# SPDX-License-Identifier: Apache-2.0
"""A peer cannot detect a lane, whichever requests the lane takes and wherever chunks end."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.peers.long_forms import examples
from cometmq.remoting import Call, RawCommand, Reply, RequestCode
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.connection import Codec
from cometmq.remoting.frame import FrameReader
from cometmq.remoting.header import decode_header
from cometmq.remoting.log import NO_LOG
from cometmq.remoting.transport.direct import DirectIO
from cometmq.remoting.transport.dispatch import Dispatcher, Hooks, InOrder
from cometmq.remoting.transport.hub import Hub
from cometmq.remoting.transport.lane import Answered, Part
from cometmq.remoting.transport.lane_peer import LanePeer
from cometmq.remoting.transport.server_peer import ServerPeer
from cometmq.remoting.transport.settings import ServerSettings
from cometmq.remoting.transport.stats import TransportStats
from cometmq.testing.remoting.endless_turns import endless_turns
from cometmq.testing.remoting.frames import encode_frame

from .plain_lane import PythonSockets

PLAIN, CHANGE, NOW, QUICK, SLOW = 9001, 9002, 9003, 9004, 9005
"""Request codes. A lane may take PLAIN; CHANGE makes it forget its staged requests; a handler
answers NOW immediately; a handler, or a lane if the request's number is even, answers QUICK
immediately. The handler of SLOW needs several turns of the loop, in order.
"""
PULL = RequestCode.PULL_MESSAGE  # sent without its fields, so it is malformed
GARBAGE = b"\0\0\0\x0c\0\0\0\x08{broken}"
TOO_LONG = b"\x7f\xff\xff\xff\0\0\0\0"


@pytest.fixture(autouse=True, scope="module")
def _endless_turns() -> Iterator[None]:
    """Let no turn end by time, so that outcomes do not depend on the machine's load."""
    with endless_turns():
        yield


class Wire:
    """A transport that keeps the written bytes."""

    def __init__(self) -> None:
        self.sent = bytearray()
        self.is_reading = True

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return ("127.0.0.1", 40_000)

    def set_write_buffer_limits(self, **_: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def abort(self) -> None: ...

    def write(self, data: bytes) -> None:
        self.sent += data


class World:
    """A server with one connection whose plain requests are answered by `commit`, in order."""

    def __init__(self, settings: ServerSettings, *, has_lane: bool, is_direct: bool) -> None:
        self.served: list[int] = []
        self.waiting: list[Call[Any] | tuple[LanePeer, int]] = []
        self.staged: list[tuple[LanePeer, int]] = []
        self.quick: list[tuple[int, int, int]] = []
        self.quick_count = 0
        self.row_count = 0  # QUICK requests that `answer_chunk` has answered
        self.taken_count = 0
        self.drop_count = 0
        self.has_changed = False
        handlers: Any = {PLAIN: self.keep, CHANGE: self.change, NOW: self.answer_now}
        handlers[QUICK] = self.answer_now
        handlers[SLOW] = lambda _, call: InOrder(self.answer_slowly(call))
        self.hub = Hub(Codec(COMMANDS), settings, clock_ms=lambda: 0, log=NO_LOG)
        dispatcher: Dispatcher[None] = Dispatcher(handlers, None, Hooks(), self.hub)
        self.direct = DirectIO(self.hub, self, PythonSockets()) if is_direct else None
        self.peer: ServerPeer = (
            LanePeer(self.hub, dispatcher, self, self.direct)
            if has_lane
            else ServerPeer(self.hub, dispatcher)
        )
        self.wire = Wire()
        self.peer.connection_made(cast("asyncio.Transport", self.wire))

    # Handlers

    def keep(self, _: None, call: Call[Any]) -> None:
        self.served.append(call.opaque)
        self.waiting.append(call)

    def change(self, _: None, call: Call[Any]) -> Reply:
        self.served.append(call.opaque)
        self.has_changed = True
        return Reply(remark="changed")

    def answer_now(self, _: None, call: Call[Any]) -> Reply:
        self.served.append(call.opaque)
        return self.answer_to(call.opaque)

    async def answer_slowly(self, call: Call[Any]) -> Reply:
        for _ in range(3):
            await asyncio.sleep(0)
        self.served.append(call.opaque)
        return self.answer_to(call.opaque)

    @staticmethod
    def answer_to(opaque: int) -> Reply:
        return Reply(body=b"x" * (100 + opaque % 3 * 200))

    # The lane

    def stage(self, peer: Any, data: bytes, count_max: int) -> list[Part] | None:
        self.has_changed = False
        self.quick.clear()
        parts: list[Part] = []
        at = 0
        while len(data) - at >= 8 and count_max:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            ((serialization, head, _),) = FrameReader().split(data[at:end])
            kind = 0
            if b'"flag":0' in head:
                kind = head.startswith(b'{"code":9001,') - head.startswith(b'{"code":9004,')
            opaque = decode_header(serialization, head).opaque if kind else 0
            if kind > 0:
                self.staged.append((peer, opaque))
            elif kind < 0:
                self.quick.append((opaque, at, end))
            if parts and (parts[-1][0] > 0, parts[-1][0] < 0) == (kind > 0, kind < 0):
                count, _, start, _ = parts.pop()
                parts.append((count + kind, 0, start, end))
            else:
                parts.append((kind, 0, at, end))
            at = end
            count_max -= 1
        return parts

    def sends(self, count_max: int) -> tuple[Any, None, int]:
        return self, None, count_max

    def stage_chunk(self, peer: Any, data: bytes, count_max: int) -> int:
        """Stage a chunk for `PythonSockets`."""
        first = len(self.staged)
        (count, _, _, end), *more = self.stage(peer, data, count_max) or [(0, 0, 0, 0)]
        is_plain = count > 0 and end == len(data) and not more
        if not is_plain:
            del self.staged[first:]
        return count if is_plain else -1

    def sends_failed(self, _fault: BaseException) -> None:
        raise AssertionError("staging cannot fail")

    def put(self, count: int, _staged_bytes: int, *, at_once: bool = False) -> int | None:
        assert not at_once
        if self.has_changed:
            return None
        for one in self.staged[:count]:
            self.served.append(one[1])
            self.waiting.append(one)
        del self.staged[:count]
        self.taken_count += count
        return count

    def answer(self, first: int, count: int, room: int) -> Answered:
        out: list[Any] = []
        size = done = 0
        for opaque, start, end in self.quick[first : first + count]:
            if opaque % 2 or size > room:
                return b"".join(out), done, start, end, bool(opaque % 2)
            size += self.hub.codec.encoder.encode_reply(out, 0, opaque, self.answer_to(opaque))
            self.served.append(opaque)
            self.quick_count += 1
            done += 1
        return b"".join(out), done, 0, 0, False

    def frame(self, index: int) -> tuple[int, int]:
        _, start, end = self.quick[index]
        return start, end

    def pulls(self, _count_max: int) -> tuple[Any, Any, int]:
        return self, None, 0

    def pulled(self, effects: Any, fault: BaseException | None) -> None:
        assert effects is fault is None

    def answer_chunk(
        self, peer: Any, data: bytes, count_max: int, room: int
    ) -> tuple[bytes, int, int]:
        before = len(self.staged)
        (count, _, _, end), *_ = self.stage(peer, data, count_max) or [(0, 0, 0, 0)]
        del self.staged[before:]
        if count >= 0 or end < len(data):
            return b"", 0, 0
        frames, done, start, _, _ = self.answer(0, -count, room)
        self.row_count += done
        return frames, done, start if done < -count else len(data)

    def drop(self) -> None:
        self.drop_count += bool(self.staged)
        self.staged.clear()

    def begin_turn(self) -> None:
        """The test calls `serve` and commits."""

    def end_turn(self) -> None:
        """As `begin_turn`."""

    # The test

    def commit(self) -> None:
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            if isinstance(one, tuple):
                out: list[Any] = []
                peer, opaque = one
                self.hub.codec.encoder.encode_reply(out, 0, opaque, Reply(body=b"done"))
                peer.reply_rows([(peer, b"".join(out), 1)])
            else:
                one.answer(Reply(body=b"done"))
        if waiting and self.peer.is_open:
            self.peer.outlet.flush()  # as the broker does after each commit


def request(code: int, opaque: int, *, flag: int = 0) -> bytes:
    return encode_frame(RawCommand(code=code, opaque=opaque, flag=flag))


Steps = Sequence[tuple[bytes, str]]


def play(
    steps: Steps,
    bounds: ServerSettings,
    *,
    has_lane: bool,
    is_direct: bool = False,
    turns: int = 40,
) -> World:
    async def main() -> World:
        world = World(bounds, has_lane=has_lane, is_direct=is_direct)
        for data, action in steps:
            if world.peer.is_open and data:
                if world.direct is None:
                    world.peer.data_received(data)
                else:
                    assert isinstance(world.peer, LanePeer)
                    world.direct.serve([(world.peer, data)])
            if action == "pause":
                world.peer.pause_writing()
            elif action == "resume":
                world.peer.resume_writing()
            elif action == "commit":
                world.commit()
            elif action == "turn":
                for _ in range(3):
                    await asyncio.sleep(0)
        world.peer.resume_writing()
        for _ in range(turns):
            await asyncio.sleep(0)
            world.commit()
        await asyncio.sleep(0)
        return world

    return asyncio.run(main())


def outcome(world: World) -> tuple[object, ...]:
    stats: TransportStats = world.hub.stats
    return (
        world.served, bytes(world.wire.sent), world.wire.is_reading, world.peer.is_open,
        world.peer.in_flight, world.peer.is_open and world.peer.buffered_bytes, stats,
    )  # fmt: skip


codes = st.sampled_from([PLAIN] * 8 + [QUICK] * 6 + [CHANGE, NOW, int(PULL), 9999])


codes_in_order = st.sampled_from([PLAIN] * 4 + [QUICK] * 4 + [SLOW] * 2 + [NOW])


@st.composite
def series(draw: Any, *, ends_badly: bool, kinds: Any = codes) -> Steps:
    """Generate a stream of requests, cut anywhere into chunks, with an action after each chunk."""
    requests = draw(st.lists(st.tuples(kinds, st.sampled_from([0] * 9 + [2]))))
    data = b"".join(request(code, n, flag=flag) for n, (code, flag) in enumerate(requests))
    if ends_badly:
        data += draw(st.sampled_from([GARBAGE, TOO_LONG])) + request(PLAIN, 1000)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=6)))
    actions = st.sampled_from(["", "", "commit", "turn", "pause", "resume"])
    pieces = zip([0, *cuts], [*cuts, len(data)], strict=True)
    return [(data[start:end], draw(actions)) for start, end in pieces]


@pytest.mark.parametrize("is_direct", [False, True])
@settings(deadline=None)
@given(steps=st.one_of(series(ends_badly=False), series(ends_badly=True)))
def test_a_lane_changes_nothing_that_a_peer_sees(steps, is_direct):
    bounds = ServerSettings(calls_per_turn_max=1000)
    without = play(steps, bounds, has_lane=False)
    with_lane = play(steps, bounds, has_lane=True, is_direct=is_direct)
    assert outcome(with_lane) == outcome(without)
    assert with_lane.staged == []


@pytest.mark.parametrize("is_direct", [False, True])
@settings(deadline=None)
@given(steps=series(ends_badly=False))
def test_bounds_of_requests_in_flight_hold_with_a_lane(steps, is_direct):
    bounds = ServerSettings(
        calls_per_turn_max=1000, in_flight_per_connection_max=3, in_flight_max=1000
    )
    without = play(steps, bounds, has_lane=False)
    with_lane = play(steps, bounds, has_lane=True, is_direct=is_direct)
    assert outcome(with_lane) == outcome(without)


def test_a_lane_answers_at_once_up_to_what_a_connection_may_have_unsent():
    bounds = ServerSettings(write_high_water_bytes=1000, write_low_water_bytes=500)
    data = b"".join(request(QUICK, 2 * number) for number in range(20))
    without = play([(data, "turn")], bounds, has_lane=False)
    with_lane = play([(data, "turn")], bounds, has_lane=True)
    assert with_lane.quick_count == 20
    assert outcome(with_lane) == outcome(without)


def test_what_a_lane_leaves_over_is_served_between_its_answers():
    data = b"".join(request(QUICK, number) for number in range(9)) + request(QUICK, 9)[:11]
    world = play([(data, "turn")], ServerSettings(), has_lane=True)
    assert world.served == list(range(9))
    assert world.quick_count == 5
    assert world.peer.buffered_bytes == 11


@pytest.mark.parametrize(
    ("high_water_bytes", "row_count"),
    [
        (1 << 20, 5),  # 2, 4, and after 8 has shown the habit again, 10, 12, 14
        (200, 3),  # 2, 10, 12: the answers to 2 and 12 exceed the bound
    ],
)
def test_direct_input_leaves_a_chunk_where_the_lane_does(high_water_bytes, row_count):
    chunks = [(0,), (2, 4, 5, 6), (8,), (10,), (12, 14)]
    steps = [(b"".join(request(QUICK, one) for one in chunk), "") for chunk in chunks]
    bounds = ServerSettings(write_high_water_bytes=high_water_bytes, write_low_water_bytes=100)
    world = play(steps, bounds, has_lane=True, is_direct=True)
    assert world.served == [one for chunk in chunks for one in chunk]
    assert world.row_count == row_count
    assert outcome(world) == outcome(play(steps, bounds, has_lane=False))


def test_a_peer_that_does_not_read_gets_the_rest_later():
    data = b"".join(request(QUICK, 2 * number) for number in range(9))
    world = play([(b"", "pause"), (data, ""), (b"", "resume")], ServerSettings(), has_lane=True)
    assert world.served == list(range(0, 18, 2))


def test_a_lane_takes_the_plain_requests_around_others():
    data = b"".join(
        [request(PLAIN, 1), request(PLAIN, 2), request(NOW, 3), request(PLAIN, 4), b"\0\0"]
    )
    world = play([(data, "turn")], ServerSettings(), has_lane=True)
    assert world.taken_count == 3
    assert world.served == [1, 2, 3, 4]
    assert world.peer.buffered_bytes == 2


def test_what_was_staged_before_a_change_is_served_by_handlers():
    data = b"".join([request(PLAIN, 1), request(CHANGE, 2), request(PLAIN, 3), request(NOW, 4)])
    world = play([(data, "turn")], ServerSettings(), has_lane=True)
    assert world.taken_count == 1
    assert world.drop_count == 1
    assert world.served == [1, 2, 3, 4]


def test_a_broken_chunk_is_refused_as_a_whole():
    world = play([(request(PLAIN, 1) + GARBAGE, "")], ServerSettings(), has_lane=True)
    assert world.served == []
    assert world.drop_count == 1
    assert not world.peer.is_open


def test_a_flood_waits_for_later_turns_behind_what_the_lane_takes():
    bounds = ServerSettings(calls_per_turn_max=2)
    data = b"".join(request(PLAIN, number) for number in range(40))
    world = play([(data, "")], bounds, has_lane=True)
    assert world.taken_count == 40  # four per turn, twice as many as handlers would serve
    assert world.served == list(range(40))


@given(series(ends_badly=False))
@settings(deadline=None)
def test_a_lane_changes_nothing_in_long_chunks(steps):
    """With a lane, any other request ends the turn, so answers may come in a different order."""
    bounds = ServerSettings(calls_per_turn_max=2)
    without = play(steps, bounds, has_lane=False)
    with_lane = play(steps, bounds, has_lane=True)
    assert with_lane.served == without.served
    assert with_lane.peer.in_flight == without.peer.in_flight == 0
    assert with_lane.peer.buffered_bytes == without.peer.buffered_bytes
    assert sorted(FrameReader().feed(bytes(with_lane.wire.sent))) == sorted(
        FrameReader().feed(bytes(without.wire.sent))
    )
    assert with_lane.wire.is_reading


def test_a_fault_behind_a_long_chunk_ends_the_connection_in_its_turn():
    data = b"".join(request(PLAIN, number) for number in range(4)) + GARBAGE
    world = play([(data, "")], ServerSettings(calls_per_turn_max=2), has_lane=True)
    assert world.served == [0, 1, 2, 3]
    assert not world.peer.is_open
    assert world.hub.stats.protocol_errors == 1


@pytest.mark.parametrize("calls_max", [2, 1000])
@pytest.mark.parametrize(("has_lane", "is_direct"), [(False, False), (True, False), (True, True)])
@examples(15, long=40)
@given(steps=series(ends_badly=False, kinds=codes_in_order))
def test_no_request_overtakes_one_that_is_served_in_order(steps, calls_max, has_lane, is_direct):
    bounds = ServerSettings(calls_per_turn_max=calls_max)
    world = play(steps, bounds, has_lane=has_lane, is_direct=is_direct, turns=400)
    assert world.served == sorted(world.served)
    data = b"".join(chunk for chunk, _ in steps)
    assert len(world.served) == len(FrameReader().feed(data))
    assert world.peer.in_flight == world.peer.buffered_bytes == 0
    assert world.hub.stats.in_flight == 0
    assert world.wire.is_reading


def test_what_waits_for_work_in_order_is_dropped_with_the_connection():
    async def main() -> None:
        world = World(ServerSettings(), has_lane=True, is_direct=False)
        world.peer.data_received(request(SLOW, 1) + request(NOW, 2))
        world.peer.data_received(request(PLAIN, 3))
        assert world.peer.buffered_bytes > 0
        assert not world.wire.is_reading
        world.peer.connection_lost(None)
        for _ in range(9):
            await asyncio.sleep(0)
        assert world.served == [1]
        assert world.wire.sent == b""
        assert world.hub.stats.in_flight == 0

    asyncio.run(main())
