# SPDX-License-Identifier: Apache-2.0
"""Decodes request bodies. A malformed body is the sender's error, so it gets an error answer and no
log line.
"""

from typing import Any, TypeVar

from cometmq.remoting.bodies.dialect import decode_json
from cometmq.remoting.command import Call
from cometmq.remoting.errors import RemoteProtocolError, ServerError

T = TypeVar("T")


def json_body(call: Call[Any], type_: type[T]) -> T:
    """Return the typed body of a request; raise CommandError if it is malformed."""
    try:
        return decode_json(type_, call.body)
    except RemoteProtocolError as error:
        raise ServerError(f"the body is not a valid {type_.__name__}: {error}") from error
