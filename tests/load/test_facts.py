# SPDX-License-Identifier: Apache-2.0
"""The load run reads the metrics of a broker correctly."""

import pytest

from cometmq.peers.broker.facts import LagWindow, parse_metrics

TEXT = """\
# HELP cometmq_connections Open connections.
cometmq_connections{server="broker"} 3.0
cometmq_connections_closed_total{reason="idle",server="broker"} 2.0
cometmq_loop_lag_seconds_bucket{le="0.001"} 90.0
cometmq_loop_lag_seconds_bucket{le="0.01"} 98.0
cometmq_loop_lag_seconds_bucket{le="+Inf"} 100.0
process_resident_memory_bytes 1e+06
"""


def test_samples_have_the_values_of_their_own_labels_in_the_name() -> None:
    found = parse_metrics(TEXT)
    assert found["cometmq_connections"] == 3
    assert found["cometmq_connections_closed_total:idle"] == 2
    assert found["process_resident_memory_bytes"] == 1_000_000


@pytest.mark.parametrize(
    ("share", "bound_ms"), [(0.5, 1.0), (0.9, 1.0), (0.95, 10.0), (1.0, float("inf"))]
)
def test_a_quantile_is_the_bound_that_holds_it(share: float, bound_ms: float) -> None:
    assert LagWindow({}, parse_metrics(TEXT)).quantile_ms(share) == bound_ms


def test_only_samples_after_the_first_reading_count() -> None:
    after = parse_metrics(TEXT)
    before = {**after, "cometmq_loop_lag_seconds_bucket:0.001": 0.0}
    assert LagWindow(before, after).quantile_ms(1) == 1.0
