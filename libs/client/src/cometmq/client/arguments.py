# SPDX-License-Identifier: Apache-2.0
"""Checks arguments of calls: a wrong one is named at the call, not deep inside it."""

from typing import Any

from cometmq.client.errors import InvalidArgument
from cometmq.remoting.bodies.queues import MessageQueue


def whole(value: Any, name: str, *, low: int = 0, high: int | None = None) -> int:
    """Return `value`; InvalidArgument unless it is an int from `low` to `high`, both inclusive."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < low or (high is not None and value > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidArgument(f"{name} must be a whole number {bounds}, not {value!r}")
    return int(value)


def whole_or(default: int, value: Any, name: str, *, low: int = 1) -> int:
    """Like `whole`; None means `default`."""
    return default if value is None else whole(value, name, low=low)


def check_queue(queue: object) -> None:
    """Raise InvalidArgument unless `queue` is a MessageQueue."""
    if not isinstance(queue, MessageQueue):
        raise InvalidArgument(
            f"queue must be a MessageQueue(topic, broker_name, queue_id), not {queue!r}"
        )
