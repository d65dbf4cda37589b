# SPDX-License-Identifier: Apache-2.0
"""To which owner a connection belongs: the connections of one owner share its turns."""

from typing import Final

from cometmq.remoting.transport.flow.connected import Connected
from cometmq.remoting.transport.flow.fair_queue import Requester
from cometmq.remoting.transport.flow.places import host_of

ACCOUNT: Final = "account"
"""Key in `Peer.state` of the access key with which the connection last signed a request."""


def requester_of(peer: Connected) -> Requester:
    """Return the account of a connection, or its address before it has signed a request."""
    return Requester(peer.state.get(ACCOUNT) or host_of(peer), peer)
