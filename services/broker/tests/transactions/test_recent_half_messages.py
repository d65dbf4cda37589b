# SPDX-License-Identifier: Apache-2.0
from cometmq.broker.transactions.transactions import BODY_BYTES_MAX, RecentHalf, RecentHalves
from cometmq.remoting.message.new_message import NewMessage


def half(offset: int, *, body_bytes: int = 1) -> RecentHalf:
    message = NewMessage("H", 0, 0, 0, 0, b"", b"", bytes(body_bytes))
    return RecentHalf("P", ("T", 1), 0, offset, offset * 100, 200, message)


def test_the_oldest_are_dropped_above_the_limit() -> None:
    recent = RecentHalves(count_max=2)
    for offset in range(3):
        recent.add(half(offset))
    assert len(recent) == 2
    assert recent.take(0) is None
    assert recent.take(200) is not None


def test_large_bodies_are_not_kept() -> None:
    recent = RecentHalves()
    recent.add(half(1, body_bytes=BODY_BYTES_MAX + 1))
    recent.add(half(2, body_bytes=BODY_BYTES_MAX))
    assert len(recent) == 1
