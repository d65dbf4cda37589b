# SPDX-License-Identifier: Apache-2.0
"""Bounds the bodies that handlers decode in one step on the event loop, and the requests that wait.

Only messages and registrations need frames of up to 16 MiB. Decoding other bodies of that size
would hold the loop for up to 4 s. Without bounds, requests that wait for messages, the disk or a
client would take as much memory as their peers like.
"""

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, Final, TypeVar

from cometmq.remoting.bodies.codec import PROPERTIES_TEXT
from cometmq.remoting.bodies.dialect import decode_bounded
from cometmq.remoting.codes import RequestCode as Code
from cometmq.remoting.command import Call
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.errors import ServerError
from cometmq.remoting.frame import REQUEST_HEADER_BYTES_MAX

T = TypeVar("T")
ContextT = TypeVar("ContextT")
AnyHandler = Callable[[ContextT, Call[Any]], Any]

BODY_BYTES_MAX: Final = 1 << 20
"""Maximum size of a JSON body, which `decode_bounded` decodes or refuses in less than 20 ms."""
SETTINGS_BYTES_MAX: Final = 64 << 10
"""Maximum size of a body with settings, which are parsed character by character."""
NO_BODY_BYTES_MAX: Final = 4 << 10
"""Maximum size of the body of a request that needs none; it is ignored."""
HEAD_BYTES_MAX: Final = 64 << 10
"""Maximum size of the header of a request, except LONG_HEADERS and MESSAGES. Even a pull with the
longest SQL92 filter has a header of only a few KB.
"""
UNIT_BYTES: Final = 4 << 10
"""Number of bytes for which a waiting request counts as one request in flight."""
LONG_HEADERS: Final = frozenset({
    Code.PUT_KV_CONFIG, Code.UPDATE_AND_CREATE_ACL_CONFIG, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
})  # fmt: skip
"""Requests of administrators whose headers have lists."""


def bounded_bodies(
    handlers: Mapping[int, AnyHandler[ContextT]],
) -> dict[int, AnyHandler[ContextT]]:
    """Return the handlers, wrapped so that they refuse bodies above the bound of their code."""
    return {code: _bounded(code, handler) for code, handler in handlers.items()}


def bytes_max(code: int) -> int | None:
    """Return the maximum size of a request's body; None if the body is not decoded in one step.

    Messages are bounded by `maxMessageSize`, and registrations by limits of the name server.
    """
    command = COMMANDS.get(code)
    if command is None:
        return None
    codec = command.body
    if codec is None:
        return NO_BODY_BYTES_MAX
    if codec is PROPERTIES_TEXT:
        return SETTINGS_BYTES_MAX
    is_json = codec.name.startswith("JSON `") and "or its" not in codec.name
    return BODY_BYTES_MAX if is_json else None


MESSAGES: Final = frozenset(int(code) for code in COMMANDS if bytes_max(code) is None)
"""Codes of requests with messages or registrations, whose sizes are bounded elsewhere."""


def weight_of(call: Call[Any]) -> int:
    """Return how many requests in flight this one counts as.

    A request that waits keeps its bytes in memory, so it counts once for each UNIT_BYTES. Messages
    count once, because the store bounds the messages that wait.
    """
    size = len(call.head) + len(call.body)
    return 1 if size < UNIT_BYTES or call.code in MESSAGES else size // UNIT_BYTES


def _bounded(code: int, handler: AnyHandler[ContextT]) -> AnyHandler[ContextT]:
    most = bytes_max(code)
    if most is None:
        return handler
    head_bytes_max = REQUEST_HEADER_BYTES_MAX if code in LONG_HEADERS else HEAD_BYTES_MAX

    @wraps(handler)
    def bounded(context: ContextT, call: Call[Any]) -> Any:
        check_bytes(call, most)
        if len(call.head) > head_bytes_max:
            raise ServerError(
                f"the header of this request may have at most {head_bytes_max} bytes, not"
                f" {len(call.head)}"
            )
        return handler(context, call)

    return bounded


class _Decoded:
    """The body that a hook has decoded last."""

    call: Call[Any] | None = None
    body: object = None


_decoded: Final = _Decoded()


def decoded_by_hook(type_: type[T], call: Call[Any]) -> T:
    """Decode a JSON body for a hook, which runs just before the handler of the same request.

    The value is kept for `decoded_body`, because decoding may take as long as a request may hold
    the loop. Raise ServerError or RemoteProtocolError.
    """
    if _decoded.call is call and isinstance(_decoded.body, type_):
        return _decoded.body
    check_bytes(call, BODY_BYTES_MAX)
    body = decode_bounded(type_, call.body)
    _decoded.call, _decoded.body = call, body
    return body


def decoded_body(type_: type[T], call: Call[Any]) -> T:
    """Decode a JSON body for a handler, unless a hook has done so; raise RemoteProtocolError."""
    call_of_hook, body = _decoded.call, _decoded.body
    _decoded.call = _decoded.body = None
    if call_of_hook is call and isinstance(body, type_):
        return body
    return decode_bounded(type_, call.body)


def check_bytes(call: Call[Any], most: int) -> None:
    """Raise ServerError if the body of a request is larger than `most`.

    For hooks that decode bodies, because hooks run before the handlers that `bounded_bodies` wraps.
    """
    if len(call.body) > most:
        raise ServerError(
            f"the body of this request may have at most {most} bytes, not {len(call.body)}"
        )
