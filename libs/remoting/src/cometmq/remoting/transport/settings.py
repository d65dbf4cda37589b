# SPDX-License-Identifier: Apache-2.0
"""Limits and TLS settings of servers and clients; each is explicit and has a default."""

import sys
from enum import StrEnum
from pathlib import Path

import msgspec

from cometmq.remoting.frame import FRAME_BYTES_MAX
from cometmq.remoting.spelling import SpelledFields
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


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, metaclass=SpelledFields):
    """TLS settings of a server or a client, named after RocketMQ's `tls.*` properties.

    Paths may also be given as strings.
    """

    mode: TlsMode = TlsMode.PERMISSIVE
    """Server only."""
    enable: bool = False
    """Client only: connect with TLS."""
    test_mode: bool = True
    """Serve with a certificate generated at startup, and verify no peer."""
    cert_path: Path | None = None
    """The certificate that this side presents, in PEM form."""
    key_path: Path | None = None
    """The key of that certificate; None means that it is in the same file."""
    key_password: str | None = None
    """The password of an encrypted key."""
    trust_cert_path: Path | None = None
    """The authorities trusted to issue the peer's certificate; None means the system's."""
    need_client_auth: str = "none"
    """Server only: whether clients present a certificate (`none`, `optional`, `require`)."""
    auth_server: bool = False
    """Client only: verify the server's certificate."""
    names: tuple[tuple[str, str], ...] = ()
    """Pairs of a `tls.*` key and the name that error messages use for it: the option, the
    variable, or the key with its place in a file."""

    def __post_init__(self) -> None:
        """Convert paths that were given as strings."""
        for name in ("cert_path", "key_path", "trust_cert_path"):
            path: object = getattr(self, name)
            if isinstance(path, str):
                msgspec.structs.force_setattr(self, name, Path(path))


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one connection, at either end."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    write_high_water_bytes: int = 1 * _MIB
    """Unsent output above which the peer is not served, and a server stops reading from it."""
    write_low_water_bytes: int = 256 * _KIB
    """Unsent output below which serving and reading resume."""
    unsent_bytes_max: int = 64 * _MIB
    """Unsent output above which the connection is closed, because its peer has stopped reading."""
    unsent_total_bytes_max: int | None = None
    """Total unsent output above which the connections with the most are paused, then closed."""
    drain_timeout_ms: int = 5_000
    """How long the peer of a connection paused for `unsent_total_bytes_max` may read nothing while
    the total exceeds the limit.
    """
    stall_timeout_ms: int = 30_000
    """How long a peer may read nothing while unsent output is above the high-water mark."""
    reads_while_unsent: bool = False
    """Keep reading while unsent output is above the high-water mark. Clients do so because two ends
    that wait for each other to read would wait forever.
    """
    in_flight_max: int = 65_535
    """Unanswered requests of all connections of a server together; of a client, also those that it
    has sent on one connection (the size of RocketMQ's semaphore).
    """
    in_flight_per_connection_max: int = 65_535
    calls_per_turn_max: int = 128
    """Requests of one connection that are served in a row before other connections get a turn. The
    number falls while many connections have a backlog: see `Turns.fell_behind`.
    """
    unasked_max: int = sys.maxsize
    """Maximum number of answers that belong to no request, besides answers to oneway and abandoned
    requests. A server decodes them in portions, but a client takes answers at once.
    """
    idle_timeout_ms: int = 120_000
    """How long a connection may receive nothing before it is closed; RocketMQ's value."""
    check_interval_ms: int = 1_000
    """How often the timeouts and the memory limits are checked."""
    tls: TlsSettings = TlsSettings()


class ServerSettings(ConnectionSettings, frozen=True, kw_only=True):
    """Limits of one connection to a server, and of all its connections together."""

    connections_max: int = 10_000
    in_flight_per_connection_max: int = 16_384
    """Unanswered requests of one connection; a consumer has one held pull per queue."""
    in_flight_max: int = 131_072
    unsent_total_bytes_max: int | None = 128 * _MIB
    buffered_bytes_max: int = 512 * _MIB
    """Unsent output, incomplete frames and waiting requests of all connections together."""
    frames_bytes_max: int = 128 * _MIB
    """Long unfinished frames of all connections together."""
    backlog: int = 1024
    """Connections that the kernel queues until they are accepted."""


class ClientSettings(ConnectionSettings, frozen=True, kw_only=True):
    """Limits for a client."""

    reads_while_unsent: bool = True
    unasked_max: int = 16
    connect_timeout_ms: int = 3_000
    serialization: Serialization = Serialization.JSON
