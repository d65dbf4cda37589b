# SPDX-License-Identifier: Apache-2.0
"""The role of a slave in a broker group."""

from collections.abc import Callable

from cometmq.broker.broker import Broker
from cometmq.broker.copies.roles.acting import Acting
from cometmq.broker.copies.state import FollowState
from cometmq.broker.copies.streams.replica import MemberReplica


class SlaveRole(Acting):
    """Copies the log and the tables of a master."""

    def __init__(
        self, broker: Broker, replica: MemberReplica, boottime_ms: Callable[[], int]
    ) -> None:
        self._broker = broker
        self._replica = replica
        self._boottime_ms = boottime_ms
        self._hinted_ms = 0

    def confirm_offset(self) -> int:
        return self._replica.confirmed

    def has_lost_master(self) -> bool:
        replica, within_ms = self._replica, self._broker.settings.heard_within_mills
        is_connected = replica.status.state is FollowState.FOLLOWING
        return not is_connected or self._boottime_ms() - replica.heard_ms > within_ms

    def look_after_clients(self) -> None:
        """Tell consumers to rebalance, once, when the master falls silent: a rebalance calls the
        master, so a consumer closes a connection that hangs.
        """
        heard_ms = self._replica.heard_ms
        quiet_ms = self._broker.settings.heard_within_mills // 2
        is_quiet = 0 < heard_ms < self._boottime_ms() - quiet_ms
        if is_quiet and heard_ms != self._hinted_ms:
            self._hinted_ms = heard_ms
            self._broker.pending.later.start(self._broker.clients.consumers.hint())
