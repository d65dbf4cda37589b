# SPDX-License-Identifier: Apache-2.0
"""A command with its fields as text: what both header encodings can say."""

from collections.abc import Sequence
from typing import Final

import msgspec

from cometmq.remoting.types import Buffer, Language, Serialization
from cometmq.remoting.versions import CURRENT_VERSION

FLAG_REPLY: Final = 1
FLAG_ONEWAY: Final = 2

Body = Buffer | Sequence[Buffer]
"""What follows a header: one buffer, or several that leave one after the other."""


class RawCommand(msgspec.Struct, kw_only=True):
    """One command of either direction, without knowledge of its code."""

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
        """Whether this answers a request."""
        return bool(self.flag & FLAG_REPLY)

    @property
    def is_oneway(self) -> bool:
        """Whether nobody waits for an answer."""
        return bool(self.flag & FLAG_ONEWAY)
