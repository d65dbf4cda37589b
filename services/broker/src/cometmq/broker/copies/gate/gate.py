# SPDX-License-Identifier: Apache-2.0
"""The gate of a member of a broker group: it delays (`permission.py`) or holds and forwards
(`diversion.py`) requests.

The catalogue gives each request code a `Kind`, which decides what the gate does. Most requests are
served as if there were no broker group.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple, TypeVar

from cometmq.broker.copies.gate.diversion import Diversion
from cometmq.broker.copies.gate.permission import Permission
from cometmq.remoting.commands import COMMANDS
from cometmq.remoting.commands.table import Kind
from cometmq.remoting.transport.dispatch import Handler

ContextT = TypeVar("ContextT")

KINDS: Final = {
    code: command.kind for code, command in COMMANDS.items() if command.kind is not Kind.ALWAYS
}


class Gate(NamedTuple):
    permission: Permission
    diversion: Diversion

    def guarded(self, handlers: Mapping[int, Handler[ContextT]]) -> dict[int, Handler[ContextT]]:
        return {
            code: self._guard(KINDS[code], handler) if code in KINDS else handler
            for code, handler in handlers.items()
        }

    def _guard(self, kind: Kind, handler: Handler[ContextT]) -> Handler[ContextT]:
        permission = self.permission
        serve = {
            Kind.PUT: handler,
            Kind.CHANGE: permission.change(handler),
            Kind.UNLOGGED: permission.unlogged(handler),
            Kind.COMMIT: permission.commit(handler),
            Kind.READ: permission.read(handler),
        }[kind]
        return serve if kind is Kind.READ else self.diversion.divertible(serve)
