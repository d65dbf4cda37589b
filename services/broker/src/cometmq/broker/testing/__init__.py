# SPDX-License-Identifier: Apache-2.0
"""What tests of handlers need instead of a network: a peer that remembers what it was sent."""

from cometmq.broker.testing.peers import FakePeer, Sent

__all__ = ["FakePeer", "Sent"]
