# SPDX-License-Identifier: Apache-2.0
"""Every output format handles unusual names, huge numbers, empty reports and 10,000 groups."""

import json
import math
import re
import warnings
import xml.etree.ElementTree as ET
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.spark.lag.columns import STATUSES, Report
from cometmq.spark.lag.output.forms import json_report
from cometmq.spark.lag.output.page import _thinned, html_report
from cometmq.spark.lag.output.prometheus import metrics_text

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HUGE = 2**63 - 1
NAMES = [
    "<img src=x onerror=alert(1)>",
    "</title></style><script>alert(1)</script>",
    '"><b>&amp;',
    "$\\frac{1$ and $x_1$",
    "[here](http://evil.example)",
    "a|b\n| c |\r\nd",
    "\N{CJK UNIFIED IDEOGRAPH-8A02}\N{CJK UNIFIED IDEOGRAPH-55AE}\N{PILE OF POO}",
    "nul\x00 bell\x07 \N{RIGHT-TO-LEFT OVERRIDE}",
    "-->]]>",
    "g" * 255,
]


def _named(report: Report, name: str, a_report: Any, a_group: Any) -> Report:
    """Build a report that uses this name everywhere."""
    kinds = {"STALLED": 3.0, "AT_RISK": 7_800.0, "LOST": 0.0}
    groups = [
        a_group(name, status, cluster=name, worst_topic=name, worst_broker_name=name,
                time_to_loss_s=left)
        for status, left in kinds.items()
    ]  # fmt: skip
    rows = {
        table: [
            {key: name if _is_name(key, it) else it for key, it in row.items()}
            for row in report.rows(table)
        ]
        for table in report.tables
        if table != "group"
    }
    return a_report(groups, **rows)


def _is_name(column: str, value: Any) -> bool:
    fixed = ("status", "severity", "kind", "topic_kind", "ttl_model", "lag_time_method")
    return isinstance(value, str) and column not in fixed


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_shown_verbatim(name: str, report: Report, a_report: Any, a_group: Any) -> None:
    strange = _named(report, name, a_report, a_group)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        page = html_report(strange).decode()
    plain = html_report(_named(report, "plain", a_report, a_group)).decode()
    tags = re.compile(r"<(/?\w+)")
    assert _without_drawings(tags.findall(page)) == _without_drawings(tags.findall(plain))
    for drawing in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ET.fromstring(re.sub(r"[\x00-\x08]", "", drawing))  # a page that we generated

    assert json.loads(json_report(strange))["group"][0]["group"] == name
    assert all(
        line.startswith(("#", "cometmq_")) for line in metrics_text(strange).split("\n")[:-1]
    )


def _without_drawings(tags: list[str]) -> list[str]:
    """Remove drawings, which depend on the width of their labels."""
    found, inside = [], False
    for tag in tags:
        inside = inside or tag == "svg"
        if not inside:
            found.append(tag)
        inside = inside and tag != "/svg"
    return found


def test_huge_and_infinite_numbers_are_short(a_report: Any, a_group: Any) -> None:
    figures: dict[str, Any] = {
        "lag_sum": HUGE, "lag_time_s": 1e300, "rate_in": math.inf, "rate_out": 1e-300,
        "eta_catchup_s": math.nan, "time_to_loss_s": 1e18, "lost_sum": HUGE,
        "lag_change_last": -HUGE,
    }  # fmt: skip
    report = a_report([a_group(f"g{status}", status, **figures) for status in STATUSES])
    words = html_report(report).decode()
    assert "nan" not in words
    assert not re.search(r"\binf\b|\de\+", words)
    assert "9,223,372,036,854,775,807" in words
    json.loads(json_report(report), parse_constant=pytest.fail)
    metrics_text(report)


@pytest.mark.parametrize("left", [0.0, 1e-9, 5e-324, 3e9, 1e300])
def test_bars_can_be_drawn_for_any_time(left: float, a_report: Any, a_group: Any) -> None:
    groups = [
        a_group("g", "AT_RISK", time_to_loss_s=left),
        a_group("h", "LOST", time_to_loss_s=0.0),
    ]
    widths = re.findall(rb"width: (\d+)%", html_report(a_report(groups)))
    assert [int(it) <= 100 for it in widths[-2:]] == [True, True]


def test_ten_thousand_groups_make_a_small_page(a_report: Any, a_group: Any) -> None:
    names = list(STATUSES)
    groups = [
        a_group(f"group-of-some-service-{number:05d}", names[number * len(names) // 10_000],
                time_to_loss_s=number)
        for number in range(10_000)
    ]  # fmt: skip
    when = a_report([]).header.snapshot_ts
    history = [
        {"cluster": "DefaultCluster", "group": groups[number]["group"], "max_offset": 0,
         "consumer_offset": 0, "ts": when - timedelta(minutes=back),
         "lag": (back * 7919 * number) % 10_007}
        for number in range(20)
        for back in range(1440)
    ]  # fmt: skip
    report = a_report(groups, history=history)
    page = html_report(report)
    assert len(page) < 600_000
    assert page.count(b"<article") == 3
    assert page.count(b"<tr>") < 600
    assert b"9,500 more groups are in report.json" in page


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=1500))
def test_long_curve_keeps_its_ends_and_highest_peak(values: list[int]) -> None:
    points = list(enumerate(values))
    drawn = _thinned(points)
    assert len(drawn) <= 243
    assert list(drawn) == sorted(drawn)
    assert (drawn[0], drawn[-1]) == (points[0], points[-1])
    assert max(value for _, value in drawn) == max(values)
    assert set(drawn) <= set(points)
