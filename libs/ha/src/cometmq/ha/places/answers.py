# SPDX-License-Identifier: Apache-2.0
"""Parses the JSON in servers' answers."""

from typing import TypeVar

import msgspec

from cometmq.ha.places.http import HttpError
from cometmq.remoting.errors import UNREADABLE_JSON

T = TypeVar("T")


def parsed(data: bytes | msgspec.Raw, type_: type[T]) -> T:
    """Return an answer; raise HttpError if it is not of this type."""
    try:
        return msgspec.json.decode(data, type=type_)
    except UNREADABLE_JSON as error:
        raise HttpError(f"the answer cannot be read: {error}") from error
