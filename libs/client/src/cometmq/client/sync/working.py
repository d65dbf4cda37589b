# SPDX-License-Identifier: Apache-2.0
"""The base of the blocking producers and consumers."""

from typing import Any

from cometmq.client.sync.loop import ClientT, SyncClient
from cometmq.client.sync.of_client import ClientAdmin


class WorkingClient(SyncClient[ClientT]):
    """The base of producers and consumers."""

    @property
    def group(self) -> str:
        """The group's name, without the namespace."""
        inner: Any = self._inner
        group: str = inner.group
        return group

    @property
    def admin(self) -> ClientAdmin:
        """Admin calls over this client's connections: topics, offsets, messages by id."""
        inner: Any = self._inner
        return ClientAdmin(self._on_loop(lambda: inner.admin))
