# SPDX-License-Identifier: Apache-2.0
"""The settings of a collector: name servers, limits, credentials."""

from typing import Annotated

import msgspec
from msgspec import Meta

from cometmq.remoting.signature import SessionCredentials
from cometmq.remoting.transport.settings import TlsSettings


class CollectSettings(msgspec.Struct, frozen=True, kw_only=True):
    namesrv: str = ""
    """`host:port;host:port`; if empty, the value of the environment variable NAMESRV_ADDR."""
    namesrv_url: str = ""
    """HTTP address that lists name servers."""
    cluster: str | None = None
    """Restricts the collector to the brokers of this cluster."""
    timestamp_budget: Annotated[int, Meta(ge=0)] = 2000
    """Message-age queries per broker and snapshot; each may read the commit log from disk."""
    sample_tags: Annotated[int, Meta(ge=0, le=10_000)] = 0
    """Unread messages tested per filtered topic of a group; 0 tests none."""
    pipeline: Annotated[int, Meta(ge=1, le=1024)] = 32
    """Concurrent queries per broker."""
    timeout_ms: Annotated[int, Meta(ge=1)] = 15_000
    """Timeout of one query."""
    reply_bytes_max: Annotated[int, Meta(ge=1024)] = 256 * 1024 * 1024
    """Largest accepted answer; all offsets of a large broker arrive in a single one."""
    credentials: SessionCredentials | None = None
    tls: TlsSettings = TlsSettings()
