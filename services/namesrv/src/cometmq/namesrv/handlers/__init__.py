# SPDX-License-Identifier: Apache-2.0
"""HANDLERS maps each request code that a name server answers to its handler."""

from collections.abc import Mapping
from typing import Any, Final

from cometmq.namesrv.handlers import admin, brokers, kv, routes
from cometmq.remoting.commands import handlers_of
from cometmq.remoting.commands.table import Service
from cometmq.remoting.transport.bodies import bounded_bodies

HANDLERS: Final[Mapping[int, Any]] = bounded_bodies(
    handlers_of(Service.NAMESRV, admin, brokers, kv, routes)
)
