# SPDX-License-Identifier: Apache-2.0
"""Bounds of servers and clients: every one explicit, none without a value."""

from enum import StrEnum
from pathlib import Path

import msgspec

from cometmq.remoting.frame import FRAME_BYTES_MAX
from cometmq.remoting.types import Serialization

_KIB = 1024
_MIB = 1024 * 1024


class TlsMode(StrEnum):
    """How a server treats TLS connections on its ports."""

    DISABLED = "disabled"
    """TLS connections are closed."""
    PERMISSIVE = "permissive"
    """Plain and TLS connections are served."""
    ENFORCING = "enforcing"
    """Plain connections are closed."""


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """TLS of a server or a client; the names follow RocketMQ's ``tls.*`` properties."""

    mode: TlsMode = TlsMode.PERMISSIVE
    """Server only."""
    enable: bool = False
    """Client only: connect with TLS."""
    test_mode: bool = True
    """Serve with a certificate made at start, and verify no peer."""
    cert_path: Path | None = None
    key_path: Path | None = None
    key_password: str | None = None
    trust_cert_path: Path | None = None
    """Certificates that the peer's must descend from; None: the system's."""
    need_client_auth: str = "none"
    """Server only: ``none``, ``optional`` or ``require`` a certificate of the client."""
    auth_server: bool = False
    """Client only: verify the server's certificate."""


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of one connection at either end."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    write_high_water_bytes: int = 1 * _MIB
    """Unsent output above which the peer is not served, and a server reads nothing more."""
    write_low_water_bytes: int = 256 * _KIB
    """Unsent output below which reading goes on."""
    unsent_bytes_max: int = 64 * _MIB
    """Unsent output above which the connection is closed: its reader has stopped."""
    unsent_total_bytes_max: int | None = None
    """Unsent output of all connections above which the largest are paused, then closed."""
    drain_timeout_ms: int = 5_000
    """How long a connection that is paused so may take nothing while that bound is exceeded."""
    stall_timeout_ms: int = 30_000
    """How long a reader may take nothing while output above high water waits for it."""
    reads_while_unsent: bool = False
    """Read on while output above high water waits. Clients do: were both ends to wait until
    the other reads, neither would."""
    calls_per_turn_max: int = 128
    """Requests of one connection served in a row; more wait until others had their turn. Fewer
    when many connections have more: see ``Hub.fell_behind``."""
    idle_timeout_ms: int = 120_000
    """How long a connection may carry nothing at all; RocketMQ's value."""
    check_interval_ms: int = 1_000
    """How often the two timeouts and the bounds of memory are looked at."""
    tls: TlsSettings = TlsSettings()


class ServerSettings(ConnectionSettings, frozen=True, kw_only=True):
    """Bounds of a server."""

    connections_max: int = 10_000
    in_flight_per_connection_max: int = 16_384
    """Requests of one connection without an answer; a consumer holds one pull per queue."""
    in_flight_max: int = 131_072
    """Requests of all connections without an answer."""
    unsent_total_bytes_max: int | None = 128 * _MIB
    buffered_bytes_max: int = 512 * _MIB
    """Unsent output, incomplete frames and waiting requests of all connections together."""
    backlog: int = 1024
    """Connections that the kernel keeps until they are accepted."""


class ClientSettings(ConnectionSettings, frozen=True, kw_only=True):
    """Bounds of a client."""

    reads_while_unsent: bool = True
    connect_timeout_ms: int = 3_000
    in_flight_max: int = 65_535
    """Requests of ours without an answer on one connection; RocketMQ's semaphore."""
    serialization: Serialization = Serialization.JSON
