# SPDX-License-Identifier: Apache-2.0
"""Parses and formats times for the command line and the console."""

import re
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Final

from cometmq.client.arguments import EPOCH_S_MAX
from cometmq.client.errors import InvalidArgument
from cometmq.remoting.integers import whole
from cometmq.remoting.spelling import did_you_mean

LAST_MS: Final = 253_370_764_800_000
"""Start of the last year that a date can express; brokers accept no later time, either."""
CALENDAR_MS_MAX: Final = 253_402_214_400_000
"""The beginning of the last day of 9999: later times have no date in some time zones."""
_AGO: Final = re.compile(r"([0-9]{1,18})([smhd])")
_MQADMIN: Final = re.compile(r"(\d{4}-\d\d-\d\d)#(\d\d:\d\d:\d\d):(\d{3})")
_UNIT_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SYNONYMS: Final = {
    **dict.fromkeys(("now", "end", "latest", "newest", "max"), "last"),
    **dict.fromkeys(("begin", "beginning", "start", "earliest", "oldest", "min", "zero"), "first"),
}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)


def is_known(timestamp_ms: float) -> bool:
    """Return whether a time is within the calendar; senders may set any time in a message."""
    return 0 < timestamp_ms < CALENDAR_MS_MAX


def shown(timestamp_ms: int) -> str | None:
    """Return a time as UTC text, or None if it is unknown."""
    if not is_known(timestamp_ms):
        return None
    moment = _EPOCH + timestamp_ms * _MILLISECOND
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parsed(text: str, *, now_ms: int, words: Collection[str] = ()) -> int:
    """Return milliseconds since 1970 for `2026-11-20T10:00Z`, `90m` (ago), or milliseconds as text.

    mqadmin's `2026-11-20#10:00:00:000` works, too. A time without a zone is local, and refused if
    clocks show it twice or never, because they are set back or forward. The error names `words`,
    which the caller accepts instead of a time. Milliseconds between 0 and EPOCH_S_MAX are refused:
    they are probably seconds or offsets, and would silently select the first message.
    """
    found_ms = _milliseconds(text, now_ms, words)
    if text.isdigit() and 0 < found_ms < EPOCH_S_MAX:
        raise InvalidArgument(
            f"{text} milliseconds since 1970 are {shown(found_ms)}, before any message; seconds and"
            f" offsets are not accepted: give {_forms(words)}"
        )
    if not 0 <= found_ms <= LAST_MS:
        raise _out_of_range(text)
    return found_ms


def seconds(text: str) -> int:
    """Return the seconds of a duration such as `90m`; raise InvalidArgument."""
    found = _AGO.fullmatch(text)
    if found is None:
        raise InvalidArgument(f"{text} is not a duration: give 30s, 90m, 12h or 3d")
    return int(found[1]) * _UNIT_S[found[2]]


def _milliseconds(text: str, now_ms: int, words: Collection[str]) -> int:
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_ms - int(ago[1]) * _UNIT_S[ago[2]] * 1000
    number = whole(text)
    if number is not None:
        return number
    if text.isascii() and text.isdigit():
        raise _out_of_range(text)
    try:
        moment = datetime.fromisoformat(_MQADMIN.sub(r"\1T\2.\3", text))
    except ValueError as error:
        raise InvalidArgument(
            f"{text} is not a time: give {_forms(words)}"
            f"{did_you_mean(_SYNONYMS.get(text.lower(), text), words)}"
        ) from error
    try:
        found, other = (moment.replace(fold=it).astimezone(UTC) for it in (0, 1))
    except (ValueError, OverflowError) as error:  # it has no date in the zone of UTC
        raise _out_of_range(text) from error
    if found != other and "#" not in text:  # mqadmin takes the first of both, as in RocketMQ
        choices = " or ".join(f"{it:%Y-%m-%dT%H:%M:%SZ}" for it in sorted((found, other)))
        raise InvalidArgument(
            f"{text} is no one moment here, because clocks are changed then: give {choices}"
        )
    return (found - _EPOCH) // _MILLISECOND


def _out_of_range(text: str) -> InvalidArgument:
    return InvalidArgument(f"{text} is out of range: give a time from 1970 to 9999")


def _forms(words: Collection[str]) -> str:
    others = "".join(f"{word}, " for word in words)
    return f"{others}2026-11-20T10:00Z, 90m (ago) or milliseconds since 1970"
