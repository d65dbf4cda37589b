# SPDX-License-Identifier: Apache-2.0
"""A connection on which a master sends its log: the base of RocketMQ's stream and
the group's stream.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.broker.copies.streams.pump import LogPump
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.remoting.errors import RemoteProtocolError
from cometmq.remoting.types import Buffer
from cometmq.store.log.commit_log import LogView

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.sending import LogSender
    from cometmq.broker.copies.streams.serving import LogServer


class ServedStream(ABC, asyncio.Protocol):
    def __init__(
        self,
        owner: "LogServer | LogSender",
        transport: asyncio.Transport,
        address: str,
        view: Callable[[], LogView],
    ) -> None:
        """`view` returns the part of the log that may be sent."""
        self.address = address
        self._transport = transport
        self._commit_log = owner.store.commit_log
        self._now_ms = owner.now_ms
        self.heard_ms = self._now_ms()
        self._pump = LogPump(
            transport,
            view=view,
            place=self._place,
            send=self._send,
            failed=self._failed,
            turns=owner.send_turns,
            worker=owner.worker,
            bytes_per_s=lambda: owner.settings().max_ha_transfer_byte_in_second,
            now_ms=self._now_ms,
        )

    @abstractmethod
    def _take(self, data: bytes) -> None:
        """Process received data; raise RemoteProtocolError or UnfitLog to refuse the peer."""

    @abstractmethod
    def _place(self) -> tuple[int, int] | None:
        """Return the offset and the size of the next slice; None if there is nothing to send."""

    @abstractmethod
    def _send(self, data: Buffer) -> int:
        """Send a slice; return how much of it was sent."""

    @abstractmethod
    def _failed(self, error: Exception) -> None:
        """Close the connection, because the log cannot be read or sent."""

    @abstractmethod
    def refuse(self, error: UnfitLog) -> None:
        """Report the reason, and close the connection."""

    @abstractmethod
    def _ended(self) -> None:
        """Forget the connection, which is closing; may be called more than once."""

    def data_received(self, data: bytes) -> None:
        self.heard_ms = self._now_ms()
        try:
            self._take(data)
        except RemoteProtocolError as error:
            self.refuse(UnfitLog(Unfit.PROTOCOL, str(error)))
        except UnfitLog as error:
            self.refuse(error)

    def pause_writing(self) -> None:
        self._pump.is_paused = True

    def resume_writing(self) -> None:
        self._pump.is_paused = False
        self.wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended()

    def close(self) -> None:
        """Close the connection at once, discarding pending output."""
        self._ended()
        self._transport.abort()

    def wake(self) -> None:
        """Send the bytes that the peer lacks, as fast as it accepts them."""
        self._pump.wake()
