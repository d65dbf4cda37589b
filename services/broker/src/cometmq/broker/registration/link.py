# SPDX-License-Identifier: Apache-2.0
"""The state of the broker's registration with one name server."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from cometmq.broker.registration.bodies import PART_BYTES
from cometmq.broker.registration.identity import Identity
from cometmq.remoting.bodies.topic_config import DataVersion


class Link:
    """What was registered with one name server, and what went wrong."""

    __slots__ = (
        "acknowledged",
        "address",
        "asked_s",
        "compared_s",
        "failed_count",
        "fault",
        "holder",
        "is_name_checked",
        "is_refused",
        "is_role_new",
        "is_tried",
        "is_up",
        "listed",
        "part_bytes",
        "waiters",
        "wake",
        "watch_ms",
    )

    def __init__(self, address: str) -> None:
        self.address = address
        self.acknowledged: DataVersion | None = None
        self.asked_s: float | None = None
        """When the pending request was sent, by the loop's clock; None if none is pending."""
        self.compared_s = 0.0
        """When the listed address was last compared with the broker's, by the loop's clock."""
        self.is_up = False
        self.is_tried = False
        self.is_name_checked = False
        self.holder: str | None = None
        """The address of another running broker with this name and id, because of which this broker
        does not register; None if there is none.
        """
        self.is_refused = False
        """Whether the last registration was refused because of its epoch."""
        self.is_role_new = False  # it needs the new role, even if its topics are current
        self.failed_count = 0
        self.fault = ""
        """Why the last attempt to register failed; empty if it did not, or there was none yet."""
        self.part_bytes = PART_BYTES
        """Maximum size of a registration's body; halved each time the name server
        refuses one as too large.
        """
        self.listed: Identity | None = None
        """The identity of the last registration that succeeded."""
        self.watch_ms = 0
        """The current interval of `Listing.is_lost`; it grows while registrations are lost
        again.
        """
        self.wake = asyncio.Event()
        self.waiters: list[asyncio.Future[bool]] = []

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Set `asked_s` while a request to the name server is pending."""
        self.asked_s = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self.asked_s = None
