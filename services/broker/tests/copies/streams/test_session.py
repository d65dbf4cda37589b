# SPDX-License-Identifier: Apache-2.0
"""How soon a session connects again, and what it reports, whichever stream it follows."""

import asyncio
from collections.abc import Sequence

import pytest

from cometmq.broker.copies.state import FollowProgress, FollowState
from cometmq.broker.copies.streams.session import Pace, Session
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.remoting.errors import ConnectionLost
from cometmq.testing.broker.logs import RecordingLog
from cometmq.testing.runtime.clock import FakeClock

PACE = Pace(first_ms=10, max_ms=80, unknown_ms=500)


async def waits_after(
    attempts: Sequence[tuple[int, int] | None], monkeypatch: pytest.MonkeyPatch
) -> list[int]:
    """Return the pauses after attempts that last some time and bring some bytes, or None while the
    master is unknown.
    """
    clock, status = FakeClock(), FollowProgress()
    session = Session(status, PACE, now_ms=clock.monotonic_ms, log=RecordingLog())
    left, waits = list(attempts), []

    async def follow(_where: str) -> None:
        lasted_ms, byte_count = left.pop(0) or (0, 0)
        clock.advance(lasted_ms)
        status.received_bytes += byte_count

    async def sleep(seconds: float) -> None:
        waits.append(round(seconds * 1000))
        if waits[-1] == PACE.unknown_ms:
            left.pop(0)
        if not left:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await session.run(lambda: "" if left[0] is None else "a:1", follow)
    return waits


async def test_a_session_backs_off_until_a_connection_lasts_or_brings_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = (0, 0)
    attempts = [failed, failed, failed, failed, (0, 5), failed, (81, 0), failed, None, failed]
    waits = await waits_after(attempts, monkeypatch)
    assert waits == [20, 40, 80, 80, 10, 20, 10, 20, 500, 40]


def test_each_reason_is_reported_once_until_the_log_is_followed_again() -> None:
    log, status = RecordingLog(), FollowProgress()
    session = Session(status, PACE, now_ms=FakeClock().monotonic_ms, log=log)
    unfit, lost = UnfitLog(Unfit.AHEAD, "too long"), ConnectionLost("gone")
    for count in (1, 2):
        for _ in range(3):
            session.note_lost("a:1", lost, is_alarm=False)
            session.note_unfit(unfit)
        assert (status.state, status.unfit) == (FollowState.UNFIT, Unfit.AHEAD)
        session.note_lost("a:1", lost)
        assert len(log.named("replica.unfit")) == count
        assert len(log.named("replica.disconnected")) == count
        assert len(log.named("replica.lost")) == count
        session.note_following()
        assert (status.state, status.unfit) == (FollowState.FOLLOWING, None)
