# SPDX-License-Identifier: Apache-2.0
"""The error that ends a demo early."""

from cometmq.remoting.errors import CometError


class DemoFailed(CometError):
    """A process of the demo has failed or timed out."""


def stalled(what: str, stall_s: float) -> DemoFailed:
    """Return the error for a demo that has made no progress for `stall_s` seconds."""
    return DemoFailed(
        f"{what}; nothing moved for {stall_s:g} s; on a slow machine: make demo"
        f" ARGS='--timeout {3 * stall_s:g}'"
    )
