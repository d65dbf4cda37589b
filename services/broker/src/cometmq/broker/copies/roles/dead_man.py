# SPDX-License-Identifier: Apache-2.0
"""Makes the kernel kill this process if its event loop stands still, even if a
signal has stopped it.

The loop sets a POSIX timer again and again. If the timer expires, the kernel sends SIGKILL, which
also ends a stopped process, and closes its connections. A process in a frozen cgroup ends at once
(version 2) or when it is thawed (version 1).
"""

import ctypes
import os
import signal
import time
from typing import Final

from cometmq.remoting.log import Log

_SIGEV_SIGNAL: Final = 0
_SIGEVENT_BYTES: Final = 64


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
