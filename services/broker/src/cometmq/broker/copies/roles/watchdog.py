# SPDX-License-Identifier: Apache-2.0
"""Checks the disk, the lease, the copies and the clients of a member every 100 ms.

In a broker group with one address (`groupAddress`), the route does not change with the master, so
clients would keep their connections to the former master, which forwards their requests. The former
master therefore closes all connections of clients, each while none of its requests is in progress.
It does so three times, because a client may reconnect before the address has moved. CometMQ's
client reconnects earlier by itself, when it sees that a request was forwarded.

The kernel kills this process if its event loop stands still, even if a signal has stopped it: the
loop sets a POSIX timer again and again, which sends SIGKILL when it expires, and that also ends a
stopped process and closes its connections. A process in a frozen cgroup ends at once (version 2) or
when it is thawed (version 1).
"""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from cometmq.broker.copies.roles.parts import Parts
from cometmq.ha import member as rules
from cometmq.remoting.log import Log
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.store.writing.write_state import Refusal

if TYPE_CHECKING:
    from cometmq.broker.copies.roles.role_changes import RoleChanges

_SIGEV_SIGNAL: Final = 0
_SIGEVENT_BYTES: Final = 64

AFTER_MS: Final = (3_000, 6_000, 12_000)
"""Times after the end of a leadership at which the connections are closed."""


class _Sigevent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_byte * (_SIGEVENT_BYTES - 16)),
    )


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


class DeadMan:
    """A timer that kills this process unless it is armed again in time; disarmed at first."""

    def __init__(self, *, log: Log) -> None:
        self._log = log
        self._timer: ctypes.c_void_p | None = None
        self._libc: ctypes.CDLL | None = None
        self._is_armed = self._is_missing = False

    def arm(self, after_ms: int) -> None:
        """Kill this process after `after_ms`, unless `arm` or `disarm` is called before then."""
        if self._timer is None and not self._is_missing:
            self._create()
        if self._timer is not None:
            self._set(after_ms)
            self._is_armed = True

    def disarm(self) -> None:
        if self._is_armed:
            self._set(0)
            self._is_armed = False

    def _create(self) -> None:
        if os.getpid() == 1:  # its own signals cannot kill process 1
            self._give_up("this process is the first of its container: start it below another one")
            return
        try:
            self._libc = ctypes.CDLL(None, use_errno=True)
            event = _Sigevent(signo=signal.SIGKILL, notify=_SIGEV_SIGNAL)
            timer = ctypes.c_void_p()
            create = self._libc.timer_create
            fault = create(time.CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(timer))
        except (OSError, AttributeError) as error:  # the C library lacks timers
            self._give_up(str(error))
            return
        if fault:
            self._give_up(f"timer_create: error {ctypes.get_errno()}")
            return
        self._timer = timer

    def _give_up(self, error: str) -> None:
        self._is_missing = True
        self._log.warning("frozen_master.unwatched", error=error)

    def _set(self, after_ms: int) -> None:
        assert self._libc is not None
        seconds, rest_ms = divmod(after_ms, 1000)
        wanted = _Itimerspec(value=_Timespec(seconds, rest_ms * 1_000_000))
        self._libc.timer_settime(self._timer, 0, ctypes.byref(wanted), None)


class StaleClients:
    """Closes the connections of clients to a broker that was the master."""

    def __init__(
        self,
        clients: Callable[[], Collection[PeerProtocol]],
        is_busy: Callable[[Any], bool],
        now_ms: Callable[[], int],
    ) -> None:
        self._clients = clients
        self._is_busy = is_busy
        self._now_ms = now_ms
        self._due_ms: list[int] = []
        self._left: set[PeerProtocol] = set()

    def begin(self) -> None:
        self._due_ms = [self._now_ms() + after_ms for after_ms in AFTER_MS]

    def end(self) -> None:
        self._due_ms.clear()
        self._left.clear()

    def tick(self) -> None:
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
    def __init__(self, parts: Parts, roles: "RoleChanges") -> None:
        broker = self._broker = parts.broker
        self._member = parts.member
        self._roles = roles
        is_busy = parts.gate.diversion.is_diverting
        self._stale_clients = StaleClients(parts.around.clients, is_busy, parts.host.boottime_ms)
        self._has_failed = False
        self._is_leaving = False
        self._dead_man = DeadMan(log=broker.log)

    def tick(self) -> None:
        """Check the disk, the lease, the copies and stale clients; called every 100 ms."""
        has_failed = self._broker.store.write_state.has(Refusal.SYNC_FAILED)
        if has_failed and not self._has_failed:
            self._has_failed = True
            self._member.observe(rules.StoreFailed())
        if (leading := self._roles.leading) is not None:
            leading.tick()
        if self._broker.settings.group_address:
            self._stale_clients.tick()
            self._roles.acting.look_after_clients()
        self._watch_for_standstill()

    def _watch_for_standstill(self) -> None:
        """Arm the timer that kills a master that stands still while another copy can take over."""
        after_ms, leading = self._broker.settings.frozen_master_mills, self._roles.leading
        has_successor = leading is not None and leading.has_successor()
        if after_ms and not self._is_leaving and has_successor:
            self._dead_man.arm(after_ms)
        else:
            self._dead_man.disarm()

    def leave(self) -> None:
        self._is_leaving = True
        self._dead_man.disarm()

    def leadership_began(self) -> None:
        self._stale_clients.end()

    def leadership_ended(self) -> None:
        self._dead_man.disarm()
        self._stale_clients.begin()
