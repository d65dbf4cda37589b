# SPDX-License-Identifier: Apache-2.0
"""Each connection has the parts that it needs, and one account of its requests in flight."""

import sys
from types import FrameType
from typing import Any

from cometmq.remoting import OK, Call, RawCommand, Reply, RequestCode
from cometmq.remoting.transport.dispatch import InFlight
from cometmq.remoting.transport.stats import TransportStats
from cometmq.testing.remoting.frames import encode_frame

QUERY = RequestCode.QUERY_CONSUMER_OFFSET
REQUEST = encode_frame(
    RawCommand(code=QUERY, ext={"consumerGroup": "g", "topic": "t", "queueId": "3"})
)
LANE_FILES = (
    "direct.py",
    "lane.py",
    "lane_intake.py",
    "lane_peer.py",
)


async def test_without_a_lane_no_code_of_it_runs(
    start_plain_server: Any, connect_raw: Any, eventually: Any
) -> None:
    waiting: list[Call[Any]] = []
    files: set[str] = set()

    def now_or_later(_: None, call: Call[Any]) -> Reply | None:
        if waiting:
            return OK
        waiting.append(call)
        return None

    def note(frame: FrameType, _event: str, _argument: object) -> None:
        files.add(frame.f_code.co_filename.rpartition("/transport/")[2].rpartition("/")[2])

    server, port = await start_plain_server({QUERY: now_or_later})
    sys.setprofile(note)
    try:
        reader, writer = await connect_raw(port)
        writer.write(REQUEST * 2)
        await reader.read(4096)
        waiting[0].answer(OK)
        server.writes.flush()
        await reader.read(4096)
        writer.close()
        await eventually(lambda: not server.peers)
        await server.close()
    finally:
        sys.setprofile(None)
    assert {"protocol.py", "intake.py", "outlet.py", "reading.py", "hub.py"} <= files
    assert not files.intersection(LANE_FILES)


class Peer:
    def __init__(self) -> None:
        self.in_flight = 0


def test_the_account_follows_each_connection_and_their_total() -> None:
    stats, one, other = TransportStats(), Peer(), Peer()
    account = InFlight(3, 5, stats)
    peers: Any = (one, other)

    account.add(peers[0], 3)
    assert account.exceeds(peers[0], 1)
    assert not account.exceeds(peers[1], 2)
    assert account.exceeds(peers[1], 3)  # more than all may have
    account.answered(peers[0])
    account.add(peers[1], 1)
    assert (one.in_flight, other.in_flight, stats.in_flight) == (2, 1, 3)

    account.forget(peers[0])
    assert (one.in_flight, other.in_flight, stats.in_flight) == (0, 1, 1)
