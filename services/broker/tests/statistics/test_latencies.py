# SPDX-License-Identifier: Apache-2.0

from cometmq.broker.statistics.latencies import RPC_BOUNDS_MS, in_milliseconds, latency_buckets


def test_every_bound_of_rocketmq_is_a_bound_of_ours():
    bounds = latency_buckets().bounds
    assert [ms for ms in RPC_BOUNDS_MS if ms / 1000 not in bounds] == []


def test_milliseconds_keep_counts_and_sum():
    seconds = latency_buckets()
    for value, count in ((0.0001, 5), (0.001, 1), (0.0011, 2), (0.08, 3), (2.5, 1), (60, 4)):
        seconds.observe(value, count)
    copy = in_milliseconds(seconds)
    shown = dict(copy.cumulative())
    assert shown["1.0"] == 6
    assert shown["3.0"] == shown["10.0"] == 8
    assert shown["100.0"] == 11
    assert shown["3000.0"] == 12
    assert shown["+Inf"] == seconds.count == 16
    assert copy.sum == seconds.sum * 1000
