# SPDX-License-Identifier: Apache-2.0
"""Limits failed logins per name, per address and in total."""

from typing import Final

from cometmq.console.web.clients import Known
from cometmq.runtime.clock import Clock
from cometmq.runtime.http.server import network_of

PER_NAME_MAX: Final = 5
PER_ADDRESS_MAX: Final = 20
TOTAL_MAX: Final = 200
PERIOD_MS: Final = 60_000
KEYS_MAX: Final = 10_000


class Attempts:
    """Counts failed logins, and logins in progress, in the current period of each key.

    An attempt counts as failed from its beginning, because many attempts can wait for brokers at
    the same time. A name is locked only for the addresses that fail with it, so that a stranger
    cannot lock its owner out. For the same reason, the total does not lock addresses from which a
    user has logged in: strangers with many addresses would otherwise lock out everybody.
    """

    def __init__(self, clock: Clock, known: Known) -> None:
        self._clock = clock
        self._known = known
        self._failures: dict[tuple[str, ...], tuple[int, int]] = {}
        """The start of the period and the count, by key."""

    def wait_s(self, name: str, address: str) -> int:
        """Return the seconds until the next attempt may be made; 0 if it may be made now."""
        keys = _keys(name, address)
        if address in self._known:
            del keys[_TOTAL]
        return -(-max(self._wait_ms(key, limit) for key, limit in keys.items()) // 1_000)

    def begin(self, name: str, address: str) -> None:
        """Count an attempt as failed."""
        now_ms = self._clock.monotonic_ms()
        for key in _keys(name, address):
            begin_ms, count = self._failures.pop(key, (now_ms, 0))
            if now_ms - begin_ms >= PERIOD_MS:
                begin_ms, count = now_ms, 0
            self._failures[key] = begin_ms, count + 1
        while len(self._failures) > KEYS_MAX:  # the oldest keys; the total is always recent
            del self._failures[next(iter(self._failures))]

    def withdraw(self, name: str, address: str) -> None:
        """Subtract an attempt that did not fail."""
        for key in _keys(name, address):
            begin_ms, count = self._failures.get(key, (0, 0))
            if count:
                self._failures[key] = begin_ms, count - 1

    def succeeded(self, name: str, address: str) -> None:
        """Forget the failures of this name from this address, and do not count this attempt."""
        self.withdraw(name, address)
        self._failures.pop(_name_key(name, address), None)
        self._known.add(address)

    def _wait_ms(self, key: tuple[str, ...], limit: int) -> int:
        begin_ms, count = self._failures.get(key, (0, 0))
        if count < limit:
            return 0
        return max(0, begin_ms + PERIOD_MS - self._clock.monotonic_ms())


_Key = tuple[str, ...]
_TOTAL: Final[_Key] = ("total",)


def _name_key(name: str, address: str) -> _Key:
    return "name", name, network_of(address)


def _keys(name: str, address: str) -> dict[_Key, int]:
    return {
        _name_key(name, address): PER_NAME_MAX,
        ("address", network_of(address)): PER_ADDRESS_MAX,
        _TOTAL: TOTAL_MAX,
    }
