# SPDX-License-Identifier: Apache-2.0
"""The client for pages: it continues without brokers that do not answer.

Pages name the brokers that the snapshot misses. Changes use a client that raises.
"""

from collections.abc import Sequence

from cometmq.client.admin import AdminClient
from cometmq.client.admin.broker import BrokerAdmin
from cometmq.remoting.errors import TopicNotExist, TransportError


class ReadingAdmin(AdminClient):
    """An admin client that leaves out what does not answer."""

    def unreachable(self, _broker: BrokerAdmin, error: TransportError) -> None:
        """Continue."""

    def without_master(self, _name: str, _slaves: Sequence[str]) -> None:
        """Continue."""

    def without_topic(self, _broker: BrokerAdmin, _topic: str, error: TopicNotExist) -> None:
        """Continue."""
