# SPDX-License-Identifier: Apache-2.0
"""Sends a follower its master's progress (`frames.Confirm`), which is also the heartbeat."""

from typing import TYPE_CHECKING

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.frames import Confirm
from cometmq.broker.copies.streams.served import ServedStream

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.sending import LogSender


class Confirms:
    """Sends the progress to one follower, in a frame of its own or with records;
    not before `begin`.
    """

    def __init__(self, sender: "LogSender", stream: ServedStream) -> None:
        self.sent_ms = sender.now_ms()
        """The time in the last sent CONFIRM frame."""
        self._sender = sender
        self._stream = stream
        self._transport = stream.transport
        self._epoch = 0
        self._is_unsent = False  # the socket did not accept it
        self._confirmed = 0  # the confirm offset that the follower was sent
        self._is_fresh = False  # records have carried it since the last timer

    def begin(self, epoch: int) -> None:
        """Send the first progress; the follower has connected to the master of this epoch."""
        self._epoch = epoch
        self.send()

    @property
    def is_late(self) -> bool:
        """Whether the confirm offset last sent is out of date."""
        return self._confirmed < self._sender.confirmed

    def send(self) -> None:
        """Send the progress, unless the connection accepts no more output for now."""
        self._is_unsent = self._stream.is_paused
        if self._epoch and not self._is_unsent and not self._transport.is_closing():
            self._transport.write(self._next())

    def send_late(self) -> bool:
        """Send the progress unless it was sent with records since the last call; return whether it
        was sent.
        """
        was_fresh, self._is_fresh = self._is_fresh, False
        if not was_fresh:
            self.send()
        return not was_fresh

    def resume(self) -> None:
        """Send the progress if the connection did not accept it before."""
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
