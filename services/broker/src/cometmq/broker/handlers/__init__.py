# SPDX-License-Identifier: Apache-2.0
"""HANDLERS maps each request code that the broker answers to its handler."""

from collections.abc import Mapping
from functools import wraps
from typing import Any, Final

from cometmq.broker.broker import Broker
from cometmq.broker.handlers import (
    acl,
    admin,
    client_calls,
    clients,
    locks,
    maintenance,
    offsets,
    overview,
    progress,
    pull,
    queries,
    recalls,
    replies,
    send,
    send_back,
    topics,
    transactions,
)
from cometmq.broker.statistics.detours import SlowReason
from cometmq.remoting.command import Call
from cometmq.remoting.commands import COMMANDS, handlers_of
from cometmq.remoting.commands.table import Service
from cometmq.remoting.transport.bodies import bounded_bodies
from cometmq.remoting.transport.dispatch import Handler, Result

_MODULES: Final = (
    acl, admin, client_calls, clients, locks, maintenance, offsets, overview, progress, pull,
    queries, recalls, replies, send, send_back, topics, transactions,
)  # fmt: skip


def _noted(code: int, handler: Handler[Broker]) -> Handler[Broker]:
    """Return a handler that counts its requests as detours, if no lane takes this code.

    Handlers of codes that a lane takes count by themselves, because they know the reason.
    """
    if COMMANDS[code].notes_detour:
        return handler

    @wraps(handler)
    def noted(broker: Broker, call: Call[Any]) -> Result:
        if broker.lane is not None:
            broker.measured.detours.note(code, SlowReason.NO_NATIVE_FORM)
        return handler(broker, call)

    return noted


HANDLERS: Final[Mapping[int, Handler[Broker]]] = bounded_bodies(
    {code: _noted(code, it) for code, it in handlers_of(Service.BROKER, *_MODULES).items()}
)

VIP_EXCLUDED: Final = frozenset(code for code in HANDLERS if not COMMANDS[code].has_second_port)
"""Requests refused on the second port, so that pulls cannot delay sends there."""
