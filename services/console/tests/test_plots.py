# SPDX-License-Identifier: Apache-2.0
from xml.etree import ElementTree as ET

from cometmq.console.web.cells import number
from cometmq.console.web.plots import Line, line_plot

MINUTE = 60_000


def drawn(*lines):
    text = line_plot(lines, 0, 60 * MINUTE, title="Lag", text=number)
    return text, ET.fromstring(text)


def test_a_line_is_interrupted_where_nothing_is_known():
    _, root = drawn(Line("a", [(0, 1.0), (MINUTE, 2.0), (2 * MINUTE, None), (3 * MINUTE, 3.0)]))
    (path,) = root.findall("path")
    assert path.get("d", "").count("M") == 2


def test_a_plot_without_data_says_so():
    text, root = drawn(Line("a", []))
    assert "no data in this time" in text
    assert root.get("aria-label") == "Lag: no data yet"


def test_names_are_escaped():
    text, root = drawn(Line("<b>&\"'", [(0, 1.0)]))
    assert root.findall("path/title")[0].text == "<b>&\"'"
    assert "<b>" not in text
