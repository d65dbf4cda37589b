# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's remoting protocol: a sans-io core, and an asyncio transport."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from cometmq.remoting.command import (
    OK,
    Call,
    ConstantExt,
    Peer,
    RawCommand,
    Reply,
    Request,
    Response,
)
from cometmq.remoting.errors import (
    CometError,
    CommandError,
    ConnectFailed,
    ConnectionLost,
    RemoteProtocolError,
    RequestTimeout,
    command_error,
)
from cometmq.remoting.log import NO_LOG, Log
from cometmq.remoting.response_codes import ResponseCode
from cometmq.remoting.types import Buffer, Direction, Language, Serialization
from cometmq.remoting.versions import CURRENT_VERSION

if TYPE_CHECKING:
    from cometmq.remoting.codes import RequestCode

__all__ = [
    "CURRENT_VERSION",
    "NO_LOG",
    "OK",
    "Buffer",
    "Call",
    "CometError",
    "CommandError",
    "ConnectFailed",
    "ConnectionLost",
    "ConstantExt",
    "Direction",
    "Language",
    "Log",
    "Peer",
    "RawCommand",
    "RemoteProtocolError",
    "Reply",
    "Request",
    "RequestCode",
    "RequestTimeout",
    "Response",
    "ResponseCode",
    "Serialization",
    "command_error",
]


def __getattr__(name: str) -> Any:
    if name != "RequestCode":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # First use imports the requests with their headers and bodies, which take 13 ms: a help page
    # and an error message of the command line need none.
    found = globals()[name] = import_module("cometmq.remoting.codes").RequestCode
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
