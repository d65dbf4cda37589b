# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of calls, so that a wrong one is reported at the call, not deep inside."""

from typing import Any, TypeVar

import msgspec

from cometmq.client.errors import InvalidArgument
from cometmq.remoting.bodies.queues import MessageQueue

HeaderT = TypeVar("HeaderT", bound=msgspec.Struct)


def whole(value: Any, name: str, *, low: int = 0, high: int | None = None) -> int:
    """Return `value`; InvalidArgument unless it is an int from `low` to `high`, both inclusive."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < low or (high is not None and value > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidArgument(f"{name} must be a whole number {bounds}, not {value!r}")
    return int(value)


def whole_or(default: int, value: Any, name: str, *, low: int = 1) -> int:
    """Like `whole`, but None means `default`."""
    return default if value is None else whole(value, name, low=low)


def checked_header(header: HeaderT) -> HeaderT:
    """Return a header whose fields have the declared types; InvalidArgument names a wrong one.

    A wrong header could not be encoded or would be refused as malformed, and the peer would close
    the connection that all other calls share.
    """
    kind = type(header)
    found = {}
    for field in msgspec.structs.fields(kind):
        value = getattr(header, field.name)
        try:
            found[field.name] = msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"{field.name} is wrong: {error}, in {value!r}") from None
    return kind(**found)


def check_queue(queue: object) -> None:
    """Raise InvalidArgument unless `queue` is a MessageQueue."""
    if not isinstance(queue, MessageQueue):
        raise InvalidArgument(
            f"queue must be a MessageQueue(topic, broker_name, queue_id), not {queue!r}"
        )
