# SPDX-License-Identifier: Apache-2.0
"""The type of a row in the command catalogue."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cometmq.remoting.bodies.codec import BodyCodec
from cometmq.remoting.codes import RequestCode
from cometmq.remoting.types import Direction


class NoHeader(msgspec.Struct, frozen=True, gc=False):
    """The header of a request or reply without ext fields of its own."""


NO_HEADER: Final = NoHeader


class Command(msgspec.Struct, frozen=True):
    """One kind of request: its header, its reply, its bodies, and its direction.

    `body` and `reply_body` are None if there is no body. `oneway` means that senders usually do not
    wait for an answer; a server still answers if the request's flag asks for it.
    """

    code: RequestCode
    header_type: type[msgspec.Struct]
    reply_type: type[msgspec.Struct]
    oneway: bool = False
    direction: Direction = Direction.TO_SERVER
    body: BodyCodec[Any] | None = None
    reply_body: BodyCodec[Any] | None = None


def command_table(*commands: Command) -> Mapping[int, Command]:
    """Return the commands by code; raise ValueError for a code listed twice."""
    table: dict[int, Command] = {}
    for command in commands:
        if command.code in table:
            raise ValueError(f"{command.code.name} is listed twice")
        table[int(command.code)] = command
    return table
