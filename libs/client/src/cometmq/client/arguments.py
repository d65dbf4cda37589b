# SPDX-License-Identifier: Apache-2.0
"""Checks the arguments of calls, so that a wrong one is reported where it is passed."""

from collections.abc import Iterable
from functools import cache
from typing import Any, Final, TypeVar

import msgspec

from cometmq.client.errors import InvalidArgument, shown
from cometmq.remoting.bodies.dialect import encode_json
from cometmq.remoting.bodies.queues import MessageQueue
from cometmq.remoting.errors import SettingsError
from cometmq.remoting.transport.addresses import parse_address

EPOCH_S_MAX: Final = 100_000_000_000
"""The year 5138 in seconds since 1970, and a day in 1973 in milliseconds."""

HeaderT = TypeVar("HeaderT", bound=msgspec.Struct)


def whole(value: Any, name: str, *, low: int = 0, high: int | None = None) -> int:
    """Return `value`; raise InvalidArgument unless it is an int from `low` to `high`, inclusive."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if not is_whole or value < low or (high is not None and value > high):
        bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
        raise InvalidArgument(f"{name} must be a whole number {bounds}, not {shown(value)}")
    return int(value)


def timestamp(value: Any, *, low: int = 0, name: str = "timestamp_ms") -> int:
    """Return a point in time in milliseconds since 1970; raise InvalidArgument for anything else.

    `low` may be a negative number that has a meaning of its own. Times above 0 but before 1973 are
    refused: they are probably in seconds, and would silently select the first message.
    """
    moment_ms = whole(value, name, low=low)
    if 0 < moment_ms < EPOCH_S_MAX:
        raise InvalidArgument(
            f"{name} is in milliseconds since 1970, so {moment_ms} is before any message: give "
            "round(seconds * 1000)"
        )
    return moment_ms


def check_seconds(value: object, name: str) -> None:
    """Raise InvalidArgument unless `value` is a number above 0; NaN is rejected."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise InvalidArgument(f"{name} must be a number of seconds above 0, not {shown(value)}")


def encoded(value: object, name: str) -> bytes:
    """Return the JSON of a request's body; raise InvalidArgument if UTF-8 cannot encode it."""
    try:
        return encode_json(value)
    except UnicodeEncodeError as error:
        check_encodable(error.object, name)
        raise


def check_encodable(text: str, name: str) -> None:
    """Raise InvalidArgument if a string contains a lone surrogate, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArgument(
            f"{name} contains the lone surrogate {text[error.start]!r} at {error.start}, which "
            "cannot be sent: decode the text with errors='replace', or send bytes as the body"
        ) from None


def redelivery_level(level: Any, *, level_max: int | None = None) -> int:
    """Return `level`; raise InvalidArgument unless it is a delay level, or -1 for a dead letter.

    A broker silently replaces higher levels by its last one, `level_max`.
    """
    if whole(level, "delay_level", low=-1) > (level if level_max is None else level_max):
        raise InvalidArgument(
            f"delay_level must be -1 (dead letter), 0 (longer each time) or 1 to {level_max}, not "
            f"{level}: if the brokers' messageDelayLevel has more levels, raise delay_level_max"
        )
    return int(level)


def whole_or(default: int, value: Any, name: str, *, low: int = 1) -> int:
    """Like `whole`, but None means `default`."""
    return default if value is None else whole(value, name, low=low)


def checked_header(header: HeaderT) -> HeaderT:
    """Return the header; raise InvalidArgument if a field does not have its declared type.

    Such a header either cannot be encoded, as one with a lone surrogate, or makes the peer reject
    it as malformed.
    """
    kind = type(header)
    found = {}
    for name, declared in _types_of(kind):
        value = getattr(header, name)
        if value is msgspec.UNSET:
            continue  # the default of fields that only newer peers know
        if isinstance(value, str):
            check_encodable(value, name)
        try:
            found[name] = msgspec.convert(value, declared)
        except msgspec.ValidationError as error:
            raise InvalidArgument(f"{name}={shown(value)}: {error}") from None
    return kind(**found)


@cache
def _types_of(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """Return the names and types of a header's fields; asking msgspec takes 60 us."""
    return tuple((field.name, field.type) for field in msgspec.structs.fields(kind))


def check_kind(value: object, kind: type, name: str) -> None:
    """Raise InvalidArgument unless `value` is an instance of a class."""
    if not isinstance(value, kind):
        wanted = "a string" if kind is str else f"{kind.__name__}(...)"
        raise InvalidArgument(f"{name} must be {wanted}, not {shown(value)}")
    if isinstance(value, str):
        check_encodable(value, name)


def check_text(value: object, name: str) -> None:
    """Raise InvalidArgument unless `value` is a string that is not blank."""
    check_kind(value, str, name)
    if not str(value).strip():
        raise InvalidArgument(f"{name} is empty: give it a value")


def check_names(values: object, name: str) -> list[str]:
    """Return a list of strings; raise InvalidArgument for a single string or anything else."""
    if not isinstance(values, str | bytes) and isinstance(values, Iterable):
        found = list(values)
        if all(isinstance(one, str) for one in found):
            for one in found:
                check_encodable(one, name)
            return found
        values = found
    raise InvalidArgument(f"{name} must be a list of strings, not {shown(values)}")


def check_queue(queue: object) -> None:
    """Raise InvalidArgument unless `queue` is a MessageQueue whose fields have the declared types.

    After a malformed field, a broker closes the connection, which all other calls share.
    """
    if not isinstance(queue, MessageQueue):
        one_each = ": give one queue per call" if isinstance(queue, list | tuple | set) else ""
        raise InvalidArgument(
            f"queue must be a MessageQueue(topic, broker_name, queue_id), not {shown(queue)}"
            f"{one_each}"
        )
    place: Any = queue
    if type(place.queue_id) is not int or not (
        isinstance(place.topic, str) and isinstance(place.broker_name, str)
    ):
        raise InvalidArgument(
            "a MessageQueue has a topic and a broker name, both strings, and a whole number as "
            f"queue_id, unlike {shown(queue)}"
        )
    check_encodable(f"{queue.topic}@{queue.broker_name}", "the MessageQueue")
    if place.queue_id < 0:
        # Sends to a negative queue are stored in any queue, as with RocketMQ.
        raise InvalidArgument(
            f"the queues of a topic are numbered from 0: {shown(queue)} is not one of them"
        )


def check_address(address: object, name: str) -> None:
    """Raise InvalidArgument unless the value is an address of the form `host:port`."""
    try:
        parse_address(address if isinstance(address, str) else "")
    except SettingsError:
        raise InvalidArgument(
            f"{name} must be host:port, such as '127.0.0.1:10911', not {shown(address)}"
        ) from None
