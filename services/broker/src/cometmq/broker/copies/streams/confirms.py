# SPDX-License-Identifier: Apache-2.0
"""What a follower is told about its master's progress; it also serves as a heartbeat."""

import asyncio
from typing import TYPE_CHECKING

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.frames import Confirm
from cometmq.broker.copies.streams.pump import LogPump

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.sending import LogSender


class Confirms:
    """The progress sent to one follower, alone or with records; none before `begin`."""

    def __init__(self, sender: "LogSender", transport: asyncio.Transport, pump: LogPump) -> None:
        self.sent_ms = sender.now_ms()
        """The time in the last progress that was sent."""
        self._sender = sender
        self._transport = transport
        self._pump = pump
        self._epoch = 0
        self._is_unsent = False  # the socket did not accept it
        self._confirmed = 0  # the confirm offset that the follower was sent
        self._is_fresh = False  # records have carried it since the last timer

    def begin(self, epoch: int) -> None:
        """Send the progress of this epoch, now and from now on."""
        self._epoch = epoch
        self.send()

    @property
    def is_late(self) -> bool:
        """Whether the confirm offset last sent is out of date."""
        return self._confirmed < self._sender.confirmed

    def send(self) -> None:
        """Send the progress, unless the connection accepts no more output for now."""
        self._is_unsent = self._pump.is_paused
        if self._epoch and not self._is_unsent and not self._transport.is_closing():
            self._transport.write(self._next())

    def send_late(self) -> bool:
        """Send the progress, unless records have carried it since the last call; return whether it
        was sent.
        """
        was_fresh, self._is_fresh = self._is_fresh, False
        if not was_fresh:
            self.send()
        return not was_fresh

    def resume(self) -> None:
        """Send what the connection did not accept before."""
        if self._is_unsent:
            self.send()

    def beside_records(self) -> bytes:
        """Return the frame to send with the next records; empty if none is due."""
        if self._is_fresh or self._confirmed >= self._sender.confirmed:
            return b""
        self._is_fresh = True
        return self._next()

    def _next(self) -> bytes:
        sender = self._sender
        end = sender.store.commit_log.end
        self.sent_ms = sender.now_ms()
        self._confirmed = min(sender.confirmed, end)
        return frames.encode_confirm(Confirm(self._epoch, self._confirmed, end, self.sent_ms))
