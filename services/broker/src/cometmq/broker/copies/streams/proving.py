# SPDX-License-Identifier: Apache-2.0
"""The proof with which a connection between members of a broker group begins: both sides show that
they know the group's key (`cometmq.ha.proof`).

The connecting member opens version 2 of the stream and sends CHALLENGE, the accepting one answers
with PROOF, and the connecting one with ANSWER. HELLO follows only then. Before, neither side
trusts, reveals or changes anything; a REFUSED frame before the proof is only logged.

Members with a key and `groupKeyRequired=false` also connect to, and accept, members without a key:
they fall back to version 1 when the other side cannot prove itself. Until its HELLO is accepted, a
connection counts among the unknown ones of the port, which are few and brief (`serving.py`).
"""

import asyncio
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Literal, cast

import msgspec

from cometmq.broker.copies.streams import frames
from cometmq.broker.copies.streams.frames import Kind
from cometmq.broker.copies.streams.handshake import Identity, Refused, decode_handshake
from cometmq.broker.copies.streams.served import close_soon
from cometmq.broker.copies.streams.session import MasterConnection
from cometmq.broker.copies.unfit import Unfit, UnfitLog
from cometmq.ha.proof import Initiator, Keys, NewBytes, NotProven, Responder, WrongEnd
from cometmq.remoting.errors import (
    CometError,
    ConnectionLost,
    RemoteProtocolError,
)

if TYPE_CHECKING:
    from cometmq.broker.copies.streams.sending import LogSender

REFUSED_CHARS_MAX: Final = 200
"""Maximum number of characters logged of a REFUSED frame before the proof."""

UNPROVABLE: Final = frozenset({Unfit.VERSION.value, Unfit.UNPROVEN.value})
"""Reasons with which a member without a key refuses the proof."""


class Challenge(msgspec.Struct, frozen=True):
    purpose: Literal["stream"]
    initiator: str
    nonce: bytes


class Proof(msgspec.Struct, frozen=True):
    responder: str
    nonce: bytes
    mac: bytes


class Answer(msgspec.Struct, frozen=True):
    mac: bytes


class Proven(msgspec.Struct, frozen=True):
    name: str
    key: bytes


class Proving(msgspec.Struct, frozen=True, kw_only=True):
    """What this member needs for proofs: its identity, its keys, and whether it requires proofs."""

    identity: Identity
    keys: Callable[[], Keys]
    """The current keys; without keys, this member neither proves itself nor requires proofs."""
    is_required: bool = True
    """Whether a member with keys accepts only members that prove themselves."""
    shown: str = "groupKeyFile"
    new_nonce: NewBytes = secrets.token_bytes

    @property
    def admits_unproven(self) -> bool:
        return not (self.is_required and self.keys())


def name_of(identity: Identity, ordinal: int | None = None) -> str:
    """Return the name under which a member, or `ordinal` of its group, proves itself."""
    number = identity.copy.ordinal if ordinal is None else ordinal
    return f"{identity.cluster}/{identity.group}/{number}"


class ProofDeclined(CometError):
    """The other side ended the connection before it proved itself."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.is_unprovable = reason in UNPROVABLE


class ProofInitiator(asyncio.Protocol):
    """The connecting member's side of a proof; afterwards it starts the stream."""

    def __init__(self, proving: Proving, ordinal: int, stream: MasterConnection) -> None:
        self._proving = proving
        self._stream = stream
        self._pass = Initiator(
            proving.keys(), name_of(proving.identity),
            responder=name_of(proving.identity, ordinal), new_nonce=proving.new_nonce,
        )  # fmt: skip
        self._transport: asyncio.Transport | None = None
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's has no common base
        challenge = Challenge("stream", self._pass.name, self._pass.nonce)
        opening = frames.encode_opening(frames.PROVEN_VERSION)
        self._transport.write(opening + frames.encode_json(Kind.CHALLENGE, challenge))

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        self._received += data
        try:
            found = frames.first_frame(self._received, Kind.PROOF, Kind.REFUSED)
            if found is not None:
                self._use(*found)
        except NotProven as error:
            self._refuse(error)
        except CometError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        text = str(exc) if exc else "the other side closed the connection"
        self._stream.end(ConnectionLost(f"{text} before the proof"))

    def _use(self, frame: frames.Frame, end: int) -> None:
        assert self._transport is not None
        if frame.kind is Kind.REFUSED:
            refused = decode_handshake(frame.body, Refused)
            raise ProofDeclined(refused.reason, printable(refused.text))
        if end < len(self._received):
            raise RemoteProtocolError("bytes follow a PROOF, before it is answered")
        proof = decode_handshake(frame.body, Proof)
        answer = self._pass.answer(proof.responder, proof.nonce, proof.mac)
        transport = self._transport
        transport.write(frames.encode_json(Kind.ANSWER, Answer(answer)))
        transport.set_protocol(self._stream)
        self._stream.connection_made(transport)

    def _refuse(self, error: NotProven) -> None:
        assert self._transport is not None
        send_refusal(self._transport, Unfit.UNPROVEN, "the proof is not accepted")
        reason, text = Unfit.UNPROVEN, f"the broker is not a proven member ({self._proving.shown})"
        if isinstance(error, WrongEnd):
            is_ours = error.name.rpartition("/")[0] == self._pass.name.rpartition("/")[0]
            reason = Unfit.NOT_MASTER if is_ours else Unfit.FOREIGN
            text = "another broker answers"
        self._stream.end(UnfitLog(reason, f"{text}: {error}"))

    def _fail(self, error: Exception) -> None:
        assert self._transport is not None
        self._transport.abort()
        self._stream.end(error)


class ProofResponder(asyncio.Protocol):
    def __init__(self, sender: "LogSender", transport: asyncio.Transport, address: str) -> None:
        self._sender = sender
        self._transport = transport
        self._address = address
        self._received = b""
        self._challenge: Challenge | None = None
        self._pass: Responder | None = None

    def data_received(self, data: bytes) -> None:
        if self._transport.is_closing():
            return
        self._received += data
        try:
            self._work()
        except (NotProven, RemoteProtocolError) as error:
            reason = Unfit.UNPROVEN if isinstance(error, NotProven) else Unfit.PROTOCOL
            self._refuse(reason, str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._sender.port.openings.remove(self._transport)

    def _work(self) -> None:
        if self._pass is None:
            found = frames.first_frame(self._received, Kind.CHALLENGE)
            if found is not None:
                self._received = self._received[found[1] :]
                self._respond(decode_handshake(found[0].body, Challenge))
        if self._pass is None:
            return
        found = frames.first_frame(self._received, Kind.ANSWER, Kind.REFUSED)
        if found is not None:
            self._finish(*found)

    def _respond(self, challenge: Challenge) -> None:
        proving = self._sender.proving
        self._challenge = challenge
        self._pass = Responder(
            proving.keys(), name_of(proving.identity),
            initiator=challenge.initiator, initiator_nonce=challenge.nonce,
            new_nonce=proving.new_nonce,
        )  # fmt: skip
        proof = Proof(self._pass.name, self._pass.nonce, self._pass.proof)
        self._transport.write(frames.encode_json(Kind.PROOF, proof))

    def _finish(self, frame: frames.Frame, end: int) -> None:
        assert self._pass is not None
        assert self._challenge is not None
        if frame.kind is Kind.REFUSED:
            raise NotProven("it does not accept the proof of this broker")
        key = self._pass.check(decode_handshake(frame.body, Answer).mac)
        proven = Proven(self._challenge.initiator, key)
        rest = self._received[end:]
        self._sender.serve(self._transport, self._address, proven, rest)

    def _refuse(self, reason: Unfit, text: str) -> None:
        text = f"a program that connects is not a proven member: {text}"
        error = UnfitLog(reason, f"{text} ({self._sender.proving.shown})")
        self._sender.unproven(self._transport, self._address, error)


def send_refusal(transport: asyncio.Transport, reason: Unfit, text: str) -> None:
    """Send a refusal that reveals nothing about this member, and close the connection."""
    if not transport.is_closing():
        transport.write(frames.encode_json(Kind.REFUSED, Refused(reason.value, text)))
        close_soon(transport)


def printable(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:REFUSED_CHARS_MAX])
