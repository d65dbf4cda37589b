# SPDX-License-Identifier: Apache-2.0
"""Whom a collector asks, and with what bounds."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.transport.settings import TlsSettings


class CollectSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Of one collector."""

    namesrv: str = ""
    """`host:port;host:port`; empty: that of the environment, NAMESRV_ADDR."""
    namesrv_url: str = ""
    """HTTP address of a list of name servers."""
    cluster: str | None = None
    """Only the brokers of this cluster."""
    timestamp_budget: Annotated[int, Meta(ge=0)] = 2000
    """Questions for the age of messages in one round: they read the commit log, maybe cold."""
    sample_tags: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """How many unread messages to try of each group that wants only some; 0: none."""
    pipeline: Annotated[int, Meta(ge=1, le=1024)] = 32
    """Questions to one broker at once."""
    timeout_ms: Annotated[int, Meta(ge=1)] = 15_000
    """Of one question."""
    reply_bytes_max: Annotated[int, Meta(ge=1024)] = 256 * 1024 * 1024
    """All offsets of a big broker come in one answer."""
    credentials: SessionCredentials | None = None
    tls: TlsSettings = TlsSettings()
