# SPDX-License-Identifier: Apache-2.0
"""Queries of dashboards and alerts are brought into a form in which they return data."""

import pytest

from cometmq.peers.prometheus.queries import operands


@pytest.mark.parametrize(
    ("expr", "found"),
    [
        ("a > 0", ["a > bool 0"]),
        ("a < scalar(b)", ["a < bool scalar(b)"]),
        (
            'a{b!="c"} == 1 or d{e=~"x or y",f!~"}"}',
            ['a{b!="c"} == bool 1', 'd{e=~"x or y",f!~"}"}'],
        ),
        ("(a == 1 and b != 0) unless on (i) c", ["(a == bool 1 and b != bool 0)", "c"]),
        ("a unless on (i, j) sum by (i) (b) > 0", ["a", "sum by (i) (b) > bool 0"]),
        ("time() - (a > 0) >= 900", ["time() - (a > bool 0) >= bool 900"]),
        ("count(a or b) > 1", ["count(a or b) > bool 1"]),
        ("origin_unless > 0", ["origin_unless > bool 0"]),
    ],
)
def test_operands_of_alerts_do_not_filter(expr, found):
    assert operands(expr) == found
