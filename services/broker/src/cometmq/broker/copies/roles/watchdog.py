# SPDX-License-Identifier: Apache-2.0
"""Checks the disk, the lease, the copies and the clients of a member every 100 ms."""

from cometmq.broker.broker import Broker
from cometmq.broker.copies.roles.current_role import CurrentRole
from cometmq.broker.copies.roles.dead_man import DeadMan
from cometmq.broker.copies.roles.inbox import Inbox
from cometmq.broker.copies.roles.stale_clients import StaleClients
from cometmq.ha import member as rules
from cometmq.store.writing.write_state import Refusal


class Watchdog:
    def __init__(
        self, broker: Broker, inbox: Inbox, current: CurrentRole, stale_clients: StaleClients
    ) -> None:
        self._broker = broker
        self._inbox = inbox
        self._current = current
        self._stale_clients = stale_clients
        self._has_failed = False
        self._is_leaving = False
        self._dead_man = DeadMan(log=broker.log)

    def tick(self) -> None:
        """Report a failed disk, check the lease and the copies, and close stale
        clients; called every 100 ms.
        """
        has_failed = self._broker.store.write_state.has(Refusal.SYNC_FAILED)
        if has_failed and not self._has_failed:
            self._has_failed = True
            self._inbox.observe(rules.StoreFailed())
        if (leading := self._current.leading) is not None:
            leading.confirmation.tick()
        if self._broker.settings.group_address:
            self._stale_clients.tick()
            self._current.acting.look_after_clients()
        self._watch_for_standstill()

    def _watch_for_standstill(self) -> None:
        """Arm the timer with which the kernel kills a master that stands still, as long as another
        copy can take over; otherwise disarm it.
        """
        after_ms, leading = self._broker.settings.frozen_master_mills, self._current.leading
        has_successor = leading is not None and leading.confirmation.has_successor()
        if after_ms and not self._is_leaving and has_successor:
            self._dead_man.arm(after_ms)
        else:
            self._dead_man.disarm()

    def leave(self) -> None:
        """Disarm the timer for good, because this broker is stopping, which may take long."""
        self._is_leaving = True
        self._dead_man.disarm()

    def leadership_began(self) -> None:
        self._stale_clients.end()

    def leadership_ended(self) -> None:
        self._dead_man.disarm()
        self._stale_clients.begin()
