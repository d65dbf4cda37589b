# SPDX-License-Identifier: Apache-2.0
"""The shared key of a broker group: its file, and the proofs that a program knows it.

A proof is an HMAC-SHA256 over what it is for and all facts, each with its length; so it is
worthless for anything else. It does not encrypt: TLS does. There are three kinds:

- A connection between members begins with the three-pass mutual authentication of ISO/IEC 9798-4
  (7.2.2): the initiator sends its name and a fresh nonce; the responder its name, a nonce of its
  own and its MAC; the initiator checks that MAC and sends its own. Each MAC covers the part of its
  sender, both names and both nonces. What follows on the connection is not protected.
- A registration at a name server has a MAC over everything that the name server stores. A captured
  one can be sent again, but only with the same content, and not after a later epoch.
- A call of the control API has a MAC over a challenge of the server, a nonce, the method, the
  member and the request; its answers have MACs over the nonce, the method, their number and bytes.
  So a captured call is worthless later, at another member and for another request, and an answer
  fits only the call that asked for it. No clocks are compared.
"""

import hashlib
import hmac
import secrets
from binascii import unhexlify
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final

from cometmq.remoting.commands.namesrv import RegisterBroker, UnregisterBroker
from cometmq.remoting.errors import CometError, SettingsError
from cometmq.remoting.settled import Settled
from cometmq.remoting.types import Buffer

KEY_BYTES_MIN: Final = 32
KEY_COUNT_MAX: Final = 8
"""A rotation needs two keys; each further one costs a MAC for every stranger that connects."""

FILE_BYTES_MAX: Final = 64 << 10
NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32
NAME_BYTES_MAX: Final = 512
CHALLENGE_MS: Final = 60_000
NONCES_MAX: Final = 100_000
"""A challenge is also replaced after this many calls; electors make about 10 a second."""

_CONNECTION: Final = b"CometMQ group proof 1"
_MESSAGE: Final = b"CometMQ group message 1"
_REGISTRATION: Final = (_MESSAGE, b"registration")
_CALL: Final = (_MESSAGE, b"control call")
_ANSWER: Final = (_MESSAGE, b"control answer")
_TAG: Final = b"\xfa\x7f\x20"
"""Field 2047, 32 bytes: a receiver without a key skips it as an unknown field of the message."""

Keys = tuple[bytes, ...]
"""All keys are accepted from the other side; a program proves itself with the first one."""
Fields = tuple[bytes, ...]
"""What a MAC covers; the first says what it is for."""
NewBytes = Callable[[int], bytes]


class NotProven(CometError):
    """The other end has not proven that it knows a key of the group and has the expected name."""


class WrongEnd(NotProven):
    """The other end knows a key of the group, but has another name than expected."""

    def __init__(self, name: str, wanted: str) -> None:
        super().__init__(f"it is {name}, and {wanted} is wanted")
        self.name = name


def parse_keys(data: bytes, shown: str) -> Keys:
    """Return the keys in a file: one a line, without empty lines and comments (`#`).

    Raise SettingsError if there is none, one is too short, or the last line is incomplete. `shown`
    names the setting and the file; messages never contain a key.
    """
    if len(data) > FILE_BYTES_MAX:
        raise SettingsError(f"{shown}: the file has more than {FILE_BYTES_MAX} bytes")
    keys: list[bytes] = []
    for number, line in enumerate(data.split(b"\n"), 1):
        key = line.strip()
        if not key or key.startswith(b"#"):
            continue
        if len(key) < KEY_BYTES_MIN:
            raise SettingsError(
                f"{shown}: the key in line {number} has {len(key)} bytes, at least {KEY_BYTES_MIN}"
                " are needed: create one with `openssl rand -base64 32`"
            )
        if key not in keys:
            keys.append(key)
    if not keys:
        raise SettingsError(
            f"{shown}: the file has no key: write one a line, `openssl rand -base64 32` makes one"
        )
    if len(keys) > KEY_COUNT_MAX:
        raise SettingsError(f"{shown}: the file has {len(keys)} keys: {KEY_COUNT_MAX} at most")
    if not data.endswith(b"\n"):
        raise SettingsError(
            f"{shown}: the last line does not end with a newline, so it may be half-written: end"
            " every key with a newline"
        )
    return tuple(keys)


class KeyFile:
    """The keys in a file, reloaded when it changes."""

    def __init__(self, path: Path, setting: str = "groupKeyFile") -> None:
        """Load the keys; blocks. Raise SettingsError, with the name `setting`, if that fails."""
        self._path = path
        self._setting = setting
        self._content = Settled(self._read())
        self.keys = self._parsed(self._content.used)

    def refresh(self) -> bool:
        """Read the file again; return whether changed keys came into use. Blocks.

        Content is used once two calls find it. An unusable file raises SettingsError once; the old
        keys remain in use.
        """
        if not self._content.take(self._read()):
            return False
        keys, before = self._parsed(self._content.used), self.keys
        self.keys = keys
        return keys != before

    def _read(self) -> bytes | str:
        """Return the content of the file as bytes, or as str the reason why it cannot be read."""
        try:
            with self._path.open("rb") as file:
                return file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            return error.strerror or str(error)

    def _parsed(self, content: bytes | str) -> Keys:
        shown = f"{self._setting}={self._path}"
        if isinstance(content, str):
            raise SettingsError(f"{shown}: {content}")
        return parse_keys(content, shown)


def fingerprint(key: bytes) -> str:
    """Return a short text from which two programs see whether they have the same key."""
    return hmac.digest(key, b"CometMQ group key", hashlib.sha256).hex()[:16]


def mac(key: bytes, fields: Fields) -> bytes:
    """Return the MAC with which a program proves that it knows a key."""
    text = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return hmac.digest(key, text, hashlib.sha256)


def key_of(keys: Keys, fields: Fields, found: bytes) -> bytes | None:
    """Return the key that made the MAC `found`; None if none of the keys did."""
    made_by = None
    for key in keys:  # all of them: the time must not tell which one fits
        if hmac.compare_digest(mac(key, fields), found):
            made_by = key
    return made_by


# ---- connections -----------------------------------------------------------------------------


class Part(StrEnum):
    """Which end of a connection makes a MAC."""

    INITIATOR = "initiator"
    RESPONDER = "responder"


def connection_fields(part: Part, names: tuple[str, str], nonces: tuple[bytes, bytes]) -> Fields:
    """Return what the MAC of one end covers; initiator first."""
    return (_CONNECTION, part.encode(), b"stream", *(name.encode() for name in names), *nonces)


class Initiator:
    """The proof on the side that connects: send `name` and `nonce`, then the result of `answer`."""

    def __init__(
        self, keys: Keys, name: str, *, responder: str, new_nonce: NewBytes = secrets.token_bytes
    ) -> None:
        """`responder` is the name that the other end must have."""
        self.name = name
        self.nonce = new_nonce(NONCE_BYTES)
        self._keys = keys
        self._wanted = responder

    def answer(self, responder: str, nonce: bytes, proof: bytes) -> bytes:
        """Return this side's MAC, by the responder's key; raise NotProven if it has proven none."""
        _check_sizes(responder, nonce)
        names, nonces = (self.name, responder), (self.nonce, nonce)
        key = _proven(self._keys, connection_fields(Part.RESPONDER, names, nonces), proof)
        if responder != self._wanted:
            raise WrongEnd(responder, self._wanted)
        return mac(key, connection_fields(Part.INITIATOR, names, nonces))


class Responder:
    """The proof on the accepting side: send `name`, `nonce`, `proof`, then `check` the answer."""

    def __init__(
        self,
        keys: Keys,
        name: str,
        *,
        initiator: str,
        initiator_nonce: bytes,
        new_nonce: NewBytes = secrets.token_bytes,
    ) -> None:
        """`initiator` is the claimed name; raise NotProven for sizes that no member uses."""
        _check_sizes(initiator, initiator_nonce)
        self.name = name
        self.nonce = new_nonce(NONCE_BYTES)
        self._keys = keys
        names, nonces = (initiator, name), (initiator_nonce, self.nonce)
        self.proof = mac(keys[0], connection_fields(Part.RESPONDER, names, nonces))
        self._wanted = connection_fields(Part.INITIATOR, names, nonces)

    def check(self, proof: bytes) -> bytes:
        """Return the key that the initiator has proven; raise NotProven if it has proven none."""
        return _proven(self._keys, self._wanted, proof)


def _proven(keys: Keys, fields: Fields, found: bytes) -> bytes:
    key = key_of(keys, fields, found)
    if key is None:
        raise NotProven("it does not prove a key that this one accepts")
    return key


def _check_sizes(name: str, nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES or len(name.encode()) > NAME_BYTES_MAX:
        raise NotProven(f"its nonce has {len(nonce)} bytes, its name {len(name.encode())}")


# ---- registrations ---------------------------------------------------------------------------

Registration = RegisterBroker | UnregisterBroker


def registration_proof(keys: Keys, header: Registration, body: Buffer = b"") -> str | None:
    """Return the proof for the header of a registration; None without a key."""
    if not keys:
        return None
    return mac(keys[0], _registration_fields(header, new_body_digest(body).digest())).hex()


def new_body_digest(body: Buffer = b"") -> "hashlib._Hash":
    """Return a hash object for a body; call its `update` with further parts of the body."""
    return hashlib.sha256(body)


def is_registration_proven(keys: Keys, header: Registration, body_digest: bytes) -> bool:
    """Return whether one of the keys made the proof for a body with this `new_body_digest`."""
    try:
        found = unhexlify(header.group_proof or "")
    except ValueError:
        return False
    return key_of(keys, _registration_fields(header, body_digest), found) is not None


def _registration_fields(header: Registration, body_digest: bytes) -> Fields:
    is_leaving = isinstance(header, UnregisterBroker)
    facts = (
        header.cluster_name, header.broker_name, header.broker_addr, header.broker_id,
        "" if isinstance(header, UnregisterBroker) else header.ha_server_addr, header.group_epoch,
        is_leaving,
    )  # fmt: skip
    return (*_REGISTRATION, *(str(it).encode("utf-8", "replace") for it in facts), body_digest)


# ---- calls of the control API ----------------------------------------------------------------


class Seal:
    """Computes the proofs of the messages that answer one call, in their order, at either end."""

    __slots__ = ("_count", "_method", "_nonce", "key")

    def __init__(self, key: bytes, method: str, nonce: bytes) -> None:
        self.key = key
        self._method = method.encode()
        self._nonce = nonce
        self._count = 0

    def add_to(self, message: bytes) -> bytes:
        """Return the next message of the answer with its proof."""
        return message + _TAG + mac(self.key, self._fields(message))

    def is_intact(self, message: bytes) -> bool:
        """Return whether the next message of the answer ends with its proof."""
        body, tagged = message[: -len(_TAG) - MAC_BYTES], message[-len(_TAG) - MAC_BYTES :]
        return hmac.compare_digest(tagged, _TAG + mac(self.key, self._fields(body)))

    def refusal(self, reason: str, text: str) -> bytes:
        """Return the proof of a refusal of the call."""
        parts = (self._nonce, self._method, b"refused", reason.encode(), text.encode())
        return mac(self.key, (*_ANSWER, *parts))

    def is_refusal(self, reason: str, text: str, found: object) -> bool:
        """Return whether `found` is the proof of this refusal."""
        expected = self.refusal(reason, text)
        return isinstance(found, bytes) and hmac.compare_digest(expected, found)

    def _fields(self, message: bytes) -> Fields:
        number, self._count = self._count, self._count + 1
        digest = hashlib.sha256(message).digest()
        return (*_ANSWER, self._nonce, self._method, str(number).encode(), digest)


class Caller:
    """Proves the calls of one client: the first is refused with a challenge, then repeated."""

    def __init__(
        self,
        keys: Callable[[], Keys],
        member: tuple[str, int],
        new_bytes: NewBytes = secrets.token_bytes,
    ) -> None:
        """Calls are proven with the first key; `member` is the called group and ordinal."""
        self.challenge = b""
        """The server's last challenge; empty before the first."""
        self._keys = keys
        self._member = member
        self._new_bytes = new_bytes

    @property
    def has_keys(self) -> bool:
        """Whether calls are proven."""
        return bool(self._keys())

    def prove(self, method: str, request: bytes) -> tuple[bytes, Seal] | None:
        """Return the proof of a call and the seal of its answers; None without a key."""
        keys = self._keys()
        if not keys:
            return None
        nonce = self._new_bytes(NONCE_BYTES)
        fields = _call_fields(self.challenge, nonce, method, self._member, request)
        return nonce + mac(keys[0], fields), Seal(keys[0], method, nonce)


class Verifier:
    """Checks the proofs of calls at one member; a nonce is accepted once for each challenge."""

    def __init__(
        self,
        keys: Callable[[], Keys],
        now_ms: Callable[[], int],
        new_bytes: NewBytes = secrets.token_bytes,
    ) -> None:
        """`keys` returns the keys that are accepted at present."""
        self._keys = keys
        self._now_ms = now_ms
        self._new_bytes = new_bytes
        self._used: dict[bytes, set[bytes]] = {}
        """The nonces of accepted calls, by challenge; the last two challenges are valid."""
        self._since_ms = 0

    @property
    def has_keys(self) -> bool:
        """Whether the member has a key to compare with."""
        return bool(self._keys())

    def fingerprints(self) -> tuple[str, ...]:
        """Return the fingerprints of the accepted keys, in their order."""
        return tuple(map(fingerprint, self._keys()))

    @property
    def challenge(self) -> bytes:
        """The current challenge."""
        newest = next(reversed(self._used), None)
        now_ms = self._now_ms()
        is_spent = newest is not None and len(self._used[newest]) >= NONCES_MAX
        if newest is None or is_spent or now_ms - self._since_ms >= CHALLENGE_MS:
            newest, self._since_ms = self._new_bytes(NONCE_BYTES), now_ms
            self._used[newest] = set()
            while len(self._used) > 2:
                del self._used[next(iter(self._used))]
        return newest

    def check(
        self, proof: bytes, method: str, member: tuple[str, int], request: bytes
    ) -> Seal | None:
        """Return the seal for the answers to a call, or None if its proof is wrong or was used."""
        self.challenge  # noqa: B018  # ends the oldest one in time
        nonce, found = proof[:NONCE_BYTES], proof[NONCE_BYTES:]
        for challenge, used in self._used.items():
            key = key_of(
                self._keys(), _call_fields(challenge, nonce, method, member, request), found
            )
            if key is not None:
                if nonce in used:
                    return None
                used.add(nonce)
                return Seal(key, method, nonce)
        return None

    def is_accepted(self, seal: Seal) -> bool:
        """Return whether the key of a call is still accepted: a stream may outlive it."""
        return seal.key in self._keys()


def _call_fields(
    challenge: bytes, nonce: bytes, method: str, member: tuple[str, int], request: bytes
) -> Fields:
    group, ordinal = member
    return (
        *_CALL, challenge, nonce, method.encode(), group.encode(), str(ordinal).encode(),
        hashlib.sha256(request).digest(),
    )  # fmt: skip
