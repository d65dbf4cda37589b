# SPDX-License-Identifier: Apache-2.0
"""A report can be read on a phone: measured in a headless Chromium, 375 pixels wide.

Chromium's windows have a minimum width, so a frame of this width contains the page. A script that
only this test adds measures the page and writes the figures into it.
"""

import html
import json
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cometmq.spark.lag.columns import STATUSES, Report
from cometmq.spark.lag.output.page import html_report

WIDTH = 375
HEIGHT = 812
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip
TIMEOUT_S = 120
FONT_PX_MIN = 11
SVG_TEXT_PX_MIN = 8
TALLEST = 30_000

MEASURE = """
<script>
addEventListener("load", () => {
  const wide = [], cut = [], small = [], apart = [];
  const name = (it) => `${it.tagName}.${it.className} ${it.textContent.trim().slice(0, 40)}`;
  for (const it of document.body.querySelectorAll("*")) {
    const box = it.getBoundingClientRect(), style = getComputedStyle(it);
    if (style.clipPath !== "none" || it.closest("thead") || !box.width) continue;
    if (box.right > innerWidth + 0.5 || box.left < -0.5) wide.push(name(it));
    const clips = style.overflowX !== "visible" && !it.closest("svg");
    if (clips && it.scrollWidth > it.clientWidth + 1) cut.push(name(it));
    const own = [...it.childNodes].some((c) => c.nodeType === 3 && c.data.trim());
    if (!own) continue;
    const svg = it.closest("svg");
    if (svg) {
      const edge = svg.getBoundingClientRect();
      if (box.height < SVG_MIN) small.push(name(it));
      if (box.left < edge.left - 1 || box.right > edge.right + 1) cut.push(name(it));
    } else if (parseFloat(style.fontSize) < FONT_MIN) small.push(name(it));
    if (!svg && it.scrollWidth > it.clientWidth + 1 && it.clientWidth) cut.push(name(it));
  }
  for (const td of document.querySelectorAll("td")) {
    const words = Math.min(6, Math.max(...td.textContent.split(/\\s+/).map((it) => it.length)));
    if (td.textContent.trim() && td.getBoundingClientRect().width < 7 * words) apart.push(name(td));
  }
  const found = { inner: innerWidth, page: document.documentElement.scrollWidth,
                  height: document.documentElement.scrollHeight, wide, cut, small, apart };
  parent.postMessage(JSON.stringify(found), "*");
});
</script>
"""
FRAME = """<!doctype html><meta charset="utf-8"><style>body {{ margin: 0 }}</style>
<iframe id="page" width="{width}" height="{height}" style="border: 0" srcdoc="{page}"></iframe>
<pre id="found"></pre>
<script>
addEventListener("message", (it) => {{ document.getElementById("found").textContent = it.data; }});
</script>
"""


def chromium(folder: Path, page: bytes, *flags: str, height: int, measured: bool) -> str:
    """Show a page in a frame of the width of a phone; return what Chromium prints."""
    text = page.decode()
    if measured:
        script = MEASURE.replace("FONT_MIN", str(FONT_PX_MIN)).replace(
            "SVG_MIN", str(SVG_TEXT_PX_MIN)
        )
        text = text.replace("</body>", f"{script}</body>")
    frame = FRAME.format(width=WIDTH, height=height, page=html.escape(text))
    path = folder / "frame.html"
    path.write_text(frame)
    done = subprocess.run(
        ["chromium", *FLAGS, f"--user-data-dir={folder / 'profile'}", *flags, path.as_uri()],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def measure(folder: Path, page: bytes) -> dict[str, Any]:
    dom = chromium(
        folder, page, "--virtual-time-budget=10000", "--dump-dom", height=HEIGHT, measured=True
    )
    match = re.search(r'<pre id="found">(\{.*?\})</pre>', dom, flags=re.DOTALL)
    assert match is not None, dom[-1000:]
    found: dict[str, Any] = json.loads(html.unescape(match[1]))
    return found


def long_names(report: Report, a_report: Any, a_group: Any) -> Report:
    """Return a report whose names have no place to break, as the longest that brokers accept."""
    groups = [
        a_group(f"CID_{status.lower()}_" + "x" * 200, status, worst_topic="T" * 127)
        for status in STATUSES
    ]
    return Report(report.header, report.tables | {"group": a_report(groups).table("group")})


@pytest.mark.parametrize("names", ["short", "long"])
def test_page_fits_a_phone(
    names: str, report: Report, a_report: Any, a_group: Any, tmp_path: Path
) -> None:
    shown = report if names == "short" else long_names(report, a_report, a_group)
    found = measure(tmp_path, html_report(shown))
    assert found["inner"] == WIDTH
    assert found["page"] == WIDTH  # no horizontal scrolling
    assert 2 * HEIGHT < found["height"] < TALLEST
    for kind in ("wide", "cut", "small", "apart"):
        assert not found[kind], kind


def test_measurements_find_a_page_that_does_not_fit(report: Report, tmp_path: Path) -> None:
    """Without its rules for phones, the page fails: the test above measures something."""
    page = html_report(report).replace(b"max-width: 760px", b"max-width: 1px")
    found = measure(tmp_path, page)
    assert found["page"] > WIDTH or found["wide"] or found["cut"] or found["apart"]


def test_screenshot_of_a_phone(report: Report, tmp_path: Path) -> None:
    path = tmp_path / "phone.png"
    chromium(
        tmp_path, html_report(report), f"--screenshot={path}",
        f"--window-size=500,{HEIGHT}", height=HEIGHT, measured=False,
    )  # fmt: skip
    data = path.read_bytes()
    assert struct.unpack(">II", data[16:24])[0] == 500
    assert len(data) > 20_000  # an empty page has 4 KB
