# SPDX-License-Identifier: Apache-2.0
"""The error that ends a demo early."""

from cometmq.remoting.errors import CometError


class DemoFailed(CometError):
    """A process of the demo failed or timed out."""
