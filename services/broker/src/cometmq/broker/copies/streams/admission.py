# SPDX-License-Identifier: Apache-2.0
"""Which connections to this master become followers.

Until its HELLO is accepted, a connection counts among the unknown ones of the port, which are few
and brief (`openings.py`). If this broker has a key of the broker group, a proof comes before HELLO.
"""

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.proving import ProofResponder, Proven, Proving, send_refusal
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.remoting.log import Log

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.serving import LogServer

Serve = Callable[[asyncio.Transport, str, Proven | None, bytes], None]


class MemberAdmission:
    """Admits the connections of one port."""

    def __init__(self, port: "LogServer", proving: Proving, *, serve: Serve, log: Log) -> None:
        """`serve` gets a connection, its address, what it has proven, and its first bytes."""
        self.port = port
        self.proving = proving
        self.serve = serve
        self._log = log

    def accept(self, transport: asyncio.Transport, address: str, version: int, data: bytes) -> None:
        """Serve a connection that starts with a member's opening bytes."""
        if version == frames.PROVEN_VERSION and self.proving.keys():
            responder = ProofResponder(self, transport, address)
            transport.set_protocol(responder)
            responder.data_received(data)
        elif version != frames.VERSION:
            self.unproven(transport, address, self._why_no_proof(version))
        elif self.proving.admits_unproven:
            self.serve(transport, address, None, data)
        else:
            text = f"a program connects without proving that it has the key ({self.proving.shown})"
            self.unproven(transport, address, UnfitLog(Unfit.UNPROVEN, text))

    def unproven(self, transport: asyncio.Transport, address: str, error: UnfitLog) -> None:
        """Refuse a connection whose proof failed, without revealing anything about this broker."""
        self.port.note_refused(address, error)
        texts = {
            Unfit.VERSION: str(error),
            Unfit.UNPROVEN: "this broker accepts only members that prove its groupKeyFile",
        }
        send_refusal(transport, error.reason, texts.get(error.reason, "not the group's stream"))

    def _why_no_proof(self, version: int) -> UnfitLog:
        if version == frames.PROVEN_VERSION:
            text = "a member proves a groupKeyFile, and this broker has none"
        else:
            text = f"a member speaks version {version} of the stream, which this broker does not"
        return UnfitLog(Unfit.VERSION, text)

    def establish(self, transport: asyncio.Transport, address: str, proven: Proven | None) -> None:
        """Count a connection among the members; raise UnfitLog if there are too many."""
        if not self.port.establish(transport, address):
            raise UnfitLog(Unfit.REFUSED, "too many connections are open: raise haConnectionsMax")
        if proven is None and self.proving.keys():
            self._log.warning(
                "follower.unproven", slave=address,
                action="give it groupKeyFile; then remove groupKeyRequired=false everywhere",
            )  # fmt: skip
