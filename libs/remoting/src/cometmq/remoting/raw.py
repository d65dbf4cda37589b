# SPDX-License-Identifier: Apache-2.0
"""A command with its fields as strings: what both header encodings have in common."""

from collections.abc import Sequence
from typing import Final

import msgspec

from cometmq.remoting.types import Buffer, Language, Serialization
from cometmq.remoting.versions import CURRENT_VERSION

FLAG_REPLY: Final = 1
FLAG_ONEWAY: Final = 2

Body = Buffer | Sequence[Buffer]
"""The bytes after a header: one buffer, or several that are sent in sequence."""


class RawCommand(msgspec.Struct, kw_only=True):
    """One command in either direction, independent of the catalogue."""

    code: int
    flag: int = 0
    opaque: int = 0
    language: int = Language.PYTHON
    version: int = CURRENT_VERSION
    remark: str | None = None
    ext: dict[str, str] = {}
    body: Buffer = b""
    serialization: Serialization = Serialization.JSON

    @property
    def is_reply(self) -> bool:
        """Whether this is the answer to a request."""
        return bool(self.flag & FLAG_REPLY)

    @property
    def is_oneway(self) -> bool:
        """Whether the sender expects no reply."""
        return bool(self.flag & FLAG_ONEWAY)
