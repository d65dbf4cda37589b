# SPDX-License-Identifier: Apache-2.0
"""Proofs in calls of the control API: both ends show that they know the key of the group.

The first call of a client is refused with a challenge, 32 random bytes that the server changes
every CHALLENGE_MS. The client repeats the call with a nonce and an HMAC over challenge, nonce,
method, target and request; a nonce is accepted once for each challenge. Each answer, and each
message of a stream, ends with an HMAC over the nonce of the call, the method, the number of the
message and its bytes; a refusal has one over its reason and text.

So a captured call is worthless later, at another member and for another request, and an answer fits
only the call that asked for it. No clocks are compared. The proof does not encrypt: TLS does.
"""

import hashlib
import secrets
from collections.abc import Callable, Sequence
from typing import Final

from cometmq.control.controlled import Target
from cometmq.ha.group_key import MAC_BYTES, NONCE_BYTES, Keys
from cometmq.ha.signed import Signed, fingerprint, message_mac, signing_key

PROOF_KEY: Final = "cometmq-proof-bin"
CHALLENGE_KEY: Final = "cometmq-challenge-bin"
"""Keys of the metadata, in a call and in its refusal."""

CHALLENGE_MS: Final = 60_000
NONCES_MAX: Final = 100_000
"""A challenge is also replaced after this many calls; electors make about 10 a second."""

_TAG: Final = b"\xfa\x7f\x20"
"""Field 2047, 32 bytes: a receiver without a key skips it as an unknown field of the message."""

NewBytes = Callable[[int], bytes]


class Seal:
    """Computes the proofs of the messages that answer one call, in their order, at either end."""

    __slots__ = ("_count", "_method", "_nonce", "key")

    def __init__(self, key: bytes, method: str, nonce: bytes) -> None:
        self.key = key
        self._method = method
        self._nonce = nonce
        self._count = 0

    def add_to(self, message: bytes) -> bytes:
        """Return the next message of the answer with its proof."""
        return message + _TAG + message_mac(self.key, Signed.ANSWER, self._fields(message))

    def is_intact(self, message: bytes) -> bool:
        """Return whether the next message of the answer ends with its proof."""
        end = len(message) - len(_TAG) - MAC_BYTES
        if end < 0 or message[end : end + len(_TAG)] != _TAG:
            return False
        fields = self._fields(message[:end])
        return signing_key((self.key,), Signed.ANSWER, fields, message[-MAC_BYTES:]) is not None

    def refusal(self, reason: str, text: str) -> bytes:
        """Return the proof of a refusal of the call."""
        return message_mac(self.key, Signed.ANSWER, self._refusal_fields(reason, text))

    def is_refusal(self, reason: str, text: str, found: object) -> bool:
        """Return whether `found` is the proof of this refusal."""
        if not isinstance(found, bytes):
            return False
        fields = self._refusal_fields(reason, text)
        return signing_key((self.key,), Signed.ANSWER, fields, found) is not None

    def _refusal_fields(self, reason: str, text: str) -> Sequence[bytes]:
        return self._nonce, self._method.encode(), b"refused", reason.encode(), text.encode()

    def _fields(self, message: bytes) -> Sequence[bytes]:
        number, self._count = self._count, self._count + 1
        return (
            self._nonce, self._method.encode(), str(number).encode(),
            hashlib.sha256(message).digest(),
        )  # fmt: skip


class Caller:
    """Proves the calls of one client."""

    def __init__(
        self, keys: Callable[[], Keys], target: Target, new_bytes: NewBytes = secrets.token_bytes
    ) -> None:
        """`keys` returns the current keys of the group; calls are proven with the first one."""
        self.challenge = b""
        """The server's last challenge; empty before the first."""
        self._keys = keys
        self._target = target
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
        fields = _call_fields(self.challenge, nonce, method, self._target, request)
        return nonce + message_mac(keys[0], Signed.CALL, fields), Seal(keys[0], method, nonce)


class Verifier:
    """Checks the proofs of calls at one member."""

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

    def check(self, proof: bytes, method: str, target: Target, request: bytes) -> Seal | None:
        """Return the seal for the answers to a call, or None if its proof is wrong or was used."""
        self.challenge  # noqa: B018  # ends the oldest one in time
        nonce, found = proof[:NONCE_BYTES], proof[NONCE_BYTES:]
        for challenge, used in self._used.items():
            fields = _call_fields(challenge, nonce, method, target, request)
            key = signing_key(self._keys(), Signed.CALL, fields, found)
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
    challenge: bytes, nonce: bytes, method: str, target: Target, request: bytes
) -> Sequence[bytes]:
    return (
        challenge, nonce, method.encode(), target.group.encode(), str(target.ordinal).encode(),
        hashlib.sha256(request).digest(),
    )  # fmt: skip
