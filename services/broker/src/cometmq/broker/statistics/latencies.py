# SPDX-License-Identifier: Apache-2.0
"""Latency histograms. The message path updates them once per batch, not once per message."""

from typing import Final

from cometmq.runtime.metrics.histogram import Buckets

RPC_BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
"""Compatibility: the bounds of RocketMQ 5's rpc_latency."""

_BOUNDS_S: Final = (
    0.0001, 0.00025, 0.0005, 0.001, 0.003, 0.005, 0.007, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1.0,
    2.0, 3.0, 5.0,
)  # fmt: skip


def latency_buckets() -> Buckets:
    """Return an empty histogram of seconds."""
    return Buckets(_BOUNDS_S)


def in_milliseconds(seconds: Buckets) -> Buckets:
    """Return a copy in milliseconds with the bounds of `RPC_BOUNDS_MS`, all of which are among the
    bounds of `latency_buckets`.
    """
    copy = Buckets(RPC_BOUNDS_MS)
    for bound, count in zip((*seconds.bounds, float("inf")), seconds.counts, strict=True):
        place = next((n for n, ms in enumerate(RPC_BOUNDS_MS) if bound * 1000 <= ms), -1)
        copy.counts[place] += count
    copy.sum = seconds.sum * 1000
    return copy
