# SPDX-License-Identifier: Apache-2.0
"""The asyncio transport: server, client, TLS, dispatch and limits."""

from cometmq.remoting.transport.client import RemotingClient
from cometmq.remoting.transport.dispatch import After, Before, Dispatcher, Handler
from cometmq.remoting.transport.protocol import PeerProtocol
from cometmq.remoting.transport.server import Server
from cometmq.remoting.transport.settings import ClientSettings, ServerSettings, TlsMode, TlsSettings
from cometmq.remoting.transport.stats import TransportStats

__all__ = [
    "After",
    "Before",
    "ClientSettings",
    "Dispatcher",
    "Handler",
    "PeerProtocol",
    "RemotingClient",
    "Server",
    "ServerSettings",
    "TlsMode",
    "TlsSettings",
    "TransportStats",
]
