# SPDX-License-Identifier: Apache-2.0
from xml.etree import ElementTree as ET

import pytest

from cometmq.insight.plots import Line, line_plot, spark_line
from cometmq.insight.words import count, lasting

MINUTE = 60_000


def drawn(*lines):
    text = line_plot(lines, 0, 60 * MINUTE, title="Lag", text=count)
    return text, ET.fromstring(text)


def test_a_line_is_interrupted_where_nothing_is_known():
    _, root = drawn(Line("a", [(0, 1.0), (MINUTE, 2.0), (2 * MINUTE, None), (3 * MINUTE, 3.0)]))
    (path,) = root.findall("path")
    assert path.get("d", "").count("M") == 2


def test_names_are_escaped():
    text, root = drawn(Line("<b>&\"'\x1b", [(0, 1.0)]))
    assert root.findall("path/title")[0].text == "<b>&\"'\\x1b"
    assert "<b>" not in text


@pytest.mark.parametrize("value", [1e300, 1.7e308])
def test_the_largest_numbers_are_drawn(value):
    _, root = drawn(Line("a", [(0, value)]))
    assert len(root.findall("path")) == 1


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_line_is_interrupted_where_the_value_is_no_number(value):
    text, root = drawn(Line("a", [(0, 1.0), (MINUTE, value), (2 * MINUTE, 2.0)]))
    (path,) = root.findall("path")
    assert path.get("d", "").count("M") == 2
    assert "nan" not in text
    assert "inf" not in text


@pytest.mark.parametrize(
    ("seconds", "top"),
    [(0.3, "500 ms"), (1.5, "2 s"), (45, "1 min"), (1_700, "1 h"), (90_000, "2 d"),
     (3 * 86_400, "4 d"), (86_400 * 300, "400 d")],
)  # fmt: skip
def test_an_axis_of_durations_has_round_numbers(seconds, top):
    text = line_plot([Line("a", [(0, seconds)])], 0, 60 * MINUTE, title="Age", text=lasting)
    assert f">{top}</text>" in text


def test_a_small_line_has_a_point_for_each_value():
    root = ET.fromstring(spark_line([0, 5, 2], '<b>"'))
    (line,) = root.findall("polyline")
    assert len(line.get("points", "").split()) == 3
