# SPDX-License-Identifier: Apache-2.0
"""The shared key of a broker group: its file, and the proof that both ends of a connection know it.

The proof is the three-pass mutual authentication of ISO/IEC 9798-4 (7.2.2) with HMAC-SHA256:

1. The initiator sends its name and a fresh nonce.
2. The responder sends its name, a nonce of its own, and its MAC.
3. The initiator checks that MAC, and sends its own.

Each MAC covers the purpose of the connection, the part of its sender (initiator or responder), both
names and both nonces, every field with its length. It is therefore worthless on any other
connection, in the other direction and for another purpose. The proof shows who opened the
connection; what follows is neither encrypted nor protected.
"""

import hashlib
import hmac
import secrets
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from cometmq.remoting.errors import CometError, SettingsError
from cometmq.remoting.settled import Settled

KEY_BYTES_MIN: Final = 32
KEY_COUNT_MAX: Final = 8
"""A rotation needs two keys; each further one costs a MAC for every stranger that connects."""

FILE_BYTES_MAX: Final = 64 << 10
NONCE_BYTES: Final = 32
MAC_BYTES: Final = 32
NAME_BYTES_MAX: Final = 512

_LABEL: Final = b"CometMQ group proof 1"

Keys = tuple[bytes, ...]
"""All keys are accepted from the other side; a responder proves itself with the first one."""


class Purpose(StrEnum):
    """What a connection is for; a proof for one purpose proves nothing for another."""

    STREAM = "stream"
    """A follower's connection to its master."""
    CONTROL = "control"
    """Calls of an elector, an operator or the command line to a member."""


class Part(StrEnum):
    """Which end of a connection makes a MAC."""

    INITIATOR = "initiator"
    RESPONDER = "responder"


class NotProven(CometError):
    """The other end has not proven that it knows a key of the group and has the expected name."""


class WrongEnd(NotProven):
    """The other end knows a key of the group, but has another name than expected."""

    def __init__(self, name: str, wanted: str) -> None:
        super().__init__(f"it is {name}, and {wanted} is wanted")
        self.name = name


class Transcript(NamedTuple):
    """The facts that a MAC covers."""

    purpose: Purpose
    initiator: str
    responder: str
    initiator_nonce: bytes
    responder_nonce: bytes


def parse_keys(data: bytes, shown: str) -> Keys:
    """Return the keys in a file: one a line, without empty lines and comments (`#`).

    Raise SettingsError if there is none, or one is too short, or the last line is not complete.
    `shown` names the setting and the file in messages, which never contain a key.
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
        """Load the keys; blocks. Raise SettingsError if the file is unusable.

        `setting` is the name under which the user has set the path, for messages.
        """
        self._path = path
        self._setting = setting
        self._content = Settled(self._read())
        self.keys = self._parsed(self._content.used)

    def refresh(self) -> bool:
        """Read the file again; return whether changed keys came into use. Blocks.

        Changed content is used once two successive calls find it. An unusable file raises
        SettingsError once, and the old keys remain in use until it changes again.
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


def mac(key: bytes, part: Part, transcript: Transcript) -> bytes:
    """Return the MAC with which one end proves that it knows a key."""
    fields = (
        _LABEL,
        part.encode(),
        transcript.purpose.encode(),
        transcript.initiator.encode(),
        transcript.responder.encode(),
        transcript.initiator_nonce,
        transcript.responder_nonce,
    )
    text = b"".join(len(field).to_bytes(4, "big") + field for field in fields)
    return hmac.digest(key, text, hashlib.sha256)


def key_of(keys: Keys, part: Part, transcript: Transcript, found: bytes) -> bytes:
    """Return the key that made a MAC; raise NotProven if none of the keys did."""
    made_by = None
    for key in keys:  # all of them: the time must not tell which one fits
        if hmac.compare_digest(mac(key, part, transcript), found):
            made_by = key
    if made_by is None:
        raise NotProven("it does not prove a key that this one accepts")
    return made_by


class Initiator:
    """The proof on the side that connects: send `name` and `nonce`, then the result of `answer`."""

    def __init__(
        self,
        keys: Keys,
        purpose: Purpose,
        name: str,
        *,
        responder: str,
        new_nonce: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`responder` is the name that the other end must have."""
        self.name = name
        self.nonce = new_nonce(NONCE_BYTES)
        self._keys = keys
        self._purpose = purpose
        self._wanted = responder

    def answer(self, responder: str, nonce: bytes, proof: bytes) -> bytes:
        """Return this side's MAC, made with the key that the responder has proven.

        Raise NotProven if the responder knows no key of `keys`, WrongEnd if it has another name.
        """
        _check_sizes(responder, nonce)
        transcript = Transcript(self._purpose, self.name, responder, self.nonce, nonce)
        key = key_of(self._keys, Part.RESPONDER, transcript, proof)
        if responder != self._wanted:
            raise WrongEnd(responder, self._wanted)
        return mac(key, Part.INITIATOR, transcript)


class Responder:
    """The proof on the side that is connected to: send `name`, `nonce` and `proof`, then `check`
    the answer.
    """

    def __init__(  # the facts of the first pass, each by name
        self,
        keys: Keys,
        purpose: Purpose,
        name: str,
        *,
        initiator: str,
        initiator_nonce: bytes,
        new_nonce: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        """`initiator` is the name that the other end claims; raise NotProven if it or the nonce has
        a size that no member uses.
        """
        _check_sizes(initiator, initiator_nonce)
        self.name = name
        self.nonce = new_nonce(NONCE_BYTES)
        self._keys = keys
        self._transcript = Transcript(purpose, initiator, name, initiator_nonce, self.nonce)
        self.proof = mac(keys[0], Part.RESPONDER, self._transcript)

    def check(self, proof: bytes) -> bytes:
        """Return the key that the initiator has proven; raise NotProven if it has proven none."""
        return key_of(self._keys, Part.INITIATOR, self._transcript, proof)


def _check_sizes(name: str, nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES or len(name.encode()) > NAME_BYTES_MAX:
        raise NotProven(f"its nonce has {len(nonce)} bytes, its name {len(name.encode())}")
