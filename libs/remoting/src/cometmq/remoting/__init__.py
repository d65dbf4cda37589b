# SPDX-License-Identifier: Apache-2.0
"""RocketMQ's remoting protocol: a sans-io core, and an asyncio transport."""

from cometmq.remoting.codes import RequestCode, ResponseCode
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
from cometmq.remoting.types import Buffer, Direction, Language, Serialization
from cometmq.remoting.versions import CURRENT_VERSION

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
