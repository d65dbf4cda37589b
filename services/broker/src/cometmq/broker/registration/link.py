# SPDX-License-Identifier: Apache-2.0
"""The registration state at one name server."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from cometmq.broker.registration.bodies import PART_BYTES
from cometmq.broker.registration.identity import Identity
from cometmq.remoting.bodies.topic_config import DataVersion


class Link:
    """The registration state at one name server."""

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
        """When the pending registration or question was sent, by the loop's clock."""
        self.compared_s = 0.0
        """When the listed address was last compared with the broker's, by the loop's clock."""
        self.is_up = False
        self.is_tried = False
        self.is_name_checked = False
        self.holder: str | None = None
        """The running broker with the same name and id, which keeps this one from registering."""
        self.is_refused = False
        """The last registration was refused for its epoch."""
        self.is_role_new = False  # it needs the new role, even if its topics are current
        self.failed_count = 0
        self.fault = ""
        """Why the name server does not list this broker; empty if it does, or before the first
        attempt.
        """
        self.part_bytes = PART_BYTES
        """Maximum size of a registration's body; halved while the name server accepts none."""
        self.listed: Identity | None = None
        """The identity of the last registration that succeeded."""
        self.watch_ms = 0
        """The current interval of `Listing.is_lost`; grows while registrations are lost."""
        self.wake = asyncio.Event()
        self.waiters: list[asyncio.Future[bool]] = []

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Note when a registration or question was sent, until it is answered."""
        self.asked_s = asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self.asked_s = None
