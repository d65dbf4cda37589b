# SPDX-License-Identifier: Apache-2.0
"""The delivery times of `cometmq produce --at TIME` and `--in DURATION`."""

from datetime import UTC, datetime, timedelta

from cometmq.client import InvalidArgument
from cometmq.insight import times


def deliver_at(at: str | None, in_: str | None, *, now_ms: int) -> datetime | timedelta | None:
    """Return when to deliver; raise InvalidArgument for a time in the past."""
    if at is not None and in_ is not None:
        raise InvalidArgument("--at cannot be combined with --in")
    if in_ is not None:
        return timedelta(seconds=times.seconds(in_))
    if at is None:
        return None
    due_ms = times.parsed(at, now_ms=now_ms)
    if due_ms <= now_ms:
        raise InvalidArgument(
            f"--at {at} is in the past: {times.shown(due_ms)}; to deliver so much later, give --in"
        )
    return datetime.fromtimestamp(due_ms // 1_000, UTC) + timedelta(milliseconds=due_ms % 1_000)


def shown_time(at: datetime | timedelta | None) -> str:
    """Return the text for the results; empty for messages without a time."""
    if isinstance(at, datetime):
        return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return "" if at is None else f"in {at}"
