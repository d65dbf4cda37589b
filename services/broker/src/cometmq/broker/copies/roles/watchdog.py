# SPDX-License-Identifier: Apache-2.0
"""Checks the disk, the lease, the copies and the clients of a member every 100 ms.

In a broker group with one address (`groupAddress`), the route does not change with the master, so
clients would keep their connections to the former master, which forwards their requests. The former
master therefore closes all connections of clients, each while none of its requests is in progress.
It does so three times, because a client may reconnect before the address has moved. CometMQ's
client reconnects earlier by itself, when it sees that a request was forwarded.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

from cometmq.broker.copies.roles.current_role import CurrentRole
from cometmq.broker.copies.roles.dead_man import DeadMan
from cometmq.broker.copies.roles.parts import Client, Parts
from cometmq.ha import member as rules
from cometmq.store.writing.write_state import Refusal

AFTER_MS: Final = (3_000, 6_000, 12_000)
"""Times after the end of a leadership at which the connections are closed."""


class StaleClients:
    """Closes the connections of clients to a broker that was the master."""

    def __init__(
        self,
        clients: Callable[[], Collection[Client]],
        is_busy: Callable[[Any], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._clients = clients
        self._is_busy = is_busy
        self._now_ms = now_ms
        self._due_ms: list[int] = []
        self._left: set[Client] = set()

    def begin(self) -> None:
        """Note that another broker becomes the master."""
        self._due_ms = [self._now_ms() + after_ms for after_ms in AFTER_MS]

    def end(self) -> None:
        """Note that this broker is the master again."""
        self._due_ms.clear()
        self._left.clear()

    def tick(self) -> None:
        """Close the connections that are due and have no request under way."""
        if self._due_ms and self._now_ms() >= self._due_ms[0]:
            self._due_ms.pop(0)
            self._left = set(self._clients())
        for one in tuple(self._left):
            if not one.is_open:
                self._left.discard(one)
            elif not self._is_busy(one):
                self._left.discard(one)
                one.reset()


class Watchdog:
    def __init__(self, parts: Parts, current: CurrentRole) -> None:
        broker = self._broker = parts.broker
        self._inbox = parts.inbox
        self._current = current
        is_busy = parts.gate.diversion.is_diverting
        self._stale_clients = StaleClients(parts.around.clients, is_busy, parts.host.boottime_ms)
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
