# SPDX-License-Identifier: Apache-2.0
"""Parse the JSON that servers answer."""

from typing import Final, TypeVar

import msgspec

from cometmq.ha.places.http import HttpError

T = TypeVar("T")

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for invalid JSON or UTF-8, for deep nesting, and for a wrong type."""


def parsed(data: bytes | msgspec.Raw, type_: type[T]) -> T:
    """Return an answer; raise HttpError if it is not of this type."""
    try:
        return msgspec.json.decode(data, type=type_)
    except UNREADABLE as error:
        raise HttpError(f"the answer cannot be read: {error}") from error
