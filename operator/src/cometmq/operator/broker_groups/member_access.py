# SPDX-License-Identifier: Apache-2.0
"""How the operator reaches a member of a broker group."""

from typing import Final

import msgspec

from cometmq.remoting.transport.settings import TlsSettings


class MemberAccess(msgspec.Struct, frozen=True):
    """How a member's ports are reached."""

    tls: TlsSettings | None = None
    """None means plain connections."""
    name: str = ""
    """The name in the member's certificate, if it differs from the member's host."""
    has_key: bool = False
    """Whether the member has the key of its group, so that it must prove itself."""


PLAIN: Final = MemberAccess()
