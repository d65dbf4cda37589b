# SPDX-License-Identifier: Apache-2.0
"""The role of the broker for its clients, which handlers, timers and registration use.

Outside a broker group, the settings fix the role. In a broker group, the table in
`cometmq.ha.member` decides every change of the role, and `copies/roles` apply it here.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from cometmq.broker.settings import BrokerSettings
from cometmq.store.message_store import MessageStore
from cometmq.store.settings import BrokerRole


class ServedRole(StrEnum):
    MASTER = "master"
    """Stores messages, delivers delayed ones, and commits offsets."""
    SLAVE = "slave"
    """Follows a master: copies its log and tables, and serves reads."""
    FENCED = "fenced"
    """Accepts no messages, because it may have been replaced as master or knows no master."""


class RoleState(msgspec.Struct, frozen=True):
    """A role, the epoch in which it was assigned, and the broker id at the name servers."""

    role: ServedRole
    epoch: int = 0
    broker_id: int = 0


MASTER_ID: Final = 0


def id_of(role: ServedRole, ordinal: int) -> int:
    """Return the id under which a member of a broker group registers.

    Compatibility: for RocketMQ clients, id 0 is the master, so other members count from 1.
    """
    return MASTER_ID if role is ServedRole.MASTER else ordinal + 1


class AdoptedRole:
    """The current role; a new one is passed on to the store and to the registration."""

    def __init__(
        self, settings: BrokerSettings, store: MessageStore, register: Callable[[int, int], None]
    ) -> None:
        """`register` is called with the broker id and the epoch of each later role."""
        self._ordinal = settings.broker_id
        self._store = store
        self._register = register
        self._waits = settings.group_record or settings.broker_role is BrokerRole.SYNC_MASTER
        self.is_diverting = False  # requests that change state wait or are forwarded
        self.may_read: Callable[[], bool] | None = None
        """In a broker group: whether pulls may be answered now."""
        self.changed: Callable[[RoleState], None] = lambda _state: None
        self._adopt(first_state(settings))

    @property
    def is_slave(self) -> bool:
        return self.state.role is ServedRole.SLAVE

    def take(self, role: ServedRole, epoch: int) -> None:
        """Adopt a role in a broker group, and register with name servers under the role's id."""
        state = RoleState(role, epoch, id_of(role, self._ordinal))
        if state != self.state:
            self._adopt(state)
            self._register(state.broker_id, epoch)
            self.changed(state)

    def _adopt(self, state: RoleState) -> None:
        self.state = state
        self.is_master = state.role is ServedRole.MASTER  # an attribute, for the message path
        self._store.write_state.role_writable = self.is_master
        self._store.writer.needs_replicas = self.is_master and bool(self._waits)


def first_state(settings: BrokerSettings) -> RoleState:
    """Return the role to start with; a group member has none before it reads the record."""
    if settings.group_record:
        return RoleState(ServedRole.FENCED, broker_id=id_of(ServedRole.FENCED, settings.broker_id))
    if settings.broker_role is BrokerRole.SLAVE:
        return RoleState(ServedRole.SLAVE, broker_id=settings.broker_id)
    return RoleState(ServedRole.MASTER, broker_id=MASTER_ID)
